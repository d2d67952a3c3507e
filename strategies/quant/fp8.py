"""FP8 caches, the first format that serving engines offer (vLLM ``--kv-cache-dtype fp8_e4m3``, ``fp8_e5m2``, per-token-head)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.quant.scaled import ScaledFormat


@dataclass(frozen=True, kw_only=True)
class FP8(ScaledFormat):
    """One e4m3 byte an element. The cast is clamped here: what an unclamped one does differs between torch releases."""

    name: ClassVar[str] = "fp8"
    largest: ClassVar[float] = 448.0
    dtype: ClassVar[torch.dtype] = torch.float8_e4m3fn

    def encode(self, x: Tensor) -> Tensor:
        return x.clamp(-self.largest, self.largest).to(self.dtype)


@dataclass(frozen=True, kw_only=True)
class FP8E5M2(FP8):
    """One e5m2 byte an element: wider range, two bits of mantissa. Engines use it without scales (``scale_from=one``)."""

    name: ClassVar[str] = "fp8_e5m2"
    largest: ClassVar[float] = 57344.0
    dtype: ClassVar[torch.dtype] = torch.float8_e5m2
