"""The tokens that the answer will attend to: what a selector could know at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strategies.base import Evict, KVShape, LayerView

ALL = 10**9


@dataclass(frozen=True, kw_only=True)
class Oracle(Evict):
    """Scores a prompt token by the softmax weight that it gets from all later queries, averaged over the group.

    Later are the answer's queries and, where the question is not part of what is evicted, the question's. The answer is
    decoded once with the full cache, then the prompt is evicted and it is decoded again. A bound on every policy that
    selects by later attention; no serving method, and no bound on policies that select by something else.

    Args:
        steps: how many of the answer's queries count; 0 for all.
    """

    name: ClassVar[str] = "oracle"
    needs: ClassVar[frozenset[str]] = frozenset({"future"})

    steps: int = 0

    @property
    def future_steps(self) -> int:
        return self.steps or ALL

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.steps < 0:
            found.append(f"{self.option('steps')} must be 0 or more, got {self.steps}")
        if self.every:
            found.append(f"{self.option('every')} must be 0: the future of the prompt alone is known, got {self.every}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        assert view.future is not None
        return view.future.float()
