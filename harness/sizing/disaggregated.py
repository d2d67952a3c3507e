"""Prefill and decode on machines of their own, against both on each: what it does to latencies, simulated request by request.

It tunes latency, not throughput (vLLM's documentation says so too): the same work is done on the same number of GPUs, bytes
are sent besides, and each kind of GPU can be idle while the other is behind. What it buys is that a decode never waits for a
prefill.

A prompt is prefilled alone, first come first served, by the next GPU that is free; its first token is told when its keys and
values have arrived where it is decoded. Every prefill GPU has a link, which sends one prompt after the other: after its
prefill, or layer by layer while it runs. A GPU that decodes makes one token of each of its requests a step; new ones join
between steps. Without disaggregation a step also takes the next ``chunk_tokens`` of prompts that wait, less the tokens it
decodes, and lasts as long as both one after the other: that a chunk can hide behind what a decode reads is not credited.
Memory is not limited but by ``max_batch``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from harness.bench import metrics
from harness.bench.metrics import SLO
from harness.sizing.traces import Request
from harness.types import BadInput
from harness.types import Request as Timed


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What one GPU does. A decode step takes ``step_s`` + ``step_request_s`` a request + ``step_token_s`` a token of context."""

    prefill_tokens_s: float
    step_s: float
    step_request_s: float
    step_token_s: float
    kv_bytes_per_token: float  # over all layers
    layers: int
    max_batch: int = 256  # requests that are decoded together

    def prefill_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_s

    def decode_s(self, requests: int, context_tokens: int) -> float:
        """One step; none without requests."""
        return self.step_s + requests * self.step_request_s + context_tokens * self.step_token_s if requests else 0.0

    def problems(self) -> list[str]:
        """Every rule that this breaks."""
        positive = {"prefill_tokens_s": "tokens a second", "step_s": "seconds", "kv_bytes_per_token": "bytes"}
        found = [
            f"speeds.{name} must be a number of {unit} above 0, got {getattr(self, name)}"
            for name, unit in positive.items()
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0)
        ]
        found += [
            f"speeds.{name} must be a number of seconds of 0 or more, got {getattr(self, name)}"
            for name in ("step_request_s", "step_token_s")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0)
        ]
        return found + _counts({"speeds.layers": self.layers, "speeds.max_batch": self.max_batch})


@dataclass(frozen=True)
class Replay:
    """A trace as it was served, in its order and by its clock. An answer has one token at the least, which the prefill makes."""

    requests: tuple[Timed, ...]
    prefill_wait_s: tuple[float, ...]  # from arrival until its prefill began: behind other prompts
    link_wait_s: tuple[float, ...]  # of each, ready to be sent, behind other prompts' bytes
    added_ttft_s: tuple[float, ...]  # from the end of its prefill until its keys and values had arrived
    busy_s: float  # of all GPUs, summed


@dataclass(frozen=True)
class Outcome:
    """A replay in numbers."""

    prefill_gpus: int  # 0: every GPU does both
    decode_gpus: int
    layerwise: bool
    chunk_tokens: int | None  # of a step; None: with disaggregation
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p99_s: float | None  # None: no answer has a second token
    itl_p99_s: float | None  # the same
    prefill_wait_mean_s: float
    link_wait_mean_s: float
    added_ttft_mean_s: float
    output_tokens_s: float
    goodput_requests_s: float | None  # requests that meet every limit, a second; None without limits
    busy_share: float  # of the GPUs' time


def replay_disaggregated(
    requests: Sequence[Request], speeds: Speeds, prefill_gpus: int, decode_gpus: int, link_gb_s: float, layerwise: bool
) -> Replay:
    """``link_gb_s``: of each prefill GPU, in 10^9 bytes a second. Raises BadInput."""
    counts = _counts({"prefill_gpus": prefill_gpus, "decode_gpus": decode_gpus})
    _check(requests, speeds, counts + _link_problems(link_gb_s))
    from harness.sizing import events

    return events.Disaggregated(speeds, prefill_gpus, decode_gpus, link_gb_s * 1e9, layerwise).replay(requests)


