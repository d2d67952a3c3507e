"""SnapKV (arXiv 2404.14469): the last prompt queries vote for the tokens to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from strategies.base import Evict, KVShape, PromptLayer


@dataclass(frozen=True, kw_only=True)
class SnapKV(Evict):
    """Scores a token by the attention that the last ``window`` queries pay to it, summed and smoothed along the prompt.

    The softmax runs over the whole prompt with its causal corner, as published. The original keeps one choice per query
    head after repeating the keys, which gives up the saving of grouped queries; here the attention of the query heads
    that share a key/value head is averaged and one choice is made for it. The window itself is always kept.

    Args:
        window: number of last prompt tokens whose queries vote (and which are kept, within the budget).
        kernel: width in tokens of the average pooling of the votes; odd.
    """

    name: ClassVar[str] = "snapkv"

    window: int = 32
    kernel: int = 5

    @property
    def query_window(self) -> int:  # type: ignore[override]
        return self.window

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.window < 1:
            found.append(f"{self.option('window')} must be 1 or more, got {self.window}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            found.append(f"{self.option('kernel')} must be odd and 1 or more, got {self.kernel}")
        return found

    def scores(self, prompt: PromptLayer) -> Tensor:
        heads, tokens, _ = prompt.keys.shape
        earlier = max(0, tokens - self.window)
        scores = torch.full((heads, tokens), torch.inf, device=prompt.keys.device)
        if earlier:
            scores[:, :earlier] = self._votes(prompt)[:, :earlier]
        return scores

    def _votes(self, prompt: PromptLayer) -> Tensor:
        assert prompt.window_queries is not None
        heads, tokens, dim = prompt.keys.shape
        earlier = tokens - self.window
        queries = prompt.window_queries[:, -self.window :].reshape(heads, -1, dim).float()  # [H, G * w, d]
        logits = prompt.scaling * queries @ prompt.keys.float().transpose(1, 2)  # [H, G * w, n]
        logits = logits.view(heads, -1, self.window, tokens)
        corner = torch.ones(self.window, self.window, dtype=torch.bool, device=logits.device).triu(1)
        logits[..., earlier:] = logits[..., earlier:].masked_fill(corner, -torch.inf)
        votes = logits.softmax(dim=-1)[..., :earlier].sum(dim=2).mean(dim=1)  # [H, n - w]
        return avg_pool1d(votes, self.kernel, stride=1, padding=self.kernel // 2)
