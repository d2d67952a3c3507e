"""Texts that come with every Python installation: prose, bland noise, real source code and plain words.

Nothing is downloaded and nothing is shipped. The texts differ between Python versions, so ``sources`` names the version
and the digest of each: cells made from different texts are different cells.
"""

from __future__ import annotations

import platform
import random
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal, NamedTuple

from harness.types import digest

NOISE = (
    "The morning was calm. A boat lay at the pier. The water moved a little. Nobody was in a hurry. "
    "Later the lamps were lit."
)

_NOT_PROSE = re.compile(r"::=|>>>|^\s*[*|+\d\"'<=#]|[{}\\|]", re.MULTILINE)
_SENTENCE_END = re.compile(r'(?<=[.!?])\s+(?=[A-Z"(])')
_STARTS = re.compile(  # of statements; comments and strings are found first, so that nothing in them is
    r"""
    \#[^\n]*
    | \"{3} [^"\\]* (?: (?: \\. | "(?!"") ) [^"\\]* )* \"{3}
    | '{3} [^'\\]* (?: (?: \\. | '(?!'') ) [^'\\]* )* '{3}
    | " [^"\\\n]* (?: \\. [^"\\\n]* )* "
    | ' [^'\\\n]* (?: \\. [^'\\\n]* )* '
    | ^ (?P<start> @ | (?:async[ ]+)? def\b | class\b )
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idle_test", "lib2to3", "encodings", "pydoc_data", "__phello__"}
_LONGEST_LINE = 100  # a file with longer lines is a table or was generated; nobody reads it as code


class Code(NamedTuple):
    """The standard library, file after file, as one list of lines."""

    lines: tuple[str, ...]  # none is blank; blank lines are kept at the end of the line before them
    files: tuple[str, ...]  # the file of each line
    places: tuple[int, ...]  # lines before which another module-level statement reads naturally
    place_set: frozenset[int]  # the same


@cache
def prose() -> tuple[str, ...]:
    """The words of the readable paragraphs of Python's help topics, in order."""
    return tuple(" ".join(_paragraphs()).split())


@cache
def noise() -> tuple[str, ...]:
    """The words of five bland sentences: text without any information."""
    return tuple(NOISE.split())


def passage(words: Sequence[str], rng: random.Random) -> Callable[[int], list[str]]:
    """A passage from a random sentence on: number of words -> its sentences, which a space joins.

    A longer passage continues a shorter one. At the end of ``words`` it goes on at their beginning.
    """
    at = rng.randrange(len(words))
    start = next(at + i + 1 for i in range(len(words)) if words[(at + i) % len(words)].endswith("."))
    return lambda count: sentences(" ".join(cut(words, start, count)))


def cut(items: Sequence[str], start: int, count: int) -> list[str]:
    """``count`` items from ``start`` on, going round at the end as often as needed."""
    at = start % len(items)
    found = list(items[at : at + count])
    while len(found) < count:
        found += items[: count - len(found)]
    return found


def sentences(text: str) -> list[str]:
    """The sentences of ``text``; joined by spaces they are the text again."""
    return _SENTENCE_END.split(text) if text else []


@cache
def words(kind: Literal["noun", "adjective"]) -> tuple[str, ...]:
    """Plain lower-case English words of three to nine letters, sorted."""
    assets = files("wonderwords") / "assets"
    rude = set((assets / "profanitylist.txt").read_text(encoding="utf-8").split())
    listed = set((assets / f"{kind}list.txt").read_text(encoding="utf-8").split("\n"))
    return tuple(sorted(word for word in listed - rude if re.fullmatch("[a-z]{3,9}", word)))


@cache
def _plain_words() -> tuple[str, ...]:
    return tuple(sorted({*words("noun"), *words("adjective")}))


def name(rng: random.Random) -> str:
    """A name that no text knows: "quiet-harbor"."""
    return f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"


def all_words(rng: random.Random) -> Iterator[str]:
    """Different words without end: plain ones in random order, then names of two."""
    plain = _plain_words()
    yield from rng.sample(plain, len(plain))
    seen: set[str] = set()
    while True:
        drawn = name(rng)
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


def distinct(draw: Callable[[random.Random], str], rng: random.Random, count: int) -> list[str]:
    """``count`` different results of ``draw``."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[draw(rng)] = None
    return list(drawn)


def listed(items: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


@cache
def code() -> Code:
    """Python's own library, read in place: no tests, no generated tables, no third-party packages."""
    lines: list[str] = []
    names: list[str] = []
    places: list[int] = []
    for name, text in _source_files():
        starts = _statement_starts(text)
        lines.append(f"# {name}\n")
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            if not line.strip():
                lines[-1] += "\n"
                continue
            if number in starts and lines[-1].endswith("\n\n"):
                places.append(len(lines))
            lines.append(line.rstrip() + "\n")
        names += [name] * (len(lines) - len(names))
    return Code(tuple(lines), tuple(names), tuple(places), frozenset(places))


def sources(*names: Literal["prose", "noise", "words", "code"]) -> dict[str, str]:
    """Digest of each named text, and the Python version they belong to."""
    return {"python": platform.python_version(), **{name: _digest(name) for name in names}}


@cache
def _digest(name: Literal["prose", "noise", "words", "code"]) -> str:
    if name == "words":
        return digest([words("adjective"), words("noun")])
    if name == "code":
        return digest(code().lines)
    return digest(prose() if name == "prose" else noise())


def _paragraphs() -> Iterator[str]:
    """Paragraphs that read as English, each once: no headings, grammar, tables, listings or signatures."""
    seen = set()
    for _, topic in sorted(topics.items()):
        for block in re.split(r"\n\s*\n", topic):
            text = " ".join(block.split())
            text = re.sub(r"[*`]+", "", text).replace("\u2019", "'")
            whole = text[:1].isupper() and text.endswith(".") and text.isascii() and len(text.split()) >= 12
            if whole and not _NOT_PROSE.search(block) and text not in seen:
                seen.add(text)
                yield text


def _source_files() -> Iterator[tuple[str, str]]:
    """Name and text of every library file that reads as code, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root)
        if _SKIPPED_FOLDERS.intersection(name.parts) or any("config-" in part for part in name.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.isascii() and max(map(len, text.splitlines()), default=0) <= _LONGEST_LINE:
            yield name.as_posix(), text


def _statement_starts(text: str) -> set[int]:
    """First line numbers of the functions and classes at module level, decorators included.

    Read without a parse, which would take ten times as long: what begins a line and is in no string is at module level.
    """
    starts = set()
    line, at, decorated = 1, 0, False
    for found in _STARTS.finditer(text):
        if found["start"]:
            line += text.count("\n", at, found.start())
            at = found.start()
            if not decorated:
                starts.add(line)
            decorated = found["start"] == "@"
    return starts
