"""Straight to the device, or through the host's memory."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.section import Section
from harness.sizing.transfer import staged_s, transfer_s

IN_HOST = ("host", "cxl")  # tiers that are the host's memory: nothing lies between


def section(case: Case) -> Section | None:
    host = case.hardware.host_bytes_s
    tiers = [tier for tier in case.hardware.tiers if tier.name not in IN_HOST]
    if host is None or not tiers:
        return None
    tokens = case.load.prompt_tokens
    moved = case.full.held_bytes(tokens) / case.load.devices
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "tier": tier.name,
            "direct_s": transfer_s(moved, min(tier.read_bytes_s, host)),
            "staged_s": staged_s(moved, tier.read_bytes_s, host),
            "staged_times": staged_s(moved, tier.read_bytes_s, host) / transfer_s(moved, min(tier.read_bytes_s, host)),
        }
        for tier in tiers
    )
    worst = max(rows, key=lambda row: row["staged_times"])
    return Section(
        f"The cache of {tokens:,} tokens to the device: direct (GPUDirect), or through the host's memory",
        rows,
        f"Staging costs most on {worst['tier']}, {worst['staged_times']:.2f} times the direct way: it matters where the link is "
        "near the rate of the host's own copies.",
        ("a staged copy adds two passes over the host's link, one after the other; in chunks a part of them overlaps",),
    )
