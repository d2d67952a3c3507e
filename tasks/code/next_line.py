"""The line of code that comes next, where it takes up a name that was last seen far above.

    def _open_terminal(): ...
    ... a page of Python's own library, in which _open_terminal does not come up ...

    Write the line that comes next.  ->      master_fd, slave_name = _open_terminal()

What stands near tells how such a line looks, and only what stands far above tells the name. So a cache that keeps the newest
tokens writes a line that looks right and is not.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import ClassVar, NamedTuple

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Tokenizer
from tasks.code import library
from tasks.sizing import Draft, SizedTask

_WORD = re.compile(r"[A-Za-z_]\w{5,}")  # a shorter name is a single token that many texts suggest
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise)
_REPEATED = 2  # lines that begin the answer: without them small models begin a program of their own
_SHORTEST, _LONGEST = 15, 90  # characters of a line
_FEW, _FAR = (
    320,
    6000,
)  # tokens of a prompt below which the distance shrinks no more; characters from which it need not grow


class Target(NamedTuple):
    """A line to be written, a name in it, and where that was seen last; both are places in ``corpus.code().lines``."""

    file: str
    place: int
    name: str
    seen: int
    characters: int  # from there to here


@dataclass(frozen=True, kw_only=True)
class NextLine(SizedTask):
    """The score is the similarity of the answer's first line of code with the true one; "exact", a part, is their equality.

    Attributes:
        least: Lines, at least, between the last mention of the name and the line that takes it up.
    """

    graded: ClassVar[bool] = True
    chance: ClassVar[float] = 0.3  # mean similarity of the answers of two samples

    least: int = 8

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        by_file = self._by_file(self.length(index))
        files = list(by_file)
        self.rng(seed, -1).shuffle(files)
        target = rng.choice(by_file[files[index % len(files)]])
        lines = corpus.code().lines
        line = lines[target.place].rstrip()
        least = target.place - target.seen  # the mention is always shown
        indent = line[
            : max(len(line) - len(line.lstrip()) - 1, 0)
        ]  # the last space is part of the word that follows it
        before = "".join(lines[target.place - _REPEATED : target.place]) + indent
        budget = len(tokenizer.encode(f"{line}\n")) + 8

        def build(units: int) -> Sample:
            count = least + units
            shown = "".join(corpus.cut(lines, target.place - count, count)).rstrip()
            return Sample(
                id="",
                context=f"Read this Python code. Its end is missing.\n\n```python\n{shown}\n```",
                question="Repeat the last lines of this code, and write the line that comes next.",
                answers=(line.strip(),),
                max_new_tokens=budget,
                answer_prefix=f"```python\n{before}",
                stop=("\n",),
                cluster=target.file,
                meta={"file": target.file, "name": target.name, "lines_above": least, "lines": count},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        line = scorers.code_line(response.text)
        similarity = scorers.code_similarity(response.text, sample.answers)
        return Score(State.SCORED, similarity, line, {"exact": float(line == sample.answers[0])})

    def sources(self) -> dict[str, str]:
        return corpus.sources("code")

    def broken(self) -> list[str]:
        found = checks.whole("task.least", self.least)
        if not found and not all(self._by_file(length) for length in self.lengths if isinstance(length, int)):
            found.append(f"task.least must leave lines to ask for at every length, got {self.least}")
        return found

    def _by_file(self, length: int) -> dict[str, list[Target]]:
        """Targets whose name was seen as far above as a prompt of ``length`` tokens has room for."""
        room = max(length, _FEW)
        nearest, farthest = min(room * 3 // 5, _FAR), room * 4 // 5  # a token is a character and a half, or more
        grouped: dict[str, list[Target]] = {}
        for target in targets():
            if nearest <= target.characters <= farthest and target.place - target.seen > self.least:
                grouped.setdefault(target.file, []).append(target)
        return grouped


@cache
def targets() -> tuple[Target, ...]:
    """Every line that is a whole statement, with each of its names that came up before in the same file."""
    return tuple(target for file in library.files() for target in _targets(file))


def _targets(file: library.File) -> Iterator[Target]:
    starts = list(accumulate((len(line) + 1 for line in file.lines), initial=0))
    statements = {node.lineno: node for node in ast.walk(file.tree) if isinstance(node, _STATEMENTS)}
    seen: dict[str, int] = {}
    for number, line in enumerate(file.lines, 1):
        node = statements.get(number)
        if node and node.end_lineno == number and _SHORTEST <= len(line.strip()) <= _LONGEST and _is_code(node, line):
            for name in sorted(_names(node) & seen.keys()):
                last = seen[name]
                characters = starts[number - 1] - starts[last - 1]
                yield Target(file.name, file.places[number - 1], name, file.places[last - 1], characters)
        seen.update(dict.fromkeys(_WORD.findall(line), number))


def _is_code(node: ast.stmt, line: str) -> bool:
    """Whether ``node`` is all that stands on ``line``, and more than a text."""
    whole = node.col_offset == len(line) - len(line.lstrip()) and node.end_col_offset == len(line)
    return whole and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _names(node: ast.AST) -> set[str]:
    """Names in ``node`` that are long enough and not Python's own."""
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    names |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return {name for name in names if _WORD.fullmatch(name) and not hasattr(builtins, name)}
