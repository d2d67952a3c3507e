"""R-KV (arXiv 2505.24133): keep the tokens that are attended to and that no other token could stand in for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, normalize

from strategies.base import Evict, KVShape, LayerView

AT_ONCE = 256  # rows of the similarity matrix in memory at once


@dataclass(frozen=True, kw_only=True)
class RKV(Evict):
    """Scores a token by lam * attention - (1 - lam) * redundancy, every 128 answer tokens, as in the paper's code.

    Attention: the logits of the last ``window`` queries, the largest of the query heads that share a key/value head, softmax
    over the tokens before the window, mean over the queries, max pooling. Redundancy: the mean cosine between a token's key
    and all others of its head, softmax over tokens; but each token overlooks the newest of its near-duplicates, so that of
    a run of equal tokens the newest is not called redundant. A token without near-duplicates overlooks the first token
    instead, as in the code. The window itself is always kept.

    The code rounds to the model's number format on the way; here everything is computed in float32.

    Args:
        lam: weight of attention, in [0, 1].
        window: number of last tokens whose queries count (and which are kept, within the budget).
        kernel: width in tokens of the max pooling of attention; odd.
        threshold: cosine above which two tokens are near-duplicates.
    """

    name: ClassVar[str] = "rkv"

    every: int = 128
    lam: float = 0.07
    window: int = 8
    kernel: int = 7
    threshold: float = 0.5

    @property
    def query_window(self) -> int:
        return self.window

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if not 0 <= self.lam <= 1:
            found.append(f"{self.option('lam')} must be in [0, 1], got {self.lam}")
        if self.window < 1:
            found.append(f"{self.option('window')} must be 1 or more, got {self.window}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            found.append(f"{self.option('kernel')} must be odd and 1 or more, got {self.kernel}")
        if not 0 <= self.threshold <= 1:
            found.append(f"{self.option('threshold')} must be in [0, 1], got {self.threshold}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        heads, tokens, _ = view.keys.shape
        earlier = max(0, tokens - self.window)
        scores = torch.full((heads, tokens), torch.inf, device=view.keys.device)
        if earlier:
            attention = self._attention(view, earlier)
            redundant = redundancy(view.keys, self.threshold)[:, :earlier]
            scores[:, :earlier] = self.lam * attention - (1 - self.lam) * redundant
        return scores

    def _attention(self, view: LayerView, earlier: int) -> Tensor:
        assert view.window_queries is not None
        heads = len(view.keys)
        queries = view.window_queries[:, -self.window :].float().unflatten(0, (heads, -1))  # [H, G, w, d]
        keys = view.keys[:, None, :earlier].float()
        logits = (view.scaling * queries @ keys.transpose(-1, -2)).amax(dim=1)  # [H, w, n - w]
        return max_pool1d(logits.softmax(dim=-1).mean(dim=1), self.kernel, stride=1, padding=self.kernel // 2)


def redundancy(keys: Tensor, threshold: float) -> Tensor:
    """How well the other tokens of its head stand in for a token, ``[H, n]``; sums to 1 over the tokens."""
    unit = normalize(keys.float(), dim=-1)
    tokens = torch.arange(keys.shape[1], device=keys.device)
    total = torch.zeros(keys.shape[:2], device=keys.device)
    for rows in tokens.split(AT_ONCE):
        cosine = unit[:, rows] @ unit.transpose(1, 2)  # [H, rows, n]
        cosine[:, rows - rows[0], rows] = 0.0
        newest = torch.where(cosine > threshold, tokens, 0).amax(dim=-1, keepdim=True)
        total += cosine.scatter(-1, newest, 0.0).sum(dim=1)
    return (total / len(tokens)).softmax(dim=-1)
