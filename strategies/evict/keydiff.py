"""KeyDiff (arXiv 2504.15364): keep the keys that point away from the average key. Needs no attention weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from strategies.base import Evict, LayerView


@dataclass(frozen=True, kw_only=True)
class KeyDiff(Evict):
    """Scores a token by minus the cosine between its key and the mean of all unit keys of its head."""

    name: ClassVar[str] = "keydiff"

    def scores(self, view: LayerView) -> Tensor:
        unit = normalize(view.keys.float(), dim=-1)
        anchor = normalize(unit.mean(dim=-2, keepdim=True), dim=-1)
        return -(unit * anchor).sum(dim=-1)
