"""What this release of PyTorch makes of a number that a format cannot hold."""

from __future__ import annotations

import torch

TOO_LARGE = 1e4  # the largest e4m3 number is 448


def overflow() -> float:
    """``TOO_LARGE`` cast to FP8 (e4m3) without a clamp, and back: NaN before PyTorch 2.12, then the largest number."""
    return float(torch.tensor(TOO_LARGE).to(torch.float8_e4m3fn).float())
