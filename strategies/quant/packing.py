"""Several small codes in one byte."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes below ``2**bits`` along the last dimension, first code in the lowest bits.

    Args:
        codes: uint8 ``[..., m]`` with m divisible by ``8 // bits``.
        bits: 2 or 4.

    Returns:
        uint8 ``[..., m * bits // 8]``.
    """
    per_byte = 8 // bits
    lanes = codes.unflatten(-1, (-1, per_byte)).unbind(-1)
    packed = lanes[0].clone()
    for lane, code in enumerate(lanes[1:], start=1):
        packed |= code << (bits * lane)
    return packed


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Inverse of ``pack``."""
    per_byte = 8 // bits
    mask = 2**bits - 1
    return torch.stack([(packed >> (bits * lane)) & mask for lane in range(per_byte)], dim=-1).flatten(-2)
