"""A setting as a plan sees it: how many bytes it holds and reads of a request, by the layers' own formulas. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LayerBytes = Callable[[int], tuple[int, ...]]  # of so many tokens, by attention layer


@dataclass(frozen=True)
class Holding:
    """One strategy on one model.

    Args:
        by_layer: bytes held of a request.
        read_by_layer: bytes of them that a decode step reads.
        stacks: the neutral descriptions under which runs may have judged it, by engine.
    """

    name: str
    describe: str
    by_layer: LayerBytes
    read_by_layer: LayerBytes
    slots: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()

    def held_bytes(self, tokens: int) -> int:
        return sum(self.by_layer(tokens))

    def read_bytes(self, tokens: int) -> int:
        return sum(self.read_by_layer(tokens))

    def bytes_per_token(self, tokens: int) -> float:
        """In the mean over a request of ``tokens``; the same at every length where nothing is kept apart."""
        return self.held_bytes(tokens) / tokens
