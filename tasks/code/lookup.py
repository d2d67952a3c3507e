"""Look up a constant in real code: a few ``NAME = number`` lines are planted in Python's own library, one is asked for.

    ...
    MAX_SESSION_OFFSET = 4827193


    class Parser:
        ...

    What is the value of MAX_SESSION_OFFSET?  ->  MAX_SESSION_OFFSET = [4827193]

The code is real, the constants are not. Of the library's own constants only some fifty are numbers long enough to need
the cache, and models know many of them by heart (MAXYEAR, S_IFDIR) or guess them from the name (ANCHOR = "anchor").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Tokenizer
from tasks.sizing import Draft, SizedTask, depth_level

ROLES = ("MAX", "MIN", "DEFAULT", "INITIAL", "RESERVED", "EXPECTED", "PREFERRED", "SHARED")
THINGS = ("BUFFER", "CACHE", "SOCKET", "QUEUE", "PACKET", "SESSION", "WORKER", "HEADER", "TOKEN", "BLOCK", "FRAME")
UNITS = ("SIZE", "LIMIT", "COUNT", "TIMEOUT", "SEED", "OFFSET", "MASK", "CHECKSUM")


@dataclass(frozen=True, kw_only=True)
class CodeLookup(SizedTask):
    """A sample is right when the first number of the answer is the constant's value.

    Attributes:
        constants: Number of planted constants; those not asked for distract.
        depths: Number of depth levels of the constant asked for, from the start (0) to the end (1) of the code.
    """

    version: ClassVar[int] = 2

    constants: int = 4
    depths: int = 10

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        code = corpus.code()
        names = rng.sample(free_names(), self.constants)
        values = [str(rng.randrange(10**6, 10**7)) for _ in names]
        place = rng.choice(self._file(seed, index))
        depth = self.depth(index)
        others = [rng.random() for _ in names[1:]]
        budget = len(tokenizer.encode(f" {values[0]}\n")) + 4

        def build(units: int) -> Sample:
            before = int(depth * units)  # the code is cut around the constant, so its depth is exact
            lines = corpus.cut(code.lines, place - before, units)
            gaps = _gaps(place - before, units)
            planted = [before, *(min(gaps, key=lambda gap: abs(gap - share * units)) for share in others)]
            for gap, name, value in sorted(zip(planted, names, values, strict=True), reverse=True):
                lines.insert(gap, f"{name} = {value}\n\n\n")
            return Sample(
                id="",
                context=f"Read this Python code.\n\n```python\n{''.join(lines).rstrip()}\n```",
                question=self._question(names[0]),
                answers=(values[0],),
                max_new_tokens=budget,
                answer_prefix=f"{names[0]} =",
                stop=("\n",),
                cluster=code.files[place],
                meta={"depth": depth, "file": code.files[place]},
                other=self._question(names[1]) if self.constants > 1 else "",
            )

        return build

    def _question(self, name: str) -> str:
        return f"What is the value of {name} in this code?"

    def _file(self, seed: int, index: int) -> tuple[int, ...]:
        """The places of one file. Files take turns in an order drawn once, so no two samples share one before all had theirs."""
        files = list(places_by_file())
        self.rng(seed, -1).shuffle(files)
        return files[index % len(files)]

    def depth(self, index: int) -> float:
        """Where the constant asked for stands in sample ``index``: 0 is the start of the code, 1 its end."""
        return depth_level(index // len(self.lengths), self.depths)

    def score(self, sample: Sample, response: Response) -> Score:
        number = scorers.first_number(response.text.replace("_", ""))
        return Score(State.SCORED, float(number == sample.answers[0]), number)

    def sources(self) -> dict[str, str]:
        return corpus.sources("code")

    def broken(self) -> list[str]:
        found = checks.whole("task.constants", self.constants)
        found += checks.whole("task.depths", self.depths)
        if not found and self.constants > len(free_names()):
            found.append(f"task.constants must be at most {len(free_names())}, got {self.constants}")
        return found


@cache
def places_by_file() -> tuple[tuple[int, ...], ...]:
    """Where a module-level statement may be put, file by file."""
    code = corpus.code()
    grouped: dict[str, list[int]] = {}
    for place in code.places:
        grouped.setdefault(code.files[place], []).append(place)
    return tuple(tuple(places) for places in grouped.values())


@cache
def free_names() -> tuple[str, ...]:
    """Natural names for constants that occur nowhere in the code."""
    taken = set(re.findall(r"[A-Z]+_[A-Z]+_[A-Z]+", "".join(corpus.code().lines)))
    names = (f"{role}_{thing}_{unit}" for role in ROLES for thing in THINGS for unit in UNITS)
    return tuple(name for name in names if name not in taken)


def _gaps(start: int, units: int) -> list[int]:
    """Where, in ``units`` lines from ``start``, a module-level statement may be put."""
    code = corpus.code()
    return [gap for gap in range(units + 1) if (start + gap) % len(code.lines) in code.place_set]
