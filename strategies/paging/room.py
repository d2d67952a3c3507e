"""Stores with room for more tokens than they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from strategies.base import Format, KVShape, Paging, Store
from strategies.columns import exact_store


@dataclass(frozen=True)
class Roomy(Format):
    """Tokens as ``inner`` packs them, None in full precision, with the room that a paging layer sets aside.

    What shares a scale among all tokens weighs no more for it.
    """

    paging: Paging
    inner: Format | None

    @property
    def label(self) -> str:
        return self.inner.label if self.inner else "exact"

    @property
    def unrotated(self) -> bool:  # type: ignore[override]
        return self.inner.unrotated if self.inner else False

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        room = self.paging.room(tokens)
        return self.inner.layer_bytes(room, shape) if self.inner else shape.exact_bytes(room)

    def quantized_tokens(self, tokens: int) -> int:
        return self.inner.quantized_tokens(tokens) if self.inner else 0

    @property
    def numbers(self) -> Format | None:
        return self.inner

    def of_heads(self, heads: Tensor) -> Format:
        return replace(self, inner=self.inner.of_heads(heads)) if self.inner else self

    def store(self, keys: Tensor, values: Tensor) -> Store:
        store = (self.inner.store if self.inner else exact_store)(keys, values)
        store.reserve(self.paging.room)
        return store


def told(held: Sequence[int], where: str, unused: float | None = None) -> tuple[bool, str]:
    """Whether anything is held, and in words how much a head, where, and which share of the room that leaves unused."""
    if not sum(held):
        return False, "holds no tokens"
    left = "" if unused is None else f"; {100 * unused:.1f} % of the room is unused"
    return True, f"holds {number(sum(held) / len(held))} tokens a head {where}{left}"


def number(mean: float) -> str:
    """``1,020``, or ``1,020.5`` where heads differ."""
    return f"{mean:,.1f}".removesuffix(".0")
