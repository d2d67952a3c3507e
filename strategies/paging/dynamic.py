"""Room that grows token by token, as transformers' ``DynamicCache`` has it: nothing is set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.base import Format, Paging
from strategies.paging.room import told


@dataclass(frozen=True, kw_only=True)
class Dynamic(Paging):
    """Room for the tokens that are held. What an engine pays instead, a larger place and a copy at each step, is not counted."""

    name: ClassVar[str] = "dynamic"
    by_token: ClassVar[bool] = False  # takes stores as they are

    def room(self, tokens: int) -> int:
        return tokens

    def acted(self, held: Sequence[int]) -> tuple[bool, str]:
        return told(held, "in room that grows with them")

    def holding(self, inner: Format | None) -> Format | None:
        return inner
