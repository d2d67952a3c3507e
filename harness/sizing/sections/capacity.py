"""Whether it fits: tokens, requests and the longest request, by format."""

from __future__ import annotations

from typing import Any

from harness.sizing.capacity import max_batch, max_context_tokens, pool_tokens
from harness.sizing.case import Case
from harness.sizing.section import Section, gb, gb_text


def section(case: Case) -> Section | None:
    budget, context = case.budget_bytes, case.load.context
    if budget is None:
        return None
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "setting": one.name,
            "kv_budget_gb": gb(budget),
            "pool_tokens": pool_tokens(budget, one.bytes_per_token(context)),
            "max_batch_requests": max_batch(budget, one.held_bytes(context)),
            "max_context_tokens": _longest(case, max_context_tokens(budget, one.held_bytes)),
        }
        for one in case.holdings
    )
    return Section(
        f"What fits into {_where(case)}, for requests of {context:,} tokens",
        rows,
        _advice(case, budget, rows),
        (
            "whole blocks and the rounding of an engine's own figure change the tokens of a pool by less than 0.1 %",
            *_copies(case),
            f"{_beside(case)}; a batch is one of requests that are all at their longest",
        ),
    )


def _copies(case: Case) -> list[str]:
    """Devices that cannot part a cache by its heads."""
    heads = min(layer.kv_heads for layer in case.model.layers)
    if case.load.devices <= heads:
        return []
    return [
        f"the cache is taken to be parted evenly: {case.load.devices} devices with tensor parallelism alone would hold copies of "
        f"its {heads} {'head' if heads == 1 else 'heads'}; part layers, or requests, instead"
    ]


def _where(case: Case) -> str:
    if case.load.kv_gib:
        return f"{case.load.kv_gib:g} GiB for keys and values"
    return f"{case.load.devices} x {case.hardware.name}"


def _beside(case: Case) -> str:
    if case.load.kv_gib or case.weight_bytes is None:
        return "the memory for keys and values is the one that was given"
    reserve = gb_text(case.load.devices * case.hardware.reserve_bytes)
    return (
        f"{case.load.utilization:.0%} of the memory, less {gb_text(case.weight_bytes)} of weights and {reserve} for what else an "
        "engine needs"
    )


def _longest(case: Case, tokens: int | None) -> int | None:
    """No request is longer than the model reads."""
    known = [one for one in (tokens, case.model.max_tokens) if one is not None]
    return min(known, default=None)


def _advice(case: Case, budget: float, rows: tuple[dict[str, float], ...]) -> str:
    if budget <= 0:
        return (
            f"It does not fit: the weights alone need {gb_text(case.weight_bytes or 0)}; take more devices (devices=) or "
            "fewer bits (weight_bits=)."
        )
    full = rows[0]
    if not full["max_batch_requests"]:
        some = [row["setting"] for row in rows if row["max_batch_requests"]]
        holds = ", ".join(map(str, some)) or "no setting here"
        return f"Not one request of this length fits in full precision; {holds} holds it."
    best = max(rows, key=lambda row: row["max_batch_requests"])
    if best["max_batch_requests"] == full["max_batch_requests"]:
        return f"{full['max_batch_requests']:,} requests of this length fit at once, and no setting here admits more."
    return (
        f"{full['max_batch_requests']:,} requests of this length fit at once in full precision, "
        f"{best['max_batch_requests']:,} with {best['setting']}."
    )
