"""Blocks of tokens, as PagedAttention (arXiv 2309.06180) and vLLM's prefix caching place them; no keys or values.

A pool has a fixed number of blocks of a fixed number of tokens. A sequence lies in the blocks of its table; only the last may
be partly filled. A full block is known by a chain of hashes: of its parent's hash and its own tokens, the first parent being
the hash of a salt, so that equal hashes mean equal prefixes. A block that no table holds stays findable until its place is
taken. Places are taken in the order in which they were let go, a sequence's tail before its head; first of all those in which
nothing can be found.

No torch here: a simulator of sizes uses it too.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple


class NoBlocks(Exception):
    """More blocks are wanted than can be had. The call that raises it has changed nothing."""


class Copy(NamedTuple):
    """What one block holds is to be copied to another before anything is written there."""

    source: int
    target: int


@dataclass
class Table:
    """One sequence: its blocks in order, and how many tokens lie in them."""

    chain: bytes  # hash of the full blocks
    blocks: list[int] = field(default_factory=list)
    tokens: int = 0
    tail: list[int] = field(default_factory=list)  # tokens in a last block that is not full
    hit_tokens: int = 0  # of which so many lay there already when the sequence began


class BlockPool:
    """``blocks`` blocks of ``block`` tokens. Every operation takes constant time a block."""

    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self._idle = OrderedDict.fromkeys(range(blocks))  # held by no table; the first is taken next
        self._tables = [0] * blocks  # by block: how many tables hold it
        self._places: dict[bytes, int] = {}  # where a chain of full blocks ends
        self._chains: dict[int, bytes] = {}  # the same, by block

    @property
    def available(self) -> int:
        """Blocks that no table holds, findable or not."""
        return len(self._idle)

    def find(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """The longest chain of full blocks that is there and begins ``tokens``."""
        found = []
        for chain in chained(root(salt), tokens, self.block):
            if chain not in self._places:
                break
            found.append(self._places[chain])
        return found

    def fits(self, tokens: Sequence[int], salt: str = "") -> int:
        """How many of ``tokens``, from the first, a new sequence could hold."""
        return self._fits(tokens, self.find(tokens, salt))

    def start(self, tokens: Sequence[int], salt: str = "") -> Table:
        """A new sequence, in what is found of it and new blocks; its full blocks can be found from now on."""
        found = self.find(tokens, salt)
        if self._fits(tokens, found) < len(tokens):
            raise NoBlocks(f"{len(tokens)} tokens do not fit: {self.available} blocks of {self.block} are left")
        for block in found:
            self._hold(block)
        hit = len(found) * self.block
        table = Table(self._chains[found[-1]] if found else root(salt), found, hit, hit_tokens=hit)
        self.append(table, tokens[hit:])
        return table

    def append(self, table: Table, tokens: Sequence[int]) -> Copy | None:
        """Room for the next tokens of a sequence; what must be copied first if its last block is shared and not full."""
        if not tokens:
            return None
        shared = bool(table.tail) and self._tables[table.blocks[-1]] > 1
        stop = table.tokens + len(tokens)
        more = -(-stop // self.block) - len(table.blocks)
        if more + shared > self.available:
            raise NoBlocks(f"{more + shared} more blocks are needed, and {self.available} are left")
        copy = self._part(table) if shared else None
        table.blocks += [self._taken() for _ in range(more)]
        pending = [*table.tail, *tokens]
        filling = table.blocks[table.tokens // self.block :]
        for block, chain in zip(
            filling, chained(table.chain, pending, self.block), strict=False
        ):  # the last may stay open
            self._name(block, chain)
            table.chain = chain
        table.tokens, table.tail = stop, pending[len(pending) - stop % self.block :]
        return copy

    def fork(self, table: Table) -> Table:
        """Another sequence that begins like this one, in the same blocks."""
        for block in table.blocks:
            self._hold(block)
        return replace(table, blocks=[*table.blocks], tail=[*table.tail], hit_tokens=table.tokens)

    def release(self, blocks: Sequence[int]) -> None:
        """One table less holds these blocks: a sequence, in order, that is done with."""
        for block in reversed(blocks):
            self._let_go(block)

    def _fits(self, tokens: Sequence[int], found: Sequence[int]) -> int:
        places = len(found) + self.available - sum(block in self._idle for block in found)
        return min(len(tokens), places * self.block)

    def _part(self, table: Table) -> Copy:
        """Give a table a last block of its own."""
        copy = Copy(table.blocks[-1], self._taken())
        self._let_go(copy.source)
        table.blocks[-1] = copy.target
        return copy

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._tables[block] += 1

    def _let_go(self, block: int) -> None:
        if not self._tables[block]:
            raise ValueError(f"block {block} is held by no table and cannot be released")
        self._tables[block] -= 1
        if not self._tables[block]:
            self._idle[block] = None
            self._idle.move_to_end(block, last=block in self._chains)

    def _taken(self) -> int:
        """A place for something new; what was to be found there is gone."""
        block, _ = self._idle.popitem(last=False)
        self._tables[block] = 1
        if chain := self._chains.pop(block, None):
            del self._places[chain]
        return block

    def _name(self, block: int, chain: bytes) -> None:
        """Let a full block be found, unless another one that holds the same can be already."""
        if chain not in self._places:
            self._places[chain] = block
            self._chains[block] = chain


def root(salt: str = "") -> bytes:
    """What the chains of one salt begin with."""
    return sha256(salt.encode()).digest()


def chained(chain: bytes, tokens: Sequence[int], block: int) -> Iterator[bytes]:
    """The hashes of the full blocks of ``tokens`` that follow ``chain``."""
    for stop in range(block, len(tokens) + 1, block):
        chain = sha256(chain + array("q", tokens[stop - block : stop]).tobytes()).digest()
        yield chain
