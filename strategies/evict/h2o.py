"""H2O (arXiv 2306.14048): keep the newest tokens and, of the older ones, those that attention has dwelt on most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class H2O(Evict):
    """Scores a token by the softmax weight that its key got from all queries so far, and keeps the newest tokens besides.

    Evicts at every decoding step, as published; what is evicted never comes back, and what stays keeps its mass. The
    original knows no grouped queries and sums over the batch; here the weights are summed over the query heads that share a
    key/value head, of one sequence. Half of the budget goes to the newest tokens, as in the paper.

    Args:
        recent: share of the budget that goes to the newest tokens, whatever their mass.
    """

    name: ClassVar[str] = "h2o"
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    every: int = 1
    recent: float = 0.5

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if not 0 <= self.recent <= 1:
            found.append(f"{self.option('recent')} must be in [0, 1], got {self.recent}")
        if self.spans == "fair" and self.recent:
            rule = "must be 0 with spans=fair: the newest tokens are not shared out among instructions"
            found.append(f"{self.option('recent')} {rule}, got {self.recent}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        assert view.mass is not None
        return view.mass.float()

    def chosen(self, importance: Tensor, budget: int) -> tuple[Tensor, ...]:
        """As ever, with the newest tokens before all others but the protected ones."""
        older = importance.shape[1] - round(self.recent * budget)
        newest = importance[:, older:].clamp(min=torch.finfo(importance.dtype).max)
        return super().chosen(torch.cat([importance[:, :older], newest], dim=1), budget)
