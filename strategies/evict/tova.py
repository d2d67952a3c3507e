"""TOVA (arXiv 2401.06104): keep the tokens that the newest query attends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strategies.base import Evict, LayerView


@dataclass(frozen=True, kw_only=True)
class TOVA(Evict):
    """Scores a token by the softmax weight that the newest query pays to it, averaged over all query heads of the layer.

    So every head keeps the same tokens. Evicts at every decoding step, as published, and not even the newest token is
    protected; kvpress protects it and evicts after the prompt only.
    """

    name: ClassVar[str] = "tova"
    per_head: ClassVar[bool] = False

    every: int = 1

    @property
    def query_window(self) -> int:
        return 1

    def scores(self, view: LayerView) -> Tensor:
        assert view.window_queries is not None
        heads, tokens, dim = view.keys.shape
        newest = view.window_queries[:, -1].float().view(heads, -1, dim)  # [H, G, d]
        weights = (view.scaling * newest @ view.keys.float().transpose(1, 2)).softmax(dim=-1)  # [H, G, n]
        return weights.mean(dim=(0, 1)).expand(heads, tokens)
