"""Attention sinks and the most recent tokens (StreamingLLM, arXiv 2309.17453), positions left as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class Window(Evict):
    """Keeps the first ``sinks`` tokens and fills the rest of the budget with the newest ones.

    Args:
        sinks: tokens at the start that are always kept, within the budget.
    """

    name: ClassVar[str] = "window"
    on_latents: ClassVar[bool] = True
    per_head: ClassVar[bool] = False

    sinks: int = 4

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.sinks < 0:
            found.append(f"{self.option('sinks')} must be 0 or more, got {self.sinks}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        heads, tokens, _ = view.keys.shape
        scores = torch.arange(tokens, dtype=torch.float32, device=view.keys.device)
        scores[: self.sinks] = torch.inf
        return scores.expand(heads, tokens)
