"""Keeping caches in an object store: TTFT by length, whole and layer by layer, and the price of keeping."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.section import Section, gb
from harness.sizing.sections.overlap import loads_s
from harness.sizing.sections.prefill import prefill_s
from harness.sizing.transfer import overlapped_s

NAME = "object"


def section(case: Case) -> Section | None:
    tier = case.hardware.tier(NAME)
    if tier is None:
        return None
    rows: list[dict[str, Any]] = []
    for tokens in sorted({4096, 65536, case.load.prompt_tokens}):
        sizes = [size / case.load.devices for size in case.full.by_layer(tokens)]
        loads = loads_s(sizes, tier)
        again = prefill_s(case, tokens)
        compute = again / len(sizes) if again else 0.0
        layerwise = overlapped_s(loads, [compute] * len(sizes)) - len(sizes) * compute
        price = tier.price_gb_month
        rows.append(
            {
                "tokens": tokens,
                "cache_gb": gb(case.full.held_bytes(tokens)),
                "whole_s": tier.latency_s + sum(sizes) / tier.read_bytes_s,
                "added_behind_equal_compute_s": layerwise,
                "recompute_s": again,
                "usd_per_request_month": price * gb(case.full.held_bytes(tokens)) if price is not None else None,
            }
        )
    last = rows[-1]
    faster = last["recompute_s"] is not None and last["whole_s"] is not None and last["whole_s"] < last["recompute_s"]
    return Section(
        f"From an object store at {gb(tier.read_bytes_s):g} GB/s a device",
        tuple(rows),
        f"{'Loading' if faster else 'Computing again'} is faster at {last['tokens']:,} tokens; ask for it in the order of the "
        "layers, and never a token at a time.",
        ("added behind equal compute: what layerwise loading adds where as many tokens again are computed meanwhile",),
    )
