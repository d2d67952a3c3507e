"""Disaggregated prefill: one engine computes prompts, another decodes, and tokens go from one to the other through a store.

As DistServe (arXiv 2401.09670) and Splitwise (arXiv 2311.18677) have it; here the store is a folder, and one prompt is handed
over at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.types import Unsupported
from strategies.base import KVShape, Offload, Tier


@dataclass(frozen=True, kw_only=True)
class Handoff(Offload):
    """Another engine of the same kind prefills; its tokens are read before decoding.

    Args:
        path: a folder that both engines see; made if it is not there.
        batched_tokens: tokens that the prefilling engine computes in one step; None leaves it to the engine.
    """

    name: ClassVar[str] = "handoff"
    places: ClassVar[frozenset[str]] = Offload.places | {"path"}
    serving_only: ClassVar[str] = "it takes two serving engines"

    path: str | None = None
    batched_tokens: int | None = None

    def tier(self) -> Tier:
        raise Unsupported(f"offload/handoff: {self.serving_only}")

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.path is None:
            found.append(f"{self.option('path')} must be a folder that both engines see, got null")
        if self.batched_tokens is not None and self.batched_tokens < 1:
            found.append(f"{self.option('batched_tokens')} must be 1 or more, got {self.batched_tokens}")
        return found
