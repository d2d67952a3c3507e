"""How long ago each block was used, counted in blocks (Mattson et al., 1970): one pass tells the hits of an LRU cache of any
size.

A request uses the blocks of its chain, the last one first, so that a block is always more recent than what follows it. Hence
blocks that were last used by one request and still are next to each other in their chain: a *run*. Each request makes one run
and takes from the front of a few others, so that what is kept in order, by a Fenwick tree, are runs and not blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Hit(NamedTuple):
    """So many blocks in a row of a chain, the first of which was used before ``newer`` others were."""

    newer: int
    blocks: int


class Recency:
    """Blocks in the order of their last use. Those with ``most`` newer ones may be forgotten; memory is a few times ``most``."""

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self._run_of: dict[int, int] = {}  # block -> the run it is in; the higher, the newer
        self._sizes: list[int] = []  # by run: its blocks
        self._room(1024)

    def use(self, chain: Sequence[int]) -> list[Hit]:
        """The chain's blocks that were used before, in order, up to the first that was not; then all of it is used."""
        if not chain:
            return []
        if len(self._sizes) == self._capacity or len(self._run_of) > 2 * self.most + self._capacity:
            self._compact()
        found = self._runs(chain)
        hits = [Hit(self._total - self._up_to(run), blocks) for run, blocks in found]
        for run, blocks in found:
            self._add(run, -blocks)
        run = len(self._sizes)
        self._sizes.append(0)
        self._add(run, len(chain))
        self._run_of.update(dict.fromkeys(chain, run))
        return hits

    def _runs(self, chain: Sequence[int]) -> list[tuple[int, int]]:
        """(run, blocks) as they follow each other in a chain; the deeper, the older, so that ends are found by bisection."""
        found, start = [], 0
        while start < len(chain) and (run := self._run_of.get(chain[start])) is not None:
            low, high = start + 1, len(chain)
            while low < high:
                middle = (low + high) // 2
                if self._run_of.get(chain[middle]) == run:
                    low = middle + 1
                else:
                    high = middle
            found.append((run, low - start))
            start = low
        return found

    def _compact(self) -> None:
        """Leave out runs without blocks and those that are too old, and number the others anew."""
        newer = [*accumulate(reversed(self._sizes), initial=0)][-2::-1]
        kept = [run for run, size in enumerate(self._sizes) if size and newer[run] < self.most]
        number = {run: place for place, run in enumerate(kept)}
        self._run_of = {block: number[run] for block, run in self._run_of.items() if run in number}
        self._sizes = [self._sizes[run] for run in kept]
        self._room(max(1024, 2 * len(kept)))

    def _room(self, runs: int) -> None:
        """A tree for so many runs (rounded up to a power of two), with those that there are."""
        self._capacity = 1 << (runs - 1).bit_length()
        self._total = sum(self._sizes)
        sums = [0, *accumulate(self._sizes)]
        sums += [self._total] * (self._capacity + 1 - len(sums))
        self._tree = [sums[at] - sums[at & (at - 1)] for at in range(self._capacity + 1)]

    def _add(self, run: int, blocks: int) -> None:
        self._sizes[run] += blocks
        self._total += blocks
        at = run + 1
        while at <= self._capacity:
            self._tree[at] += blocks
            at += at & -at

    def _up_to(self, run: int) -> int:
        """Blocks of all runs up to this one."""
        at, blocks = run + 1, 0
        while at:
            blocks += self._tree[at]
            at &= at - 1
        return blocks
