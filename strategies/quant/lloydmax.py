"""The Lloyd-Max quantizer (Max 1960, Lloyd 1982): the levels that replace a Gaussian number with least squared error."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

CONVERGED = 1e-12


@lru_cache
def lloyd_max(bits: int) -> tuple[float, ...]:
    """The ``2**bits`` levels for N(0, 1), rising.

    A level is the mean of its interval, an interval ends midway between two levels: repeated until nothing moves. The density
    is symmetric and so are the levels, so only the positive ones are looked for.
    """
    positive = [3 * (i + 0.5) / 2 ** (bits - 1) for i in range(2 ** (bits - 1))]
    moved = 1.0
    while moved > CONVERGED:
        edges = [0.0, *_midpoints(positive), math.inf]
        better = [_mean(low, high) for low, high in pairwise(edges)]
        moved = max(abs(new - old) for new, old in zip(better, positive, strict=True))
        positive = better
    return (*(-level for level in reversed(positive)), *positive)


def _mean(low: float, high: float) -> float:
    """Mean of a unit normal number that lies between ``low`` and ``high``, both 0 or more."""
    mass = (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))) / 2
    return (math.exp(-low * low / 2) - math.exp(-high * high / 2)) / math.sqrt(2 * math.pi) / mass


def _midpoints(levels: list[float]) -> list[float]:
    return [(low + high) / 2 for low, high in pairwise(levels)]


@lru_cache
def codebook(bits: int, sigma: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """float32 levels ``[2**bits]`` for N(0, sigma^2), and the boundaries between them, one fewer."""
    levels = [sigma * level for level in lloyd_max(bits)]
    return tuple(torch.tensor(numbers, dtype=torch.float32, device=device) for numbers in (levels, _midpoints(levels)))
