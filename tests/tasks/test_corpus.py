"""The texts: readable, stable, and told apart by their hashes."""

from __future__ import annotations

import ast
import random
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import corpus


def test_prose_reads_as_prose() -> None:
    words = corpus.prose()
    assert len(words) > 10_000
    assert not re.search(r"::=|>>>|\*\*\*|===|[{}]", " ".join(words))


def test_a_longer_passage_continues_a_shorter_one_and_goes_round() -> None:
    words = ("One", "two.", "Three", "four", "five.", "Six.")
    passage = corpus.passage(words, random.Random(0))
    long = " ".join(passage(20))
    assert all(long.startswith(" ".join(passage(count))) for count in range(20))
    assert len(long.split()) == 20
    assert long[0].isupper()


@given(
    items=st.lists(st.text(max_size=2), min_size=1, max_size=7), start=st.integers(-30, 30), count=st.integers(0, 30)
)
def test_cut_goes_round_at_both_ends(items: list[str], start: int, count: int) -> None:
    assert corpus.cut(items, start, count) == [items[at % len(items)] for at in range(start, start + count)]


def test_code_is_real_and_its_places_start_functions_or_classes() -> None:
    code = corpus.code()
    assert len(code.lines) == len(code.files) > 50_000
    assert len(code.places) > 1_000
    for place in code.places[::97]:
        assert re.match(r"def |class |async |@", code.lines[place])
        assert code.lines[place - 1].endswith("\n\n")
    assert not any("test" in name.split("/")[:-1] for name in code.files[::500])
    first = next(i for i, name in enumerate(code.files) if name == "bisect.py")
    last = next(i for i in range(first, len(code.files)) if code.files[i] != "bisect.py")
    ast.parse("".join(code.lines[first:last]))


@pytest.mark.parametrize("kind", ["noun", "adjective"])
def test_words_are_plain(kind: str) -> None:
    words = corpus.words(kind)  # type: ignore[arg-type]
    assert len(words) > 500
    assert list(words) == sorted(set(words))
    assert all(word.isascii() and word.islower() and word.isalpha() for word in words)


def test_all_words_never_run_out_and_never_repeat() -> None:
    drawn = list(islice(corpus.all_words(random.Random(0)), 9000))
    assert len(set(drawn)) == 9000
    assert "-" not in "".join(drawn[:5000]) and "-" in drawn[-1]


def test_sources_name_what_was_used() -> None:
    assert set(corpus.sources("prose", "words")) == {"python", "prose", "words"}
    assert len(set(corpus.sources("prose", "noise", "words", "code").values())) == 5


def test_statements_are_found_where_a_parse_finds_them() -> None:
    """In all of the library, by Python's own parser."""

    def parsed(text: str) -> set[int]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        body = (node for node in ast.parse(text).body if isinstance(node, kinds))
        return {min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in body}

    texts = dict(corpus._source_files())
    texts["odd"] = (
        '@one\n@two(\n    "@"\n)\nasync  def f(): ...\n"""\ndef no(): ...\n\\"""\nclass No: ...\n"""\nclass C: ...  # """\n'
    )
    assert {name: corpus._statement_starts(text) for name, text in texts.items()} == {
        name: parsed(text) for name, text in texts.items()
    }
    assert corpus._statement_starts(texts["odd"]) == {1, 11}
