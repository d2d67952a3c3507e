"""Programs: the tiny language does what Python does, and a module says all that is needed."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from harness.types import Response
from tasks.code import output, tiny
from tests.tasks.task_doubles import Pieces, load


def python(code: str, call: str) -> Any:
    """What Python itself makes of a program that this repository wrote."""
    scope: dict[str, Any] = {}
    exec(code, scope)
    return eval(call, scope)


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_programs_do_what_python_does(steps: int) -> None:
    rng = random.Random(steps)
    names = ["one", "two", "three"]
    kinds = set()
    for _ in range(400):
        chain = output._chain(rng, names[: rng.randrange(1, 4)], steps)
        program = {function.name: function for function, _ in chain}
        call = tiny.Call(chain[0][0].name, chain[0][1])
        value = call.value({}, program)
        code = "\n\n".join(function.code() for function, _ in chain)
        assert value == python(code, call.code()), code
        kinds.add(type(value))
    assert kinds == {int, str, list}


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_the_module_that_is_shown_prints_the_answer(calls: int) -> None:
    for sample in load("output_prediction", lengths=[1600], calls=calls, steps=3).samples(Pieces(), 20, seed=calls):
        module = sample.context.split("```python\n")[1].removesuffix("```")
        asked = re.fullmatch(r"What does print\((.*)\) print\?", sample.question)
        other = re.fullmatch(r"What does print\((.*)\) print\?", sample.other)
        assert asked and other and asked[1] != other[1]
        assert str(python(module, asked[1])) == sample.answers[0]
        assert len(re.findall("^def ", module, re.MULTILINE)) == sample.meta["functions"]
        names = re.findall(r"^def (\w+)", module, re.MULTILINE)
        assert len(set(names)) == len(names)
        python(module, other[1])  # stands there as well


def test_arguments_of_a_call_are_not_changed() -> None:
    """A list that a function is given is that function's, in Python too, so no program may grow its arguments."""
    items = tiny.Constant([1, 2])
    assert items.value({}, {}) is not items.constant


def test_what_is_printed_is_short_and_long_enough_to_need_the_cache() -> None:
    for sample in load("output_prediction", lengths=[2400], steps=6, calls=3).samples(Pieces(), 20, seed=4):
        assert 4 <= len(sample.answers[0]) <= 48


def test_spaces_in_a_list_do_not_count() -> None:
    task = load("output_prediction")
    sample = next(sample for sample in task.samples(Pieces(), 20, seed=0) if ", " in sample.answers[0])
    assert task.score(sample, Response(sample.answers[0].replace(" ", ""), (), "stop")).value == 1.0


def test_the_function_asked_for_stands_at_its_depth() -> None:
    for sample in load("output_prediction", lengths=[3000], depths=5).samples(Pieces(), 10, seed=0):
        name = re.search(r"print\((\w+)\(", sample.question)
        assert name
        at = sample.context.index(f"def {name[1]}(") / len(sample.context)
        assert at == pytest.approx(sample.meta["depth"], abs=0.15)


@pytest.mark.parametrize(
    ("text", "right"),
    [(" ANSWER", 1.0), (" `ANSWER`", 1.0), (" 'ANSWER'\nelse", 1.0), (" x ANSWER", 0.0), (" ANSWER1", 0.0), ("", 0.0)],
)
def test_the_first_line_is_what_is_printed(text: str, right: float) -> None:
    task = load("output_prediction")
    for sample in task.samples(Pieces(), 6, seed=0):
        assert task.score(sample, Response(text.replace("ANSWER", sample.answers[0]), (), "stop")).value == right


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("calls", -1), ("depths", 0)])
def test_what_cannot_be_is_named(field: str, value: int) -> None:
    (problem,) = load("output_prediction", **{field: value}).problems(Pieces())
    assert problem.startswith(f"task.{field} must be") and problem.endswith(f"got {value}")
