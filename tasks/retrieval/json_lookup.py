"""Values in a large JSON object whose keys and values are all random UUIDs.

    {
     "0b4e...": "91c7...",
     ...
    }

    What is the value of "0b4e..."?  ->  "0b4e...": "[91c7...]

All pairs look alike, so no eviction can tell before the question which to keep, and every digit of a value must come back.
Several keys can be asked for at once.

After the key-value retrieval of "Lost in the Middle" (https://arxiv.org/abs/2307.03172), with own wording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from uuid import UUID

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Tokenizer
from tasks.sizing import Draft, SizedTask, depth_level, first_of, insert


class Entry(NamedTuple):
    key: str
    value: str

    @property
    def line(self) -> str:
        return f' "{self.key}": "{self.value}"'


@dataclass(frozen=True, kw_only=True)
class JsonLookup(SizedTask):
    """The score is the share of the values asked for that the answer holds.

    Attributes:
        queries: Number of keys asked for.
        depths: Number of depth levels of the first pair asked for, from the start (0) to the end (1) of the object.
    """

    queries: int = 1
    depths: int = 10

    @property
    def graded(self) -> bool:  # type: ignore[override]
        """One value is found or not; of several a share may be."""
        return self.queries > 1

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        entries = _entries(rng)
        asked = [next(entries) for _ in range(self.queries)]
        spare = next(entries)  # another key to ask for, where a cache is reused
        depth = self.depth(index)
        places = [depth, *(rng.random() for _ in (*asked[1:], spare))]
        others = first_of(entries)
        question, begun = self._question([entry.key for entry in asked])
        budget = len(tokenizer.encode(",".join(entry.line for entry in asked))) + 8

        def build(units: int) -> Sample:
            planted = zip(places, [entry.line for entry in (*asked, spare)], strict=True)
            text = ",\n".join(insert([entry.line for entry in others(units)], planted))
            return Sample(
                id="",
                context=f"Read this JSON object.\n\n{{\n{text}\n}}",
                question=question,
                answers=tuple(entry.value for entry in asked),
                max_new_tokens=budget,
                answer_prefix=begun,
                stop=('"',) if self.queries == 1 else (),
                meta={"depth": depth, "pairs": units + len(asked) + 1},
                other=self._question([spare.key])[0],
            )

        return build

    def depth(self, index: int) -> float:
        """Where the first pair asked for stands in sample ``index``: 0 is the start of the object, 1 its end."""
        return depth_level(index // len(self.lengths), self.depths)

    def score(self, sample: Sample, response: Response) -> Score:
        share = scorers.share_contained(response.text, sample.answers)
        return Score(State.SCORED, share, response.text.strip())

    def sources(self) -> dict[str, str]:
        return corpus.sources()

    def broken(self) -> list[str]:
        return checks.whole("task.queries", self.queries) + checks.whole("task.depths", self.depths)

    def _question(self, keys: list[str]) -> tuple[str, str]:
        """The question about ``keys``, and the text that begins its answer."""
        quoted = [f'"{key}"' for key in keys]
        if len(keys) == 1:
            return f"What is the value of {quoted[0]}?", f'{quoted[0]}: "'
        return f"What are the values of {corpus.listed(quoted)}? Answer with a JSON object.", f'{{\n {quoted[0]}: "'


def _entries(rng: Random) -> Iterator[Entry]:
    while True:
        key, value = (str(UUID(int=rng.getrandbits(128), version=4)) for _ in range(2))
        yield Entry(key, value)
