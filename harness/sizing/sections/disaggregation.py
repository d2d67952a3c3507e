"""Prefill and decode on replicas of their own, against replicas that do both in chunks that were tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.sizing import disaggregated
from harness.sizing.capacity import max_batch
from harness.sizing.case import Case
from harness.sizing.disaggregated import Outcome, Speeds
from harness.sizing.section import Section, gb, rate_text
from harness.sizing.sections.decode import fastest_step
from harness.sizing.sections.prefill import prefill_tokens_s
from harness.sizing.transfer import break_even_bytes_s

LINKS = ("rdma", "peer")  # tiers that are another device; the first that is there
UNKNOWN_BATCH = 256  # requests decoded together where the memory is not known: vLLM's choice on most devices


def section(case: Case) -> Section | None:
    speeds, link = speeds_of(case), link_bytes_s(case)
    if speeds is None or link is None or disaggregated.missing():
        return None
    asked = case.simulated
    found = disaggregated.compare(case.requests, speeds, asked.replicas, link / 1e9, asked.slo, asked.chunks_tokens)
    sent = break_even_bytes_s(speeds.kv_bytes_per_token, speeds.prefill_tokens_s)
    limits = ", ".join(f"{name} {limit:g}" for name, limit in asked.slo.limits.items()) or "none"
    return Section(
        f"{asked.replicas} replicas of {case.load.devices} x {case.hardware.name} serve {len(case.requests):,} requests, "
        f"{case.lengths}; limits: {limits}; {gb(link):g} GB/s from one that prefills",
        tuple(map(_row, found)),
        _advice(found),
        (
            "disaggregation keeps prefills out of the gaps between tokens, and pays for that with bytes on a link and replicas "
            "that cannot help each other",
            f"a replica that prefills without a pause sends {rate_text(sent)}: below that, prompts wait for the link",
            _speeds_text(case, speeds),
            "every prompt is computed whole, whatever was asked before; added: from the end of a prefill to the first token",
        ),
    )


def speeds_of(case: Case) -> Speeds | None:
    """The roofline's, with the gaps of stored benches; None where rates or weights are not known, or no request fits.

    A step is taken to grow evenly with requests and with tokens of context: between one request and ``in_flight``, and between
    one token and ``context``.
    """
    prefill, load = prefill_tokens_s(case), case.load
    if prefill is None or case.model.parameters is None or fastest_step(case, case.full, 1, 1) is None:
        return None
    batch = UNKNOWN_BATCH
    if case.budget_bytes is not None:
        mean = sum(one.input_tokens + one.output_tokens for one in case.requests) / len(case.requests)
        batch = max_batch(case.budget_bytes, case.full.held_bytes(round(mean)))
    if not batch:
        return None
    gap = case.stored.gap("decode", case.hardware.name)
    one, more, longer = (
        fastest_step(case, case.full, rows, tokens).seconds * (gap.times if gap else 1.0)
        for rows, tokens in ((1, 1), (load.in_flight, 1), (1, load.context))
    )
    return Speeds(
        prefill_tokens_s=prefill,
        step_s=one,
        step_request_s=(more - one) / max(1, load.in_flight - 1),
        step_token_s=(longer - one) / max(1, load.context - 1),
        kv_bytes_per_token=case.full.bytes_per_token(load.context),
        layers=len(case.model.layers),
        max_batch=batch,
    )


def link_bytes_s(case: Case) -> float | None:
    """Of a replica that prefills; None where no other device can be reached."""
    if case.simulated.link_bytes_s:
        return case.simulated.link_bytes_s
    tier = next((one for name in LINKS if (one := case.hardware.tier(name))), None)
    return case.load.devices * tier.write_bytes_s if tier else None


def _row(one: Outcome) -> dict[str, Any]:
    return {
        "deployment": deployment(one),
        "ttft_p50_s": one.ttft_p50_s,
        "ttft_p99_s": one.ttft_p99_s,
        "itl_p99_ms": one.itl_p99_s and 1000 * one.itl_p99_s,
        "prefill_wait_mean_s": one.prefill_wait_mean_s,
        "added_ttft_mean_ms": 1000 * one.added_ttft_mean_s,
        "output_tokens_s": one.output_tokens_s,
        "within_limits_requests_s": one.goodput_requests_s,
    }


def deployment(one: Outcome) -> str:
    """``3 + 1``: so many prefill, so many decode."""
    if one.chunk_tokens:
        return f"both, chunks of {one.chunk_tokens:,}"
    return f"{one.prefill_gpus} + {one.decode_gpus}{', by layer' if one.layerwise else ''}"


def _advice(found: Sequence[Outcome]) -> str:
    both, apart = disaggregated.best(found)
    tokens = f"{apart.output_tokens_s / both.output_tokens_s:.2f} times the tokens/s"
    if not both.goodput_requests_s or not apart.goodput_requests_s:
        unlimited = both.goodput_requests_s is None
        why = (
            "no limit is given (slo.ttft_s, slo.itl_s)"
            if unlimited
            else "no request of one of them is within the limits"
        )
        return f"Disaggregation tunes latency, not throughput: {deployment(apart)} has {tokens} of {deployment(both)}; {why}."
    requests = f"{apart.goodput_requests_s / both.goodput_requests_s:.2f} times the requests/s within limits"
    return (
        f"Disaggregation tunes latency, not throughput: its best ratio ({deployment(apart)}) has {requests} and {tokens} of "
        f"replicas that do both with the best chunk ({both.chunk_tokens:,} tokens)."
    )


def _speeds_text(case: Case, speeds: Speeds) -> str:
    gaps = [what for what in ("prefill", "decode") if case.stored.gap(what, case.hardware.name)]
    source = (
        f"the roofline's times the stored gaps of {' and '.join(gaps)}"
        if gaps
        else "the roofline's, 20 to 25 % too fast"
    )
    given = ", prefill as given" if case.load.prefill_tokens_s else ""
    return (
        f"speeds of a replica are {source}{given}: {speeds.prefill_tokens_s:,.0f} prompt tokens/s; a step of at most "
        f"{speeds.max_batch:,} requests takes {1000 * speeds.step_s:.3g} ms, and {1e6 * speeds.step_token_s:.3g} ms more for "
        "1,000 tokens of context"
    )
