"""A path followed link by link and written down: long output in which every line depends on the line before.

    picket -> road
    lemon -> harbor
    quiet -> lemon
    harbor -> silk
    ...

    Start at quiet. Write down the first 3 links of your way.
    ->  quiet -> [lemon
        lemon -> harbor
        harbor -> silk]

The links stand in any order and each place has one link onward. A cache that loses a link, before the first line or while
the answer grows, derails the rest: the score is how far the answer came.

After the path traversal of LongProc (https://arxiv.org/abs/2501.05414), with an own form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile
from random import Random
from typing import ClassVar

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus
from tasks.base import Knob, Tokenizer
from tasks.sizing import Draft, SizedTask, first_of, shuffled

INSTRUCTION = "Each line of this list is a link: from the place on the left one comes to the place on the right."
_PLACE = re.compile(r"[a-z]+(?:-[a-z]+)*")


@dataclass(frozen=True, kw_only=True)
class Path(SizedTask):
    """The score is the share of lines before the first wrong one.

    Strict: a line counts as it stands in the list. Flexible, a part: only the places count, in order.

    Attributes:
        steps: Links to follow, so lines to write.
    """

    graded: ClassVar[bool] = True

    steps: int = 8

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        places = (word for word in corpus.all_words(rng) if word not in self._fixed)
        stops = list(islice(places, self.steps + 1))
        path = [_link(*pair) for pair in pairwise(stops)]
        order = rng.getrandbits(64)
        others = first_of(_other_links(places, rng))
        begun, _, rest = "\n".join(path).partition(f" {stops[1]}")
        budget = len(tokenizer.encode(f" {stops[1]}{rest}\n")) + 8

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n" + "\n".join(shuffled([*path, *others(units)], order)),
                question=self._question(stops[0]),
                answers=tuple(stops[1:]),
                max_new_tokens=budget,
                answer_prefix=begun,
                stop=("\n\n",),
                meta={"steps": self.steps, "links": units + self.steps},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        begun = f"{sample.answer_prefix}{response.text}"
        stops = [sample.answer_prefix.split()[0], *sample.answers]
        lines = [" ".join(line.split()) for line in begun.splitlines()]
        named = [place for line in begun.splitlines() for place in _PLACE.findall(line)]
        visited = [place for at, place in enumerate(named) if at == 0 or place != named[at - 1]]
        strict = _agree(lines, [_link(*pair) for pair in pairwise(stops)])
        flexible = max(_agree(visited, stops) - 1, 0)
        parts = {"strict": strict / self.steps, "flexible": flexible / self.steps}
        return Score(State.SCORED, parts["strict"], response.text.strip(), parts)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("steps", (1, 2, 4, 8, 16, 32))

    def sources(self) -> dict[str, str]:
        return corpus.sources("words")

    def broken(self) -> list[str]:
        return checks.whole("task.steps", self.steps)

    def _question(self, start: str) -> str:
        links = "the first link" if self.steps == 1 else f"the first {self.steps} links"
        return f"Start at {start} and follow the list. Write down {links} of your way, each as it stands in the list."

    @property
    def _fixed(self) -> str:
        """Words of the fixed texts are no places."""
        return f"{INSTRUCTION} {self._question('')}".lower()


def _other_links(places: Iterator[str], rng: Random) -> Iterator[str]:
    """Links without end that never touch the path: short paths of their own."""
    while True:
        stops = list(islice(places, rng.randrange(3, 9)))
        yield from (_link(*pair) for pair in pairwise(stops))


def _link(source: str, target: str) -> str:
    return f"{source} -> {target}"


def _agree(found: list[str], right: list[str]) -> int:
    """How far ``found`` is as ``right`` from the start on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, right, strict=False)))
