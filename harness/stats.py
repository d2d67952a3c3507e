"""Tests, limits and sample sizes for paired comparisons: pure functions of counts and arrays.

The question is always the same. Unit ``i`` has the difference ``d_i = candidate - baseline`` in [-1, 1]; may we claim
that the mean of ``d`` is above ``-delta``? For right/wrong outcomes the data are three counts: ``n`` pairs, ``gained``
(wrong -> right) and ``lost`` (right -> wrong). Everything else goes through the betting process.

Conventions: ``alpha`` and p-values are one-sided unless said otherwise; margins, rates and limits are fractions of 1,
never percent. A margin ``delta`` may be anything in (-1, 1), because limits are found by moving it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # scipy.stats has the same functions, and takes half a second to load

Floats: TypeAlias = NDArray[np.float64]

EXACT_UP_TO = 600  # pairs; above, Tango's own size is close enough to alpha and enumeration gets slow
LIMIT_TOLERANCE = 1e-6  # width at which the search for a confidence limit stops
TINY = 1e-12


class Interval(NamedTuple):
    """Lower and upper confidence limit of a mean, each one-sided at the alpha asked for."""

    low: float
    high: float


# --- Several answers to one item ---


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that one of ``k`` answers passes, from ``n`` answers of which ``c`` did.

    The unbiased estimate 1 - C(n-c, k) / C(n, k). Chen et al. 2021, arXiv 2107.03374, eq. 1. Of one answer it is the score.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


# --- Right/wrong outcomes: Tango's score test ---


def tango_statistic(gained: ArrayLike, lost: ArrayLike, n: int, delta: float) -> Floats:
    """Tango's score statistic against H0: mean difference <= -delta. Large values speak against H0.

    The variance is taken at the rates that fit the boundary of H0 best, so that it stays positive without any flip.
    The statistic rises with ``gained`` and falls with ``lost``. Tango 1998, Stat. Med. 17:891.

    Args:
        gained: Pairs that went from wrong to right.
        lost: Pairs that went from right to wrong; broadcasts with ``gained``.
        n: All pairs, at least 1.
        delta: Margin in (-1, 1).
    """
    b, c = np.asarray(gained, dtype=float), np.asarray(lost, dtype=float)
    mean = -delta
    linear = (2 * n - b + c) * mean - b - c
    constant = -c * mean * (1 - mean)
    loss_rate = (np.sqrt(np.maximum(linear * linear - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = np.maximum(2 * loss_rate + mean * (1 - mean), 0.0)
    return np.asarray((b - c - n * mean) / np.maximum(np.sqrt(n * variance), TINY))


def tango_p_value(gained: int, lost: int, n: int, delta: float) -> float:
    """Normal-theory p-value of ``tango_statistic``."""
    return float(special.ndtr(-tango_statistic(gained, lost, n, delta)))


def tango_interval(gained: int, lost: int, n: int, alpha: float) -> Interval:
    """The means that Tango's test does not reject at ``alpha`` on either side: coverage 1 - 2 * alpha."""
    return _interval(
        lambda delta: tango_p_value(gained, lost, n, delta),
        lambda delta: tango_p_value(lost, gained, n, delta),
        alpha,
        anchor=(gained - lost) / n,
    )


# --- Right/wrong outcomes: the exact unconditional test, and the rule that chooses between the two ---


def rejection_probability(threshold: float, n: int, delta: float, gain: ArrayLike, loss: ArrayLike) -> Floats:
    """Probability that Tango's statistic reaches ``threshold``, by enumeration.

    The counts are multinomial. The number of lost pairs is binomial; given it, the number of gained pairs is binomial
    among the rest, and since the statistic rises with it, the region is "at least so many gained pairs".

    Args:
        threshold: Value the statistic has to reach.
        n: Pairs.
        delta: Margin the statistic is computed at.
        gain: True rates of gained pairs, any number of them.
        loss: True rates of lost pairs, as many.
    """
    gain, loss = np.atleast_1d(np.asarray(gain, dtype=float)), np.atleast_1d(np.asarray(loss, dtype=float))
    lost = np.arange(n + 1)
    needed = _fewest_gained(threshold, n, delta)
    weight = np.exp(_log_binomials(n) + special.xlogy(lost, loss[:, None]) + special.xlog1py(n - lost, -loss[:, None]))
    rate, which = np.nonzero((weight > 1e-16) & (needed <= n - lost))
    among_rest = np.minimum(gain[rate] / np.maximum(1 - loss[rate], TINY), 1.0)
    least, rest = needed[which], n - lost[which]
    tail = np.where(least > 0, special.betainc(np.maximum(least, 1), rest - least + 1, among_rest), 1.0)
    return _totals(rate, weight[rate, which] * tail, len(loss))


