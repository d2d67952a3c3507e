"""Several small codes in one byte, or in a few bytes where their bits do not fill one."""

from __future__ import annotations

from functools import reduce
from math import gcd

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes below ``2**bits`` along the last dimension, first code in the lowest bits, lowest byte first.

    Args:
        codes: uint8 ``[..., m]``; m codes must fill whole bytes (3 bits: m divisible by 8, eight codes in three bytes).
        bits: 1 to 8.

    Returns:
        uint8 ``[..., m * bits // 8]``.
    """
    per_word, width = _word(bits)
    lanes = codes.unflatten(-1, (-1, per_word)).unbind(-1)
    packed = [_overlap(lanes, [bits * lane - 8 * byte for lane in range(per_word)], bits) for byte in range(width)]
    return torch.stack(packed, dim=-1).flatten(-2)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Inverse of ``pack``."""
    per_word, width = _word(bits)
    lanes = packed.unflatten(-1, (-1, width)).unbind(-1)
    codes = [_overlap(lanes, [8 * byte - bits * lane for byte in range(width)], 8) for lane in range(per_word)]
    return (torch.stack(codes, dim=-1) & (2**bits - 1)).flatten(-2)


def _word(bits: int) -> tuple[int, int]:
    """The fewest codes that fill whole bytes, and how many bytes they fill."""
    return 8 // gcd(bits, 8), bits // gcd(bits, 8)


def _overlap(lanes: tuple[Tensor, ...], shifts: list[int], size: int) -> Tensor:
    """What of ``lanes``, each ``size`` bits and moved up by its shift, lies within one byte."""
    moved = [lane << by if by >= 0 else lane >> -by for lane, by in zip(lanes, shifts, strict=True) if -size < by < 8]
    return reduce(torch.bitwise_or, moved)
