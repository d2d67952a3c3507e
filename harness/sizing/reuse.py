"""What reuse of prefixes saves on a trace, against the room for it.

Requests come one after the other, each over before the next begins, so that what a request finds is what those before it
left. Caches are asked for whole blocks; at least one token of a prompt is computed, so that of n tokens (n - 1) // block
blocks are reused at the most.

``lru`` is exact for all sizes in one pass (``stack_distance``): an ideal cache in which only full blocks take room, once
each. ``lfu`` and ``length_aware`` are such caches too, under another rule (``block_cache``). ``vllm`` and ``radix`` count as
vLLM and SGLang do (``vllm_pool``, ``radix``): what is being computed takes room, and a request that does not fit in is not
served.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from harness.sizing.block_cache import RANKS, BlockCache
from harness.sizing.radix import RadixTree
from harness.sizing.stack_distance import Recency
from harness.sizing.traces import Request
from harness.sizing.vllm_pool import VllmPool
from harness.types import BadInput


@dataclass(frozen=True)
class Point:
    """One size of cache."""

    cache_tokens: float  # math.inf: no limit
    hit_tokens: int
    token_hit_rate: float  # of all prompts' tokens
    request_hit_rate: float  # the mean over requests of each one's share
    refused_requests: int  # larger than the cache; without hits, and in both rates


@dataclass(frozen=True)
class Curve:
    """Hits against size, of one trace."""

    policy: str
    block_tokens: int
    requests: int
    prompt_tokens: int
    points: tuple[Point, ...]  # in the order of size


@dataclass(frozen=True)
class TierHits:
    """What one tier finds of several, each of which keeps what those above it keep too."""

    name: str
    cache_tokens: float
    hit_tokens: int  # found here and in no tier above
    token_hit_rate: float


class Cache(Protocol):
    """A cache of blocks, of one size."""

    def use(self, request: Request) -> int | None:
        """How many blocks of a request's chain, from the first, are here and reused; None if it is not served."""


CACHES: dict[str, Callable[[int, int], Cache]] = {  # of a number of places, and the tokens of each
    **{rule: partial(BlockCache, rule=rule) for rule in RANKS},
    "vllm": VllmPool,
    "radix": RadixTree,
}


def curve(requests: Iterable[Request], block: int, sizes_tokens: Sequence[float], policy: str = "lru") -> Curve:
    """Hits of one pass over ``requests``, whose blocks have ``block`` tokens, in caches of each size; ``math.inf``: the ceiling.

    Memory is a few times the largest size in blocks, whatever the length of the trace. Raises BadInput.
    """
    if problems := _problems(block, sizes_tokens, policy):
        raise BadInput(*problems)
    sizes = sorted(sizes_tokens)
    places = [int(min(size, sys.maxsize) // block) for size in sizes]
    counter = _OnePass(places) if policy == "lru" else _EachSize([CACHES[policy](size, block) for size in places])
    number = prompt_tokens = 0
    for request in requests:
        if not request.full_blocks(block) <= len(request.blocks) <= request.held_blocks(block):
            raise BadInput(f"block must be the one that requests were read with, got {block}")
        number, prompt_tokens = number + 1, prompt_tokens + request.input_tokens
        counter.add(request, block)
    if not number:
        raise BadInput("requests must have a request, got none")
    points = [
        Point(size, hits * block, hits * block / prompt_tokens, shares * block / number, refused)
        for size, hits, shares, refused in zip(sizes, *counter.totals(), strict=True)
    ]
    return Curve(policy, block, number, prompt_tokens, tuple(points))


def hit_rate(found: Curve, cache_tokens: float) -> float:
    """Of all prompts' tokens, in a cache of one of the curve's sizes; 0.0 where it holds no block."""
    if cache_tokens < found.block_tokens:
        return 0.0
    return next(point.token_hit_rate for point in found.points if point.cache_tokens == cache_tokens)


def tiers(found: Curve, tiers_tokens: Mapping[str, float]) -> tuple[TierHits, ...]:
    """What each tier, of one of the curve's sizes, finds that none above it has, in the order given; of an LRU curve.

    A tier keeps what those above it keep too: vLLM's native offload stores every block in host memory and from there in all
    further tiers (vllm/v1/kv_offload/tiering/manager.py), and LMCache writes to all its backends. One that is not larger than
    those above it finds nothing.
    """
    within = {point.cache_tokens: point.hit_tokens for point in found.points}
    told, above = [], 0
    for name, size in tiers_tokens.items():
        hits = max(within[size] - above, 0)
        told.append(TierHits(name, size, hits, hits / found.prompt_tokens))
        above += hits
    return tuple(told)


class _OnePass:
    """Hits of ideal LRU caches from how long ago blocks were used."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places
        self._recency = Recency(max(places))
        self._hits, self._shares = [0] * (len(places) + 1), [0.0] * (len(places) + 1)  # of a size and all larger ones
        self._part_hits, self._part_shares = [0] * len(places), [0.0] * len(places)  # of a size alone

    def add(self, request: Request, block: int) -> None:
        """A block is found in caches of more places than blocks were used since."""
        most = request.reusable_blocks(block)
        for newer, blocks in self._recency.use(request.blocks):
            blocks = min(blocks, most)
            most -= blocks
            some = bisect_right(self._places, newer)
            every = bisect_left(self._places, newer + blocks, some)
            for size in range(some, every):
                self._part_hits[size] += self._places[size] - newer
                self._part_shares[size] += (self._places[size] - newer) / request.input_tokens
            self._hits[every] += blocks
            self._shares[every] += blocks / request.input_tokens

    def totals(self) -> tuple[list[int], list[float], list[int]]:
        """Blocks found, sum of shares of prompts in blocks a token, and requests refused, by size."""
        hits = [sum(pair) for pair in zip(accumulate(self._hits), self._part_hits, strict=False)]
        shares = [sum(pair) for pair in zip(accumulate(self._shares), self._part_shares, strict=False)]
        return hits, shares, [0] * len(hits)


class _EachSize:
    """Hits of a cache for each size, side by side."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self._caches = caches
        self._hits, self._shares, self._refused = [0] * len(caches), [0.0] * len(caches), [0] * len(caches)

    def add(self, request: Request, block: int) -> None:
        for size, cache in enumerate(self._caches):
            if (found := cache.use(request)) is None:
                self._refused[size] += 1
            else:
                self._hits[size] += found
                self._shares[size] += found / request.input_tokens

    def totals(self) -> tuple[list[int], list[float], list[int]]:
        """As of ``_OnePass``."""
        return self._hits, self._shares, self._refused


def _problems(block: int, sizes_tokens: Sequence[float], policy: str) -> list[str]:
    found = [f"block must be 1 token or more, got {block}"] if block < 1 else []
    if policy not in CACHES:
        found.append(f"policy must be one of {', '.join(CACHES)}, got {policy}")
    if not sizes_tokens:
        found.append("sizes must have a size of cache in tokens, got none")
    if wrong := [size for size in sizes_tokens if not size >= max(block, 1)]:
        found.append(f"sizes must hold a block of {block} tokens each, got {', '.join(f'{size:g}' for size in wrong)}")
    return found
