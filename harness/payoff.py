"""What a setting pays: the second gate, apart from quality. Ratios of measurements taken in alternation, in; decisions out.

A *pair* is one measurement of the baseline and one of a candidate, taken one after the other. Its *gain* is by how many times
the candidate is better: candidate / baseline where more is better, baseline / candidate where less is. So 1.2 means a fifth
better and 0.95 a little worse, whatever the metric. Pairs are averaged on the log scale, where 2 and 1/2 cancel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.bench.metrics import SLO
from harness.types import Decision

MIN_PAIRS = 5
NOISE_ALPHA = 0.01  # two-sided: below, the baseline differs from itself and nothing is decided,
NOISE_FLOOR = 0.01  # if it does by more than this: a log-ratio, as good as a share
NOISE_SHOWN = 0.025  # outside each end of the interval that is shown of it
SLACK = 1e-9  # of a log-ratio: a counted gain of exactly the wanted ratio reaches it


@dataclass(frozen=True)
class Metric:
    """``equal`` says what was equal on both sides when it was compared. A ``curve`` is of all points of a load together."""

    name: str
    more_is_better: bool
    equal: str
    unit: str
    says: str
    curve: bool = False


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("throughput", True, "load", "tok/s", "output tokens a second"),
        Metric("requests", True, "load", "1/s", "requests a second"),
        Metric("goodput", True, "load", "1/s", "requests a second that meet gate.payoff.slo"),
        Metric("ttft_p50", False, "load", "s", "median time to first token"),
        Metric("ttft_p99", False, "load", "s", "99th percentile of the time to first token"),
        Metric("tpot_p50", False, "load", "s", "median time per output token after the first"),
        Metric("itl_p99", False, "load", "s", "99th percentile of the gaps between tokens"),
        Metric("e2e_p50", False, "load", "s", "median time from sent to the end"),
        Metric("peak", False, "load", "bytes", "peak memory while the load ran, weights and all"),
        Metric("capacity", True, "memory", "tokens", "tokens that fit into the same bytes for keys and values"),
        Metric("rate", True, "SLO", "1/s", "the highest request rate at which gate.payoff.slo is met", curve=True),
    )
}


@dataclass(frozen=True)
class Payoff:
    """What was promised before the measurement: by metric, the gain that the setting must at least have."""

    wanted: Mapping[str, float] = field(default_factory=dict)
    slo: SLO = field(default_factory=SLO)
    alpha: float = 0.05  # one-sided, over all looks
    looks: int = 2
    power: float = 0.8

    def problems(self) -> list[str]:
        """All rules that this breaks, as one sentence each. What it shares with the quality gate is told there."""
        known = ", ".join(METRICS)
        found = [
            f"gate.payoff.{name} must be one of {known}, got {gain}"
            if name not in METRICS
            else f"gate.payoff.{name} must be null or a gain above 0, got {gain}"
            for name, gain in self.wanted.items()
            if name not in METRICS or not (math.isfinite(gain) and gain > 0)
        ]
        found += [
            f"gate.payoff.{name} needs a limit in gate.payoff.slo, got none"
            for name in ("goodput", "rate")
            if name in self.wanted and not self.slo.limits
        ]
        return [*found, *self.slo.problems("gate.payoff.slo")]


@dataclass(frozen=True)
class Gain:
    """The geometric mean of the pairs' gains and its limits, each one-sided at ``alpha``; None where pairs are too few."""

    pairs: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MetricVerdict:
    """One metric of one candidate."""

    metric: str
    decision: Decision
    wanted: float | None
    gain: Gain
    noise: Gain  # the baseline against itself
    alpha: float  # of this look
    pairs_needed: int | None
    reason: str


@dataclass(frozen=True)
class Series:
    """One metric as pairs were measured, oldest first; a pair of which either side was not measured is left out.

    ``noise`` holds pairs of the baseline with itself.
    """

    pairs: Sequence[tuple[float, float]]  # (baseline, candidate), both above 0
    noise: Sequence[tuple[float, float]]


def log_gains(pairs: Sequence[tuple[float, float]], *, more_is_better: bool) -> NDArray[np.float64]:
    """By pair, the logarithm of its gain."""
    ratios = np.array([math.log(candidate / baseline) for baseline, candidate in pairs], dtype=float)
    return ratios if more_is_better else -ratios


