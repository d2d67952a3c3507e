"""Numbers puzzles, a few of them open among many that are solved: reach a target with each number once.

    Puzzle 1: numbers 3, 8, 5; target 19.
    3 * 8 = 24
    24 - 5 = 19

    Puzzle 2: numbers 4, 9, 2; target 34. (open)
    ...

    Solve puzzle 2.  ->  Puzzle 2: numbers [4, 9, 2; target 34.
                         4 * 9 = 36
                         36 - 2 = 34]

The puzzle must be found in the text first, then each line needs the result of the line before. Solutions are worked out, not
compared: any that keeps the rules is right.

After the countdown task of LongProc (https://arxiv.org/abs/2501.05414), with own puzzles and form.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus
from tasks.base import Knob, Tokenizer
from tasks.reasoning.arithmetic import evaluate
from tasks.sizing import Draft, SizedTask, first_of

INSTRUCTION = (
    "In each of these puzzles a target is reached: every number is used once, with +, -, * or /, and so is every result but "
    "the last. Some puzzles are open."
)
_PUZZLE = re.compile(r"^\s*Puzzle (\d+):", re.MULTILINE)
_LINE = re.compile(r"([1-9]\d{0,5}) ([-+*/]) ([1-9]\d{0,5}) = ([1-9]\d{0,5})")  # no zero, so no division by it


class Puzzle(NamedTuple):
    """Numbers, target, and one way to reach it."""

    numbers: tuple[int, ...]
    lines: tuple[str, ...]
    target: int

    @property
    def task(self) -> str:
        return f"{', '.join(map(str, self.numbers))}; target {self.target}."

    @property
    def solved(self) -> str:
        return "\n".join((self.task, *self.lines))


@dataclass(frozen=True, kw_only=True)
class Countdown(SizedTask):
    """The score is the share of the puzzles asked for that are solved.

    Strict: line by line as in the text. Flexible, a part: also as one expression.

    Attributes:
        numbers: Numbers of each puzzle, so one line less in its solution.
        puzzles: Open puzzles, all asked for.
    """

    numbers: int = 3
    puzzles: int = 2

    @property
    def graded(self) -> bool:  # type: ignore[override]
        """One puzzle is solved or not; of several a share may be."""
        return self.puzzles > 1

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        asked = [draw(self.numbers, rng) for _ in range(self.puzzles)]
        places = sorted(rng.random() for _ in asked)
        solved = first_of(_others(self.numbers, rng))

        def build(units: int) -> Sample:
            count = 1 + units  # one solved puzzle at least shows the form
            open_at = [int(place * (count + 1)) + at for at, place in enumerate(places)]
            texts = [f"numbers {puzzle.solved}" for puzzle in solved(count)]
            for at, puzzle in zip(open_at, asked, strict=True):
                texts.insert(at, f"numbers {puzzle.task} (open)")
            text = "\n\n".join(f"Puzzle {number}: {text}" for number, text in enumerate(texts, 1))
            numbers = [str(at + 1) for at in open_at]
            answer = "\n\n".join(f"Puzzle {at}: numbers {p.solved}" for at, p in zip(numbers, asked, strict=True))
            begun = f"Puzzle {numbers[0]}: numbers"
            one = "puzzle" if self.puzzles == 1 else "puzzles"
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n{text}",
                question=f"Solve {one} {corpus.listed(numbers)} in the same form.",
                answers=tuple(puzzle.solved for puzzle in asked),
                max_new_tokens=len(tokenizer.encode(answer.removeprefix(begun))) + 8,
                answer_prefix=begun,
                meta={"puzzles": count + len(asked)},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        _, *written = _PUZZLE.split(f"{sample.answer_prefix}{response.text}")
        answered = dict(zip(written[::2], written[1::2], strict=True))  # number of a puzzle -> what is written about it
        texts = [answered.get(number, "") for number in re.findall(r"\d+", sample.question)]
        strict = [_solved(text, answer) for text, answer in zip(texts, sample.answers, strict=True)]
        flexible = [_reached(text, answer) for text, answer in zip(texts, sample.answers, strict=True)]
        parts = {"strict": fmean(strict), "flexible": fmean(map(max, strict, flexible))}
        return Score(State.SCORED, parts["strict"], response.text.strip(), parts)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("numbers", (2, 3, 4, 5, 6))

    def sources(self) -> dict[str, str]:
        return corpus.sources()

    def broken(self) -> list[str]:
        return checks.whole("task.numbers", self.numbers, least=2) + checks.whole("task.puzzles", self.puzzles)


def draw(count: int, rng: random.Random) -> Puzzle:
    """A puzzle made by solving it: numbers are joined two by two until one is left, in whole numbers below 1000."""
    numbers = [rng.randrange(2, 13) for _ in range(count)]
    have, lines = rng.sample(numbers, count), []
    while len(have) > 1:
        one, other = sorted((have.pop(), have.pop()), reverse=True)
        ways = {"+": one + other, "*": one * other, "-": one - other, "/": one // other if other else 0}
        able = [sign for sign, result in ways.items() if 0 < result < 1000 and (sign != "/" or one % other == 0)]
        sign = rng.choice(able)
        lines.append(f"{one} {sign} {other} = {ways[sign]}")
        have.append(ways[sign])
    return Puzzle(tuple(numbers), tuple(lines), have[0])


def _others(count: int, rng: random.Random) -> Iterator[Puzzle]:
    while True:
        yield draw(count, rng)


def _solved(text: str, answer: str) -> bool:
    """Whether the lines after the first use every number and result once and end at the target."""
    numbers, target = _stated(answer)
    lines = [line.strip() for line in text.split("\n")[1:] if line.strip()][: len(numbers) - 1]
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            return False
        left, _, right, result = match.groups()
        for used in (int(left), int(right)):
            if used not in numbers:
                return False
            numbers.remove(used)
        if evaluate(line.split("=")[0])[0] != int(result):
            return False
        numbers.append(int(result))
    return numbers == [target]


def _reached(text: str, answer: str) -> bool:
    """Whether a line holds one expression of all the numbers that gives the target."""
    numbers, target = _stated(answer)
    for line in text.split("\n"):
        try:
            value, used = evaluate(line.split("=")[0])
        except ValueError:
            continue
        if value == target and sorted(used) == sorted(numbers):
            return True
    return False


def _stated(answer: str) -> tuple[list[int], int]:
    """Numbers and target of the puzzle that ``answer`` solves."""
    *numbers, target = map(int, re.findall(r"\d+", answer.split("\n")[0]))
    return numbers, target
