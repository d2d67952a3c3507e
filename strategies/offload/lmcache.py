"""LMCache (arXiv 2510.09665), a library that serving engines keep and find stored tokens with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.types import Unsupported
from strategies.base import KVShape, Offload, Tier


@dataclass(frozen=True, kw_only=True)
class LMCache(Offload):
    """Host memory and, if a path is given, files, in chunks of tokens.

    Args:
        host_gib: room in host memory.
        path: a folder for what host memory has no room for; None keeps nothing on a disk.
        disk_gib: room there.
        chunk: tokens that are stored and found together.
    """

    name: ClassVar[str] = "lmcache"
    places: ClassVar[frozenset[str]] = Offload.places | {"path"}
    serving_only: ClassVar[str] = "it is a library of serving engines"

    host_gib: float = 5.0
    path: str | None = None
    disk_gib: float = 20.0
    chunk: int = 256

    def tier(self) -> Tier:
        raise Unsupported(f"offload/lmcache: {self.serving_only}")

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        for field in ("host_gib", "disk_gib", "chunk"):
            if getattr(self, field) <= 0:
                found.append(f"{self.option(field)} must be above 0, got {getattr(self, field)}")
        if self.persist and self.path is None:
            found.append(
                f"{self.option('persist')} must be false without a path: host memory ends with the process, got True"
            )
        return found