def exact_p_value(gained: int, lost: int, n: int, delta: float) -> float:
    """Exact unconditional p-value against H0: mean difference <= -delta.

    The probability, under H0, of a Tango statistic at least as large as the one seen, at its worst over the unknown
    rate of gained pairs. The worst case lies on the boundary of H0, because the region is monotone in both counts
    (Roehmel and Mansmann 1999, Biom. J. 41:149).
    """
    return _worst_case(float(tango_statistic(gained, lost, n, delta)) - 1e-9, n, delta)


def tango_size(n: int, delta: float, alpha: float) -> float:
    """True type I error of "Tango's statistic exceeds its normal quantile", at its worst over the rate of gains."""
    return _worst_case(-float(special.ndtri(alpha)), n, delta)


def ni_p_value(gained: int, lost: int, n: int, delta: float) -> float:
    """p-value of the deciding test for right/wrong pairs: exact up to ``EXACT_UP_TO`` pairs, Tango above."""
    return (exact_p_value if n <= EXACT_UP_TO else tango_p_value)(gained, lost, n, delta)


@lru_cache(maxsize=4096)
def ni_interval(gained: int, lost: int, n: int, alpha: float, delta: float) -> Interval:
    """The means that the deciding test does not reject at ``alpha`` on either side: coverage 1 - 2 * alpha.

    ``low > -delta`` exactly when ``ni_p_value(gained, lost, n, delta) <= alpha``: the search starts at ``delta``.
    """
    return _interval(
        lambda margin: ni_p_value(gained, lost, n, margin),
        lambda margin: ni_p_value(lost, gained, n, margin),
        alpha,
        anchor=-delta,
    )


def _fewest_gained(threshold: float, n: int, delta: float) -> NDArray[np.int64]:
    """For each number of lost pairs 0..n, the fewest gained pairs that reach ``threshold``; n + 1 if none do."""
    lost = np.arange(n + 1)
    low, high = np.zeros(n + 1, dtype=np.int64), n - lost + 1  # the answer lies in [low, high]
    while np.any(low < high):
        middle = (low + high) // 2
        reached = (tango_statistic(middle, lost, n, delta) >= threshold) | (middle > n - lost)
        low, high = np.where(reached, low, np.minimum(middle + 1, high)), np.where(reached, middle, high)
    return np.where(low > n - lost, n + 1, low)


def _worst_case(threshold: float, n: int, delta: float) -> float:
    """The largest ``rejection_probability`` over the rates with mean difference -delta.

    The probability bends fastest where flips or ties are rare, so the grid is even in the arcsine of the rate's square
    root; the cells around its best point are then searched once more.
    """
    least, most = max(0.0, -delta), (1 - delta) / 2

    def probability(angle: Floats) -> Floats:
        gain = least + (most - least) * np.sin(angle) ** 2
        return rejection_probability(threshold, n, delta, gain, gain + delta)

    grid = np.linspace(0.0, math.pi / 2, 97)
    coarse = probability(grid)
    best = int(np.argmax(coarse))
    fine = probability(np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, 96)], 33))
    return float(min(max(coarse[best], fine.max()), 1.0))