def replay_aggregated(requests: Sequence[Request], speeds: Speeds, gpus: int, chunk_tokens: int) -> Replay:
    """Each request goes to the GPU that has the fewest. Raises BadInput."""
    _check(requests, speeds, _counts({"gpus": gpus, "chunk_tokens": chunk_tokens}))
    from harness.sizing import events

    return events.Aggregated(speeds, gpus, chunk_tokens).replay(requests)


def compare(
    requests: Sequence[Request],
    speeds: Speeds,
    gpus: int,
    link_gb_s: float,
    slo: SLO,
    chunks_tokens: Sequence[int] = (512, 2048, 8192),
) -> tuple[Outcome, ...]:
    """The same trace on the same number of GPUs: without disaggregation in chunks of each size, then with it in every ratio.

    Chunks trade time to first token for gaps, so that disaggregation must beat the best of them. It is sent in both ways.
    Raises BadInput.
    """
    _check(requests, speeds, slo.problems("slo") + _counts({"gpus": gpus}) + _link_problems(link_gb_s))
    found = [
        outcome(replay_aggregated(requests, speeds, gpus, chunk_tokens), slo, 0, gpus, chunk_tokens=chunk_tokens)
        for chunk_tokens in chunks_tokens
    ]
    for prefill_gpus in range(1, gpus):
        for layerwise in (False, True):
            shape = (prefill_gpus, gpus - prefill_gpus)
            replay = replay_disaggregated(requests, speeds, *shape, link_gb_s, layerwise)
            found.append(outcome(replay, slo, *shape, layerwise=layerwise))
    return tuple(found)


def outcome(
    replay: Replay,
    slo: SLO,
    prefill_gpus: int,
    decode_gpus: int,
    *,
    layerwise: bool = False,
    chunk_tokens: int | None = None,
) -> Outcome:
    """What the metrics of a load say of a replay."""
    served = replay.requests
    ttft_s = [metrics.ttft_s(request) for request in served]
    span_s, tokens_s = metrics.span_s(served), metrics.output_tokens_s(served)
    p50, p99 = _percentile(ttft_s, 50), _percentile(ttft_s, 99)
    assert span_s and tokens_s and p50 is not None and p99 is not None  # all were served
    return Outcome(
        prefill_gpus,
        decode_gpus,
        layerwise,
        chunk_tokens,
        ttft_p50_s=p50,
        ttft_p99_s=p99,
        tpot_p99_s=_percentile([metrics.tpot_s(request) for request in served], 99),
        itl_p99_s=_percentile(metrics.pooled_itl_s(served), 99),
        prefill_wait_mean_s=_mean(replay.prefill_wait_s),
        link_wait_mean_s=_mean(replay.link_wait_s),
        added_ttft_mean_s=_mean(replay.added_ttft_s),
        output_tokens_s=tokens_s,
        goodput_requests_s=metrics.goodput(served, slo),
        busy_share=replay.busy_s / (span_s * (prefill_gpus + decode_gpus)),
    )


def best(found: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    """Without disaggregation and with it: the most requests within the limits, then the most tokens a second."""

    def rank(one: Outcome) -> tuple[float, float]:
        return one.goodput_requests_s or 0.0, one.output_tokens_s

    together, apart = ([one for one in found if bool(one.prefill_gpus) is split] for split in (False, True))
    return max(together, key=rank), max(apart, key=rank)


def _percentile(values: Sequence[float | None], percent: float) -> float | None:
    found = metrics.percentile(values, percent)
    return found.value if found else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _counts(counts: dict[str, int]) -> list[str]:
    return [f"{name} must be 1 or more, got {count}" for name, count in counts.items() if count < 1]


def _link_problems(link_gb_s: float) -> list[str]:
    return [] if link_gb_s > 0 else [f"link_gb_s must be a number of GB a second above 0, got {link_gb_s}"]


def missing() -> str | None:
    """What has to be installed first."""
    return "disaggregation needs simpy: pip install 'kvgate[plan]'" if find_spec("simpy") is None else None


def _check(requests: Sequence[Request], speeds: Speeds, problems: list[str]) -> None:
    problems = [*problems, *speeds.problems()]
    if not requests:
        problems.append("requests must have a request, got none")
    if reason := missing():
        problems.append(reason)
    if problems:
        raise BadInput(*problems)
