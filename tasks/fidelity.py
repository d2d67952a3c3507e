"""Distance to the baseline: a text stops or a question is asked, and every strategy is fed the words that the baseline says next.

Because all strategies then read the same tokens, their next-token distributions can be compared token by token. That is
far more sensitive than a score, and says nothing about whether answers still come out right: it sorts candidates and
never grants GO.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus
from tasks.base import Task, Tokenizer
from tasks.sizing import Draft, SizedTask

CALLED = {"prose": "text", "code": "code"}  # what a model is told that it reads


@dataclass(frozen=True, kw_only=True)
class Fidelity(SizedTask):
    """Next-token agreement with the baseline while both continue the same text.

    Attributes:
        tokens: Tokens that are decoded and compared for each sample.
        text: Prose that stops in mid-sentence, or code that stops after a line.
    """

    fidelity: ClassVar[bool] = True
    graded: ClassVar[bool] = True

    tokens: int = 32
    text: Literal["prose", "code"] = "prose"

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        passage = PASSAGES[self.text](self.rng(seed, index))

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=passage(units),
                question=f"Continue this {CALLED[self.text]} where it stops.",
                answers=(),
                max_new_tokens=self.tokens,
                follow=True,
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        return agreement(response)

    def spec(self) -> dict[str, Any]:
        """Prose goes without saying: cells from before there was a choice stay what they are."""
        spec = super().spec()
        if self.text == "prose":
            del spec["options"]["text"]
        return spec

    def knob(self, tokenizer: Tokenizer) -> None:
        """There is no right or wrong that could be made harder."""

    def sources(self) -> dict[str, str]:
        return corpus.sources(self.text)

    def broken(self) -> list[str]:
        return checks.whole("task.tokens", self.tokens) + checks.one_of("task.text", self.text, PASSAGES)


@dataclass(frozen=True, kw_only=True)
class FidelityOfAnswers(Task):
    """Next-token agreement with the baseline along its own answers to the questions of another task.

    Attributes:
        of: The task whose questions are asked. Its answers are not judged.
    """

    fidelity: ClassVar[bool] = True
    graded: ClassVar[bool] = True

    of: Task

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        return [replace(sample, follow=True) for sample in self.of.samples(tokenizer, n, seed)]

    def score(self, sample: Sample, response: Response) -> Score:
        return agreement(response)

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "options": {"name": self.name, "of": self.of.spec()}}

    def sources(self) -> dict[str, str]:
        return self.of.sources()

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        if self.of.fidelity:
            return [f"task.of must be a task that asks questions, got {self.of.name}, which measures fidelity itself"]
        return [checks.inside(problem, "of") for problem in self.of.problems(tokenizer)]


def agreement(response: Response) -> Score:
    """The share of tokens on which a strategy agrees with the baseline."""
    if response.fidelity is None:
        return Score(State.FAILED, None, "the engine measured no fidelity for this sample")
    return Score(State.SCORED, response.fidelity["top1_agreement"])


def _prose(rng: random.Random) -> Callable[[int], str]:
    """The first words of a passage, as many as asked for."""
    passage = corpus.passage(corpus.prose(), rng)
    return lambda words: " ".join(passage(words))


def _code(rng: random.Random) -> Callable[[int], str]:
    """The first lines of Python's library from a random function or class on, as many as asked for."""
    code = corpus.code()
    start = rng.choice(code.places)
    return lambda lines: "".join(corpus.cut(code.lines, start, lines)).rstrip()


PASSAGES = {"prose": _prose, "code": _code}
