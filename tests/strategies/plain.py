"""Number formats in plain Python, slow and by the book: what the packed stores are compared with."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def half(x: float) -> float:
    """Rounded to float16; beyond its range its largest number."""
    return float(struct.unpack("e", struct.pack("e", max(-65504.0, min(65504.0, x))))[0])


def floats(exponent_bits: int, mantissa_bits: int, bias: int) -> list[float]:
    """The numbers from zero up of a small float without infinities, in the order of their codes; the last may mean NaN."""
    values = []
    for exponent in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            fraction = mantissa / 2**mantissa_bits
            values.append(fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))
    return values


E2M1 = floats(2, 1, bias=1)
E4M3 = floats(4, 3, bias=7)[:-1]  # 1111.111 is NaN


def nearest(x: float, values: Sequence[float]) -> int:
    """Code of the value nearest to ``x``, 0 or more; ties to the even code, and what is beyond the last one to that."""
    return min(range(len(values)), key=lambda code: (abs(values[code] - x), code % 2))


def packed(codes: Sequence[int], bits: int) -> bytes:
    """All codes as one number, the first in its lowest bits, written lowest byte first."""
    return sum(code << bits * at for at, code in enumerate(codes)).to_bytes(len(codes) * bits // 8, "little")
