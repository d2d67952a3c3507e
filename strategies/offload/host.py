"""Stored tokens wait in host memory while the accelerator's own is used for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import KVShape, Lost, Moved
from strategies.offload.bounded import Bounded, Limited

ABSENT = "this machine has no accelerator: the cache is in host memory already"


class HostTier(Bounded):
    """Page-locked buffers, which a device reads without a copy by the processor. Takes nothing where there is no device."""

    def __init__(self, max_gib: float | None) -> None:
        super().__init__("host", max_gib)
        self.buffers: dict[str, Tensor] = {}

    def write(self, key: str, data: bytes) -> None:
        if not torch.cuda.is_available():
            raise OSError(f"host: {ABSENT}")
        try:
            buffer = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:  # the driver cannot lock more memory
            reason = str(error).strip().splitlines()[0]
            raise OSError(f"host: {key}: {len(data):,} bytes of pinned memory are not to be had: {reason}") from error
        memoryview(buffer.numpy())[:] = data
        self.buffers[key] = buffer

    def read(self, key: str) -> bytes:
        if key not in self.buffers:
            raise Lost(f"host: {key}: not there")
        return self.buffers[key].numpy().tobytes()

    def erase(self, key: str) -> None:
        self.buffers.pop(key, None)


@dataclass(frozen=True, kw_only=True)
class Host(Limited):
    """Pinned host memory. On a machine without an accelerator nothing would move, so nothing is taken.

    Args:
        max_gib: room in GiB; over it the least recently used layers of samples are dropped. None for no limit.
    """

    name: ClassVar[str] = "host"

    def tier(self) -> HostTier:
        return HostTier(self.max_gib)

    def acted(self, moved: Moved) -> tuple[bool, str]:
        absent = not moved.bytes_in and not torch.cuda.is_available()
        return (False, ABSENT) if absent else super().acted(moved)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.persist:
            found.append(f"{self.option('persist')} must be false: host memory ends with the process, got True")
        return found
