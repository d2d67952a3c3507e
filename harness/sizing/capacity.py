"""How many tokens and requests fit, and from which context on a cache outweighs its model. Pure."""

from __future__ import annotations

from collections.abc import Callable

HeldBytes = Callable[[int], int]  # of one request of so many tokens

BLOCK_TOKENS = 16  # of a paged cache: vLLM's choice on CUDA
LIMIT_TOKENS = 2**40  # tokens; beyond this a request has no longest length


def kv_budget_bytes(memory_bytes: float, utilization: float, weight_bytes: float, reserve_bytes: float) -> float:
    """What is left for keys and values; below 0 where weights alone do not fit."""
    return memory_bytes * utilization - weight_bytes - reserve_bytes


def pool_tokens(budget_bytes: float, bytes_per_token: float) -> int:
    """Tokens of all requests together that fit."""
    return max(0, int(budget_bytes // bytes_per_token))


def max_batch(budget_bytes: float, request_bytes: float) -> int:
    """Requests of this size that fit."""
    return max(0, int(budget_bytes // request_bytes))


def max_context_tokens(budget_bytes: float, held: HeldBytes) -> int | None:
    """The longest single request that fits; 0 where not one token does, None where length does not matter (windows alone)."""
    if held(LIMIT_TOKENS) <= budget_bytes:
        return None
    return first_tokens(lambda tokens: held(tokens) > budget_bytes) - 1


def crossover_tokens(weight_bytes: float, held: HeldBytes, rows: int = 1) -> int | None:
    """The context from which the caches of ``rows`` requests outweigh the weights; None where none does."""
    if rows * held(LIMIT_TOKENS) <= weight_bytes:
        return None
    return first_tokens(lambda tokens: rows * held(tokens) > weight_bytes)


def first_tokens(reached: Callable[[int], bool]) -> int:
    """The least number of tokens, 1 or more, that ``reached``; longer requests reach it too."""
    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def paged_waste(mean_tokens: float, block: int) -> float:
    """Share of the places in blocks that stay empty, for lengths that end anywhere in a block (arXiv 2309.06180)."""
    pad = (block - 1) / 2  # in the mean
    return pad / (mean_tokens + pad)
