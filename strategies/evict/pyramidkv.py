"""PyramidKV (arXiv 2406.02069): SnapKV's scores, and more of the budget for early layers than for late ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.evict.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class PyramidKV(SnapKV):
    """SnapKV with budgets that fall evenly from layer to layer (``spread=layers``).

    As published every layer keeps its window, and what is left of the budget is spread; the sum over layers is exactly that
    of uniform budgets, where the original rounds its steps down. Window, kernel and pooling are SnapKV's defaults (32, 5,
    average); the original's class has window 64.
    """

    name: ClassVar[str] = "pyramidkv"

    spread: str = "layers"

    def layer_budget(self, tokens: int, layer: int, layers: int) -> int:
        budget = self.budget(tokens)
        window = min(self.window, budget)
        if window == budget:
            return budget
        beyond = replace(self, keep=None, keep_tokens=budget - window)
        return window + super(PyramidKV, beyond).layer_budget(tokens - window, layer, layers)