def gain(logs: NDArray[np.float64], alpha: float) -> Gain:
    """Mean and limits of log gains, as gains."""
    limits = stats.student_interval(logs, alpha)
    low, high = (math.exp(limit) for limit in limits) if limits else (None, None)
    return Gain(len(logs), math.exp(float(logs.mean())) if len(logs) else None, low, high)


def judge_metric(name: str, series: Series, payoff: Payoff, look: int = 1, planned: int = MIN_PAIRS) -> MetricVerdict:
    """One metric of one candidate against the wanted gain.

    GO when the lower limit of the mean gain is at or above what was wanted, NO-GO when the upper limit is below it, each
    one-sided at ``alpha / looks``, when all planned pairs are there. MEASURED where nothing was wanted.

    Args:
        name: One of ``METRICS``.
        look: Which test of this candidate this is, from 1.
        planned: Pairs that were to be measured, at least ``MIN_PAIRS``.
    """
    more, alpha = METRICS[name].more_is_better, payoff.alpha / payoff.looks
    logs, itself = (log_gains(pairs, more_is_better=more) for pairs in (series.pairs, series.noise))
    found, wanted = gain(logs, alpha), payoff.wanted.get(name)
    needed = _pairs_needed(logs, wanted, alpha, payoff.power) if wanted is not None else None
    decision, reason = _decide(logs, itself, wanted, alpha, look <= payoff.looks, planned)
    if decision is Decision.INCONCLUSIVE and needed is not None:
        reason += f"; about {needed} pairs would decide at this gain"
    return MetricVerdict(name, decision, wanted, found, gain(itself, NOISE_SHOWN), alpha, needed, reason)


def _decide(
    logs: NDArray[np.float64],
    itself: NDArray[np.float64],
    wanted: float | None,
    alpha: float,
    in_time: bool,
    planned: int,
) -> tuple[Decision, str]:
    if wanted is None:
        return Decision.MEASURED, "no gain was asked for"
    if stats.student_p_value(itself) < NOISE_ALPHA and abs(float(itself.mean())) > NOISE_FLOOR:
        return Decision.VOID, "the baseline measured twice differs from itself: something else moved with the order"
    if len(logs) < planned:
        return Decision.INCONCLUSIVE, f"{len(logs)} of {planned} pairs were measured"
    if not in_time:
        return Decision.INCONCLUSIVE, "all looks at these measurements are spent: measure with another seed"
    limits = stats.student_interval(logs, alpha)
    assert limits is not None
    low, high = limits
    asked = f"the wanted {wanted:g} times"
    if low >= math.log(wanted) - SLACK:
        return Decision.GO, f"at least {math.exp(low):.3g} times better reaches {asked}"
    if high < math.log(wanted) - SLACK:
        return Decision.NO_GO, f"at most {math.exp(high):.3g} times better misses {asked}"
    return (
        Decision.INCONCLUSIVE,
        f"between {math.exp(low):.3g} and {math.exp(high):.3g} times better; {asked} lies within",
    )


def _pairs_needed(logs: NDArray[np.float64], wanted: float, alpha: float, power: float) -> int | None:
    """Pairs until GO is likely if gain and spread are what was seen; None if that gain is not above the wanted one."""
    if len(logs) < 2:
        return None
    needed = stats.student_sample_size(float(logs.std(ddof=1)), float(logs.mean()) - math.log(wanted), alpha, power)
    return None if needed is None else max(needed, MIN_PAIRS)


def judge_setting(verdicts: Sequence[MetricVerdict], idle: str = "") -> tuple[Decision, list[str]]:
    """All metrics of one candidate: any NO-GO, else any VOID, else any INCONCLUSIVE, else GO; MEASURED if nothing was wanted.

    ``idle`` says which layer did not act, if one did not: then nothing was tested.
    """
    if idle:
        return Decision.VOID, [idle]
    for decision in (Decision.NO_GO, Decision.VOID, Decision.INCONCLUSIVE, Decision.GO):
        if mine := [f"{verdict.metric}: {verdict.reason}" for verdict in verdicts if verdict.decision is decision]:
            return decision, mine
    return Decision.MEASURED, ["no gain was asked for"]
