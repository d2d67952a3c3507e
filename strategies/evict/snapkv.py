"""SnapKV (arXiv 2404.14469): the last prompt queries vote for the tokens to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class SnapKV(Evict):
    """Scores a token by the attention that the last ``window`` queries pay to it, summed and smoothed along the view.

    The softmax runs over the whole prompt with its causal corner, as published. The original keeps one choice per query
    head after repeating the keys, which gives up the saving of grouped queries; here the attention of the query heads
    that share a key/value head is reduced to one before it is pooled, and one choice is made for it. The window itself is
    always kept.

    Args:
        window: number of last prompt tokens whose queries vote (and which are kept, within the budget).
        kernel: width in tokens of the pooling of the votes; odd.
        pool: what pooling takes of its ``kernel`` votes: ``avg`` or ``max``.
        reduce: what is taken of the votes of a group's query heads: ``mean`` or ``max``.
    """

    name: ClassVar[str] = "snapkv"

    window: int = 32
    kernel: int = 5
    pool: str = "avg"
    reduce: str = "mean"

    @property
    def query_window(self) -> int:
        return self.window

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.window < 1:
            found.append(f"{self.option('window')} must be 1 or more, got {self.window}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            found.append(f"{self.option('kernel')} must be odd and 1 or more, got {self.kernel}")
        for choice, known in (("pool", ("avg", "max")), ("reduce", ("mean", "max"))):
            if getattr(self, choice) not in known:
                found.append(f"{self.option(choice)} must be one of {', '.join(known)}, got {getattr(self, choice)!r}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        heads, tokens, _ = view.keys.shape
        earlier = max(0, tokens - self.window)
        scores = torch.full((heads, tokens), torch.inf, device=view.keys.device)
        if earlier:
            scores[:, :earlier] = self._votes(view)[:, :earlier]
        return scores

    def _ahead(self, view: LayerView) -> Tensor:
        """Which keys each of the newest queries must not see: of later tokens, whatever was evicted between."""
        tokens = view.keys.shape[1]
        held = torch.arange(tokens, device=view.keys.device)[None] if view.positions is None else view.positions
        asking = held.max() - torch.arange(self.window - 1, -1, -1, device=held.device)
        return held[:, None, :] > asking[None, :, None]

    def _votes(self, view: LayerView) -> Tensor:
        assert view.window_queries is not None
        heads, tokens, dim = view.keys.shape
        earlier = tokens - self.window
        queries = view.window_queries[:, -self.window :].reshape(heads, -1, dim).float()  # [H, G * w, d]
        logits = view.scaling * queries @ view.keys.float().transpose(1, 2)  # [H, G * w, n]
        logits = logits.view(heads, -1, self.window, tokens)
        ahead = self._ahead(view)  # [H or 1, w, n]
        logits = logits.masked_fill(ahead[:, None], -torch.inf)
        votes = logits.softmax(dim=-1)[..., :earlier].sum(dim=2)  # [H, G, n - w]
        votes = votes.mean(dim=1) if self.reduce == "mean" else votes.amax(dim=1)
        pool = avg_pool1d if self.pool == "avg" else max_pool1d
        return pool(votes, self.kernel, stride=1, padding=self.kernel // 2)
