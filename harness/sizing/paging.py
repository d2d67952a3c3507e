"""What paging wastes, and how many requests a memory admits beside each other: set aside, paged, shared, in a smaller format.

Blocks are handed out by the paging layer's own allocator. Requests are as long as they are in the end, prompt and answer.
Batches are filled in the order of a trace until a request finds no room; it begins the next batch, with an empty pool. Only
batches that got full count, so that what is left of a trace does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.sizing.capacity import paged_waste
from harness.sizing.traces import Request
from harness.types import BadInput
from strategies.paging.blocks import BlockPool, NoBlocks

END = -(2**62)  # token ids from here on stand for tokens that no other request has


@dataclass(frozen=True)
class Waste:
    """Room that was given and never filled, as a share of what was given."""

    mean_tokens: float
    longest_tokens: int
    paged: float
    paged_formula: float  # of the mean alone
    reserved: float  # every request with room for the longest


@dataclass(frozen=True)
class Batches:
    """Requests that were admitted together, in the mean over the batches that got full."""

    count: int
    requests: float | None  # None: no batch got full, the whole trace fits


@dataclass(frozen=True)
class Admitted:
    """What one memory admits, by how room is given."""

    reserved: Batches  # room for the longest request
    power_of_two: (
        Batches  # of the answer, the prompt as it is, never above the longest ("Orca (Pow2)" of arXiv 2309.06180)
    )
    paged: Batches
    paged_reuse: Batches  # beginnings that are alike lie there once
    paged_reuse_format: Batches  # and every token is in the smaller format


def waste(requests: Sequence[Request], block: int) -> Waste:
    """Of requests that share nothing, in blocks of ``block`` tokens. Raises BadInput."""
    longest = _longest(requests, block)
    pool = BlockPool(-(-longest // block), block)
    given = 0
    for number, request in enumerate(requests):
        blocks = _place(pool, request, number, str(number))
        given += len(blocks) * block
        pool.release(blocks)
    held = sum(map(_tokens, requests))
    mean = held / len(requests)
    return Waste(mean, longest, 1 - held / given, paged_waste(mean, block), 1 - mean / longest)


def admitted(
    requests: Sequence[Request],
    block: int,
    memory_bytes: float,
    kv_bytes_per_token: float,
    format_kv_bytes_per_token: float,
) -> Admitted:
    """How many of ``requests``, whose blocks have ``block`` tokens, find room in ``memory_bytes``. Raises BadInput."""
    longest = _longest(requests, block)
    sizes = {"kv_bytes_per_token": kv_bytes_per_token, "format_kv_bytes_per_token": format_kv_bytes_per_token}
    problems = [
        f"{name} must be a number of bytes above 0, got {size}"
        for name, size in {"memory_bytes": memory_bytes, **sizes}.items()
        if not (math.isfinite(size) and size > 0)
    ]
    if problems:
        raise BadInput(*problems)
    pool, packed = (int(memory_bytes / size // block) for size in sizes.values())  # blocks
    if min(pool, packed) * block < longest:
        least = -(-longest // block) * block * max(sizes.values())
        raise BadInput(
            f"memory_bytes must hold the longest request, {longest} tokens in blocks of {block}: {least:g}, got {memory_bytes:g}"
        )
    most = sum(-(-_tokens(request) // block) for request in requests)  # with more blocks all fit too
    return Admitted(
        _batches(requests, lambda: _Reserved(pool * block, lambda request: longest)),
        _batches(requests, lambda: _Reserved(pool * block, lambda request: min(longest, _power_of_two(request)))),
        _batches(requests, lambda: _Paged(min(pool, most), block, share=False)),
        _batches(requests, lambda: _Paged(min(pool, most), block, share=True)),
        _batches(requests, lambda: _Paged(min(packed, most), block, share=True)),
    )


class _Reserved:
    """Contiguous room, of which only the sum matters."""

    def __init__(self, tokens: int, room: Callable[[Request], int]) -> None:
        self._left, self._room = tokens, room

    def admits(self, request: Request, number: int) -> bool:
        self._left -= self._room(request)
        return self._left >= 0


class _Paged:
    """Blocks of a pool, which requests share or not."""

    def __init__(self, blocks: int, block: int, share: bool) -> None:
        self._pool, self._share = BlockPool(blocks, block), share

    def admits(self, request: Request, number: int) -> bool:
        try:
            _place(self._pool, request, number, "" if self._share else str(number))
        except NoBlocks:
            return False
        return True


def _batches(requests: Sequence[Request], room: Callable[[], _Reserved | _Paged]) -> Batches:
    """Fill room after room."""
    now, full, batch, counted = room(), 0, 0, 0
    for number, request in enumerate(requests):
        if not now.admits(request, number):
            full, counted, batch, now = full + 1, counted + batch, 0, room()
            fits = now.admits(request, number)
            assert fits  # room for the longest was asked for
        batch += 1
    return Batches(full, counted / full if full else None)


def _place(pool: BlockPool, request: Request, number: int, salt: str) -> list[int]:
    """Blocks of a request, whose full ones are found by others if they have the same ids and salt. Raises NoBlocks."""
    known = [block for block in request.blocks for _ in range(pool.block)]
    return pool.start([*known, *[END + number] * (_tokens(request) - len(known))], salt).blocks


def _tokens(request: Request) -> int:
    return request.input_tokens + request.output_tokens


def _power_of_two(request: Request) -> int:
    """With the least power of two that is not below the answer."""
    return request.input_tokens + (1 << (request.output_tokens - 1).bit_length() if request.output_tokens else 0)


def _longest(requests: Sequence[Request], block: int) -> int:
    problems = [f"block must be 1 token or more, got {block}"] if block < 1 else []
    problems += ["requests must have a request, got none"] if not requests else []
    if not problems and any(len(request.blocks) > request.held_blocks(block) for request in requests):
        problems.append(f"block must be the one that requests were read with, got {block}")
    if problems:
        raise BadInput(*problems)
    return max(map(_tokens, requests))
