"""Delayed eviction: a few answer tokens are seen before the prompt is evicted (the idea of KVpop, arXiv 2607.05061)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class Delayed(Evict):
    """Scores a prompt token by the softmax weight that it gets from the first ``late`` queries of the answer.

    Averaged over the group; where the question is not part of what is evicted, its queries count too. KVpop trains a scorer
    that sees the near future; this is the part of it that needs no training. The answer is decoded once with the full
    cache, then the prompt is evicted and it is decoded again from its start: a bound on what a delay is worth, no serving
    method. It differs from the oracle in how little of the future it sees.

    Args:
        late: how many of the answer's queries count.
    """

    name: ClassVar[str] = "delayed"
    needs: ClassVar[frozenset[str]] = frozenset({"future"})

    late: int = 8

    @property
    def future_steps(self) -> int:
        return self.late

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.late < 1:
            found.append(f"{self.option('late')} must be 1 or more, got {self.late}")
        if self.every:
            found.append(f"{self.option('every')} must be 0: the future of the prompt alone is known, got {self.every}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        assert view.future is not None
        return view.future.float()
