"""RULER's common words: of a long numbered list, which ten words come up more often than all the others?

    1. harbor 2. lemon 3. harbor 4. quiet ...

    Which 10 words appear most often in the list?  ->  1. [harbor 2. ...]

No single place holds the answer: a cache that keeps only what looks important loses counts. Ten words come up 30 times and
the others 3 times; below 4096 tokens 6 times and once. A worked example with other words comes first, as in the original.

Source: https://arxiv.org/abs/2404.06654, with own wording; words from ``wonderwords``, and names of two words when these run out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from harness.types import Response, Sample, Score
from tasks import corpus
from tasks.base import Tokenizer
from tasks.retrieval import ruler
from tasks.sizing import Draft, SizedTask, first_of, shuffled

COMMON = 10
INSTRUCTION = (
    "Below is a numbered list of words. A few of them appear more often than all the others. "
    "Remember those; you will be asked for them."
)
QUESTION = f"Which {COMMON} words appear most often in the last list?"
BEGUN = f"The {COMMON} words that appear most often in the list are:"


class Counts(NamedTuple):
    """How often words come up."""

    common: int
    other: int


@dataclass(frozen=True, kw_only=True)
class RulerCommon(SizedTask):
    """The score is the share of the ten common words that the answer holds."""

    graded: ClassVar[bool] = True

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        short = self.length(index) < 4096
        counts = Counts(6, 1) if short else Counts(30, 3)
        order = rng.getrandbits(64)
        fixed = f"{INSTRUCTION} {QUESTION} {BEGUN}".lower()
        words = (word for word in corpus.all_words(rng) if word not in fixed)
        example = self._example([next(words) for _ in range(20 if short else 40)], short, order)
        common = [next(words) for _ in range(COMMON)]
        others = first_of(words)
        budget = len(tokenizer.encode(_numbered(common))) + 8

        def build(units: int) -> Sample:
            text = _numbered(shuffled(common * counts.common + others(units) * counts.other, order))
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n{example}\n\nList: {text}",
                question=QUESTION,
                answers=tuple(common),
                max_new_tokens=budget,
                answer_prefix=f"{BEGUN} 1.",
                meta={"words": COMMON + units},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        return ruler.match_all(sample, response)

    def sources(self) -> dict[str, str]:
        return corpus.sources("words")

    def _example(self, words: list[str], short: bool, order: int) -> str:
        """A list of few words, ten of them common, and its answer."""
        counts = Counts(3, 1) if short else Counts(10, 3)
        common, others = words[:COMMON], words[COMMON:]
        text = _numbered(shuffled(common * counts.common + others * counts.other, order))
        return f"Example list: {text}\n{BEGUN} {_numbered(common)}"


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))
