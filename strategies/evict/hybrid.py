"""Several policies vote: a weighted sum of the ranks that they give to each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView
from strategies.evict.composite import Composite, changed


@dataclass(frozen=True, kw_only=True)
class Hybrid(Composite):
    """Scores a token by the weighted sum of its ranks, in [0, 1] within its head, under each part's scores.

    Scores of different policies have different units, ranks have none. What any part protects stays protected. Only the
    parts' scores count: budgets and all that every policy has are set on the hybrid, and what a part does when it chooses
    (H2O's newest tokens) is left out.

    Args:
        parts: the policies, without budgets.
        weights: a positive weight for each part.
    """

    name: ClassVar[str] = "hybrid"

    parts: tuple[Evict, ...] = ()
    weights: tuple[float, ...] = ()

    def inner(self) -> Mapping[str, tuple[Evict, ...]]:
        return {"parts": self.parts}

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if not self.parts:
            found.append(f"{self.option('parts')} must hold a policy or more, got none")
        if len(self.weights) != len(self.parts) or any(weight <= 0 for weight in self.weights):
            rule = f"must hold a positive number for each of {len(self.parts)} parts"
            found.append(f"{self.option('weights')} {rule}, got {self.weights}")
        if self.spread == "heads":
            found.append(f"{self.option('spread')} must not be heads: ranks are alike in all heads, got heads")
        if len(steps := {part.future_steps for part in self.parts if "future" in part.needs}) > 1:
            found.append(f"{self.option('parts')} must look equally far into the future, got {sorted(steps)} steps")
        for at, part in enumerate(self.parts):
            where = f"parts.{at}"
            for field in changed(part):
                rule = "must be set on the hybrid and not on a part"
                found.append(f"{self.option(where)}.{field} {rule}, got {getattr(part, field)}")
            part = replace(part, keep=1.0, keep_tokens=None, every=self.every, spread="uniform")
            found += self.problems_inside(where, part, shape)
        return found

    def scores(self, view: LayerView) -> Tensor:
        total = torch.zeros(view.keys.shape[:2], device=view.keys.device)
        protected = torch.zeros_like(total, dtype=torch.bool)
        for part, weight in zip(self.parts, self.weights, strict=True):
            scores = part.scores(view)
            total += weight * _places(scores)
            protected |= scores.isposinf()
        return (total / max(1, total.shape[1] - 1)).masked_fill(protected, torch.inf)


def _places(scores: Tensor) -> Tensor:
    """Places from 0 (the worst) to n - 1, ``[H, n]``; of equal scores the later is the better."""
    return scores.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
