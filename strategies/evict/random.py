"""Random eviction: the baseline that a selector must beat (arXiv 2609.03430), and the positive control of every verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView, generator


@dataclass(frozen=True, kw_only=True)
class Random(Evict):
    """Keeps the prompt's ends and, between them, tokens drawn at random for each head.

    Args:
        first: tokens at the start that are always kept, within the budget.
        last: tokens at the end that are always kept, within the budget.
    """

    name: ClassVar[str] = "random"
    on_latents: ClassVar[bool] = True
    version: ClassVar[int] = 2

    first: int = 4
    last: int = 32

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        for field in ("first", "last"):
            if getattr(self, field) < 0:
                found.append(f"{self.option(field)} must be 0 or more, got {getattr(self, field)}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        heads, tokens, _ = view.keys.shape
        scores = torch.rand(heads, tokens, generator=generator(view)).to(view.keys.device)
        scores[:, : self.first] = torch.inf
        scores[:, max(0, tokens - self.last) :] = torch.inf
        return scores
