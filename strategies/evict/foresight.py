"""What policies share that score the prompt by what the full cache's own later queries look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class Foresight(Evict):
    """Scores a prompt token by the softmax weight that it gets from later queries, averaged over the group.

    The answer is decoded once with the full cache, then the prompt is evicted and it is decoded again from its start: a
    bound, no serving method. Where the question is not part of what is evicted, its queries count too.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"future"})

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.every:
            found.append(f"{self.option('every')} must be 0: the future of the prompt alone is known, got {self.every}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        assert view.future is not None
        return view.future.float()
