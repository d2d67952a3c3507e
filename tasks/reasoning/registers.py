"""The value of a variable at the end of a long program of one-line steps.

    dor = 17
    kib = 40
    zun = dor
    kib = kib + 3
    zun = zun - 5
    ...

    What is the value of zun at the end?  ->  zun = [12]

The lines that decide it are few, and each depends on the one before; the lines between them are about other variables. More
steps, harder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from harness.types import Response, Sample, Score
from tasks import checks, corpus
from tasks.base import Knob, Tokenizer
from tasks.reasoning import result
from tasks.sizing import Draft, SizedTask, first_of, insert

NAMES = tuple("".join(letters) for letters in product("bdfgklmnprtvz", "aeiou", "bdgklmnprtz"))


@dataclass(frozen=True, kw_only=True)
class Registers(SizedTask):
    """A sample is right when the first number of the answer is the value; the last number is its part "flexible".

    Attributes:
        steps: Lines between the first value and the last: sums, differences and copies to another variable.
        variables: Other variables, of which all further lines are.
    """

    steps: int = 2
    variables: int = 6

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        names = iter(rng.sample(NAMES, self.steps + 1 + self.variables))
        name, value = next(names), 9 * self.steps + rng.randrange(10, 60)  # never below zero
        lines = [f"{name} = {value}"]
        for _ in range(self.steps):
            match rng.choice(("sum", "difference", "copy")):
                case "copy":
                    name, source = next(names), name
                    lines.append(f"{name} = {source}")
                case kind:
                    sign, number = (1, rng.randrange(1, 10)) if kind == "sum" else (-1, rng.randrange(1, 10))
                    value += sign * number
                    lines.append(f"{name} = {name} {'+' if sign > 0 else '-'} {number}")
        told = list(zip(sorted(rng.random() for _ in lines), lines, strict=True))
        others = first_of(_other_lines([next(names) for _ in range(self.variables)], rng))
        budget = len(tokenizer.encode(f" {value}\n")) + 4

        def build(units: int) -> Sample:
            program = "\n".join(insert(others(units), told))
            return Sample(
                id="",
                context=f"Run this program in your head, line by line.\n\n```\n{program}\n```",
                question=f"What is the value of {name} at the end?",
                answers=(str(value),),
                max_new_tokens=budget,
                answer_prefix=f"{name} =",
                stop=("\n",),
                meta={"steps": self.steps, "lines": units + len(lines), "depth_first": round(told[0][0], 4)},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        return result.score(sample, response)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("steps", (1, 2, 4, 8, 16, 32))

    def sources(self) -> dict[str, str]:
        return corpus.sources()

    def broken(self) -> list[str]:
        found = checks.whole("task.steps", self.steps) + checks.whole("task.variables", self.variables, least=2)
        if not found and self.steps + 1 + self.variables > len(NAMES):
            most = len(NAMES) - 1 - self.variables
            found.append(f"task.steps must be at most {most} with {self.variables} variables, got {self.steps}")
        return found


def _other_lines(names: list[str], rng: random.Random) -> Iterator[str]:
    """Lines without end about ``names`` alone; each name is given a number before anything else."""
    yield from (f"{name} = {rng.randrange(10, 90)}" for name in names)
    while True:
        name, source = rng.sample(names, 2)
        change = f"{name} {rng.choice('+-')} {rng.randrange(1, 10)}"
        yield f"{name} = {rng.choice([str(rng.randrange(10, 90)), source, change])}"
