"""vLLM's own pool of blocks (vllm/v1/core/block_pool.py, 0.32 and 0.33), as far as hits depend on it; one request after the
other.

It differs from an LRU cache of as many blocks in three ways. A block that is not full takes a place while its request runs,
and is the first to go afterwards. The last token of a prompt is computed even where all is cached, and with it the whole last
block: then two blocks hold the same, each under its own age. And a request that needs more places than there are is not
served at all.
"""

from __future__ import annotations

from collections import OrderedDict

from harness.sizing.traces import Request


class VllmPool:
    """``places`` blocks of ``block`` tokens: those of ``num_gpu_blocks`` but one, which vLLM keeps empty."""

    def __init__(self, places: int, block: int) -> None:
        self.places, self.block = places, block
        self._free: OrderedDict[int, None] = OrderedDict()  # those that were used before; the first is taken next
        self._used = 0
        self._content: dict[int, int] = {}  # by place, of those that can be found
        self._places: dict[
            int, dict[int, None]
        ] = {}  # the reverse; of equal blocks the one that was filled first is found

    def use(self, request: Request) -> int | None:
        """How many blocks of a request's chain, from the first, are here and reused. Then all of it is here. None: not served."""
        chain, held = request.blocks, request.held_blocks(self.block)
        if held > self.places:
            return None
        table = []
        for block in chain[: request.reusable_blocks(self.block)]:
            if block not in self._places:
                break
            table.append(next(iter(self._places[block])))
        found = len(table)
        for place in table:
            del self._free[place]
        table += [self._taken() for _ in range(held - found)]
        for place, block in zip(table[found:], chain[found:], strict=False):  # what is not full has no name
            self._content[place] = block
            self._places.setdefault(block, {})[place] = None
        for place in reversed(table):
            self._free[place] = None
            if place not in self._content:
                self._free.move_to_end(place, last=False)
        return found

    def _taken(self) -> int:
        """An empty place, or the one that goes first, and what was to be found there is gone."""
        first = next(iter(self._free), None)
        if (first is None or first in self._content) and self._used < self.places:
            self._used += 1
            return self._used
        place, _ = self._free.popitem(last=False)
        block = self._content.pop(place, None)
        if block is not None:
            del self._places[block][place]
            if not self._places[block]:
                del self._places[block]
        return place
