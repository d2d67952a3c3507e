"""RULER's variable tracking: which variables hold a number, when each is set to the one before it?

    ... VAR QWERT = 48271. ... VAR ABCDE = VAR QWERT. ... VAR XYZUV = VAR ABCDE. ...

    Which variables hold the number 48271?  ->  The 3 variables that hold the number 48271 are [QWERT, ABCDE, XYZUV]

The statements of a chain stand in order at random places of bland noise. Further chains distract. A short worked example comes
first, as in the original.

Source: https://arxiv.org/abs/2404.06654, with own wording and noise.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from string import ascii_uppercase
from typing import ClassVar

from harness.types import Response, Sample, Score
from tasks import checks, corpus
from tasks.base import Tokenizer
from tasks.retrieval import ruler
from tasks.sizing import Draft, SizedTask, insert

INSTRUCTION = (
    "Variables are set in the text below, some to a number and some to what another variable holds. "
    "Keep track of them; you will be asked which variables hold a number."
)


@dataclass(frozen=True, kw_only=True)
class RulerTracking(SizedTask):
    """The score is the share of the first chain's variables that the answer holds.

    Attributes:
        chains: Numbers that are passed on; all but the first distract.
        hops: How often a number is passed on, so a chain has one variable more.
    """

    graded: ClassVar[bool] = True

    chains: int = 1
    hops: int = 4

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        names = corpus.distinct(lambda rng: _name(rng, 5), rng, self.chains * (self.hops + 1))
        shown = corpus.distinct(lambda rng: _name(rng, 3), rng, self.hops + 1)
        example_number, *numbers = corpus.distinct(_number, rng, self.chains + 1)
        told = []
        for at, number in enumerate(numbers):
            chain = names[at * (self.hops + 1) : (at + 1) * (self.hops + 1)]
            told += list(zip(sorted(rng.random() for _ in chain), _statements(chain, number), strict=True))
        noise = corpus.passage(corpus.noise(), rng)
        asked = tuple(names[: self.hops + 1])
        budget = len(tokenizer.encode(f" {', '.join(asked)}.")) + 8
        example = self._example(shown, example_number)

        def build(units: int) -> Sample:
            text = " ".join(insert(noise(units), told))
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n{example}\n\nText: {text}",
                question=self._question(numbers[0]),
                answers=asked,
                max_new_tokens=budget,
                answer_prefix=self._begun(numbers[0]),
                meta={"chains": self.chains, "hops": self.hops, "depth_first": round(told[0][0], 4)},
                other=self._question(numbers[1]) if self.chains > 1 else "",
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        return ruler.match_all(sample, response)

    def sources(self) -> dict[str, str]:
        return corpus.sources("noise")

    def broken(self) -> list[str]:
        return checks.whole("task.chains", self.chains) + checks.whole("task.hops", self.hops)

    def _example(self, names: list[str], number: str) -> str:
        """One chain of short names with a sentence of noise before each statement, and its answer."""
        pieces = zip(corpus.sentences(corpus.NOISE) * (self.hops + 1), _statements(names, number), strict=False)
        text = " ".join(f"{noise} {statement}" for noise, statement in pieces)
        return f"Example: {text}\n{self._question(number)}\n{self._begun(number)} {', '.join(names)}."

    def _question(self, number: str) -> str:
        return f"Which variables hold the number {number}?"

    def _begun(self, number: str) -> str:
        return f"The {self.hops + 1} variables that hold the number {number} are"


def _statements(names: list[str], number: str) -> list[str]:
    values = [number, *(f"VAR {name}" for name in names)]
    return [f"VAR {name} = {value}." for name, value in zip(names, values, strict=False)]


def _name(rng: random.Random, letters: int) -> str:
    return "".join(rng.choices(ascii_uppercase, k=letters))


def _number(rng: random.Random) -> str:
    return str(rng.randrange(10**4, 10**5))
