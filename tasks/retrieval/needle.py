"""Needles in a haystack: facts about keys are hidden in filler, and the model is asked for the facts of some keys.

    ... The secret number of quiet-harbor is 4827193. ...

    What is the secret number of quiet-harbor?  ->  The secret number of quiet-harbor is [4827193]

Values are long (seven digits, two words, a UUID). The first token of an answer may be predicted from the uncompressed
prompt; the others can only come from what the cache still holds.

Recipe after RULER (https://arxiv.org/abs/2404.06654), with own wording and texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Knob, Tokenizer
from tasks.sizing import Draft, SizedTask, depth_level, insert

KINDS: dict[str, Callable[[random.Random], str]] = {
    "numbers": lambda rng: str(rng.randrange(10**6, 10**7)),
    "words": corpus.name,
    "uuids": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
}
NOUNS = {"numbers": "number", "words": "word", "uuids": "code"}
HAYSTACKS = ("noise", "prose", "needle")


@dataclass(frozen=True, kw_only=True)
class Needle(SizedTask):
    """A sample is right when every value asked for is in the answer.

    Attributes:
        keys: Number of keys that have needles in the haystack; those not asked for distract.
        values: Needles of each key, each with a value of its own.
        queries: Number of keys asked for.
        key_kind: What keys are: words, numbers or uuids.
        value_kind: What values are: words, numbers or uuids.
        haystack: The filler: noise (bland sentences), prose, or needle (needles of ever more keys).
        depths: Number of depth levels. The first needle asked for goes from the start (0) to the end (1) in this many
            steps, one step each time all lengths had their turn, so that the map of length x depth fills evenly.
    """

    version: ClassVar[int] = 2

    keys: int = 1
    values: int = 1
    queries: int = 1
    key_kind: str = "words"
    value_kind: str = "numbers"
    haystack: str = "prose"
    depths: int = 10

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        keys = corpus.distinct(KINDS[self.key_kind], rng, self.keys)
        drawn = corpus.distinct(KINDS[self.value_kind], rng, self.keys * self.values)
        facts = [(key, drawn[at * self.values : (at + 1) * self.values]) for at, key in enumerate(keys)]
        asked = dict(facts[: self.queries])
        needles = [self._needle(key, value) for key, values in facts for value in values]
        depth = self.depth(index)
        places = [depth, *(rng.random() for _ in needles[1:])]
        filler = self._filler(rng)

        answers = tuple(value for values in asked.values() for value in values)
        wordy = "\n".join(self._needle(key, value) for key, values in asked.items() for value in values)
        budget = len(tokenizer.encode(wordy)) + 8
        question, prefix = self._question(list(asked))
        distractors = [key for key, _ in facts[self.queries :]]
        other = self._question(distractors[:1])[0] if distractors else ""

        def build(units: int) -> Sample:
            text = self._joiner.join(insert(filler(units), zip(places, needles, strict=True)))
            return Sample(
                id="",
                context=f"{self._instruction()}\n\n{text}",
                question=question,
                answers=answers,
                max_new_tokens=budget,
                answer_prefix=prefix,
                meta={"depth": depth, "needles": len(needles)},
                other=other,
            )

        return build

    def depth(self, index: int) -> float:
        """Where the first needle asked for stands in sample ``index``: 0 is the start of the haystack, 1 its end."""
        return depth_level(index // len(self.lengths), self.depths)

    def score(self, sample: Sample, response: Response) -> Score:
        found = [scorers.contains(response.text, answer) for answer in sample.answers]
        value = self.grade(sum(found) / len(found))
        return Score(State.SCORED, value, response.text.strip(), scorers.by_position(found))

    def grade(self, share: float) -> float:
        """Score of an answer that holds this share of the values asked for."""
        return float(share == 1.0)

    def knob(self, tokenizer: Tokenizer) -> Knob | None:
        """Keys that distract, where there are such; else the length."""
        return Knob("keys", (2, 4, 8, 16, 32, 64)) if self.keys > self.queries else super().knob(tokenizer)

    def sources(self) -> dict[str, str]:
        return corpus.sources("words", *(() if self.haystack == "needle" else (self.haystack,)))

    def broken(self) -> list[str]:
        found = []
        for field in ("keys", "values", "queries", "depths"):
            found += checks.whole(f"task.{field}", getattr(self, field))
        for field in ("key_kind", "value_kind"):
            found += checks.one_of(f"task.{field}", getattr(self, field), KINDS)
        found += checks.one_of("task.haystack", self.haystack, HAYSTACKS)
        if not found and self.keys < self.queries:
            found.append(f"task.keys must be at least queries ({self.queries}), got {self.keys}")
        return found

    def _instruction(self) -> str:
        return f"Some secret {NOUNS[self.value_kind]}s are hidden in the text below. Remember them; you will be asked."

    def _needle(self, key: str, value: str) -> str:
        one = "The" if self.values == 1 else "One"
        noun = NOUNS[self.value_kind] + ("" if self.values == 1 else "s")
        return f"{one} secret {noun} of {key} is {value}."

    def _question(self, keys: list[str]) -> tuple[str, str]:
        """The question about ``keys``, and the words that begin its answer."""
        noun = NOUNS[self.value_kind]
        if len(keys) > 1:  # a list that has begun makes small models go on to the last key
            question = f"What are the secret {noun}s of {corpus.listed(keys)}? Answer with a list."
            return question, f"The secret {noun}s are:\n\n- {keys[0]}:"
        thing, verb = (f"secret {noun}", "is") if self.values == 1 else (f"{self.values} secret {noun}s", "are")
        return f"What {verb} the {thing} of {keys[0]}?", f"The {thing} of {keys[0]} {verb}"

    @property
    def _joiner(self) -> str:
        return "\n" if self.haystack == "needle" else " "

    def _filler(self, rng: random.Random) -> Callable[[int], list[str]]:
        """Gives the pieces of text between which needles may stand, for any number of units (words, or needles)."""
        if self.haystack == "needle":
            return self._more_needles(rng)
        return corpus.passage(corpus.prose() if self.haystack == "prose" else corpus.noise(), rng)

    def _more_needles(self, rng: random.Random) -> Callable[[int], list[str]]:
        """Needles of keys that are never asked for, drawn as far as needed and always in the same order."""
        lines: list[str] = []

        def first(units: int) -> list[str]:
            while len(lines) < units:
                lines.append(self._needle(KINDS[self.key_kind](rng), KINDS[self.value_kind](rng)))
            return lines[:units]

        return first
