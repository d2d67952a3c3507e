"""One contiguous place for the longest request, taken when a request begins (what PagedAttention, arXiv 2309.06180, replaced)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.types import Unsupported
from strategies.base import Format, KVShape, Paging
from strategies.paging.room import Roomy, told


@dataclass(frozen=True, kw_only=True)
class Static(Paging):
    """Every head of every layer has room for ``tokens`` from the start, whatever it will hold.

    Args:
        tokens: the longest request an engine is told to expect.
    """

    name: ClassVar[str] = "static"

    tokens: int = 8192

    @property
    def label(self) -> str:
        return self.name if self.tokens == 8192 else f"{self.name}@{self.tokens}tok"

    def room(self, tokens: int) -> int:
        if tokens > self.tokens:
            few = f"paging/static sets aside room for {self.tokens} tokens, and a request holds {tokens}"
            raise Unsupported(f"{self.option('tokens')} is too small: {few}")
        return self.tokens

    def acted(self, held: Sequence[int]) -> tuple[bool, str]:
        return told(held, f"in room for {self.tokens:,}", self.facts(held)["unused_share"])

    def holding(self, inner: Format | None) -> Format:
        return Roomy(self, inner)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.tokens < 1:
            found.append(f"{self.option('tokens')} must be 1 or more, got {self.tokens}")
        return found
