"""Functions of the standard library, found by their first sentence."""

from __future__ import annotations

import ast
import re
from itertools import islice

import pytest

from harness.types import Response
from tasks import corpus
from tasks.code import library
from tasks.code.search import functions
from tests.tasks.task_doubles import Pieces, load


def test_every_line_of_a_file_knows_its_place_in_the_corpus() -> None:
    lines = corpus.code().lines
    for file in islice(library.files(), 0, None, 40):
        assert len(file.lines) == len(file.places)
        for line, place in zip(file.lines, file.places, strict=True):
            assert line.strip() == "" or lines[place].rstrip("\n") == line


def test_functions_are_code_without_docstrings() -> None:
    assert len(functions()) > 3000
    assert len({each.name for each in functions() if each.description}) > 300
    for each in functions():
        (node,) = ast.parse(each.code).body
        assert isinstance(node, ast.FunctionDef) and node.name == each.name
        assert ast.get_docstring(node) is None


def test_a_description_is_of_one_function_and_does_not_tell_its_name() -> None:
    described = [each for each in functions() if each.description]
    assert len({each.description for each in described}) == len(described)
    names = [each.name for each in functions()]
    for each in described:
        assert names.count(each.name) == 1
        assert not re.search(rf"\b{re.escape(each.name)}\b", each.description, re.IGNORECASE)


def test_the_function_asked_for_stands_once_and_at_its_depth() -> None:
    for sample in load("function_search", lengths=[2000], depths=5).samples(Pieces(), 10, seed=0):
        shown = re.findall(r"^def (\w+)|^ *def (\w+)", sample.context, re.MULTILINE)
        names = [one or other for one, other in shown]
        assert names.count(sample.answers[0]) == 1
        found = re.search(rf"def {sample.answers[0]}\s*\(", sample.context)  # some write a space before the bracket
        assert found is not None
        at = found.start() / len(sample.context)
        assert at == pytest.approx(sample.meta["depth"], abs=0.25)
        assert sample.other != sample.question


def test_targets_do_not_come_twice_early() -> None:
    samples = load("function_search").samples(Pieces(), 60, seed=3)
    assert len({sample.answers for sample in samples}) == 60


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" NAME.", 1.0),
        (" `NAME`", 1.0),
        (" def NAME(self):", 1.0),
        (" NAMEs", 0.0),
        (" _NAME", 0.0),
        (" other, not NAME", 0.0),
    ],
)
def test_the_first_name_counts(text: str, right: float) -> None:
    task = load("function_search")
    (sample,) = task.samples(Pieces(), 1, seed=0)
    assert task.score(sample, Response(text.replace("NAME", sample.answers[0]), (), "stop")).value == right


def test_depths_must_be() -> None:
    assert load("function_search", depths=0).problems(Pieces()) == [
        "task.depths must be a whole number of 1 or more, got 0"
    ]
