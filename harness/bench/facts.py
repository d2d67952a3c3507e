"""What the measurements of one setting amount to: every metric, latencies, memory, price, and the gap to the device's limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from harness.bench import metrics, roofline
from harness.bench.metrics import SLO
from harness.payoff import METRICS
from harness.types import Request, Served

GIB = 2**30
TAIL_VALUES = 100  # below so many values the 99th percentile is but the largest, and not told

Trials = Mapping[str, Served]
"""What was served, by trial."""


def measured(served: Served, slo: SLO) -> dict[str, float | None]:
    """Every metric of one measurement; None where it was not seen."""
    requests = served.requests
    ttft = [metrics.ttft_s(request) for request in requests]
    gaps, lost = metrics.pooled_itl_s(requests), sum(bool(request.error) for request in requests)
    return {
        "throughput": metrics.output_tokens_s(requests),
        "requests": metrics.requests_s(requests),
        "goodput": _goodput(served, slo),
        "ttft_p50": _percentile(ttft, lost, 50),
        "ttft_p99": _percentile(ttft, lost, 99),
        "tpot_p50": _percentile([metrics.tpot_s(request) for request in requests], lost, 50),
        "itl_p99": _percentile(gaps, _lost_gaps(gaps, requests), 99),
        "e2e_p50": _percentile([metrics.e2e_s(request) for request in requests], lost, 50),
        "peak": served.memory.peak_bytes,
        "capacity": GIB / served.memory.kv_bytes_per_token,
    }


def _lost_gaps(gaps: Sequence[float | None], requests: Sequence[Request]) -> int:
    """Gaps of the requests that failed, taken to have as many as the others had."""
    lost = sum(bool(request.error) for request in requests)
    return math.ceil(lost * len(gaps) / max(1, len(requests) - lost))


def _percentile(values: Sequence[float | None], lost: int, percent: float) -> float | None:
    """With ``lost`` more values that are longer than any: a setting that loses its slowest requests is not faster for it. None
    where it is one of those, or where too few values say."""
    known = sorted(value for value in values if value is not None)
    number = len(known) + lost
    if not known or (percent > 90 and number < TAIL_VALUES) or percent / 100 * (number - 1) > len(known) - 1:
        return None
    return float(np.percentile(known + known[-1:] * lost, percent))


def _goodput(served: Served, slo: SLO) -> float | None:
    """No request that meets the limits counts as half a one: a ratio needs something on both sides."""
    rate, span = metrics.goodput(served.requests, slo), metrics.span_s(served.requests)
    return None if rate is None or span is None else max(rate, 0.5 / span)


def facts(mine: Trials, slo: SLO, manifest: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Geometric means of the measurements, latencies of all requests pooled, memory, price."""
    by_trial = [measured(served, slo) for served in mine.values()]
    values = {name: _mean([one[name] for one in by_trial]) for name in METRICS if not METRICS[name].curve}
    requests = [request for served in mine.values() for request in served.requests]
    pooled: dict[str, Sequence[float | None]] = {
        "queue": [metrics.queue_s(request) for request in requests],
        "ttft": [metrics.ttft_s(request) for request in requests],
        "tpot": [metrics.tpot_s(request) for request in requests],
        "itl": metrics.pooled_itl_s(requests),
        "e2e": [metrics.e2e_s(request) for request in requests],
    }
    failed = sum(bool(request.error) for request in requests)
    lost = {name: _lost_gaps(times, requests) if name == "itl" else failed for name, times in pooled.items()}
    last = list(mine.values())[-1] if mine else None
    return {
        "values": values,
        "latencies": {name: _spread(times) for name, times in pooled.items()},
        "ecdf_s": {name: metrics.ecdf(times, lost[name]) for name, times in pooled.items()},
        "requests": len(requests),
        "failed": failed,
        "attainment": metrics.attainment(requests, slo),
        "cached_share": metrics.cached_share(requests),
        "memory": asdict(last.memory) if last else None,
        "roofline": _roofline(list(mine.values()), manifest, point["load"]),
        "usd_per_million_tokens": _price(values["throughput"], manifest["hardware"].get("price_hour")),
    }


def _roofline(mine: Sequence[Served], manifest: Mapping[str, Any], load: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The prefill that came nearest to the least that it can take, and the median decode step; empty where rates are not known.

    A step has every request that decodes at a time, each half way through its answer.
    """
    rates = [manifest["hardware"].get(name) for name in roofline.RATES]
    done = [request for served in mine for request in served.requests if not request.error]
    if not done or None in rates or manifest["size"] is None:
        return []
    size, memory = roofline.Size(**manifest["size"]), mine[-1].memory
    prompt, answer = (
        float(np.mean([getattr(request, tokens) for request in done])) for tokens in ("tokens_in", "tokens_out")
    )
    whole = size.kv_bytes * sum(request.tokens_in for request in mine[-1].requests)
    share = min(1.0, memory.stored_bytes / whole)  # later tokens are taken to be held like the prompt's
    held, rows = share * (prompt + answer / 2), _rows(mine, load)
    prefills = [
        _gap("prefill", roofline.prefill(size, n, share * size.kv_bytes * n), ttft, rates)
        for n, cached, ttft in {(one.tokens_in, one.cached_tokens, metrics.ttft_s(one)) for one in done}
        if ttft and not cached
    ]
    step = metrics.percentile([metrics.tpot_s(request) for request in done], 50)
    decode = roofline.decode(size, max(1, round(rows)), held, held * size.kv_bytes)
    return [
        *([min(prefills, key=lambda one: float(one["gap"]))] if prefills else []),
        *([_gap("decode", decode, step.value, rates)] if step else []),
    ]


def _rows(mine: Sequence[Served], load: Mapping[str, Any]) -> float:
    """Requests that decode at a time: as many as the load lets in, or as were there in the mean."""
    if load.get("in_flight") is not None:
        return float(min(load["in_flight"], len(mine[-1].requests)))
    span, decoding_s = metrics.span_s(mine[-1].requests), 0.0
    for request in mine[-1].requests:
        if request.first_token_s is not None and request.last_token_s is not None:
            decoding_s += request.last_token_s - request.first_token_s
    return decoding_s / span if span else 1.0


def _gap(what: str, work: roofline.Work, seconds: float, rates: Sequence[Any]) -> dict[str, Any]:
    least = roofline.limit(work, *rates)
    return {"what": what, **asdict(work), **asdict(least), "measured_s": seconds, "gap": seconds / least.seconds}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(np.exp(np.mean(np.log(known)))) if known else None


def _spread(times: Sequence[float | None]) -> dict[str, Any]:
    """Percentiles with 95 % limits, where the sample allows."""
    found = {f"p{percent}": metrics.percentile(times, percent) for percent in (50, 90, 99)}
    return {name: asdict(one) if one else None for name, one in found.items()}


def _price(tokens_s: float | None, price_hour: float | None) -> float | None:
    return price_hour / 3600 / tokens_s * 1e6 if tokens_s and price_hour else None
