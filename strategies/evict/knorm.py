"""Key norms (arXiv 2406.11430): keep the tokens whose keys are short. Needs no attention weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strategies.base import Evict, LayerView


@dataclass(frozen=True, kw_only=True)
class Knorm(Evict):
    """Scores a token by minus the L2 norm of its key.

    The paper's code can leave layers as they are, and does so with the first two; here all layers are evicted alike.
    """

    name: ClassVar[str] = "knorm"

    def scores(self, view: LayerView) -> Tensor:
        return -view.keys.float().norm(dim=-1)
