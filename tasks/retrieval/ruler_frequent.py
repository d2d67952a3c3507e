"""RULER's frequent words: coded words of a text follow Zipf's law, and the three most frequent are asked for.

    ... xqzvba hjuoil ... xqzvba ... ktrewq xqzvba ...

    What are the three most frequent coded words?  ->  The three most frequent coded words are: [xqzvba, ktrewq, hjuoil]

Rank k of N words comes up floor(N k^-alpha / zeta(alpha)) times. The first rank is written as dots and is noise, so the
answer is ranks two to four; the steeper the law, the easier.

Source: https://arxiv.org/abs/2404.06654, with own wording.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from string import ascii_lowercase
from typing import ClassVar

from scipy.special import zeta

from harness.types import Response, Sample, Score
from tasks import corpus
from tasks.base import Tokenizer
from tasks.retrieval import ruler
from tasks.sizing import Draft, SizedTask, shuffled

INSTRUCTION = "Read this coded text and keep track of how often each coded word appears. Dots mean nothing."
ASKED = 3
TOKENS_A_WORD = 50  # one word of the vocabulary for so many tokens of length, as in the original


@dataclass(frozen=True, kw_only=True)
class RulerFrequent(SizedTask):
    """The score is the share of the three most frequent coded words that the answer holds.

    Attributes:
        alpha: Exponent of Zipf's law, above 1.
    """

    graded: ClassVar[bool] = True

    alpha: float = 2.0

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        vocabulary = max(self.length(index) // TOKENS_A_WORD, ASKED + 2)
        coded = corpus.distinct(_coded, rng, vocabulary - 1)
        order = rng.getrandbits(64)
        least = self._least()
        budget = len(tokenizer.encode(f" {', '.join(coded[:ASKED])}.")) + 8

        @cache  # a word more is often no word more, by the law
        def text(counts: tuple[int, ...]) -> str:
            words = [word for word, count in zip(["...", *coded], counts, strict=False) for _ in range(count)]
            return " ".join(shuffled(words, order))

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n{text(self.counts(least + units, vocabulary))}",
                question="What are the three most frequent coded words of this text? Leave the dots aside.",
                answers=tuple(coded[:ASKED]),
                max_new_tokens=budget,
                answer_prefix="The three most frequent coded words are:",
                meta={"words": least + units, "vocabulary": vocabulary},
            )

        return build

    def counts(self, words: int, vocabulary: int) -> tuple[int, ...]:
        """How often each rank comes up in a text of so many words; ranks that do not are left out."""
        total = float(zeta(self.alpha))
        law = (int(words * rank**-self.alpha / total) for rank in range(1, vocabulary + 1))
        return tuple(takewhile(lambda count: count > 0, law))

    def score(self, sample: Sample, response: Response) -> Score:
        return ruler.match_all(sample, response)

    def sources(self) -> dict[str, str]:
        return corpus.sources()

    def broken(self) -> list[str]:
        if isinstance(self.alpha, (int, float)) and 1 < self.alpha <= 4:
            return []
        return [f"task.alpha must be a number above 1 and at most 4, got {self.alpha!r}"]

    def _least(self) -> int:
        """Words at which the last rank asked for comes up more often than the next, so that there is one answer."""
        step = (ASKED + 1) ** -self.alpha - (ASKED + 2) ** -self.alpha
        return int(2 * float(zeta(self.alpha)) / step) + 1


def _coded(rng: random.Random) -> str:
    return "".join(rng.choices(ascii_lowercase, k=6))
