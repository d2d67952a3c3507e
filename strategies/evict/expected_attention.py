"""Expected Attention (arXiv 2510.00636): keep the tokens that queries still to come should attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView, Rotation

AT_ONCE = 64  # positions whose rotation matrices are in memory at once


@dataclass(frozen=True, kw_only=True)
class ExpectedAttention(Evict):
    """Scores a token by the weight expected from Gaussian queries, times the norm of its value.

    Queries before rotary positions are taken as Gaussian with the prompt's mean m and covariance S (of one query head), and
    turned by R, the mean rotation of the next ``future`` positions. The expectation of exp(scaling * q @ k) is then
    exp(scaling * k @ R m + scaling^2 / 2 * k @ R S R^T k). It is normalised over the tokens behind the sinks, as in kvpress
    and unlike a real softmax, and averaged over the query heads that share a key/value head. Where the view has no rotation
    the moments are used as they are.

    Args:
        future: positions after the newest token over which rotations are averaged.
        sinks: tokens at the start that are always kept, within the budget.
        use_vnorm: whether the expected weight is multiplied by the L2 norm of the value.
        epsilon: what is added to the expected weight before that.
    """

    name: ClassVar[str] = "expected_attention"
    needs: ClassVar[frozenset[str]] = frozenset({"moments"})

    future: int = 512
    sinks: int = 4
    use_vnorm: bool = True
    epsilon: float = 0.0

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.future < 1:
            found.append(f"{self.option('future')} must be 1 or more, got {self.future}")
        for field in ("sinks", "epsilon"):
            if getattr(self, field) < 0:
                found.append(f"{self.option(field)} must be 0 or more, got {getattr(self, field)}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        heads, tokens, _ = view.keys.shape
        scores = torch.full((heads, tokens), torch.inf, device=view.keys.device)
        weights = self._weights(view)
        if self.use_vnorm:
            weights = (weights + self.epsilon) * view.values[:, self.sinks :].float().norm(dim=-1)
        scores[:, self.sinks :] = weights
        return scores

    def _weights(self, view: LayerView) -> Tensor:
        """Expected weights ``[H, n - sinks]``."""
        assert view.moments is not None
        heads, tokens, dim = view.keys.shape
        mean = view.moments.mean.float().unflatten(0, (heads, -1))  # [H, G, d]
        covariance = view.moments.covariance.float().unflatten(0, (heads, -1))  # [H, G, d, d]
        if view.rotation is not None:
            start = tokens if view.positions is None else int(view.positions.max()) + 1
            turn = mean_turn(view.rotation, start, self.future, torch.eye(dim, device=view.keys.device))
            mean, covariance = mean @ turn.T, turn @ covariance @ turn.T
        keys = view.keys[:, self.sinks :].float()
        linear = mean @ keys.transpose(1, 2)  # [H, G, n - sinks]
        square = ((keys[:, None] @ covariance) * keys[:, None]).sum(dim=-1)
        return (view.scaling * linear + view.scaling**2 / 2 * square).softmax(dim=-1).mean(dim=1)


def mean_turn(rotation: Rotation, start: int, count: int, units: Tensor) -> Tensor:
    """The mean matrix ``[d, d]`` of the rotations to ``count`` positions from ``start`` on; ``units`` is the identity."""
    total = torch.zeros_like(units)
    for positions in torch.arange(start, start + count, device=units.device).split(AT_ONCE):
        turned = rotation.turn(units.expand(len(positions), -1, -1), positions[:, None].expand(-1, len(units)))
        total += turned.sum(dim=0)  # row i is what becomes of unit vector i
    return total.T / count
