"""Prefix reuse by blocks, as vLLM's automatic prefix caching does it (its docs/design/prefix_caching.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.base import KVShape, Prefix, Reused
from strategies.paging.blocks import BlockPool


class Index:
    """A prompt finds the longest chain of full blocks that it begins with, and gets places for the rest.

    A prompt that does not fit gets places for as many leading blocks as do. Blocks that it would find beyond ``most`` keep their
    places: the engine writes there what is there.
    """

    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self._pool = BlockPool(blocks, block)

    def take(self, tokens: Sequence[int], most: int) -> Reused:
        whole = tokens[: len(tokens) // self.block * self.block]
        table = self._pool.start(whole[: self._pool.fits(whole)])
        return Reused(tuple(table.blocks), min(table.hit_tokens, most // self.block * self.block))

    def release(self, reused: Reused) -> None:
        self._pool.release(reused.blocks)


@dataclass(frozen=True, kw_only=True)
class Reuse(Prefix):
    """Keeps the full blocks of prompts and reuses the longest chain that a prompt begins with.

    Hit tokens are block * floor(common prefix / block). Where places run out the least recently used blocks give theirs, the
    tail of a prompt before its head.

    Args:
        block: tokens of a block.
        tokens: how many are kept.

    Either may be None, which leaves it to the engine.
    """

    name: ClassVar[str] = "reuse"

    tokens: int | None = 65536

    def index(self) -> Index:
        return Index(self.tokens // self.block, self.block)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.tokens is not None and self.block is not None and self.tokens < self.block:
            found.append(f"{self.option('tokens')} must hold a block of {self.block}, got {self.tokens}")
        return found
