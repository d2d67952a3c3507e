"""Room in whole blocks, taken as they are needed (PagedAttention, arXiv 2309.06180)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.base import Format, KVShape, Paging
from strategies.paging.room import Roomy, number, told


@dataclass(frozen=True, kw_only=True)
class Paged(Paging):
    """Every head of every layer lies in blocks of ``block`` tokens, of which only the last may be partly empty.

    A sequence of n tokens leaves (block - 1) / 2 places empty in the mean: a share of E[pad] / (E[n] + E[pad]).

    The blocks of a store lie side by side here, so that attention reads them as it reads any tensor; which of a pool's blocks
    they would be is the business of ``strategies.paging.blocks``.

    Args:
        block: tokens of a block; None leaves it to the engine.
    """

    name: ClassVar[str] = "paged"

    block: int | None = 16

    @property
    def label(self) -> str:
        return self.name if self.block == 16 else f"{self.name}{self.block}"

    def room(self, tokens: int) -> int:
        return -(-tokens // self.block) * self.block

    def acted(self, held: Sequence[int]) -> tuple[bool, str]:
        facts = self.facts(held)
        return told(held, f"in {number(facts['blocks'])} blocks of {self.block}", facts["unused_share"])

    def facts(self, held: Sequence[int]) -> dict[str, float]:
        """With ``blocks``, of a head in the mean."""
        facts = super().facts(held)
        return {**facts, "blocks": facts["reserved_tokens"] / self.block}

    def holding(self, inner: Format | None) -> Format:
        return Roomy(self, inner)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.block < 1:
            found.append(f"{self.option('block')} must be 1 or more, got {self.block}")
        return found
