"""Keeping caches in an object store: TTFT by length, whole and layer by layer, and the price of keeping."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.section import Section, gb
from harness.sizing.sections.overlap import loads_s
from harness.sizing.sections.prefill import prefill_s
from harness.sizing.transfer import overlapped_s

NAME = "object"
LENGTHS = (4096, 65536)  # of the published figures (ObjectCache, arXiv 2605.22850)


def section(case: Case) -> Section | None:
    tier = case.hardware.tier(NAME)
    if tier is None:
        return None
    rows: list[dict[str, Any]] = []
    most = case.model.max_tokens or LENGTHS[-1]
    for tokens in sorted({*(one for one in LENGTHS if one <= most), case.load.prompt_tokens}):
        sizes = [size / case.load.devices for size in case.full.by_layer(tokens)]
        loads = loads_s(sizes, tier)
        again = prefill_s(case, tokens)
        computes = [again / len(sizes)] * len(sizes) if again else None
        price = tier.price_gb_month
        rows.append(
            {
                "tokens": tokens,
                "cache_gb": gb(case.full.held_bytes(tokens)),
                "whole_s": tier.latency_s + sum(sizes) / tier.read_bytes_s,
                "added_behind_equal_compute_s": overlapped_s(loads, computes) - sum(computes) if computes else None,
                "recompute_s": again,
                "usd_per_request_month": price * gb(case.full.held_bytes(tokens)) if price is not None else None,
            }
        )
    return Section(
        f"From an object store at {gb(tier.read_bytes_s):g} GB/s a device",
        tuple(rows),
        f"{_faster(rows[-1])}; ask for it in the order of the layers, and never a token at a time.",
        ("added behind equal compute: what layerwise loading adds where as many tokens again are computed meanwhile",),
    )


def _faster(row: dict[str, Any]) -> str:
    """Which way is faster at this length, as far as that is known."""
    if row["recompute_s"] is None:
        return f"Loading {row['tokens']:,} tokens takes {row['whole_s']:.3g} s; what computing them takes is not known here"
    way = "Loading" if row["whole_s"] < row["recompute_s"] else "Computing again"
    return f"{way} is faster at {row['tokens']:,} tokens"
