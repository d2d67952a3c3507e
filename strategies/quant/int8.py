"""INT8 cache with a symmetric scale for each token and head, as vLLM's ``int8_per_token_head``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.quant.scaled import ScaledFormat


@dataclass(frozen=True, kw_only=True)
class INT8(ScaledFormat):
    """One signed byte an element, rounded to nearest."""

    name: ClassVar[str] = "int8"
    largest: ClassVar[float] = 127.0
    dtype: ClassVar[torch.dtype] = torch.int8

    def encode(self, x: Tensor) -> Tensor:
        return x.round().clamp(-self.largest, self.largest).to(self.dtype)
