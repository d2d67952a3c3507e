"""Loading layer by layer while the layers before compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.sizing.case import Case
from harness.sizing.hardware import Tier
from harness.sizing.section import Section, gb, rate_text
from harness.sizing.sections.prefill import prefill_s
from harness.sizing.sections.tiers import hits
from harness.sizing.transfer import overlapped_s


def loads_s(sizes: Sequence[float], tier: Tier) -> list[float]:
    """Seconds until each layer is there, from when the one before is: all are asked for at once."""
    first, *rest = (size / tier.read_bytes_s for size in sizes)
    return [tier.latency_s + first, *rest]


def section(case: Case) -> Section | None:
    tokens, share = case.load.prompt_tokens, hits(case)
    whole, hit = prefill_s(case, tokens), min(int(tokens * share), tokens - 1)  # the last token is computed in any case
    behind = prefill_s(case, hit) if hit else 0.0
    if whole is None or behind is None or not hit or not case.hardware.tiers:
        return None
    layers = len(case.model.layers)
    compute = (whole - behind) / layers  # of the tokens behind the hit, which look at those of the hit
    sizes = [size / case.load.devices for size in case.full.by_layer(hit)]
    rows: list[dict[str, Any]] = []
    for tier in case.hardware.tiers:
        loads = loads_s(sizes, tier)
        rows.append(
            {
                "tier": tier.name,
                "layer_load_ms": 1000 * max(loads),
                "layer_compute_ms": 1000 * compute,
                "whole_then_compute_s": sum(loads) + layers * compute,
                "layerwise_s": overlapped_s(loads, [compute] * layers),
                "hidden": max(loads[1:], default=0.0) <= compute,
            }
        )
    hidden = [str(row["tier"]) for row in rows if row["hidden"]]
    need = max(sizes) / compute
    return Section(
        f"A prompt of {tokens:,} tokens of which {hit:,} are loaded, layer by layer",
        tuple(rows),
        f"Loads from {', '.join(hidden) or 'no tier here'} hide behind the computing of the other {tokens - hit:,} tokens; "
        f"a link must give {rate_text(need)} a device for it.",
        (f"computing at the roofline, {gb(sum(sizes)):.3g} GB a device to load; a slower device hides more",),
    )
