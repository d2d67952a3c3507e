"""Many small transfers: alpha + bytes / beta."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.section import Section, told
from harness.sizing.transfer import transfer_s

TOP = 2048  # tokens that a step fetches where the model does not select its reads (DeepSeek V3.2 selects so many)


def section(case: Case) -> Section | None:
    if not case.hardware.tiers:
        return None
    chosen = min(max((layer.read_entries or TOP) for layer in case.model.layers), case.load.context)
    layers = len(case.model.layers)
    entry = max(layer.width for layer in case.model.layers) * case.model.element_bytes / case.load.devices
    operations, moved = chosen * layers, chosen * layers * entry
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "tier": tier.name,
            "latency_us": 1e6 * tier.latency_s,
            "one_by_one_s_per_token": transfer_s(moved, tier.read_bytes_s, operations, tier.latency_s),
            "one_a_layer_s_per_token": transfer_s(moved, tier.read_bytes_s, layers, tier.latency_s),
            "bytes_alone_s_per_token": transfer_s(moved, tier.read_bytes_s),
        }
        for tier in case.hardware.tiers
    )
    worst = max(rows, key=lambda row: row["one_by_one_s_per_token"])
    best = min(rows, key=lambda row: row["one_by_one_s_per_token"])
    return Section(
        f"Fetching {chosen:,} entries of {layers} layers for one token: {operations:,} operations of {entry:,.0f} B",
        rows,
        f"Gather before sending: one by one, {worst['tier']} takes {told(worst['one_by_one_s_per_token'])} s a token, and even "
        f"{best['tier']} {told(best['one_by_one_s_per_token'])} s.",
        ("operations follow one another; a queue of several in flight divides the latency by its depth",),
    )
