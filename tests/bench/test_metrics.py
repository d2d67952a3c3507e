"""Metrics of raw times: known cases, and what must hold of any times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import stats
from harness.bench import metrics
from harness.bench.metrics import SLO
from harness.types import Request

# due at 0, sent at 1, tokens at 3, 3.5, 4.5 and 6, over at 6.25
KNOWN = Request("a", 10, 4, 0.0, 1.0, 3.0, 6.0, 6.25, (3.0, 3.5, 4.5, 6.0))


@st.composite
def requests(draw: st.DrawFn, failed: bool | None = None) -> Request:
    queued = draw(st.floats(0, 100))
    gaps = draw(st.lists(st.floats(1e-3, 10), min_size=3, max_size=8))
    sent, *tokens = np.cumsum(gaps) + queued
    bad = draw(st.booleans()) if failed is None else failed
    return Request(
        "r",
        draw(st.integers(1, 99)),
        len(tokens),
        queued,
        float(sent),
        float(tokens[0]),
        float(tokens[-1]),
        float(tokens[-1]) + draw(st.floats(0, 1)),
        tuple(map(float, tokens)),
        error="lost" if bad else "",
    )


MANY = st.lists(requests(), min_size=1, max_size=6)


def test_a_known_request() -> None:
    assert metrics.queue_s(KNOWN) == 1.0
    assert metrics.ttft_s(KNOWN) == 2.0
    assert metrics.tpot_s(KNOWN) == 1.0  # three gaps in three seconds
    assert metrics.itl_s(KNOWN) == (0.5, 1.0, 1.5)
    assert metrics.e2e_s(KNOWN) == 5.25


def test_a_known_load() -> None:
    other = Request("b", 10, 1, 0.0, 0.0, 2.0, 2.0, 2.0, (2.0,))
    lost = Request("c", 10, 4, 0.0, 0.0, error="refused", end_s=12.5)
    assert metrics.output_tokens_s([KNOWN, other]) == 5 / 6.25
    assert metrics.output_tokens_s([KNOWN, other, lost]) == 5 / 12.5  # its tokens do not count, its time does
    assert metrics.requests_s([KNOWN, other, lost]) == 2 / 12.5
    slo = SLO(ttft_s=2.0, tpot_s=1.0)
    assert metrics.goodput([KNOWN, other, lost], slo) == 2 / 12.5
    assert metrics.attainment([KNOWN, other, lost], slo) == pytest.approx(2 / 3)
    assert metrics.goodput([KNOWN, other], SLO(itl_s=1.4)) == 1 / 6.25  # one gap of 1.5 s
    assert metrics.goodput([KNOWN, other], SLO()) is None
    assert metrics.pooled_itl_s([KNOWN, other, lost]) == [0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    "metric, lacks",
    [
        (metrics.queue_s, "queued_s"),
        (metrics.ttft_s, "first_token_s"),
        (metrics.tpot_s, "last_token_s"),
        (metrics.itl_s, "token_s"),
        (metrics.e2e_s, "end_s"),
    ],
)
def test_a_metric_without_its_input_is_none(metric, lacks) -> None:  # type: ignore[no-untyped-def]
    assert metric(KNOWN) is not None
    assert metric(replace(KNOWN, **{lacks: None})) is None
    assert metric(replace(KNOWN, error="lost")) is None


def test_what_cannot_be_told_is_not_told() -> None:
    blind = replace(KNOWN, first_token_s=None)
    assert metrics.goodput([KNOWN, blind], SLO(ttft_s=2.0)) is None
    assert SLO(ttft_s=2.0, e2e_s=1.0).met_by(blind) is False  # late in any case
    assert metrics.output_tokens_s([replace(KNOWN, end_s=None)]) is None
    assert metrics.output_tokens_s([replace(KNOWN, error="lost")]) is None
    assert metrics.output_tokens_s([]) is None and metrics.percentile([None], 50) is None
    assert metrics.tpot_s(replace(KNOWN, tokens_out=1)) is None


def test_limits_that_are_none() -> None:
    assert SLO(ttft_s=0.0, e2e_s=float("nan")).problems("slo") == [
        "slo.ttft_s must be a number of seconds above 0, got 0.0",
        "slo.e2e_s must be a number of seconds above 0, got nan",
    ]


@given(MANY, requests(failed=True))
def test_a_failed_request_raises_no_rate(load: list[Request], lost: Request) -> None:
    slo = SLO(ttft_s=1.0)
    for rate in (metrics.output_tokens_s, metrics.requests_s, lambda x: metrics.goodput(x, slo)):
        before, after = rate(load), rate([*load, lost])
        assert (before is None) == (after is None) or before is None
        assert before is None or after <= before  # type: ignore[operator]


@given(requests(failed=False))
def test_times_add_up(request: Request) -> None:
    ttft, tpot, gaps = metrics.ttft_s(request), metrics.tpot_s(request), metrics.itl_s(request)
    assert ttft is not None and tpot is not None and gaps is not None
    assert sum(gaps) == pytest.approx(tpot * (request.tokens_out - 1))
    assert ttft + sum(gaps) <= metrics.e2e_s(request) + 1e-9  # type: ignore[operator]


@given(MANY, st.floats(-1000, 1000))
def test_only_differences_of_the_clock_count(load: list[Request], by: float) -> None:
    names = ("queued_s", "sent_s", "first_token_s", "last_token_s", "end_s")
    moved = [
        replace(
            one,
            **{name: getattr(one, name) + by for name in names},
            token_s=tuple(t + by for t in one.token_s),  # type: ignore[union-attr]
        )
        for one in load
    ]
    assert metrics.output_tokens_s(moved) == pytest.approx(metrics.output_tokens_s(load))


@given(MANY, st.floats(0.01, 20), st.floats(0.01, 20))
def test_a_looser_limit_is_met_by_no_fewer(load: list[Request], one: float, other: float) -> None:
    tight, loose = (metrics.attainment(load, SLO(ttft_s=limit)) for limit in sorted((one, other)))
    assert tight is not None and loose is not None and tight <= loose


def test_a_percentile_has_limits_only_where_the_sample_allows() -> None:
    few = metrics.percentile([1.0, 2.0, 3.0, None], 50)
    assert few is not None and few.value == 2.0 and few.n == 3 and few.interval is None
    some = metrics.percentile(range(1, 11), 50)
    assert some is not None and some.interval == (2.0, 9.0)  # the textbook's, at 97.9 %
    assert stats.quantile_interval(range(298), 0.99, 0.05) is None
    assert stats.quantile_interval(range(299), 0.99, 0.05) is not None


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_the_limits_of_a_quantile_cover_it(q: float) -> None:
    draws = np.random.default_rng(0).exponential(size=(4000, 80))
    true = -np.log(1 - q)
    limits = [stats.quantile_interval(draw, q, 0.05) for draw in draws]
    missed_low = np.mean([limit is not None and limit.low > true for limit in limits])
    missed_high = np.mean([limit is not None and limit.high < true for limit in limits])
    assert 0.005 < missed_low < 0.06 and 0.005 < missed_high < 0.06


@pytest.mark.parametrize(
    "points, rate",
    [
        ([(1.0, 1.0), (2.0, 0.95), (4.0, 0.85)], 3.0),
        ([(1.0, 1.0), (2.0, 0.95), (1.9, 0.2)], 2.0),  # a server that gets slower when it has too much to do
        ([(1.0, 1.0), (2.0, 0.0), (4.0, 1.0)], 1.1),  # what comes after the first that fails does not count
        ([(1.0, 1.0), (2.0, 0.9)], None),  # where it ends was not seen
        ([(1.0, 0.5), (2.0, 0.1)], None),  # nor where it begins
        ([(1.0, 1.0), (2.0, None)], None),
        ([], None),
    ],
)
def test_the_rate_that_is_sustained_lies_between_two_loads(points: Any, rate: float | None) -> None:
    found = metrics.sustained_rate(points, 0.9)
    assert found == (None if rate is None else pytest.approx(rate))


def test_what_was_reused_is_told_where_every_request_tells() -> None:
    one, two = Request("a", 100, 1, cached_tokens=60), Request("b", 300, 1, cached_tokens=0)
    assert metrics.cached_share([one, two]) == pytest.approx(0.15)
    assert metrics.cached_share([one, Request("c", 10, 0, error="lost")]) == pytest.approx(0.6)
    assert metrics.cached_share([one, Request("c", 10, 1)]) is None and metrics.cached_share([]) is None


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 9).map(lambda x: round(x, 1))), max_size=150),
    st.integers(0, 9),
    st.integers(2, 80),
)
def test_a_distribution_has_the_share_of_each_value_that_it_shows(
    values: list[float | None], lost: int, most: int
) -> None:
    known = [value for value in values if value is not None]
    steps = metrics.ecdf(values, lost, most)
    assert len(steps) <= most and steps == sorted(set(steps)) and {step.seconds for step in steps} <= set(known)
    for step in steps:
        assert step.share == pytest.approx(sum(value <= step.seconds for value in known) / (len(known) + lost))
    if known:
        assert (steps[0].seconds, steps[-1].seconds) == (min(known), max(known))
        assert len(known) > most or len(steps) == len(set(known))
