"""Quest (arXiv 2406.10774): nothing is evicted; every decode step reads only the pages that can matter to its query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class Quest(Evict):
    """Reads the pages with the largest bound on their attention score: sum over channels of max(q * min, q * max).

    ``min`` and ``max`` are those of a page's keys, by channel. It frees no memory: it needs ``2 / page`` of the key bytes on top
    and reads fewer bytes a step. The newest page is always read, and the first ``exact`` layers read everything, as published.
    The published code scores query heads apart and has no groups; here a group's heads read one set of pages, by the largest of
    their bounds.

    Args:
        keep: share of the tokens that a step reads; ``keep_tokens`` a count.
        page: tokens a page.
        exact: first layers that read everything.
    """

    name: ClassVar[str] = "quest"
    selects_reads: ClassVar[bool] = True

    page: int = 16
    exact: int = 2

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.page < 1:
            found.append(f"{self.option('page')} must be 1 or more, got {self.page}")
        if not 0 <= self.exact < shape.layers:
            found.append(f"{self.option('exact')} must leave one of {shape.layers} layers, got {self.exact}")
        for general in ("every", "spread", "score_on", "rerotate"):
            if getattr(self, general) != getattr(Evict, general):
                found.append(f"{self.option(general)} does not apply to quest, which evicts nothing")
        return found

    def phases(self) -> tuple[Evict | None, Evict | None]:
        return None, None

    def scores(self, view: LayerView) -> Tensor:
        raise NotImplementedError("quest evicts nothing")

    def reads(self, query: Tensor, keys: Tensor, layer: int) -> Tensor:
        """Which tokens ``[H, n]`` the newest query ``[H, G, d]`` reads of ``keys`` ``[H, n, d]``."""
        heads, tokens, dim = keys.shape
        pages = -(-tokens // self.page)
        wanted = -(-self.budget(tokens) // self.page)
        if layer < self.exact or wanted >= pages:
            return torch.ones(heads, tokens, dtype=torch.bool, device=keys.device)
        padding = keys[:, -1:].expand(-1, pages * self.page - tokens, -1)
        paged = torch.cat([keys, padding], dim=1).view(heads, 1, pages, self.page, dim)
        least, most = paged.amin(dim=3), paged.amax(dim=3)  # [H, 1, pages, d]
        bound = torch.maximum(query[:, :, None] * least, query[:, :, None] * most).sum(dim=-1).amax(dim=1)
        bound[:, -1] = torch.inf
        best = bound.topk(wanted, dim=-1).indices
        chosen = torch.zeros(heads, pages, dtype=torch.bool, device=keys.device).scatter_(1, best, True)
        return chosen.repeat_interleave(self.page, dim=1)[:, :tokens]

    def acted(self, tokens: int, counts: Sequence[tuple[int, ...]], answered: int) -> tuple[bool, str]:
        pages, read = -(-tokens // self.page), -(-self.budget(tokens) // self.page)
        why = (
            f"each step reads {read} of {pages} pages in layers from {self.exact} on; evicts nothing and frees nothing"
        )
        return read < pages, why
