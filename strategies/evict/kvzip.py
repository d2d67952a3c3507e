"""KVzip (arXiv 2505.23416): keep the tokens that the model looks at while it reads the context once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Evict, KVShape, LayerView


@dataclass(frozen=True, kw_only=True)
class KVzip(Evict):
    """Scores a token by the largest weight that its key got in the second reading, of all queries and of the whole group.

    The original ranks the tokens of all heads and layers together and only masks what it drops; here each head keeps the
    same number of tokens, unless ``spread`` says otherwise, and they are gone. Answer tokens are never read again, so they
    are not evicted.

    Args:
        sinks: tokens at the start that are always kept, within the budget.
    """

    name: ClassVar[str] = "kvzip"
    needs: ClassVar[frozenset[str]] = frozenset({"reread"})

    sinks: int = 4

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.sinks < 0:
            found.append(f"{self.option('sinks')} must be 0 or more, got {self.sinks}")
        if self.every:
            found.append(f"{self.option('every')} must be 0: only the prompt is read once more, got {self.every}")
        return found

    def scores(self, view: LayerView) -> Tensor:
        assert view.reread is not None
        scores = view.reread.float().clone()
        scores[:, : self.sinks] = torch.inf
        return scores
