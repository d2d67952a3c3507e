"""SGLang's radix tree (arXiv 2312.07104; sglang/srt/mem_cache/radix_cache.py), one request after the other.

An edge holds a run of blocks (pages; of one token each by default in SGLang) and is cut where a request leaves it. Where room
is missing, whole leaves go, the least recently used first, until as much is gone as is asked for, whatever was free: more may go
than was needed. What is cut off an edge counts as used with it. A request that needs more room than there is is not served at
all. Pages that are not full take room while their request runs. That SGLang asks for one page more, where pages have several
tokens, is left out, and so are prompts that are prefilled in chunks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.sizing.traces import Request


@dataclass(eq=False, slots=True)
class Node:
    """An edge and what it leads to."""

    blocks: Sequence[int]
    parent: Node | None
    time: int  # of its last use
    holder: int  # the last request that went through it; it may not go while that one runs
    children: dict[int, Node] = field(default_factory=dict)  # by their first block


class RadixTree:
    """At most ``places`` blocks of ``block`` tokens."""

    def __init__(self, places: int, block: int) -> None:
        self.places, self.block = places, block
        self.used = 0
        self._root = Node((), None, 0, 0)
        self._time = self._request = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap by time, and entries that no longer hold
        self._offers = self._kept = 0

    def use(self, request: Request) -> int | None:
        """How many blocks of a request's chain, from the first, are here and reused. Then all of it is here. None: not served."""
        chain, held = request.blocks, request.held_blocks(self.block)
        if held > self.places:
            return None
        self._request += 1
        _, found = self._walk(chain[: request.reusable_blocks(self.block)])
        self._make_room(-(-request.input_tokens // self.block) - found, running=0)
        prompt = request.full_blocks(self.block)
        self._insert(chain[:prompt])  # when it is prefilled: an edge of its own
        for running in range(request.input_tokens % self.block > 0, held - prompt):  # pages, taken as the answer grows
            self._make_room(1, running)
        self._offer(self._insert(chain))
        return found

    def _walk(self, chain: Sequence[int]) -> tuple[Node, int]:
        """The node where the longest known beginning of a chain ends, and its length. All on the way there is used."""
        self._time += 1
        node, depth = self._root, 0
        while depth < len(chain) and (child := node.children.get(chain[depth])):
            alike = _alike(child.blocks, chain, depth)
            child.time = self._time
            node = child if alike == len(child.blocks) else self._cut(child, alike)
            node.holder = self._request
            depth += alike
            if node is not child:
                break
        return node, depth

    def _insert(self, chain: Sequence[int]) -> Node:
        """The node at the end of a chain; what is here already, though computed once more, is kept once."""
        end, known = self._walk(chain)
        if known == len(chain):
            return end
        self._time += 1  # newer than what was cut off on the way
        leaf = Node(chain[known:], end, self._time, self._request)
        end.children[chain[known]] = leaf
        self.used += len(leaf.blocks)
        return leaf

    def _cut(self, child: Node, length: int) -> Node:
        """A node in the middle of an edge."""
        upper = Node(child.blocks[:length], child.parent, self._time, self._request)
        assert child.parent is not None
        child.parent.children[upper.blocks[0]] = upper
        child.blocks, child.parent = child.blocks[length:], upper
        upper.children[child.blocks[0]] = child
        self._offer(child)
        return upper

    def _make_room(self, blocks: int, running: int) -> None:
        """Where that many are not free beside the tree and those that are ``running``, as many go."""
        stop = self.used - blocks
        if self.places - self.used - running >= blocks:
            return
        while self.used > stop and self._leaves:
            _, _, leaf = entry = heapq.heappop(self._leaves)
            if not _holds(entry):
                continue
            parent, leaf.parent = leaf.parent, None
            assert parent is not None
            del parent.children[leaf.blocks[0]]
            self.used -= len(leaf.blocks)
            if parent.holder < self._request:
                self._offer(parent)

    def _offer(self, node: Node) -> None:
        """If this is a leaf, it may go when it is the oldest."""
        if node.children or node is self._root:
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.time, self._offers, node))
        if len(self._leaves) > 2 * self._kept + 1024:
            self._leaves = [entry for entry in self._leaves if _holds(entry)]
            heapq.heapify(self._leaves)
            self._kept = len(self._leaves)


def _holds(entry: tuple[int, int, Node]) -> bool:
    """Whether this node is in the tree, a leaf, and was not used since."""
    time, _, node = entry
    return node.parent is not None and not node.children and node.time == time


def _alike(edge: Sequence[int], chain: Sequence[int], depth: int) -> int:
    """How many blocks an edge has in common with a chain from ``depth`` on; equal blocks have equal ones before them."""
    low, high = 0, min(len(edge), len(chain) - depth)
    while low < high:
        middle = (low + high) // 2
        if edge[middle] == chain[depth + middle]:
            low = middle + 1
        else:
            high = middle
    return low
