"""Filling to a length: exact, bounded, and never over."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.types import Sample
from tasks.sizing import depth_level, fill, insert, largest
from tests.tasks.task_doubles import Pieces

PRICES = st.lists(st.integers(1, 60), min_size=1, max_size=400)


@given(base=st.integers(0, 300), prices=PRICES, limit=st.integers(1, 3000))
def test_largest_is_exact_for_any_rising_cost(base: int, prices: list[int], limit: int) -> None:
    sums = list(accumulate((prices[i % len(prices)] for i in range(limit + 1)), initial=base))
    units = largest(sums.__getitem__, limit)
    if base > limit:
        assert units == -1
    else:
        assert sums[units] <= limit < sums[units + 1]


@given(seed=st.randoms(use_true_random=False), limit=st.integers(1, 2000))
def test_largest_ends_and_fits_for_a_cost_that_makes_no_sense(seed: object, limit: int) -> None:
    seen: dict[int, int] = {}

    def cost(units: int) -> int:
        return seen.setdefault(units, seed.randrange(2 * limit))  # type: ignore[attr-defined]

    units = largest(cost, limit)
    assert units == -1 or seen[units] <= limit


def test_largest_ends_when_units_are_free() -> None:
    assert largest(lambda units: 10, 100) == 90


@given(price=st.integers(1, 40), limit=st.integers(500, 130_000))
def test_even_units_take_few_calls(price: int, limit: int) -> None:
    calls = []

    def cost(units: int) -> int:
        calls.append(units)
        return 100 + price * units

    largest(cost, limit)
    assert len(calls) <= 6
    assert sum(100 + price * units for units in calls) <= 5 * limit  # no guess is far too long


def test_fill_names_field_rule_and_value_when_nothing_fits() -> None:
    sample = Sample("", "one two three", "what?", ("x",), 50)
    with pytest.raises(ValueError, match=r"task\.lengths must leave room .* got 60"):
        fill(lambda units: sample, Pieces(), 60, "task.lengths")


@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=9), max_size=20),
    depths=st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_insert_keeps_every_piece_and_the_order_of_depths(pieces: list[str], depths: list[float]) -> None:
    inserts = [(depth, f"<{i}>") for i, depth in enumerate(depths)]
    result = insert(pieces, inserts)
    assert [piece for piece in result if not piece.startswith("<")] == pieces
    assert [piece for piece in result if piece.startswith("<")] == [text for _, text in sorted(inserts)]


def test_insert_goes_to_the_nearest_gap() -> None:
    pieces = ["aaaa", "bb", "cccc"]
    assert insert(pieces, [(0.0, "X")])[0] == "X"
    assert insert(pieces, [(1.0, "X")])[-1] == "X"
    assert insert(pieces, [(0.45, "X")]) == ["aaaa", "X", "bb", "cccc"]
    assert insert(pieces, [(0.55, "X")]) == ["aaaa", "bb", "X", "cccc"]
    assert insert([], [(0.5, "X")]) == ["X"]


def test_depth_levels_go_from_start_to_end() -> None:
    assert [depth_level(turn, 5) for turn in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 0.0]
    assert depth_level(3, 1) == 0.0
