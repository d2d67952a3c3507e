"""Storage for formats in which every token is coded by itself: taking in tokens adds columns and changes none.

What a token is coded to must not depend on which tokens and rows it is taken in with, to the last bit: the sums that decide
codes are therefore made pair by pair (``total``), since the order of a library's sums and matrix products changes with shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from strategies.base import Exchange, Patch, Store

LARGEST_HALF = 65504.0


class Side(ABC):
    """The codes of one side, keys or values, when taking in tokens changes none that are there."""

    @abstractmethod
    def append(self, x: Tensor) -> Tensor:
        """Encode the next tokens ``[R, H, m, d]``; return what they decode to."""

    @abstractmethod
    def read(self) -> Tensor:
        """Decode everything, ``[R, H, n, d]``."""

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Every tensor held, first dimension R."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""

    @abstractmethod
    def swap(self, exchange: Exchange) -> None:
        """Put ``exchange(tensor)`` in the place of every tensor held, in the order of ``tensors``."""


class Columns(Side):
    """Some tensors ``[R, H, n, ...]``, held in the parts in which they came."""

    def __init__(self, like: Tensor) -> None:
        self.dtype = like.dtype  # of what is read
        self.parts: list[tuple[Tensor, ...]] = []

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """float32 tokens ``[R, H, m, d]`` to storage, each tensor ``[R, H, m, ...]``; m may be 0."""

    @abstractmethod
    def decode(self, *stored: Tensor) -> Tensor:
        """What ``encode`` gave, back to ``[R, H, m, d]``."""

    def append(self, x: Tensor) -> Tensor:
        part = self.encode(x.float())
        if x.shape[2] or not self.parts:
            self.parts.append(part)
        return self.decode(*part).to(self.dtype)

    def read(self) -> Tensor:
        return self.decode(*(torch.cat(pieces, dim=2) for pieces in zip(*self.parts, strict=True))).to(self.dtype)

    def tensors(self) -> Iterator[Tensor]:
        for part in self.parts:
            yield from part

    def select(self, rows: Tensor) -> None:
        self.parts = [tuple(tensor[rows] for tensor in part) for part in self.parts]

    def swap(self, exchange: Exchange) -> None:
        self.parts = [tuple(map(exchange, part)) for part in self.parts]


class Exact(Columns):
    """Tokens as they are, ``[R, H, n, d]``."""

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x.to(self.dtype),)

    def decode(self, *stored: Tensor) -> Tensor:
        return stored[0]


class ColumnStore(Store):
    """Keys and values as two ``Side``s, new ones, which take in the prompt here."""

    def __init__(self, keys_to: Side, values_to: Side, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys_to, values_to
        self.length = 0
        self.append(keys, values)

    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        start, self.length = self.length, self.length + keys.shape[2]
        return [Patch(start, self.keys.append(keys))], [Patch(start, self.values.append(values))]

    def read(self) -> tuple[Tensor, Tensor]:
        return self.keys.read(), self.values.read()

    def tensors(self) -> Iterator[Tensor]:
        yield from self.keys.tensors()
        yield from self.values.tensors()

    def select(self, rows: Tensor) -> None:
        self.keys.select(rows)
        self.values.select(rows)

    def swap(self, exchange: Exchange) -> None:
        self.keys.swap(exchange)
        self.values.swap(exchange)


def exact_store(keys: Tensor, values: Tensor) -> ColumnStore:
    """Keys and values in full precision."""
    return ColumnStore(Exact(keys), Exact(values), keys, values)


def to_half(x: Tensor) -> Tensor:
    """float16, saturating where a plain cast gives infinity."""
    return x.clamp(-LARGEST_HALF, LARGEST_HALF).half()


def total(x: Tensor) -> Tensor:
    """Sum along the last dimension, a power of two, kept as size 1; in an order that depends on nothing else."""
    while x.shape[-1] > 1:
        left, right = x.chunk(2, dim=-1)
        x = left + right
    return x
