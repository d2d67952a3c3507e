"""Caches of prefixes against plain lists, and what must hold of any of them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sizing import traces
from harness.sizing.radix import RadixTree
from harness.sizing.reuse import CACHES, Cache, Curve, curve, tiers
from harness.sizing.stack_distance import Recency
from harness.sizing.traces import Request
from harness.types import BadInput
from strategies.paging.blocks import BlockPool
from tests.sizing.chains import BLOCK, TEXTS, Texts, held, requests, reusable

MOONCAKE = Path(__file__).parents[1] / "golden" / "mooncake.jsonl"
# the first 300 lines of mooncake_synthetic_trace.jsonl (kvcache-ai/Mooncake, FAST25-release/traces, commit 3b5a5941, Apache-2.0)
SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True)
PLACES = st.integers(1, 12)


def hits(made: list[Request], cache: Cache) -> list[int | None]:
    return [cache.use(request) for request in made]


def plain(made: list[Request], places: int, rule: str) -> list[int]:
    """A list of (block, uses, place in its chain), the least recent first, looked through for every question."""
    here: list[tuple[int, int, int]] = []
    found = []
    for request in made:
        known = {block: uses for block, uses, _ in here}
        run = next((at for at, block in enumerate(request.blocks) if block not in known), len(request.blocks))
        found.append(min(run, reusable(request)))
        own = [(block, known.get(block, 0) + 1, at) for at, block in enumerate(request.blocks[:places])]
        others = [entry for entry in here if entry[0] not in {block for block, _, _ in own}]
        while len(others) + len(own) > places:
            key = {
                "lru": lambda entry: 0,
                "lfu": lambda entry: entry[1],
                "length_aware": lambda entry: (entry[1], -entry[2]),
            }[rule]
            others.remove(min(others, key=key))  # the first of equals: the least recent
        here = others + own[::-1]
    return found


@pytest.mark.parametrize("rule", ["lru", "lfu", "length_aware"])
@given(texts=TEXTS, places=PLACES)
def test_a_block_cache_finds_what_a_plain_list_finds(rule: str, texts: Texts, places: int) -> None:
    made = requests(texts)
    assert hits(made, CACHES[rule](places, BLOCK)) == plain(made, places, rule)


@given(texts=TEXTS, sizes=SIZES)
def test_one_pass_tells_the_hits_of_an_lru_cache_of_every_size(texts: Texts, sizes: list[int]) -> None:
    made = requests(texts)
    found = curve(made, BLOCK, [size * BLOCK for size in sizes])
    for point, size in zip(found.points, sorted(sizes), strict=True):
        each = plain(made, size, "lru")
        assert point.hit_tokens == BLOCK * sum(each)
        shares = [BLOCK * blocks / request.input_tokens for blocks, request in zip(each, made, strict=True)]
        assert point.request_hit_rate == pytest.approx(sum(shares) / len(made))
        assert point.token_hit_rate == pytest.approx(point.hit_tokens / sum(len(tokens) for tokens, _ in texts))


@given(texts=TEXTS, repeats=st.integers(1, 200), most=st.sampled_from([3, math.inf]))
def test_what_is_forgotten_was_too_old_to_count(texts: Texts, repeats: int, most: float) -> None:
    """Long enough to be renumbered several times; distances below ``most`` are those of a plain list."""
    recency, order = Recency(most), []  # the most recent first
    recency._room(4)
    for request in requests(texts) * repeats:
        told = [newer + at for newer, blocks in recency.use(request.blocks) for at in range(blocks)]
        known = [order.index(block) for block in request.blocks if block in order]
        assert [distance for distance in told if distance < most] == [distance for distance in known if distance < most]
        order = [*request.blocks, *(block for block in order if block not in request.blocks)]


@given(texts=TEXTS, places=PLACES)
def test_vllms_pool_is_the_paging_layers_where_no_prompt_is_cached_whole(texts: Texts, places: int) -> None:
    """The paging layer keeps equal blocks once and serves what it has whole; one more token to each prompt hides both."""
    odd = [(tokens if len(tokens) % BLOCK else [*tokens, 0], 0) for tokens, _ in texts]
    pool, expected = BlockPool(places, BLOCK), list[int | None]()
    for tokens, _ in odd:
        if -(-len(tokens) // BLOCK) > places:
            expected.append(None)
            continue
        table = pool.start(tokens)
        expected.append(table.hit_tokens // BLOCK)
        pool.release(table.blocks)
    assert hits(requests(odd), CACHES["vllm"](places, BLOCK)) == expected


def plain_vllm(made: list[Request], places: int) -> list[int | None]:
    """The free queue as a list of (content, number of filling), None where nothing can be found."""
    free: list[tuple[int | None, int]] = [(None, 0)] * places
    filled = 0
    found: list[int | None] = []
    for request in made:
        if held(request) > places:
            found.append(None)
            continue
        table = []
        for block in request.blocks[: reusable(request)]:
            if not (equal := [place for place in free if place[0] == block]):
                break
            table.append(min(equal, key=lambda place: place[1]))  # that was filled first
            free.remove(table[-1])
        found.append(len(table))
        free = free[held(request) - len(table) :]
        for block in request.blocks[len(table) :]:
            filled += 1
            table.append((block, filled))
        free = [*[(None, 0)] * (held(request) - len(table)), *free, *reversed(table)]
    return found


@given(texts=TEXTS, places=PLACES)
def test_vllms_pool_is_a_queue_of_places(texts: Texts, places: int) -> None:
    made = requests(texts)
    assert hits(made, CACHES["vllm"](places, BLOCK)) == plain_vllm(made, places)


class PlainTree:
    """Every block by its path, with the number of its edge; of edges that are leaves the one of the lowest age goes first."""

    def __init__(self, places: int, block: int) -> None:
        self.places, self.block = places, block
        self.edges: dict[tuple[int, ...], int] = {}  # by path
        self.ages: list[int] = []  # by edge
        self.path: set[int] = set()  # edges of the request that runs

    def walk(self, chain: tuple[int, ...]) -> int:
        depth = 0
        while chain[: depth + 1] in self.edges and depth < len(chain):
            depth += 1
        on_the_way = {self.edges[chain[:at]] for at in range(1, depth + 1)}
        for edge in on_the_way:
            self.ages[edge] = 2 * max(self.ages)  # what is cut off is as new
        if depth and (
            cut := [path for path in self.edges if len(path) > depth and self.same_edge(path, chain[:depth])]
        ):
            self.ages.append(self.ages[self.edges[chain[:depth]]])
            self.edges |= dict.fromkeys(cut, len(self.ages) - 1)
        self.path |= on_the_way
        return depth

    def same_edge(self, path: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return self.edges[path] == self.edges[other]

    def insert(self, chain: tuple[int, ...]) -> None:
        depth = self.walk(chain)
        if depth < len(chain):
            self.ages.append(2 * max(self.ages, default=1) + 1)
            self.edges |= {chain[:at]: len(self.ages) - 1 for at in range(depth + 1, len(chain) + 1)}
            self.path.add(len(self.ages) - 1)

    def make_room(self, blocks: int, running: int) -> None:
        if self.places - len(self.edges) - running >= blocks:
            return
        stop = len(self.edges) - blocks
        while len(self.edges) > stop and (leaves := self.leaves()):
            oldest = min(leaves, key=lambda edge: self.ages[edge])
            self.edges = {path: edge for path, edge in self.edges.items() if edge != oldest}

    def leaves(self) -> set[int]:
        inner = {
            self.edges[path[:-1]]
            for path, edge in self.edges.items()
            if len(path) > 1 and self.edges[path[:-1]] != edge
        }
        return set(self.edges.values()) - inner - self.path

    def use(self, request: Request) -> int | None:
        if held(request, self.block) > self.places:
            return None
        self.path = set()
        chain, full = tuple(request.blocks), request.input_tokens // self.block
        found = self.walk(chain[: reusable(request, self.block)])
        self.make_room(-(-request.input_tokens // self.block) - found, 0)
        self.insert(chain[:full])
        for running in range(-(-request.input_tokens // self.block) - full, held(request, self.block) - full):
            self.make_room(1, running)
        self.insert(chain)
        return found


@given(texts=TEXTS, places=PLACES, block=st.sampled_from([1, BLOCK]), answers=st.booleans())
def test_a_radix_tree_finds_what_a_plain_one_finds(texts: Texts, places: int, block: int, answers: bool) -> None:
    tree, plain_tree = RadixTree(places, block), PlainTree(places, block)
    for request in requests(texts, block, answers):
        assert tree.use(request) == plain_tree.use(request)
        assert tree.used == len(plain_tree.edges) <= places


@given(texts=TEXTS, sizes=SIZES)
def test_a_larger_lru_cache_never_finds_less(texts: Texts, sizes: list[int]) -> None:
    points = curve(requests(texts), BLOCK, [size * BLOCK for size in sizes]).points
    assert all(small.hit_tokens <= large.hit_tokens for small, large in pairwise(points))


@given(texts=TEXTS)
@pytest.mark.parametrize("policy", CACHES)
def test_a_cache_that_is_large_enough_finds_all_there_is(policy: str, texts: Texts) -> None:
    whole = sum(len(tokens) + answer + BLOCK for tokens, answer in texts)
    large, endless = curve(requests(texts), BLOCK, [whole, math.inf], policy).points
    ideal = sum(
        max(common(tokens, before) for before, _ in [([], 0), *texts[:at]]) // BLOCK * BLOCK
        for at, (tokens, _) in enumerate(texts)
    )
    assert large.hit_tokens == endless.hit_tokens == ideal and large.refused_requests == 0


def common(tokens: list[int], before: list[int]) -> int:
    """Tokens that two texts begin with alike, of which the last of a prompt does not count."""
    pairs = zip(tokens[:-1], before, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(tokens) - 1, len(before)))


@given(texts=TEXTS, block=st.integers(1, 3), times=st.integers(2, 3))
def test_larger_blocks_never_find_more(texts: Texts, block: int, times: int) -> None:
    def ceiling(size: int) -> int:
        return curve(requests(texts, size), size, [math.inf]).points[0].hit_tokens

    assert ceiling(block * times) <= ceiling(block)


@given(texts=TEXTS, small=PLACES, large=PLACES)
def test_tiers_share_what_one_cache_as_large_as_the_largest_finds(texts: Texts, small: int, large: int) -> None:
    made = requests(texts)
    sizes = {"hbm": small * BLOCK, "dram": large * BLOCK}
    hbm, dram = tiers(curve(made, BLOCK, [*sizes.values()]), sizes)
    alone = {size: curve(made, BLOCK, [size * BLOCK]).points[0].hit_tokens for size in (small, large)}
    assert hbm.hit_tokens == alone[small]
    assert hbm.hit_tokens + dram.hit_tokens == alone[max(small, large)]


def mooncake(policy: str, sizes: list[float], block: int = 512) -> Curve:
    return curve(traces.read(MOONCAKE, block), block, sizes, policy)


def test_a_recorded_trace_reaches_its_ceiling() -> None:
    """The ceiling is counted here without any cache: blocks that were there before, in a row from the first."""
    seen: Counter[int] = Counter()
    ideal = 0
    for request in traces.read(MOONCAKE, 512):
        run = next((at for at, block in enumerate(request.blocks) if not seen[block]), len(request.blocks))
        ideal += min(run, reusable(request, 512))
        seen.update(request.blocks)
    for policy in CACHES:
        points = mooncake(policy, [1000 * 512, len(seen) * 512 * 2, math.inf]).points
        assert points[0].hit_tokens < points[1].hit_tokens == points[2].hit_tokens == 512 * ideal > 0


def test_blocks_of_another_size_than_the_traces_can_be_asked_for() -> None:
    whole, cut, joined = (mooncake("lru", [math.inf], block=block).points[0].hit_tokens for block in (512, 16, 2048))
    assert 0 < joined < whole < cut < 1.01 * whole  # equal ends of prompts that fill no block of the trace


@pytest.mark.parametrize(
    ("block", "sizes", "policy", "said"),
    [
        (0, [512], "lru", ["block must be 1 token or more, got 0"]),
        (512, [], "lru", ["sizes must have a size of cache in tokens, got none"]),
        (
            512,
            [100, 1e9],
            "mru",
            ["policy must be one of lru, lfu", "sizes must hold a block of 512 tokens each, got 100"],
        ),
        (512, [math.nan], "lru", ["sizes must hold a block of 512 tokens each, got nan"]),
    ],
)
def test_what_cannot_be_simulated_is_told_at_once(block: int, sizes: list[float], policy: str, said: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        curve([], block, sizes, policy)
    assert len(caught.value.problems) == len(said)
    assert all(problem.startswith(start) for problem, start in zip(caught.value.problems, said, strict=True))


@pytest.mark.parametrize("block", [16, 1024])
def test_blocks_of_another_size_than_that_of_the_requests_are_told(block: int) -> None:
    with pytest.raises(BadInput, match=f"block must be the one that requests were read with, got {block}"):
        curve(traces.read(MOONCAKE, 512), block, [1e6])


def test_no_request_is_told() -> None:
    with pytest.raises(BadInput, match="requests must have a request, got none"):
        curve([], 16, [16])
