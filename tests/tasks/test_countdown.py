"""Numbers puzzles: solutions are worked out, by rules that are held here against plain arithmetic."""

from __future__ import annotations

import re
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.types import Response, Sample, State
from tasks.reasoning.arithmetic import evaluate
from tasks.reasoning.countdown import Countdown, draw
from tests.tasks.task_doubles import Pieces, load


def joined(parts: tuple[tuple[str, Fraction | None, list[int]], str, tuple[str, Fraction | None, list[int]]]) -> object:
    (left, one, some), sign, (right, other, more) = parts
    value = None
    if one is not None and other is not None and not (sign == "/" and other == 0):
        value = {
            "+": lambda: one + other,
            "-": lambda: one - other,
            "*": lambda: one * other,
            "/": lambda: one / other,
        }[sign]()
    return f"({left}) {sign} ({right})", value, some + more


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(lambda number: (str(number), Fraction(number), [number])),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(joined),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_expressions_are_worked_out(made: tuple[str, Fraction | None, list[int]]) -> None:
    text, value, numbers = made
    if value is None or len(text) > 200:
        with pytest.raises(ValueError):
            evaluate(text)
    else:
        assert evaluate(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    ["", "2 **  9999999", "2 // 1", "-5", "1.5 + 1", "True + 1", "x + 1", "f(1)", "1 if 1 else 2", "(1, 2)", "[1]", "1 +",
     "__import__('os')", "1; 2", "1\n2", "'a' * 9", "1 < 2", "(" * 100 + "1" + ")" * 100, "\0", "1/0", "lambda: 1"],
)  # fmt: skip
def test_nothing_but_arithmetic_is_read(text: str) -> None:
    with pytest.raises(ValueError):
        if evaluate(text)[0] == 1:
            raise ValueError("brackets alone are harmless")


@given(seed=st.integers(0, 10**6), count=st.integers(2, 7))
def test_every_puzzle_is_solved_by_its_own_lines(seed: int, count: int) -> None:
    puzzle = draw(count, Random(seed))
    have = list(puzzle.numbers)
    for line in puzzle.lines:
        left, sign, right, result = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+)", line).groups()  # type: ignore[union-attr]
        have.remove(int(left))
        have.remove(int(right))
        exact = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
        assert exact.get(sign) == int(result) if sign != "/" else int(left) == int(right) * int(result)
        have.append(int(result))
    assert have == [puzzle.target]
    assert len(puzzle.lines) == count - 1 and 0 < puzzle.target < 1000


@pytest.mark.parametrize(("numbers", "puzzles"), [(3, 1), (4, 3)])
def test_open_puzzles_are_asked_for_by_their_number(numbers: int, puzzles: int) -> None:
    for sample in load("countdown", lengths=[1200], numbers=numbers, puzzles=puzzles).samples(Pieces(), 8, seed=0):
        texts = dict(re.findall(r"Puzzle (\d+): numbers (.+?)(?=\n\nPuzzle|\Z)", sample.context, re.DOTALL))
        assert list(map(int, texts)) == list(range(1, sample.meta["puzzles"] + 1))
        still = [number for number, text in texts.items() if text.endswith("(open)")]
        assert still == re.findall(r"\d+", sample.question)
        assert len(still) == puzzles
        assert [texts[number].removesuffix(" (open)") for number in still] == [
            answer.split("\n")[0] for answer in sample.answers
        ]


TASK = Countdown(name="demo", numbers=3, puzzles=2)
SAMPLE = Sample(
    "", "", "Solve puzzles 3 and 7 in the same form.",
    ("4, 9, 2; target 34.\n4 * 9 = 36\n36 - 2 = 34", "3, 3, 6; target 12.\n3 + 3 = 6\n6 + 6 = 12"), 99, "Puzzle 3: numbers",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (
            " 4, 9, 2; target 34.\n4 * 9 = 36\n36 - 2 = 34\n\nPuzzle 7: numbers 3, 3, 6; target 12.\n3 + 3 = 6\n6 + 6 = 12",
            1,
            1,
        ),
        (" 4, 9, 2; target 34.\n9 * 4 = 36\n36 - 2 = 34", 0.5, 0.5),
        (
            " 4, 9, 2; target 34.\n4 * 9 = 36\n36 - 2 = 34\n\nPuzzle 8: numbers 3, 3, 6; target 12.\n3 + 3 = 6\n6 + 6 = 12",
            0.5,
            0.5,
        ),
        (" 4, 9, 2; target 34.\n4 * 9 = 35\n35 - 1 = 34", 0, 0),  # wrong, and a number that is not there
        (" 4, 9, 2; target 34.\n36 - 2 = 34\n4 * 9 = 36", 0, 0),  # a result before it is there
        (" 4, 9, 2; target 34.\n4 * 9 = 36", 0, 0),  # a number left over
        (" 4, 9, 2; target 34.\n(4 * 9) - 2 = 34", 0, 0.5),
        (" 4, 9, 2; target 34.\n4 * 9 - 2", 0, 0.5),
        (" 4, 9, 2; target 34.\n30 + 4 = 34", 0, 0),
        (" 4, 9, 2; target 34.\n4 / 0 = 36", 0, 0),
        (" x\n\nPuzzle 7: numbers 3, 3, 6; target 12.\n3 * 6 = 18\n18 - 6 = 12", 0, 0),  # 6 twice, 3 left over
        (" x\n\nPuzzle 7: numbers 3, 3, 6; target 12.\n6 + 3 = 9\n9 + 3 = 12", 0.5, 0.5),  # another way
        ("", 0, 0),
    ],
)
def test_solutions_are_worked_out(text: str, strict: float, flexible: float) -> None:
    judged = TASK.score(SAMPLE, Response(text, (), "length"))
    assert (judged.state, judged.value) == (State.SCORED, strict)
    assert judged.parts == {"strict": strict, "flexible": flexible}


def test_the_own_solutions_score_full() -> None:
    task = load("countdown", numbers=5, puzzles=3, lengths=[1500])
    for sample in task.samples(Pieces(), 5, seed=0):
        numbers = re.findall(r"\d+", sample.question)
        text = "\n\n".join(f"Puzzle {at}: numbers {answer}" for at, answer in zip(numbers, sample.answers, strict=True))
        assert task.score(sample, Response(text.removeprefix(sample.answer_prefix), (), "stop")).value == 1.0
    assert task.graded and not load("countdown", puzzles=1).graded


def test_every_broken_option_is_named() -> None:
    assert load("countdown", numbers=1, puzzles=0).problems(Pieces()) == [
        "task.numbers must be a whole number of 2 or more, got 1",
        "task.puzzles must be a whole number of 1 or more, got 0",
    ]