@lru_cache(maxsize=64)
def _log_binomials(n: int) -> Floats:
    """Logarithms of the binomial coefficients of ``n``."""
    k = np.arange(n + 1)
    return np.asarray(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def _interval(
    rejects_low: Callable[[float], float], rejects_high: Callable[[float], float], alpha: float, anchor: float
) -> Interval:
    """Invert a test and its mirror image (the same test on ``-d``) into confidence limits."""
    return Interval(_lower_limit(rejects_low, alpha, anchor), -_lower_limit(rejects_high, alpha, -anchor))


def _lower_limit(p_value: Callable[[float], float], alpha: float, anchor: float) -> float:
    """The mean at which a test stops rejecting, by bisection that starts at ``anchor``.

    An exact p-value is not strictly monotone in the margin. Starting at the mean that the decision is about makes the
    limit lie above it exactly when that mean is rejected.

    Args:
        p_value: One-sided p-value against H0: mean <= -margin, as a function of the margin.
        alpha: Level of the test.
        anchor: Mean in (-1, 1) whose rejection the limit has to reflect.
    """
    rejected, kept = (-1.0, anchor) if p_value(-anchor) > alpha else (anchor, 1.0)
    while kept - rejected > LIMIT_TOLERANCE:
        middle = (rejected + kept) / 2
        rejected, kept = (rejected, middle) if p_value(-middle) > alpha else (middle, kept)
    return kept


# --- Right/wrong outcomes: McNemar and the bounds without a model ---


def mcnemar_p_value(gained: int, lost: int) -> float:
    """Exact two-sided p-value against H0: a flip is as often a gain as a loss (McNemar 1947); 1.0 without flips."""
    return min(1.0, 2 * mcnemar_harm_p_value(min(gained, lost), max(gained, lost)))


def mcnemar_harm_p_value(gained: int, lost: int) -> float:
    """Exact one-sided p-value against H0: losses are not more frequent than gains; 1.0 without flips."""
    return float(special.bdtrc(lost - 1, gained + lost, 0.5))


def harm_upper_bound(lost: int, n: int, alpha: float) -> float:
    """Clopper-Pearson upper limit of the rate of lost pairs. At or below delta it implies non-inferiority.

    Very conservative once there are gains, because it gives no credit for them. Clopper and Pearson 1934.
    """
    return 1.0 if lost == n else float(special.betaincinv(lost + 1, n - lost, 1 - alpha))


def zero_flip_sample_size(delta: float, alpha: float) -> int:
    """The fewest pairs, all without harm, whose ``harm_upper_bound`` is at or below ``delta``."""
    return math.ceil(math.log(alpha) / math.log1p(-delta))


# --- Graded or clustered outcomes: the betting process ---


def betting_log_wealth(d: ArrayLike, delta: float) -> Floats:
    """Log wealth, after each unit, of a gambler who bets against H0: mean of ``d`` <= -delta.

    Wealth is the product of ``1 + bet * (d + delta)``. Under H0 it is a supermartingale that starts at 1, so it ever
    reaches 1/alpha with probability at most alpha (Ville), for any bounded ``d`` and any number of units. The bet on a
    unit uses the mean and variance of earlier units only. It is capped at half of what could ruin the gambler, so one
    bad unit costs at most half of the wealth; the price is about twice the units of the exact bound where nothing ever
    flips. Waudby-Smith and Ramdas 2024, JRSS B 86:1, arXiv 2010.09686.

    To bet on harm, that is against H0: mean >= -delta, mirror the data: ``betting_log_wealth(-d, -delta)``.

    Args:
        d: Differences in [-1, 1], in an order that was fixed before they were seen; independent or at least of
            constant mean given the earlier ones.
        delta: Margin in (-1, 1).
    """
    d = np.asarray(d, dtype=float)
    seen = np.maximum(np.arange(len(d)), 1)
    mean = (np.cumsum(d) - d) / seen
    variance = np.maximum((np.cumsum(d**2) - d**2) / seen - mean**2, 0.0)
    bet = _growth_bet(mean + delta, variance, delta)
    return np.cumsum(np.log1p(bet * (d + delta)))


def betting_p_value(d: ArrayLike, delta: float) -> float:
    """p-value against H0: mean of ``d`` <= -delta; 1 over the largest wealth the gambler ever had.

    A claim that the sample mean itself contradicts is never made: at or below ``-delta`` the value is 1.
    """
    d = np.asarray(d, dtype=float)
    if len(d) == 0 or d.mean() <= -delta:
        return 1.0
    return math.exp(-max(0.0, float(betting_log_wealth(d, delta).max())))


def betting_harm_p_value(d: ArrayLike, delta: float) -> float:
    """p-value against H0: mean of ``d`` >= -delta, the mirror image of ``betting_p_value``."""
    return betting_p_value(-np.asarray(d, dtype=float), -delta)


def betting_stop(d: ArrayLike, delta: float, alpha: float) -> int | None:
    """Units after which the gambler against H0: mean of ``d`` <= -delta first had 1/alpha, and the mean so far agreed.

    None if that never was. Valid however often one looks and whenever one stops: more units never take it back. Mirrored for
    harm, as ``betting_stop(-d, -delta, alpha)``.
    """
    d = np.asarray(d, dtype=float)
    rich = betting_log_wealth(d, delta) >= math.log(1 / alpha)
    shown = np.flatnonzero(rich & (np.cumsum(d) > -delta * np.arange(1, len(d) + 1)))
    return int(shown[0]) + 1 if len(shown) else None


def betting_interval(d: ArrayLike, alpha: float, delta: float) -> Interval:
    """The means that betting does not reject at ``alpha`` on either side: coverage at least 1 - 2 * alpha.

    ``low > -delta`` exactly when ``betting_p_value(d, delta) <= alpha``, and ``high < -delta`` exactly when
    ``betting_harm_p_value(d, delta) <= alpha``.
    """
    d = np.asarray(d, dtype=float)
    return _interval(lambda m: betting_p_value(d, m), lambda m: betting_p_value(-d, m), alpha, anchor=-delta)


def _growth_bet(edge: Floats, variance: Floats, delta: float) -> Floats:
    """The bet that grows log wealth fastest, to second order, for a payoff of mean ``edge``; within [0, cap]."""
    return np.clip(edge / np.maximum(variance + edge**2, TINY), 0.0, 0.5 / (1 - delta))


# --- Means of numbers without bounds, and quantiles ---


def student_interval(x: ArrayLike, alpha: float) -> Interval | None:
    """Student's limits of a mean, each one-sided at ``alpha``; None below two values. Values without any spread are taken at
    their word: they were counted, not measured."""
    x = np.asarray(x, dtype=float)
    if len(x) < 2:
        return None
    half = float(-special.stdtrit(len(x) - 1, alpha) * x.std(ddof=1) / math.sqrt(len(x)))
    return Interval(float(x.mean()) - half, float(x.mean()) + half)


def student_p_value(x: ArrayLike) -> float:
    """Two-sided p-value against H0: mean of ``x`` = 0; 1.0 below two values."""
    x = np.asarray(x, dtype=float)
    if len(x) < 2 or np.all(np.abs(x) < TINY):
        return 1.0
    error = float(x.std(ddof=1)) / math.sqrt(len(x))
    return 2 * float(special.stdtr(len(x) - 1, -abs(float(x.mean())) / error)) if error > TINY else 0.0


def student_sample_size(spread: float, edge: float, alpha: float, power: float) -> int | None:
    """Values needed until the lower ``student_interval`` limit of a mean that is ``edge`` above a bound lies above it.

    By the noncentral t distribution. None if the mean is not above the bound, or above a million values.

    Args:
        spread: Standard deviation of one value.
        edge: True mean minus bound.
        alpha: One-sided level.
        power: Wanted probability of success.
    """
    if edge <= 0:
        return None

    def reached(n: int) -> bool:
        critical = -special.stdtrit(n - 1, alpha)
        return bool(1 - special.nctdtr(n - 1, edge * math.sqrt(n) / spread, critical) >= power)

    if spread <= TINY:
        return 2
    low = high = 2
    while not reached(high):
        low, high = high, 2 * high
        if low > 1_000_000:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def quantile_interval(x: ArrayLike, q: float, alpha: float) -> Interval | None:
    """Limits of the ``q``-quantile, each one-sided at ``alpha``, from order statistics and no assumption on the distribution.

    None where there are too few values for a limit on either side: of a p99 below 299, at alpha 0.05. Values are taken as
    independent. Conover 1999, section 3.2.
    """
    ordered = np.sort(np.asarray(x, dtype=float))
    n = len(ordered)
    low = int(np.searchsorted(special.bdtr(np.arange(n), n, q), alpha, side="right"))  # values that may be below
    high = 1 + int(np.argmax(special.bdtrc(np.arange(n + 1), n, q) <= alpha))
    if low < 1 or high > n:
        return None
    return Interval(float(ordered[low - 1]), float(ordered[high - 1]))


# --- Power, sample sizes and the smallest margin ---


def power_per_task(power: float, num_tasks: int) -> float:
    """Power each of ``num_tasks`` independent tasks needs so that all of them pass with probability ``power``."""
    return math.pow(power, 1 / max(num_tasks, 1))


def normal_sample_size(variance: float, delta: float, alpha: float, power: float, mean: float = 0.0) -> int | None:
    """Units needed by normal theory to show a mean above ``-delta``; None if the true mean is not above it.

    n = (z_alpha + z_beta)^2 * variance / (delta + mean)^2. With a two-sided alpha halved this is also the formula of
    Miller 2024, arXiv 2411.00640. Too small where flips are rare.

    Args:
        variance: Variance of one unit's difference; for right/wrong pairs flip rate - mean^2.
        delta: Margin.
        alpha: One-sided level.
        power: Wanted probability of success.
        mean: True mean difference, negative if the candidate is worse.
    """
    if mean <= -delta:
        return None
    quantiles = float(special.ndtri(power) - special.ndtri(alpha))
    return max(1, math.ceil(quantiles**2 * variance / (delta + mean) ** 2))


@lru_cache(maxsize=4096)
def critical_value(n: int, delta: float, alpha: float) -> float:
    """The value Tango's statistic has to reach for the deciding test to reject at ``alpha``, to within 0.001."""
    normal = -float(special.ndtri(alpha))
    if n > EXACT_UP_TO:
        return normal
    low, high = normal - 2, normal + 2
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if _worst_case(middle, n, delta) > alpha else (low, middle)
    return high


def ni_power(n: int, delta: float, alpha: float, flip_rate: float, mean: float = 0.0) -> float:
    """Probability that the deciding test for right/wrong pairs says "above -delta", by enumeration.

    Args:
        n: Pairs.
        delta: Margin.
        alpha: One-sided level.
        flip_rate: True rate of pairs that change, gained or lost; at least abs(mean).
        mean: True mean difference.
    """
    gain, loss = max(flip_rate + mean, 0.0) / 2, max(flip_rate - mean, 0.0) / 2
    return float(rejection_probability(critical_value(n, delta, alpha), n, delta, gain, loss)[0])


@lru_cache(maxsize=4096)
def ni_sample_size(delta: float, alpha: float, power: float, flip_rate: float, mean: float = 0.0) -> int | None:
    """Right/wrong pairs needed to show a mean above ``-delta``; None if the true mean is not above it.

    Starts from the larger of ``normal_sample_size`` and ``zero_flip_sample_size`` and grows until the enumerated power
    is there, because the formula promises too much where flips are rare. Accurate to about 1 %.
    """
    start = normal_sample_size(flip_rate - mean**2, delta, alpha, power, mean)
    if start is None or start > 20_000:  # normal theory is right by then
        return start
    low = high = max(start, zero_flip_sample_size(delta, alpha))
    while ni_power(high, delta, alpha, flip_rate, mean) < power:
        low, high = high, math.ceil(1.2 * high)
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if ni_power(middle, delta, alpha, flip_rate, mean) < power else (low, middle)
    return high


def betting_sample_size(d: ArrayLike, delta: float, alpha: float, power: float, mean: float = 0.0) -> int | None:
    """Units needed by the betting process to show a mean above ``-delta``; None if the true mean is not above it.

    Takes the units seen, moved to the true ``mean``, as the population. Log wealth then is a sum with growth ``g`` and
    spread ``s`` per unit at the best fixed bet, and n is the smallest with n * g - z_beta * s * sqrt(n) >= ln(1/alpha).
    Without any spread this is ln(1/alpha) / ln(1 + delta / (2 * (1 - delta))). Finding the best bet costs some units
    more, so read it as a lower bound.
    """
    d = np.asarray(d, dtype=float)
    if mean <= -delta:
        return None
    payoff = np.clip(d - d.mean() + mean, -1.0, 1.0) + delta if len(d) else np.array([mean + delta])
    growth_per_unit = np.log1p(_growth_bet(payoff.mean(), payoff.var(), delta) * payoff)
    g, s = float(growth_per_unit.mean()), float(growth_per_unit.std())
    if g <= 0:
        return None
    spread = float(special.ndtri(power)) * s
    return math.ceil(((spread + math.sqrt(spread**2 + 4 * g * math.log(1 / alpha))) / (2 * g)) ** 2)


def smallest_margin(decides: Callable[[float], bool]) -> float | None:
    """The smallest margin in [0.0001, 0.999] that ``decides``, to within 1 % of itself; None if none does.

    Args:
        decides: Whether a margin can be decided; once true, true for all larger margins.
    """
    low, high = 1e-4, 0.999
    if not decides(high):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


# --- Clusters and families of claims ---


def cluster_means(values: ArrayLike, clusters: Sequence[Hashable]) -> Floats:
    """Mean of ``values`` in each cluster, clusters in order of their first appearance."""
    sums, sizes = _cluster_sums(values, clusters)
    return sums / sizes


def clustered_standard_error(d: ArrayLike, clusters: Sequence[Hashable]) -> float | None:
    """Standard error of the mean of ``d`` when units of one cluster move together; None below two clusters.

    sqrt(sum over clusters of (sum of residuals)^2) / n, without small-sample correction. Liang and Zeger 1986,
    Biometrika 73:13; for evaluations Miller 2024, arXiv 2411.00640.
    """
    d = np.asarray(d, dtype=float)
    sums, _ = _cluster_sums(d - d.mean() if len(d) else d, clusters)
    return None if len(sums) < 2 else float(np.sqrt(np.sum(sums**2)) / len(d))


def cluster_bootstrap(
    d: ArrayLike, clusters: Sequence[Hashable], alpha: float, seed: int, num_resamples: int = 10_000
) -> Interval | None:
    """Percentile limits of the mean of ``d``, each at ``alpha``, by resampling whole clusters; None without data.

    For graded metrics with many non-zero differences; with few it is anti-conservative. If all ``d`` are equal no
    resample differs and the exact bound is given instead: at level alpha at most q = 1 - alpha^(1/clusters) of all
    clusters can be different ones, and those can be anything in [-1, 1]. Efron 1979; clusters: Davison and Hinkley
    1997, section 3.8.
    """
    d = np.asarray(d, dtype=float)
    if len(d) == 0:
        return None
    sums, sizes = _cluster_sums(d, clusters)
    if np.ptp(d) == 0:
        value, unseen = float(d[0]), 1 - alpha ** (1 / len(sums))
        return Interval(value - unseen * (1 + value), value + unseen * (1 - value))
    draws = np.random.default_rng(seed).integers(len(sums), size=(num_resamples, len(sums)))
    means = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    low, high = np.quantile(means, [alpha, 1 - alpha])
    return Interval(float(low), float(high))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: reject those at or below alpha. Holm 1979, Scand. J. Stat. 6:65."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in adjusted]


def _cluster_sums(values: ArrayLike, clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
    """Sum of ``values`` and number of units in each cluster, clusters in order of their first appearance."""
    index = {cluster: position for position, cluster in enumerate(dict.fromkeys(clusters))}
    codes = np.array([index[cluster] for cluster in clusters], dtype=np.int64)
    values = np.asarray(values, dtype=float)
    return _totals(codes, values, len(index)), _totals(codes, np.ones_like(values), len(index))


def _totals(groups: NDArray[np.int64], values: Floats, num_groups: int) -> Floats:
    """Sum of ``values`` in each of the groups 0..num_groups - 1."""
    return np.asarray(np.bincount(groups, weights=values, minlength=num_groups), dtype=np.float64)
