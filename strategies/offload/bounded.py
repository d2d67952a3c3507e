"""A tier with so much room: what was used least recently leaves when there is none."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from strategies.base import KVShape, Lost, Offload, Tier

GIB = 2**30


class Bounded(Tier):
    """Objects are ``write``-n, ``read`` and ``erase``-d by a subclass; which of them stay is decided here.

    Args:
        name: what evidence calls this tier.
        max_gib: room in GiB of 2^30 bytes; None for no limit.

    Attributes:
        below: takes the objects that leave; without one they are deleted. An object that it does not take stays, and what
            would have come in its place is refused.
    """

    def __init__(self, name: str, max_gib: float | None) -> None:
        self.name = name
        self.limit = inf if max_gib is None else max_gib * GIB
        self.below: Tier | None = None
        self.sizes: dict[str, int] = {}  # bytes by key, least recently used first

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Keep ``data``, whole or not at all. Raises OSError."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """What was written. Raises Lost or OSError."""

    @abstractmethod
    def erase(self, key: str) -> None:
        """Remove ``key``, if it is there. Raises OSError."""

    def put(self, key: str, data: bytes) -> str:
        if len(data) > self.limit:
            raise OSError(f"{self.name}: {key}: {len(data):,} bytes are more than max_gib={self.limit / GIB:g} holds")
        self.delete(key)
        while sum(self.sizes.values()) + len(data) > self.limit:
            self._leave(next(iter(self.sizes)))
        self.write(key, data)
        self.sizes[key] = len(data)
        return self.name

    def get(self, key: str) -> tuple[bytes, str]:
        data = self.read(key)
        self.sizes.pop(key, None)
        self.sizes[key] = len(data)  # now the most recently used
        return data, self.name

    def delete(self, key: str) -> None:
        self.erase(key)
        self.sizes.pop(key, None)

    def _leave(self, key: str) -> None:
        if self.below is not None:
            with suppress(Lost):  # somebody else has deleted it
                self.below.put(key, self.read(key))
        self.delete(key)


@dataclass(frozen=True, kw_only=True)
class Limited(Offload):
    """An offload whose tier is ``Bounded``; None for no limit."""

    max_gib: float | None = None

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.max_gib is not None and self.max_gib <= 0:
            found.append(f"{self.option('max_gib')} must be above 0, got {self.max_gib}")
        return found
