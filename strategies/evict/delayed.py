"""Delayed eviction: a few answer tokens are seen before the prompt is evicted (the idea of KVpop, arXiv 2607.05061)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.base import KVShape
from strategies.evict.foresight import Foresight


@dataclass(frozen=True, kw_only=True)
class Delayed(Foresight):
    """Foresight over the first ``late`` queries of the answer: a bound on what a delay is worth.

    KVpop trains a scorer that sees the near future; this is the part of it that needs no training. It differs from the oracle
    in how little of the future it sees.

    Args:
        late: how many of the answer's queries count.
    """

    name: ClassVar[str] = "delayed"

    late: int = 8

    @property
    def future_steps(self) -> int:
        return self.late

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.late < 1:
            found.append(f"{self.option('late')} must be 1 or more, got {self.late}")
        return found
