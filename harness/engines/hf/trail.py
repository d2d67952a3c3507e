"""What an eviction cost: the attention that the full cache went on to pay to what is gone."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engines.hf.observe import weights


class Watch:
    """The softmax weight that each token gets from one row's queries from here on, averaged over the group.

    The row holds every token, so columns are positions. The group are the query heads that share what is cached: of a latent
    (MLA) all of them, each with keys of its own.
    """

    def __init__(self, heads: int, capacity: int, device: torch.device) -> None:
        self.mass = torch.zeros(heads, capacity, device=device)
        self.queries = 0

    def saw(self, query: Tensor, keys: Tensor, scaling: float) -> None:
        """Queries ``[H * G, m, d]`` of the row, and all its keys ``[H, n, d]`` or, of a latent, ``[G, n, d]``."""
        paid = weights(query, keys, scaling)
        by_group = paid.reshape(len(self.mass), -1, *paid.shape[2:])  # [H, G, m, n]
        self.mass[:, : keys.shape[1]] += by_group.mean(dim=1).sum(dim=1)
        self.queries += query.shape[1]


class Trail:
    """Which tokens of one row a layer has dropped, and how much attention they had got by then from the row under ``watch``."""

    def __init__(self, watch: Watch, device: torch.device) -> None:
        self.watch = watch
        heads, capacity = watch.mass.shape
        self.gone = torch.zeros(heads, capacity, dtype=torch.bool, device=device)
        self.before = torch.zeros(heads, capacity, device=device)

    def drop(self, positions: Tensor, stays: Tensor) -> None:
        """Of the tokens at ``positions`` ``[H, n]`` those that do not stay are dropped now."""
        self.gone.scatter_(1, positions, ~stays)
        self.before.scatter_(1, positions, self.watch.mass.gather(1, positions).masked_fill(stays, 0.0))

    def lost(self) -> tuple[Tensor, Tensor, Tensor]:
        """Attention paid to dropped tokens after they were dropped; all attention; and how many dropped tokens were missed.

        A token is missed if it got more than an equal share of the attention that was paid.
        """
        mass = self.watch.mass
        later = (mass - self.before) * self.gone
        seen = (mass > 0).sum(dim=1, keepdim=True).clamp_min(1)
        missed = later > self.watch.queries / seen
        return later.sum(), mass.sum(), missed.sum()
