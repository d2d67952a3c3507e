"""A cache of blocks under one of several rules of which go first; requests come one after the other.

A request finds the blocks of its chain up to the first that is missing, and brings in the others. For them the lowest in rank
go, never its own; of a chain that is longer than the cache, only the beginning is kept. Ranks put a block below those before
it in its chain, so that nothing is kept that cannot be found. Blocks that are being filled take no room here; ``vllm_pool``
counts them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from harness.sizing.traces import Request

Rank = tuple[int, ...]  # the lowest goes first

# of a block's uses since it came in, its place in its chain, and the time of its last use
RANKS: dict[str, Callable[[int, int, int], Rank]] = {
    "lru": lambda uses, place, time: (time,),
    "lfu": lambda uses, place, time: (uses, time),
    # "LengthAwareCache" of Mooncake (arXiv 2407.00079, section 4.2): like LFU, but a request's later blocks go first
    "length_aware": lambda uses, place, time: (uses, -place, time),
}


class BlockCache:
    """``places`` blocks of ``block`` tokens under the rule ``rule`` of ``RANKS``."""

    def __init__(self, places: int, block: int, rule: str) -> None:
        self.places, self.block = places, block
        self._rank = RANKS[rule]
        self._uses: dict[int, int] = {}  # by block that is here
        self._ranks: dict[int, Rank] = {}  # the same
        self._heap: list[tuple[Rank, int]] = []  # and entries that no longer hold
        self._time = 0

    def use(self, request: Request) -> int:
        """How many blocks of a request's chain, from the first, are here and reused. Then all of it is here."""
        chain, found = request.blocks, 0
        while found < len(chain) and chain[found] in self._uses:
            found += 1
        own = chain[: self.places]
        for block in own:
            self._ranks.pop(block, None)  # it cannot go now
        for _ in range(len(self._uses) + len(own) - min(found, len(own)) - self.places):
            self._evict()
        for place in reversed(range(len(own))):
            self._time += 1
            block = own[place]
            self._uses[block] = uses = self._uses.get(block, 0) + 1
            self._ranks[block] = rank = self._rank(uses, place, self._time)
            heapq.heappush(self._heap, (rank, block))
        if len(self._heap) > 4 * len(self._ranks) + 1024:
            self._heap = [(rank, block) for block, rank in self._ranks.items()]
            heapq.heapify(self._heap)
        return min(found, request.reusable_blocks(self.block))

    def _evict(self) -> None:
        while True:
            rank, block = heapq.heappop(self._heap)
            if self._ranks.get(block) == rank:
                del self._ranks[block], self._uses[block]
                return
