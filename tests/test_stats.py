"""The statistics against enumeration, simulation, published values and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy
from scipy.stats import binom, binomtest, norm

from harness import stats
from harness.stats import Floats

Z95 = float(norm.isf(0.05))
MARGINS = (0.01, 0.02, 0.03, 0.05)


def flips(n: int, gain: float, loss: float, seed: int, runs: int = 1) -> Floats:
    """``runs`` x ``n`` differences: +1 with probability ``gain``, -1 with probability ``loss``, else 0."""
    u = np.random.default_rng(seed).random((runs, n))
    return np.where(u < gain, 1.0, np.where(u < gain + loss, -1.0, 0.0))


def crossed(d: Floats, delta: float, alpha: float = 0.05) -> Floats:
    """First unit (1-based) at which betting rejects, per row; infinite if it never does."""
    hits = np.array([stats.betting_log_wealth(row, delta) >= math.log(1 / alpha) for row in d])
    return np.where(hits.any(axis=1), hits.argmax(axis=1) + 1.0, np.inf)


# --- Tango ---


@pytest.mark.parametrize(
    ("n", "delta", "gain", "percent"),
    [
        (164, 0.01, 0.0, 0.0),
        (164, 0.01, 0.005, 1.9),
        (164, 0.02, 0.0, 3.6),
        (500, 0.01, 0.0, 4.0),
        (500, 0.01, 0.005, 4.6),
        (1319, 0.01, 0.0, 4.8),
        (1319, 0.02, 0.0, 5.4),
    ],
)
def test_tango_type_one_error_at_the_boundary(n: int, delta: float, gain: float, percent: float) -> None:
    rate = stats.rejection_probability(Z95, n, delta, gain, gain + delta)[0]
    assert round(100 * rate, 1) == percent
    d = flips(n, gain, gain + delta, seed=n, runs=10_000)
    t = stats.tango_statistic((d > 0).sum(axis=1), (d < 0).sum(axis=1), n, delta)
    assert np.mean(t > Z95) == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / 10_000))


@pytest.mark.parametrize(
    ("n", "delta", "percent"), [(52, 0.05, 6.9), (134, 0.02, 6.7), (268, 0.01, 6.8), (300, 0.02, 6.0)]
)
def test_size_of_tango_exceeds_alpha_at_some_n(n: int, delta: float, percent: float) -> None:
    assert round(100 * stats.tango_size(n, delta, 0.05), 1) == percent


@pytest.mark.parametrize(
    ("n", "delta", "powers"),
    [
        (164, 0.01, (0.04, 0.13, 0.14)),
        (164, 0.02, (0.68, 0.37, 0.27)),
        (500, 0.01, (0.74, 0.437, 0.25)),
        (500, 0.02, (1.00, 0.88, 0.62)),
        (1319, 0.01, (1.00, 0.79, 0.48)),
        (1319, 0.02, (1.00, 1.00, 0.94)),
    ],
)
def test_tango_power_without_loss(n: int, delta: float, powers: tuple[float, ...]) -> None:
    rates = np.array([0.005, 0.02, 0.05]) / 2
    assert stats.rejection_probability(Z95, n, delta, rates, rates) == pytest.approx(powers, abs=0.006)


def test_tango_lower_limit() -> None:
    assert stats.tango_interval(5, 8, 500, 0.05).low == pytest.approx(-0.01940, abs=5e-6)


def test_tango_interval_agrees_with_evalstats() -> None:
    resampling = pytest.importorskip("evalstats.core.resampling")
    baseline, candidate = np.zeros(500), np.zeros(500)
    baseline[:8], candidate[8:13] = 1, 1
    low, _ = resampling.tango_scc_paired_ci(candidate, baseline, alpha=0.10)
    assert low == pytest.approx(-0.01970, abs=5e-6)
    assert stats.tango_interval(5, 8, 500, 0.05).low == pytest.approx(low, abs=4e-4)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 0), (0, 5), (100, 0), (0, 100), (50, 50)])
@pytest.mark.parametrize("delta", [-0.999, -0.02, 0.0, 0.02, 0.999])
def test_tango_is_finite_everywhere(gained: int, lost: int, delta: float) -> None:
    assert np.isfinite(stats.tango_statistic(gained, lost, 100, delta))


def test_tango_without_flips_has_a_closed_form() -> None:
    assert stats.tango_statistic(0, 0, 300, 0.01) == pytest.approx(math.sqrt(300 * 0.01 / 0.99))


def test_tango_rejects_exactly_the_means_below_its_lower_limit() -> None:
    low, high = stats.tango_interval(5, 8, 500, 0.05)
    assert stats.tango_statistic(5, 8, 500, -(low - 1e-5)) > Z95 > stats.tango_statistic(5, 8, 500, -(low + 1e-5))
    assert stats.tango_statistic(8, 5, 500, high + 1e-5) > Z95 > stats.tango_statistic(8, 5, 500, high - 1e-5)


@pytest.mark.parametrize(("n", "percent"), [(164, 19.2), (500, 12.3), (1319, 9.0)])
def test_why_not_wald(n: int, percent: float) -> None:
    lost = np.arange(n + 1)
    mean, variance = -lost / n, (lost / n) * (1 - lost / n)
    with np.errstate(divide="ignore"):
        rejects = (mean + 0.01) / np.sqrt(variance / n) > Z95
    assert round(100 * binom.pmf(lost, n, 0.01)[rejects].sum(), 1) == percent


# --- The exact unconditional test ---


def p_by_brute_force(gained: int, lost: int, n: int, delta: float) -> float:
    """The definition: sum the multinomial over all tables at least as extreme, at the worst of many gain rates."""
    tables = [(b, c) for c in range(n + 1) for b in range(n + 1 - c)]
    seen = stats.tango_statistic(gained, lost, n, delta)
    extreme = [(b, c) for b, c in tables if stats.tango_statistic(b, c, n, delta) >= seen - 1e-9]
    b, c = np.array(extreme).T
    gain = ((1 - delta) / 2 * np.linspace(0, 1, 2001))[:, None]
    log_tables = math.lgamma(n + 1) - np.array([math.lgamma(x + 1) + math.lgamma(y + 1) for x, y in extreme])
    log_tables -= np.array([math.lgamma(n - x - y + 1) for x, y in extreme])
    ties = np.maximum(1 - delta - 2 * gain, 0.0)
    p = np.exp(log_tables + xlogy(b, gain) + xlogy(c, gain + delta) + xlogy(n - b - c, ties)).sum(axis=1)
    return float(p.max())


@pytest.mark.parametrize(
    ("gained", "lost", "n", "delta"), [(1, 0, 10, 0.1), (2, 3, 25, 0.05), (0, 0, 30, 0.1), (4, 2, 30, 0.3)]
)
def test_exact_p_value_is_its_definition(gained: int, lost: int, n: int, delta: float) -> None:
    assert stats.exact_p_value(gained, lost, n, delta) == pytest.approx(
        p_by_brute_force(gained, lost, n, delta), rel=2e-3
    )


@pytest.mark.parametrize("delta", MARGINS)
@pytest.mark.parametrize("n", [7, 30, 59, 134, 200, 268, 300, 451, 600])
def test_exact_test_holds_its_level(n: int, delta: float) -> None:
    """Size by enumeration on a grid of its own, for the levels of one and of two looks."""
    gain = (1 - delta) / 2 * np.sin(np.linspace(0, math.pi / 2, 150)) ** 2
    for alpha in (0.05, 0.025):
        threshold = stats.critical_value(n, delta, alpha)
        assert stats.rejection_probability(threshold, n, delta, gain, gain + delta).max() <= alpha + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("delta", MARGINS)
def test_exact_test_holds_its_level_at_many_n(delta: float) -> None:
    gain = (1 - delta) / 2 * np.sin(np.linspace(0, math.pi / 2, 150)) ** 2
    for n in range(3, 601, 6):
        threshold = stats.critical_value(n, delta, 0.05)
        assert stats.rejection_probability(threshold, n, delta, gain, gain + delta).max() <= 0.05 + 1e-4


def test_critical_value_splits_the_tables_as_the_p_value_does() -> None:
    threshold = stats.critical_value(200, 0.02, 0.05)
    for gained in range(8):
        for lost in range(8):
            rejected = stats.tango_statistic(gained, lost, 200, 0.02) >= threshold
            assert rejected == (stats.exact_p_value(gained, lost, 200, 0.02) <= 0.05)


def test_deciding_test_changes_to_tango_above_600() -> None:
    assert stats.ni_p_value(2, 3, 600, 0.02) == stats.exact_p_value(2, 3, 600, 0.02)
    assert stats.ni_p_value(2, 3, 601, 0.02) == stats.tango_p_value(2, 3, 601, 0.02)


counts = st.integers(1, 900).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n)).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]), st.integers(0, pair[0] - pair[1]))
    )
)
few_flips = st.tuples(st.integers(20, 900), st.integers(0, 10), st.integers(0, 10))


@settings(max_examples=40, deadline=None)
@given(table=counts | few_flips, delta=st.sampled_from([*MARGINS, 0.2]), alpha=st.sampled_from([0.05, 0.025]))
def test_interval_and_decision_agree(table: tuple[int, int, int], delta: float, alpha: float) -> None:
    n, gained, lost = table
    low, high = stats.ni_interval(gained, lost, n, alpha, delta)
    assert (low > -delta) == (stats.ni_p_value(gained, lost, n, delta) <= alpha)
    assert (high < -delta) == (stats.ni_p_value(lost, gained, n, -delta) <= alpha)
    assert -1 <= low <= (gained - lost) / n + stats.LIMIT_TOLERANCE
    assert 1 >= high >= (gained - lost) / n - stats.LIMIT_TOLERANCE


@settings(max_examples=60, deadline=None)
@given(table=counts, delta=st.sampled_from([*MARGINS, 0.2]))
def test_p_value_falls_with_gains_and_rises_with_losses(table: tuple[int, int, int], delta: float) -> None:
    n, gained, lost = table
    if gained + lost == n:
        return
    p = stats.ni_p_value(gained, lost, n, delta)
    assert stats.ni_p_value(gained + 1, lost, n, delta) <= p + 1e-9
    assert stats.ni_p_value(gained, lost + 1, n, delta) >= p - 1e-9


@pytest.mark.parametrize(
    "table", [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 20, 20), (20, 0, 20), (0, 0, 20), (0, 700, 700)]
)
def test_interval_of_extreme_tables(table: tuple[int, int, int]) -> None:
    low, high = stats.ni_interval(*table, 0.05, 0.02)
    assert -1 <= low < high <= 1


def test_a_table_is_as_extreme_as_itself_at_margins_near_one() -> None:
    for distance in [*np.geomspace(1e-3, 5e-7, 100), 1.2 * 2**-21]:  # at the last one rounding once broke the tie
        assert stats.exact_p_value(0, 25, 25, 1 - distance) == pytest.approx(1.0)


# --- McNemar and the bounds without a model ---


def test_mcnemar() -> None:
    mcnemar = pytest.importorskip("statsmodels.stats.contingency_tables").mcnemar
    assert stats.mcnemar_p_value(0, 6) == pytest.approx(0.03125)
    for gained, lost in [(0, 6), (3, 9), (5, 5), (9, 2), (1, 0)]:
        assert stats.mcnemar_p_value(gained, lost) == pytest.approx(mcnemar([[50, lost], [gained, 9]]).pvalue)
        assert stats.mcnemar_p_value(gained, lost) == pytest.approx(binomtest(lost, gained + lost).pvalue)
        one_sided = binomtest(lost, gained + lost, alternative="greater").pvalue
        assert stats.mcnemar_harm_p_value(gained, lost) == pytest.approx(one_sided)
    assert stats.mcnemar_p_value(0, 0) == stats.mcnemar_harm_p_value(0, 0) == 1.0


@pytest.mark.parametrize(("delta", "n"), [(0.01, 299), (0.02, 149), (0.05, 59)])
def test_zero_flip_bound(delta: float, n: int) -> None:
    assert stats.zero_flip_sample_size(delta, 0.05) == n
    assert stats.harm_upper_bound(0, n, 0.05) <= delta < stats.harm_upper_bound(0, n - 1, 0.05)


@pytest.mark.parametrize(
    ("n", "delta", "gain", "percent"),
    [(164, 0.02, 0.0, 3.6), (500, 0.01, 0.0, 4.0), (500, 0.01, 0.005, 0.5), (1319, 0.02, 0.0, 3.4)],
)
def test_harm_bound_type_one_error(n: int, delta: float, gain: float, percent: float) -> None:
    accepted = [lost for lost in range(60) if stats.harm_upper_bound(lost, n, 0.05) <= delta]
    assert round(100 * binom.cdf(max(accepted, default=-1), n, delta + gain), 1) == percent


def test_harm_bound_when_all_is_lost() -> None:
    assert stats.harm_upper_bound(5, 5, 0.05) == 1.0


# --- Betting ---


@pytest.mark.parametrize(("delta", "item"), [(0.02, 296), (0.01, 595)])
def test_betting_without_flips(delta: float, item: int) -> None:
    assert crossed(np.zeros((1, 700)), delta)[0] == item
    assert item == math.ceil(math.log(20) / math.log1p(delta / (2 * (1 - delta))))
    assert stats.betting_sample_size(np.zeros(10), delta, 0.05, 0.8) == item


@pytest.mark.parametrize(("n", "delta", "gain"), [(500, 0.02, 0.005), (1000, 0.02, 0.0), (600, 0.01, 0.01)])
def test_betting_type_one_error(n: int, delta: float, gain: float) -> None:
    d = flips(n, gain, gain + delta, seed=1, runs=2000)
    assert np.mean(np.isfinite(crossed(d, delta))) <= 0.05
    assert np.mean(np.isfinite(crossed(-d, -delta))) <= 0.05
    assert np.mean([stats.betting_p_value(row, delta) <= 0.05 for row in d]) <= 0.05


def test_betting_type_one_error_with_few_bad_clusters() -> None:
    """Where item-level tests fail: clusters of 5 questions, one in 50 contexts wholly lost, margin 2 %."""
    means = -(np.random.default_rng(2).random((2000, 200)) < 0.02).astype(float)
    assert np.mean([stats.betting_p_value(row, 0.02) <= 0.05 for row in means]) <= 0.05


@pytest.mark.parametrize(
    ("loss", "found", "median"), [(0.05, 0.64, 280), (0.10, 1.0, 117), (0.20, 1.0, 47), (0.40, 1.0, 22)]
)
def test_betting_finds_harm_early(loss: float, found: float, median: int) -> None:
    stops = crossed(-flips(500, 0.01, loss, seed=3, runs=600), -0.01)
    assert np.mean(np.isfinite(stops)) == pytest.approx(found, abs=0.06)
    assert np.median(stops[np.isfinite(stops)]) == pytest.approx(median, rel=0.08)


def test_bets_use_earlier_units_only() -> None:
    d = flips(300, 0.1, 0.1, seed=4)[0]
    changed = d.copy()
    changed[200:] = -1
    full, other = stats.betting_log_wealth(d, 0.02), stats.betting_log_wealth(changed, 0.02)
    assert np.array_equal(full[:200], other[:200])
    bets = [(math.exp(w[200] - w[199]) - 1) / (x[200] + 0.02) for w, x in ((full, d), (other, changed))]
    assert bets[0] == pytest.approx(bets[1])


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=60), st.floats(-0.99, 0.99))
def test_wealth_stays_positive_and_halves_at_worst(d: list[float], delta: float) -> None:
    steps = np.diff(stats.betting_log_wealth(d, delta), prepend=0.0)
    assert np.all(np.isfinite(steps))
    assert np.all(steps >= math.log(0.5) - 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 400),
    st.sampled_from([0.0, 0.01, 0.1, 0.9]),
    st.sampled_from([0.0, 0.01, 0.1, 0.9]),
    st.integers(0, 1000),
    st.sampled_from(MARGINS),
)
def test_betting_interval_and_decision_agree(n: int, gain: float, loss: float, seed: int, delta: float) -> None:
    d = flips(n, gain, loss, seed)[0] * np.random.default_rng(seed).random(n)
    low, high = stats.betting_interval(d, 0.025, delta)
    assert (low > -delta) == (stats.betting_p_value(d, delta) <= 0.025)
    assert (high < -delta) == (stats.betting_harm_p_value(d, delta) <= 0.025)
    assert low <= (d.mean() if n else 0.0) + 1e-6
    assert high >= (d.mean() if n else 0.0) - 1e-6


def test_betting_never_claims_what_the_mean_contradicts() -> None:
    turned = np.concatenate([np.zeros(600), -np.ones(100)])
    assert stats.betting_log_wealth(turned, 0.02).max() > math.log(20)
    assert stats.betting_p_value(turned, 0.02) == 1.0
    assert stats.betting_p_value([], 0.02) == stats.betting_harm_p_value([], 0.02) == 1.0


# --- Sample sizes ---


@pytest.mark.parametrize(
    ("flip_rate", "sizes"),
    [
        (0.005, (1237, 310, 78, 35, 13)),
        (0.01, (2474, 619, 155, 69, 25)),
        (0.02, (4947, 1237, 310, 138, 50)),
        (0.05, (12366, 3092, 773, 344, 124)),
        (0.10, (24731, 6183, 1546, 687, 248)),
    ],
)
def test_normal_sample_sizes(flip_rate: float, sizes: tuple[int, ...]) -> None:
    margins = (0.005, 0.01, 0.02, 0.03, 0.05)
    assert tuple(stats.normal_sample_size(flip_rate, delta, 0.05, 0.8) for delta in margins) == sizes


def test_miller_sample_size() -> None:
    assert stats.normal_sample_size(1 / 9, 0.03, 0.025, 0.8) == 969


@pytest.mark.parametrize(
    ("n", "flip_rate", "points"),
    [(30, 0.02, 6.4), (164, 0.02, 2.7), (500, 0.05, 2.5), (1319, 0.02, 1.0), (1319, 0.05, 1.5), (200, 0.05, 3.9)],
)
def test_smallest_margin_inverts_the_sample_size(n: int, flip_rate: float, points: float) -> None:
    def decides(delta: float) -> bool:
        needed = stats.normal_sample_size(flip_rate, delta, 0.05, 0.8)
        return needed is not None and needed <= n

    smallest = stats.smallest_margin(decides)
    assert smallest is not None
    assert 100 * smallest == pytest.approx(points, rel=0.03)


def test_smallest_margin_of_nothing() -> None:
    assert stats.smallest_margin(lambda delta: False) is None


@pytest.mark.parametrize(
    ("delta", "flip_rate", "mean"),
    [(0.02, 0.0, 0.0), (0.02, 0.02, 0.0), (0.05, 0.02, -0.01), (0.01, 0.005, 0.0), (0.02, 0.1, 0.01)],
)
def test_sample_size_has_the_power_it_promises(delta: float, flip_rate: float, mean: float) -> None:
    n = stats.ni_sample_size(delta, 0.05, 0.8, flip_rate, mean)
    assert n is not None
    assert stats.ni_power(n, delta, 0.05, flip_rate, mean) >= 0.8
    assert n >= stats.zero_flip_sample_size(delta, 0.05)
    formula = stats.normal_sample_size(flip_rate - mean**2, delta, 0.05, 0.8, mean)
    assert formula is not None
    assert n >= formula


def test_power_by_simulation() -> None:
    d = flips(300, 0.01, 0.01, seed=5, runs=600)
    won = [
        stats.ni_p_value(int(b), int(c), 300, 0.02) <= 0.05 for b, c in zip((d > 0).sum(1), (d < 0).sum(1), strict=True)
    ]
    assert np.mean(won) == pytest.approx(stats.ni_power(300, 0.02, 0.05, 0.02), abs=0.05)


def test_hopeless_sample_sizes() -> None:
    assert stats.ni_sample_size(0.02, 0.05, 0.8, 0.05, -0.02) is None
    assert stats.betting_sample_size(np.zeros(5), 0.02, 0.05, 0.8, -0.03) is None
    assert stats.betting_sample_size([], 0.02, 0.05, 0.8) == 296


@pytest.mark.parametrize(("kind", "delta"), [("flips", 0.02), ("clusters", 0.02), ("graded", 0.05)])
def test_betting_sample_size_has_about_the_power_it_promises(kind: str, delta: float) -> None:
    rng = np.random.default_rng(6)

    def draw(n: int) -> Floats:
        if kind == "graded":
            return np.clip(rng.normal(0, 0.15, n), -1, 1)
        return (
            flips(5 * n, 0.01, 0.01, seed=int(rng.integers(1 << 30)))[0]
            .reshape(n, 5)[:, : 1 if kind == "flips" else 5]
            .mean(1)
        )

    n = stats.betting_sample_size(draw(5000), delta, 0.05, 0.8)
    assert n is not None
    assert np.mean([stats.betting_p_value(draw(n), delta) <= 0.05 for _ in range(400)]) == pytest.approx(0.8, abs=0.08)


def test_joint_power() -> None:
    assert stats.power_per_task(0.8, 1) == 0.8
    assert stats.power_per_task(0.8, 7) ** 7 == pytest.approx(0.8)
    sizes = [stats.normal_sample_size(0.05, 0.02, 0.05, stats.power_per_task(0.8, m)) for m in (1, 3, 7, 13)]
    assert [n / sizes[0] for n in sizes if n and sizes[0]] == pytest.approx([1, 1.6, 2.0, 2.3], abs=0.1)


# --- Clusters ---


def test_cluster_means_keep_the_order_of_appearance() -> None:
    assert stats.cluster_means([1, 0, 1, 1], ["b", "a", "b", "a"]).tolist() == [1.0, 0.5]


def test_clustered_standard_error_is_that_of_statsmodels() -> None:
    api = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(7)
    groups = np.repeat(np.arange(40), 5)
    d = rng.normal(size=200) + rng.normal(size=40)[groups]
    fit = api.OLS(d, np.ones(200)).fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False})
    ours = stats.clustered_standard_error(d, groups.tolist())
    assert ours == pytest.approx(fit.bse[0])
    residuals = np.array([(d - d.mean())[groups == g].sum() for g in range(40)])
    assert ours == pytest.approx(math.sqrt((residuals**2).sum()) / 200)


def test_no_standard_error_from_one_cluster() -> None:
    assert stats.clustered_standard_error([1.0, 0.0], ["a", "a"]) is None
    assert stats.clustered_standard_error([], []) is None


def test_cluster_bootstrap_resamples_clusters() -> None:
    d = np.random.default_rng(8).normal(0, 0.2, 60)
    alone = stats.cluster_bootstrap(d, range(60), 0.05, seed=1)
    repeated = stats.cluster_bootstrap(np.repeat(d, 5), np.repeat(np.arange(60), 5).tolist(), 0.05, seed=1)
    assert alone is not None
    assert alone == pytest.approx(repeated)  # copies of an item carry no information
    draws = np.random.default_rng(9).choice(d, (10_000, 60)).mean(axis=1)
    assert alone == pytest.approx(np.quantile(draws, [0.05, 0.95]), abs=3e-3)


def test_cluster_bootstrap_of_equal_differences_is_the_exact_bound() -> None:
    bound = stats.cluster_bootstrap(np.zeros(298), np.repeat(np.arange(149), 2).tolist(), 0.05, seed=0)
    assert bound is not None
    assert bound.high == -bound.low == pytest.approx(stats.harm_upper_bound(0, 149, 0.05))
    assert stats.cluster_bootstrap([0.5], ["a"], 0.05, seed=0) == pytest.approx((0.5 - 0.95 * 1.5, 0.5 + 0.95 * 0.5))
    assert stats.cluster_bootstrap([], [], 0.05, seed=0) is None


# --- Families ---


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_properties(p: list[float]) -> None:
    adjusted = stats.holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    ranked = [adjusted[i] for i in np.argsort(p, kind="stable")]
    assert ranked == sorted(ranked)


def test_holm_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = [0.01, 0.04, 0.03, 0.005, 0.5, 0.9]
    assert stats.holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])


# --- Early stop ---


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.05])
def test_stopping_early_at_the_margin_errs_at_most_at_its_level(gain: float) -> None:
    """True change of exactly minus the margin, looked at after every one of 1,000 units, at alpha / 2."""
    margin, level = 0.05, 0.025
    d = flips(1000, gain, gain + margin, seed=5, runs=2000)
    assert np.mean([stats.betting_stop(-row, -margin, level) is not None for row in d]) <= level


@pytest.mark.parametrize(("loss", "median"), [(0.10, 117), (0.20, 47), (0.40, 22)])
def test_harm_stops_about_as_soon_as_the_reference_says(loss: float, median: int) -> None:
    stops = [stats.betting_stop(-row, 0.0 - 0.01, 0.05) for row in flips(500, 0.01, loss, seed=3, runs=300)]
    assert all(stop is not None for stop in stops)
    assert np.median([stop for stop in stops if stop]) == pytest.approx(median, rel=0.1)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 1.0]), max_size=60), st.integers(0, 60))
def test_more_units_never_take_a_stop_back(d: list[float], cut: int) -> None:
    stop = stats.betting_stop(d[:cut], 0.02, 0.1)
    whole = stats.betting_stop(d, 0.02, 0.1)
    assert whole == stop if stop is not None else whole is None or whole > min(cut, len(d))
    if whole is not None:
        assert stats.betting_p_value(d[:whole], 0.02) <= 0.1
