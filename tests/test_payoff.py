"""The payoff gate: what it decides of known pairs, and how often it is wrong on simulated ones."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.power import TTestPower

from harness import payoff, stats
from harness.bench.metrics import SLO
from harness.payoff import METRICS, Payoff, Series, judge_metric, judge_setting
from harness.types import Decision

RUNS = 4000
QUIET = [(1.0, 1.0), (1.0, 1.01), (1.0, 0.99), (1.0, 1.005), (1.0, 0.995)]  # of the baseline with itself


def wants(gain: float, looks: int = 1, metric: str = "throughput") -> Payoff:
    return Payoff({metric: gain}, looks=looks)


def drawn(true: float, spread: float, pairs: int, drift: float, runs: int = RUNS) -> np.ndarray:
    """Log gains ``[runs, pairs]``; the machine gets slower by ``drift`` a measurement, and the order alternates."""
    rng = np.random.default_rng(7)
    order = np.where(np.arange(pairs) % 2 == 0, -1.0, 1.0)
    return math.log(true) + spread * rng.normal(size=(runs, pairs)) + drift * order


def decisions(logs: np.ndarray, gain: float) -> list[Decision]:
    return [payoff._decide(row, np.array([]), gain, 0.05, True, 5)[0] for row in logs]


@pytest.mark.parametrize("drift", [0.0, 0.02])
@pytest.mark.parametrize("pairs", [5, 6, 12])
def test_at_the_wanted_gain_a_wrong_go_is_as_rare_as_promised(pairs: int, drift: float) -> None:
    found = decisions(drawn(1.2, 0.05, pairs, drift), 1.2)
    assert np.mean([one is Decision.GO for one in found]) < 0.06
    assert np.mean([one is Decision.NO_GO for one in found]) < 0.06


def test_what_pays_goes_and_what_does_not_does_not() -> None:
    assert np.mean([one is Decision.GO for one in decisions(drawn(1.5, 0.05, 5, 0.0, 300), 1.2)]) > 0.99
    assert np.mean([one is Decision.NO_GO for one in decisions(drawn(1.0, 0.05, 5, 0.0, 300), 1.2)]) > 0.95


def test_the_baseline_against_itself_is_seldom_void() -> None:
    void = [stats.student_p_value(row) < payoff.NOISE_ALPHA for row in drawn(1.0, 0.1, 5, 0.0)]
    assert np.mean(void) < 0.015


@given(times=st.lists(st.integers(900, 1500), min_size=5, max_size=9), order=st.randoms(use_true_random=False))
def test_the_order_in_which_pairs_were_measured_decides_nothing(times: list[int], order: random.Random) -> None:
    """So no clock that jumps does."""
    pairs = [(1000.0, float(time)) for time in times]
    told = judge_metric("throughput", Series(pairs, QUIET), wants(1.2345), planned=5)
    order.shuffle(pairs)
    again = judge_metric("throughput", Series(pairs, QUIET[::-1]), wants(1.2345), planned=5)
    assert (again.decision, again.pairs_needed) == (told.decision, told.pairs_needed)
    assert again.gain.mean == pytest.approx(told.gain.mean)


@pytest.mark.parametrize("spread, edge", [(0.05, 0.05), (0.1, 0.05), (0.03, 0.2)])
def test_the_pairs_needed_have_the_power_promised(spread: float, edge: float) -> None:
    n = stats.student_sample_size(spread, edge, 0.05, 0.8)
    assert n is not None
    oracle = TTestPower().power
    assert oracle(edge / spread, n, 0.05, alternative="larger") >= 0.8
    assert n == 2 or oracle(edge / spread, n - 1, 0.05, alternative="larger") < 0.8
    assert stats.student_sample_size(spread, 0.0, 0.05, 0.8) is None


def test_less_is_better_turns_the_ratio_round() -> None:
    faster = Series([(2.0, 1.0)] * 5, QUIET)
    found = judge_metric("ttft_p50", faster, wants(1.9, metric="ttft_p50"))
    assert found.decision is Decision.GO and found.gain.mean == pytest.approx(2.0)
    assert judge_metric("throughput", faster, wants(1.0)).decision is Decision.NO_GO


def test_a_counted_gain_of_just_what_was_wanted_is_go() -> None:
    thirds = Series([(3.0, 3.0 * 16 / 9)] * 5, [(3.0, 3.0)] * 5)
    assert judge_metric("capacity", thirds, wants(16 / 9, metric="capacity")).decision is Decision.GO


def test_too_few_pairs_and_spent_looks_decide_nothing() -> None:
    four = judge_metric("throughput", Series([(1.0, 2.0)] * 4, QUIET), wants(1.2))
    assert four.decision is Decision.INCONCLUSIVE and "4 of 5 pairs were measured" in four.reason
    assert judge_metric("throughput", Series([], []), wants(1.2)).gain.mean is None
    pairs = Series([(1.0, 2.0), (1.0, 2.1)] * 3, QUIET)
    assert judge_metric("throughput", pairs, wants(1.2, looks=2), look=2).decision is Decision.GO
    third = judge_metric("throughput", pairs, wants(1.2, looks=2), look=3)
    assert third.decision is Decision.INCONCLUSIVE and "all looks at these measurements are spent" in third.reason


def test_an_undecided_metric_says_how_many_pairs_it_would_take() -> None:
    wide = Series([(1.0, 1.1), (1.0, 1.5), (1.0, 1.2), (1.0, 1.6), (1.0, 1.05)], QUIET)
    found = judge_metric("throughput", wide, wants(1.2))
    assert found.decision is Decision.INCONCLUSIVE and found.pairs_needed and found.pairs_needed > 5
    assert f"about {found.pairs_needed} pairs" in found.reason


def test_a_baseline_that_differs_from_itself_voids() -> None:
    moved = [(1.0, 1.5), (1.0, 1.51), (1.0, 1.49), (1.0, 1.5), (1.0, 1.52)]
    assert judge_metric("throughput", Series([(1.0, 2.0)] * 5, moved), wants(1.2)).decision is Decision.VOID
    by_a_hair = [(1.0, 1.001), (1.0, 1.0011), (1.0, 1.0009), (1.0, 1.001), (1.0, 1.0012)]
    assert judge_metric("throughput", Series([(1.0, 2.0)] * 5, by_a_hair), wants(1.2)).decision is Decision.GO


def test_a_setting_is_as_good_as_its_worst_metric() -> None:
    go = judge_metric("throughput", Series([(1.0, 2.0)] * 5, QUIET), wants(1.2))
    no = judge_metric("throughput", Series([(1.0, 1.0)] * 5, QUIET), wants(1.2))
    seen = judge_metric("throughput", Series([(1.0, 1.0)] * 5, QUIET), Payoff())
    assert seen.decision is Decision.MEASURED
    assert judge_setting([go, seen])[0] is Decision.GO
    assert judge_setting([go, no])[0] is Decision.NO_GO
    assert judge_setting([seen])[0] is Decision.MEASURED
    assert judge_setting([go], idle="quant/fp8 did nothing") == (Decision.VOID, ["quant/fp8 did nothing"])


def test_a_promise_that_cannot_be_kept_is_told_at_once() -> None:
    found = Payoff({"throughput": 0.0, "speed": 2.0, "goodput": 1.0}, SLO(ttft_s=-1.0)).problems()
    assert [text.split(" must ")[0] for text in found if " must " in text] == [
        "gate.payoff.throughput",
        "gate.payoff.speed",
        "gate.payoff.slo.ttft_s",
    ]
    assert "gate.payoff.goodput needs a limit in gate.payoff.slo, got none" in Payoff({"goodput": 1.0}).problems()


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=9), st.floats(0.01, 100))
def test_a_gain_knows_no_unit_and_no_side(pairs: list[tuple[float, float]], unit: float) -> None:
    there = payoff.gain(payoff.log_gains(pairs, more_is_better=True), 0.05)
    scaled = payoff.gain(payoff.log_gains([(b * unit, c * unit) for b, c in pairs], more_is_better=True), 0.05)
    back = payoff.gain(payoff.log_gains([(c, b) for b, c in pairs], more_is_better=False), 0.05)
    assert there.low is not None and there.mean is not None and there.high is not None
    assert there.low <= there.mean * (1 + 1e-9) and there.mean <= there.high * (1 + 1e-9)
    for same in (scaled, back):
        assert (same.mean, same.low, same.high) == pytest.approx((there.mean, there.low, there.high))


def test_every_metric_says_what_was_equal() -> None:
    assert {metric.equal for metric in METRICS.values()} == {"load", "memory", "SLO"}
