"""Distance to the baseline: prose stops mid-sentence, and every strategy is fed the words that the baseline went on with.

Because all strategies then read the same tokens, their next-token distributions can be compared token by token. That is
far more sensitive than a score, and says nothing about whether answers still come out right: it sorts candidates and
never grants GO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus
from tasks.base import Tokenizer
from tasks.sizing import Draft, SizedTask


@dataclass(frozen=True, kw_only=True)
class Fidelity(SizedTask):
    """Next-token agreement with the baseline while both continue the same prose.

    Attributes:
        tokens: Tokens that are decoded and compared for each sample.
    """

    fidelity: ClassVar[bool] = True
    graded: ClassVar[bool] = True

    tokens: int = 32

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        passage = corpus.passage(corpus.prose(), self.rng(seed, index))

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=" ".join(passage(units)),
                question="Continue this text where it stops.",
                answers=(),
                max_new_tokens=self.tokens,
                follow=True,
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        if response.fidelity is None:
            return Score(State.FAILED, None, detail={"error": "the engine measured no fidelity for this sample"})
        return Score(State.SCORED, response.fidelity["top1_agreement"], detail=dict(response.fidelity))

    def sources(self) -> dict[str, str]:
        return corpus.sources("prose")

    def broken(self) -> list[str]:
        return checks.whole("task.tokens", self.tokens)
