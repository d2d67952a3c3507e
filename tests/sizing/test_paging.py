"""Waste and admitted requests: the published figure, the formula, and batches that were counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sizing.paging import Admitted, admitted, waste
from harness.sizing.traces import Request, read
from harness.types import BadInput
from tests.sizing.chains import BLOCK, TEXTS, Texts, requests

MOONCAKE = Path(__file__).parents[1] / "golden" / "mooncake.jsonl"


def of_lengths(lengths: Sequence[int]) -> list[Request]:
    """A prompt of one token, the rest is answer."""
    return [Request(0.0, 1, length - 1, []) for length in lengths]


def test_blocks_of_16_waste_less_than_4_percent_above_180_tokens() -> None:
    """PagedAttention's "under 4 %" (vLLM's blog of June 2023): E[pad] is 7.5 tokens where all remainders are alike."""
    just_below, just_above = (waste(of_lengths(range(first, first + 16)), 16) for first in (172, 173))
    assert (just_below.mean_tokens, just_above.mean_tokens) == (179.5, 180.5)
    assert just_above.paged < 0.04 < just_below.paged
    for found in (just_below, just_above):
        assert found.paged == pytest.approx(found.paged_formula)


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=20), block=st.integers(1, 20))
def test_waste_is_what_is_left_of_whole_blocks_and_of_the_longest(lengths: list[int], block: int) -> None:
    found = waste(of_lengths(lengths), block)
    assert found.paged == pytest.approx(1 - sum(lengths) / sum(-(-length // block) * block for length in lengths))
    assert found.reserved == pytest.approx(1 - sum(lengths) / len(lengths) / max(lengths))
    assert 0 <= found.paged < 1 and found.longest_tokens == max(lengths)


def counted(lengths: Sequence[int], room: int) -> float | None:
    """Requests in batches of ``room`` that got full."""
    batches, left, batch = [], room, 0
    for length in lengths:
        if length > left:
            batches.append(batch)
            left, batch = room, 0
        left, batch = left - length, batch + 1
    return sum(batches) / len(batches) if batches else None


@given(texts=TEXTS, more=st.integers(0, 20))
def test_batches_are_those_of_plain_sums(texts: Texts, more: int) -> None:
    made = requests(texts)
    lengths = [len(tokens) + answer for tokens, answer in texts]
    blocks = -(-max(lengths) // BLOCK) + more
    found = admitted(made, BLOCK, blocks * BLOCK * 3.0, 3.0, 1.5)
    assert found.reserved.requests == counted([max(lengths)] * len(lengths), blocks * BLOCK)
    powers = [min(max(lengths), len(tokens) + (0, 1, 2, 4, 4)[answer]) for tokens, answer in texts]
    assert found.power_of_two.requests == counted(powers, blocks * BLOCK)
    assert found.paged.requests == counted([-(-length // BLOCK) * BLOCK for length in lengths], blocks * BLOCK)
    assert found.paged_reuse.requests == sharing(made, blocks)
    assert found.paged_reuse_format.requests == sharing(made, 2 * blocks)


def sharing(made: Sequence[Request], blocks: int) -> float | None:
    """As ``counted``, where full blocks of prompts that are in the batch cost nothing."""
    batches, used, batch, here = [], 0, 0, set[int]()
    for request in made:
        own = -(-(request.input_tokens + request.output_tokens) // BLOCK)
        if used + own - len(here & set(request.blocks)) > blocks:
            batches.append(batch)
            used, batch, here = 0, 0, set()
        used += own - len(here & set(request.blocks))
        here |= set(request.blocks)
        batch += 1
    return sum(batches) / len(batches) if batches else None


def recorded(memory_gb: float) -> Admitted:
    """131,072 bytes a token: an 8B model with 8 KV heads of 128 in BF16."""
    return admitted(list(read(MOONCAKE, 16)), 16, memory_gb * 1e9, 131072, 65536)


def test_each_step_admits_more_of_a_recorded_trace() -> None:
    found = recorded(60)
    steps = [found.reserved, found.paged, found.paged_reuse, found.paged_reuse_format]
    means = [step.requests or 0.0 for step in steps]
    assert means == sorted(means) and 0 < means[0] < means[-1]
    assert (found.power_of_two.requests or 0) <= means[1]


def test_blocks_of_another_size_than_that_of_the_requests_are_told() -> None:
    with pytest.raises(BadInput, match="block must be the one that requests were read with, got 512"):
        waste(list(read(MOONCAKE, 16)), 512)


def test_a_memory_that_all_fits_in_says_so() -> None:
    assert admitted(of_lengths([3, 4]), 2, 1e15, 1.0, 1.0).paged.requests is None  # and no pool of that size is made


@pytest.mark.parametrize(
    ("lengths", "block", "memory", "sizes", "said"),
    [
        ([], 0, 1e9, (1, 1), ["block must be 1 token or more, got 0", "requests must have a request, got none"]),
        (
            [5],
            2,
            float("nan"),
            (0, -1),
            [
                "memory_bytes must be a number of bytes above 0, got nan",
                "kv_bytes_per_token must be a number of bytes above 0, got 0",
                "format_kv_bytes_per_token must be a number of bytes above 0, got -1",
            ],
        ),
        ([5], 2, 50, (10, 5), ["memory_bytes must hold the longest request, 5 tokens in blocks of 2: 60, got 50"]),
    ],
)
def test_what_cannot_be_admitted_is_told(
    lengths: list[int], block: int, memory: float, sizes: tuple[float, float], said: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        admitted(of_lengths(lengths), block, memory, *sizes)
    assert caught.value.problems == said
