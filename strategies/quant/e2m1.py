"""The 4-bit float e2m1: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

LARGEST = 6.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def encode(x: Tensor) -> Tensor:
    """uint8 codes below 16, the sign in bit 3: nearest, ties to the even code, saturating at 6."""
    size = x.abs().clamp(max=LARGEST)
    # below 2, from 2 to 4 and from 4 up the codes are 0.5, 1 and 2 apart
    codes = torch.where(size < 2, (size * 2).round(), torch.where(size < 4, size.round() + 2, (size / 2).round() + 4))
    return codes.to(torch.uint8) | (x.signbit().to(torch.uint8) << 3)


def decode(codes: Tensor) -> Tensor:
    """float32 values."""
    return _values(codes.device)[codes.int()]


@lru_cache
def _values(device: torch.device) -> Tensor:
    return torch.tensor([*MAGNITUDES, *(-size for size in MAGNITUDES)], dtype=torch.float32, device=device)
