"""Storage for formats in which every token is coded by itself: taking in tokens adds columns and changes none.

What a token is coded to must not depend on which tokens and rows it is taken in with, to the last bit: the sums that decide
codes are therefore made pair by pair (``total``), since the order of a library's sums and matrix products changes with shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from strategies.base import Exchange, Patch, Room, Store

LARGEST_HALF = 65504.0
SLACK = 1 + 2.0**-20  # float32 rounding must not make a number that fits look clipped


class Parts:
    """Some tensors ``[R, H, n, ...]``, held in the parts in which they came."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, ...]] = []

    def add(self, part: tuple[Tensor, ...]) -> None:
        if part[0].shape[2] or not self.parts:
            self.parts.append(part)

    def joined(self) -> tuple[Tensor, ...]:
        """A copy of the tensors, whole."""
        return tuple(torch.cat(pieces, dim=2) for pieces in zip(*self.parts, strict=True))

    def tensors(self) -> Iterator[Tensor]:
        for part in self.parts:
            yield from part

    def select(self, rows: Tensor) -> None:
        self.parts = [tuple(tensor[rows] for tensor in part) for part in self.parts]

    def swap(self, exchange: Exchange) -> None:
        self.parts = [tuple(map(exchange, part)) for part in self.parts]


class Allocation(Parts):
    """One part with room for more tokens than came: they are written where they will stay."""

    def __init__(self, room: Room, held: tuple[Tensor, ...]) -> None:
        self.room = room
        self.tokens = 0
        self.parts = [tuple(tensor[:, :, :0] for tensor in held)]
        self.add(held)

    def add(self, part: tuple[Tensor, ...]) -> None:
        start, stop = self.tokens, self.tokens + part[0].shape[2]
        self._allocate(self.room(stop))
        for whole, new in zip(self.parts[0], part, strict=True):
            whole[:, :, start:stop] = new
        self.tokens = stop

    def _allocate(self, room: int) -> None:
        """Move to a larger place if there is not this much room. It is zero where nothing is, so that its bytes are definite."""
        held = self.parts[0]
        if room > held[0].shape[2]:
            self.parts = [tuple(x.new_zeros(*x.shape[:2], room, *x.shape[3:]) for x in held)]
            for whole, old in zip(self.parts[0], held, strict=True):
                whole[:, :, : self.tokens] = old[:, :, : self.tokens]

    def joined(self) -> tuple[Tensor, ...]:
        return tuple(whole[:, :, : self.tokens].clone() for whole in self.parts[0])


class Columns(ABC):
    """The codes of one side, keys or values; taking in tokens changes none that are there."""

    def __init__(self, like: Tensor) -> None:
        self.dtype = like.dtype  # of what is read
        self.held = Parts()

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """float32 tokens ``[R, H, m, d]`` to storage, each tensor ``[R, H, m, ...]``; m may be 0."""

    @abstractmethod
    def decode(self, *stored: Tensor) -> Tensor:
        """What ``encode`` gave, back to ``[R, H, m, d]``."""

    def append(self, x: Tensor) -> Tensor:
        """Encode the next tokens ``[R, H, m, d]``; return what they decode to."""
        part = self.encode(x.float())
        self.held.add(part)
        return self.decode(*part).to(self.dtype)

    def read(self) -> Tensor:
        """Decode everything, ``[R, H, n, d]``."""
        return self.decode(*self.held.joined()).to(self.dtype)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor held, first dimension R."""
        return self.held.tensors()

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self.held.select(rows)

    def swap(self, exchange: Exchange) -> None:
        """Put ``exchange(tensor)`` in the place of every tensor held, in the order of ``tensors``."""
        self.held.swap(exchange)

    def reserve(self, room: Room) -> None:
        """From now on hold room for ``room(n)`` tokens where n are held."""
        self.held = Allocation(room, self.held.joined())


class FrozenColumns(Columns):
    """Columns under a float32 scale of all tokens, ``[R, 1 or H, 1, 1]``: given, or taken from the first that come.

    It is 1 until then. Elements of later tokens beyond ``limit`` times the scale are counted as clipped.
    """

    def __init__(self, like: Tensor, scale: Tensor, limit: float, frozen: bool) -> None:
        """``scale`` ``[1 or R, 1 or H, 1, 1]``: what it is at first, and for good if it is ``frozen``."""
        super().__init__(like)
        self.limit = limit * SLACK
        self.frozen = frozen
        self.scale = scale.to(like.device).expand(like.shape[0], -1, -1, -1).clone()
        self.clipped = torch.zeros(like.shape[0], dtype=torch.int64, device=like.device)

    @abstractmethod
    def scale_of(self, x: Tensor) -> Tensor:
        """The scale that the first tokens ``[R, H, m, d]`` ask for."""

    def append(self, x: Tensor) -> Tensor:
        if x.shape[2] and not self.frozen:
            self.scale, self.frozen = self.scale_of(x), True
        self.clipped += (x.abs().float() > self.scale * self.limit).sum(dim=(1, 2, 3))
        return super().append(x)

    def tensors(self) -> Iterator[Tensor]:
        yield from super().tensors()
        yield self.scale

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.scale, self.clipped = self.scale[rows], self.clipped[rows]

    def swap(self, exchange: Exchange) -> None:
        super().swap(exchange)
        self.scale = exchange(self.scale)


class Exact(Columns):
    """Tokens as they are, ``[R, H, n, d]``."""

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x.to(self.dtype),)

    def decode(self, *stored: Tensor) -> Tensor:
        return stored[0]


class ColumnStore(Store):
    """Keys and values as two ``Columns``, new ones, which take in the prompt here."""

    def __init__(self, keys_to: Columns, values_to: Columns, keys: Tensor, values: Tensor) -> None:
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

    def reserve(self, room: Room) -> None:
        self.keys.reserve(room)
        self.values.reserve(room)


class FrozenStore(ColumnStore):
    """Keys and values as two ``FrozenColumns``."""

    keys: FrozenColumns
    values: FrozenColumns

    def facts(self) -> dict[str, Tensor]:
        return {"clipped_elements": self.keys.clipped + self.values.clipped}


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
