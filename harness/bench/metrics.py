"""What raw times of requests amount to. Pure: a metric is None where an input was not seen, never 0.

Names differ between tools; these are ours, and what each includes is said with it. A request that failed has no latency, adds no
tokens, takes its time, and meets no target.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from harness import stats
from harness.stats import Interval
from harness.types import Request


def queue_s(request: Request) -> float | None:
    """From due to sent: what it waited outside the engine."""
    return _between(request, request.queued_s, request.sent_s)


def ttft_s(request: Request) -> float | None:
    """Time to first token, from sent: the engine's own queue and the prefill are in it."""
    return _between(request, request.sent_s, request.first_token_s)


def tpot_s(request: Request) -> float | None:
    """Time per output token after the first: without the prefill. Of one token there is none."""
    whole = _between(request, request.first_token_s, request.last_token_s)
    return None if whole is None or request.tokens_out < 2 else whole / (request.tokens_out - 1)


def itl_s(request: Request) -> tuple[float, ...] | None:
    """Inter-token latencies: each gap between one token and the next, first token excluded."""
    if request.error or request.token_s is None:
        return None
    return tuple(after - before for before, after in pairwise(request.token_s))


def e2e_s(request: Request) -> float | None:
    """From sent to the end."""
    return _between(request, request.sent_s, request.end_s)


def _between(request: Request, start: float | None, end: float | None) -> float | None:
    return None if request.error or start is None or end is None else end - start


def span_s(requests: Sequence[Request]) -> float | None:
    """From the first request due to the last one over, failed ones among them; ramp-up and drain are in it.

    None where a request that did not fail misses either time.
    """
    seen = [(_start(request), request.end_s) for request in requests]
    if any(None in times for times, request in zip(seen, requests, strict=True) if not request.error):
        return None
    starts = [start for start, _ in seen if start is not None]
    ends = [end for _, end in seen if end is not None]
    span = max(ends) - min(starts) if starts and ends else 0.0
    return span if span > 0 else None


def _start(request: Request) -> float | None:
    return request.sent_s if request.queued_s is None else request.queued_s


def output_tokens_s(requests: Sequence[Request]) -> float | None:
    """Output tokens of the requests that did not fail, a second of the span; None if all failed."""
    return _rate(requests, lambda request: request.tokens_out)


def requests_s(requests: Sequence[Request]) -> float | None:
    """Requests that did not fail, a second of the span; None if all failed."""
    return _rate(requests, lambda request: 1)


def _rate(requests: Sequence[Request], amount: Callable[[Request], int]) -> float | None:
    span, done = span_s(requests), [request for request in requests if not request.error]
    return None if span is None or not done else sum(map(amount, done)) / span


@dataclass(frozen=True)
class SLO:
    """What a request may take, in seconds; None is no limit. ``share``: of the requests that must meet all limits for a rate to
    be one that is sustained."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None  # no gap between two tokens may be longer
    e2e_s: float | None = None
    share: float = 0.9

    @property
    def limits(self) -> dict[str, float]:
        return {name: limit for name, limit in asdict(self).items() if limit is not None and name != "share"}

    def problems(self, field: str) -> list[str]:
        found = [
            f"{field}.{name} must be a number of seconds above 0, got {limit}"
            for name, limit in self.limits.items()
            if not (math.isfinite(limit) and limit > 0)
        ]
        return (
            found if 0 < self.share <= 1 else [*found, f"{field}.share must be above 0 and at most 1, got {self.share}"]
        )

    def met_by(self, request: Request) -> bool | None:
        """False if it failed or broke a limit; None if a limit cannot be checked and none is known to be broken.

        Where an answer has one token there is nothing between tokens to be late.
        """
        if request.error:
            return False
        single = request.tokens_out == 1
        gaps = itl_s(request)
        worst = {
            "ttft_s": ttft_s(request),
            "tpot_s": 0.0 if single else tpot_s(request),
            "itl_s": 0.0 if single else max(gaps, default=None) if gaps is not None else None,
            "e2e_s": e2e_s(request),
        }
        taken = [(worst[name], limit) for name, limit in self.limits.items()]
        if any(time is not None and time > limit for time, limit in taken):
            return False
        return None if any(time is None for time, _ in taken) else True


def goodput(requests: Sequence[Request], slo: SLO) -> float | None:
    """Requests that meet every limit, a second of the span; None without limits, or where one request cannot be told."""
    span, met = span_s(requests), [slo.met_by(request) for request in requests]
    return None if span is None or not slo.limits or None in met else sum(map(bool, met)) / span


def attainment(requests: Sequence[Request], slo: SLO) -> float | None:
    """Share of all requests that meet every limit; None as for ``goodput``."""
    met = [slo.met_by(request) for request in requests]
    return None if not met or not slo.limits or None in met else sum(map(bool, met)) / len(met)


def sustained_rate(points: Iterable[tuple[float, float | None]], share: float) -> float | None:
    """The highest request rate at which so large a share of requests meets every limit.

    Between the last load that does and the first that does not it is linear. None where that is not seen: where all loads do,
    where the lowest does not, or where one cannot be told.

    Args:
        points: (requests a second, attainment) of each load, from the lightest on. Past what a server can do its rate may fall.
    """
    found = list(points)
    if any(attained is None for _, attained in found):
        return None
    known = [(rate, attained) for rate, attained in found if attained is not None]
    for (rate, attained), (next_rate, next_attained) in pairwise(known):
        if attained < share:
            return None
        if next_attained < share:
            return rate + max(0.0, next_rate - rate) * (attained - share) / (attained - next_attained)
    return None


def cached_share(requests: Sequence[Request]) -> float | None:
    """Of the prompt tokens of the requests that did not fail, those that were not computed; None where one does not tell."""
    done = [request for request in requests if not request.error]
    cached = [request.cached_tokens for request in done if request.cached_tokens is not None]
    return sum(cached) / sum(request.tokens_in for request in done) if done and len(cached) == len(done) else None


@dataclass(frozen=True)
class Percentile:
    """A percentile of pooled values, linear between them, with limits where there are enough values for any."""

    value: float
    interval: Interval | None
    n: int


def percentile(values: Iterable[float | None], percent: float, alpha: float = 0.025) -> Percentile | None:
    """Of the values that are there; None if there are none. The limits are one-sided at ``alpha`` each."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    value = float(np.percentile(known, percent))
    return Percentile(value, stats.quantile_interval(known, percent / 100, alpha), len(known))


class Step(NamedTuple):
    """A value, and the share of all values that are not longer."""

    seconds: float
    share: float


def ecdf(values: Iterable[float | None], lost: int = 0, most: int = 64) -> list[Step]:
    """The empirical distribution of the values that are there, and of ``lost`` more that are longer than any.

    Every value where they are no more than ``most``, else so many, at even ranks with the shortest and the longest among them.
    """
    known = sorted(value for value in values if value is not None)
    ranks = np.linspace(1, len(known), min(most, len(known))).round().astype(int)
    chosen = dict.fromkeys(known[rank - 1] for rank in ranks)
    return [Step(value, bisect_right(known, value) / (len(known) + lost)) for value in chosen]


def pooled_itl_s(requests: Iterable[Request]) -> list[float]:
    """Every gap of every request that did not fail and whose tokens were seen one by one."""
    return [gap for request in requests for gap in itl_s(request) or ()]
