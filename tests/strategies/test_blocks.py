"""The block pool against plain lists: what is read through block tables, what can be found, and which place is taken next."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strategies.base import KVShape
from strategies.paging.blocks import BlockPool, NoBlocks, Table
from strategies.prefix.reuse import Reuse

TOKENS = st.lists(st.integers(0, 1), max_size=9)  # of few kinds, so that prompts begin alike
SHAPE = KVShape(layers=1, kv_heads=1, query_heads=1, head_dim=8, element_bytes=2)


class Plain:
    """Which places there are, slowly: prefixes are compared as they are, and every question looks at everything."""

    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self.idle = list(range(blocks))  # the first is taken next
        self.prefixes: dict[int, tuple[object, ...]] = {}  # what ends in a block, if it can be found: salt, then tokens

    def found(self, tokens: Sequence[int], salt: str) -> list[int]:
        blocks = []
        for stop in range(self.block, len(tokens) + 1, self.block):
            ends = [block for block, prefix in self.prefixes.items() if prefix == (salt, *tokens[:stop])]
            if not ends:
                break
            blocks += ends
        return blocks

    def take(self, count: int) -> list[int]:
        taken, self.idle = self.idle[:count], self.idle[count:]
        for block in taken:
            self.prefixes.pop(block, None)
        return taken

    def name(self, blocks: Sequence[int], tokens: Sequence[int], salt: str, before: int) -> None:
        """What blocks that got full, when there were ``before`` tokens, hold can be found in one place only."""
        for at in range(before // self.block, len(tokens) // self.block):
            prefix = (salt, *tokens[: (at + 1) * self.block])
            if prefix not in self.prefixes.values():
                self.prefixes[blocks[at]] = prefix

    def let_go(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self.prefixes:
                self.idle.append(block)
            else:
                self.idle.insert(0, block)


class Pool(RuleBasedStateMachine):
    """Sequences start, grow, fork and end; memory is a dictionary that only their owners write."""

    @initialize(blocks=st.integers(1, 8), block=st.integers(1, 3))
    def begin(self, blocks: int, block: int) -> None:
        self.blocks, self.block = blocks, block
        self.pool, self.plain = BlockPool(blocks, block), Plain(blocks, block)
        self.memory: dict[int, list[int]] = {number: [-1] * block for number in range(blocks)}
        self.live: list[tuple[Table, list[int], str]] = []

    def held(self, block: int) -> int:
        return sum(block in table.blocks for table, _, _ in self.live)

    def write(self, table: Table, start: int, tokens: Sequence[int]) -> None:
        for at, token in enumerate(tokens, start):
            self.memory[table.blocks[at // self.block]][at % self.block] = token

    @rule(tokens=TOKENS, salt=st.sampled_from(["", "", "b"]))
    def start(self, tokens: list[int], salt: str) -> None:
        found = self.plain.found(tokens, salt)
        others = [block for block in self.plain.idle if block not in found]
        needed = -(-len(tokens) // self.block) - len(found)
        assert self.pool.fits(tokens, salt) == min(len(tokens), (len(found) + len(others)) * self.block)
        if needed > len(others):
            with pytest.raises(NoBlocks):
                self.pool.start(tokens, salt)
            return
        self.plain.idle = others
        expected = found + self.plain.take(needed)
        table = self.pool.start(tokens, salt)
        assert table.blocks == expected and table.hit_tokens == len(found) * self.block
        self.write(table, table.hit_tokens, tokens[table.hit_tokens :])
        self.live.append((table, tokens, salt))
        self.plain.name(table.blocks, tokens, salt, table.hit_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=TOKENS)
    def append(self, data: st.DataObject, more: list[int]) -> None:
        table, tokens, salt = data.draw(st.sampled_from(self.live))
        partly = len(tokens) % self.block > 0
        copies = bool(more) and partly and self.held(table.blocks[-1]) > 1
        needed = -(-(len(tokens) + len(more)) // self.block) - len(table.blocks) + copies
        if needed > len(self.plain.idle):
            with pytest.raises(NoBlocks):
                self.pool.append(table, more)
            return
        before, taken = list(table.blocks), self.plain.take(needed)
        copy = self.pool.append(table, more)
        assert (copy is not None) == copies
        if copy:
            assert copy == (before.pop(), taken[0])
            self.memory[copy.target] = list(self.memory[copy.source])
        assert table.blocks == before + taken
        self.write(table, len(tokens), more)
        tokens += more
        self.plain.name(table.blocks, tokens, salt, len(tokens) - len(more))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens, salt = data.draw(st.sampled_from(self.live))
        self.live.append((self.pool.fork(table), list(tokens), salt))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table, _, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.plain.let_go([block for block in reversed(table.blocks) if not self.held(block)])
        self.pool.release(table.blocks)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for table, tokens, _ in getattr(self, "live", []):
            read = [token for block in table.blocks for token in self.memory[block]]
            assert read[: len(tokens)] == tokens and table.tokens == len(tokens)
            assert len(table.blocks) == -(-len(tokens) // self.block)

    @invariant()
    def no_block_is_lost_and_what_is_found_is_there(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.available == len(self.plain.idle) == sum(not self.held(each) for each in range(self.blocks))
        for prefix in {*self.plain.prefixes.values(), *((salt, *tokens) for _, tokens, salt in self.live)}:
            salt, *tokens = prefix
            found = self.pool.find(tokens, salt)  # type: ignore[arg-type]
            assert found == self.plain.found(tokens, salt)  # type: ignore[arg-type]
            assert [token for block in found for token in self.memory[block]] == tokens[: len(found) * self.block]


Pool.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


@given(prompts=st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=8), block=st.integers(1, 4))
def test_with_room_for_all_a_prompt_finds_what_it_has_in_common(prompts: list[list[int]], block: int) -> None:
    pool, index = BlockPool(100, block), Reuse(block=block, tokens=400).index()
    for at, prompt in enumerate(prompts):
        common = max((_common(prompt, earlier) for earlier in prompts[:at]), default=0)
        assert pool.start(prompt).hit_tokens == index.take(prompt, 400).hit_tokens == common // block * block


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_places_are_taken_from_the_least_recently_used_and_from_tails_first() -> None:
    pool = BlockPool(6, 2)
    first, second = pool.start([1, 1, 1, 2, 1, 3]), pool.start([2, 1, 2, 2, 2])
    assert (first.blocks, second.blocks) == ([0, 1, 2], [3, 4, 5])
    pool.release(first.blocks)
    pool.release(second.blocks)
    # 5 was not full, so nothing is lost with it; then the first sequence, its tail first
    assert pool.start([9] * 4).blocks == [5, 2]
    assert pool.find([1, 1, 1, 2, 1, 3]) == [0, 1] and pool.find([2, 1, 2, 2]) == [3, 4]
    again = pool.start([1, 1, 1, 2])  # used again, and so the last to go
    pool.release(again.blocks)
    assert pool.start([8] * 4).blocks == [4, 3]
    assert pool.available == 2 and pool.find([1, 1, 1, 2]) == [0, 1]


def test_who_writes_into_a_shared_block_gets_a_copy_and_the_last_holder_writes_in_place() -> None:
    pool = BlockPool(3, 4)
    one = pool.start([1, 2, 3, 4, 5])
    other = pool.fork(one)
    assert other.blocks == one.blocks == [0, 1] and pool.available == 1
    assert pool.append(other, [6]) == (1, 2)
    assert (one.blocks, other.blocks) == ([0, 1], [0, 2])
    assert pool.append(one, [7]) is None and pool.append(other, []) is None
    third = pool.fork(one)
    with pytest.raises(NoBlocks, match="1 more blocks are needed, and 0 are left"):
        pool.append(third, [8])
    assert (third.blocks, third.tokens, third.tail) == ([0, 1], 6, [5, 7])
    for table in (one, other, third):
        pool.release(table.blocks)
    assert pool.available == 3
    with pytest.raises(ValueError, match="held by no table"):
        pool.release(one.blocks)


def test_salts_keep_equal_prompts_apart() -> None:
    pool = BlockPool(4, 2)
    assert pool.start([1, 2], "a").hit_tokens == pool.start([1, 2], "b").hit_tokens == 0
    assert pool.start([1, 2, 3], "a").hit_tokens == 2


def test_an_index_gives_every_full_block_a_place() -> None:
    index = Reuse(block=4, tokens=16).index()
    first = index.take([*range(10)], most=9)
    assert first == ((0, 1), 0)
    again = index.take([*range(8)], most=7)  # one token is left to compute, and with it its whole block
    assert again == ((0, 1), 4)
    other = index.take([*range(4), 9, 9, 9, 9], most=7)  # while the first is still in use
    assert other == ((0, 2), 4)
    assert index.take([1, 2, 3], most=2) == ((), 0)


def test_a_prompt_that_does_not_fit_gets_places_for_its_beginning() -> None:
    index = Reuse(block=4, tokens=16).index()
    long = [*range(24)]
    whole = index.take(long, most=23)
    assert whole == ((0, 1, 2, 3), 0)
    assert index.take([7] * 8, most=7) == ((), 0)  # all places are in use
    index.release(whole)
    assert index.take(long, most=23) == ((0, 1, 2, 3), 16)  # its beginning gives no place to its own end
    index.release(whole)
    assert index.take([7] * 8, most=7) == ((3, 2), 0)
    assert index.take(long, most=23) == ((0, 1), 8)


def test_a_place_that_is_taken_again_is_found_under_its_new_prompt_only() -> None:
    index = Reuse(block=2, tokens=4).index()
    index.release(index.take([1, 1, 1, 1], most=3))
    second = index.take([2, 2, 2, 2], most=3)
    index.release(second)
    third = index.take([1, 1, 1, 1], most=3)
    assert third.hit_tokens == 0 and sorted(third.blocks) == sorted(second.blocks)


def test_capacity_must_hold_a_block() -> None:
    assert Reuse().problems(SHAPE) == []
    assert "strategy.prefix.tokens must hold a block of 16, got 15" in Reuse(tokens=15).problems(SHAPE)
    assert "strategy.prefix.block must be 1 or more, got 0" in Reuse(block=0).problems(SHAPE)


def test_the_pool_works_without_torch() -> None:
    code = "import sys, strategies.paging.blocks; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
