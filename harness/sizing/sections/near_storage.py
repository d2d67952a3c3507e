"""Attention where the cache lies, so that queries and outputs travel and the cache does not (INF2, HILOS; arXiv 2502.09921)."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.placement import io_share, near_storage_gain, vectors_bytes
from harness.sizing.section import Section
from harness.sizing.sections.decode import fastest_step


def section(case: Case) -> Section | None:
    if case.model.parameters is None or not case.hardware.tiers:
        return None
    context = case.load.context
    step = fastest_step(case, case.full, 1, context)
    if step is None:
        return None
    cache = case.full.read_bytes(context) / case.load.devices
    vectors = vectors_bytes(case.model.layers, case.model.element_bytes) / case.load.devices
    inside = case.hardware.memory_bytes_s * case.load.devices if case.hardware.memory_bytes_s else None
    weights = max(0.0, step.seconds - (case.full.read_bytes(context) / inside if inside else 0.0))
    rows: list[dict[str, Any]] = []
    for tier in case.hardware.tiers:
        host_s, near_s = cache / tier.read_bytes_s, vectors / tier.read_bytes_s
        rows.append(
            {
                "tier": tier.name,
                "cache_bytes_per_step": cache,
                "vectors_bytes_per_step": vectors,
                "io_share_of_step": io_share(host_s, weights),
                "gain_times_at_most": near_storage_gain(host_s, near_s, weights),
            }
        )
    equal = vectors / (cache / context)
    most = max(rows, key=lambda row: row["gain_times_at_most"])
    return Section(
        f"A step of one request of {context:,} tokens whose cache stays in a tier: the cache travels, or queries and outputs do",
        tuple(rows),
        f"Near-storage attention moves less from {equal:,.0f} tokens on, and can gain at most "
        f"{most['gain_times_at_most']:.3g} times ({most['tier']}): a limit that takes what the storage "
        "itself reads and computes to be free.",
        ("the rest of the step is the roofline's weights; a gain cannot exceed 1 / (1 - I/O share)",),
    )
