"""FP8 (e4m3) cache, the first format that serving engines offer (vLLM ``--kv-cache-dtype fp8`` and per-token-head)."""

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
    largest: ClassVar[float] = 448.0  # type: ignore[misc]

    def encode(self, x: Tensor) -> Tensor:
        return x.clamp(-self.largest, self.largest).to(torch.float8_e4m3fn)
