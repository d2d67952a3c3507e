"""pass@k against counting, over items with and without all their answers."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import stats
from harness.generation import drawn
from harness.pass_at_k import PassAtK, pass_at_k
from harness.types import Generation, Record, Sample, State

CELL = ("fp8", "task", "prompt")


def test_it_is_the_share_of_draws_that_hold_a_right_answer() -> None:
    for n, c, k in [(1, 0, 1), (1, 1, 1), (5, 2, 1), (6, 2, 3), (6, 5, 2), (7, 0, 7)]:
        draws = list(combinations([True] * c + [False] * (n - c), k))
        assert stats.pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    for n, c, k in [(0, 0, 1), (3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)]:
        with pytest.raises(ValueError, match="needs"):
            stats.pass_at_k(n, c, k)


def records(samples: list[Sample], scores: list[float | None]) -> dict[str, Record]:
    """A record of each sample; one without a score was cut off."""
    return {
        sample.id: Record("c", sample.id, "h", "p", State.TRUNCATED if score is None else State.SCORED, score)
        for sample, score in zip(samples, scores, strict=True)
    }


def samples(num_items: int, k: int) -> list[Sample]:
    return drawn([Sample(f"i{at}", "", "", (), 1) for at in range(num_items)], num_items * k, Generation(1.0, k))


@given(st.integers(1, 5).flatmap(lambda k: st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=1)))
def test_means_over_items_equal_counting_every_draw_of_k(table: list[list[bool]]) -> None:
    k = len(table[0])
    asked = samples(len(table), k)
    found = pass_at_k(CELL, asked, records(asked, [float(right) for row in table for right in row]), k)
    assert found.pass_at is not None and (found.items, found.left_out) == (len(table), 0)
    for j, estimate in enumerate(found.pass_at, start=1):
        shares = [[any(some) for some in combinations(row, j)] for row in table]
        assert estimate == pytest.approx(sum(sum(row) / len(row) for row in shares) / len(table))
    assert list(found.pass_at) == sorted(found.pass_at)


def test_items_that_lack_an_answer_are_left_out_and_counted() -> None:
    asked = samples(4, 2)
    known = records(asked, [1.0, 0.0, 1.0, None, 0.0, 0.0, 1.0, 1.0])
    del known["i3~2"]
    assert pass_at_k(CELL, asked, known, 2) == PassAtK(*CELL, 2, 2, (0.25, 0.5))
    assert pass_at_k(CELL, asked[:1], known, 2) == PassAtK(*CELL, 0, 1, None)
