"""Memory that several hosts share over CXL, beside bulk transfers over RDMA."""

from __future__ import annotations

from typing import Any

from harness.sizing.capacity import BLOCK_TOKENS
from harness.sizing.case import Case
from harness.sizing.section import Section, gb
from harness.sizing.transfer import transfer_s


def section(case: Case) -> Section | None:
    tiers = [tier for name in ("cxl", "rdma") if (tier := case.hardware.tier(name))]
    if len(tiers) < 2:
        return None
    tokens, layers = case.load.prompt_tokens, len(case.model.layers)
    moved = case.full.held_bytes(tokens) / case.load.devices
    entry = moved / tokens / layers
    sizes = {
        "one token of one layer": (1, entry),
        f"a block of {BLOCK_TOKENS} tokens of one layer": (1, BLOCK_TOKENS * entry),
        "a prompt, an operation a layer": (layers, moved),
        f"a prompt, an operation for {BLOCK_TOKENS} tokens": (layers * -(-tokens // BLOCK_TOKENS), moved),
    }
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "read": name,
            "operations": operations,
            "mb": 1000 * gb(size),
            **{
                f"{tier.name}_ms": 1000 * transfer_s(size, tier.read_bytes_s, operations, tier.latency_s)
                for tier in tiers
            },
        }
        for name, (operations, size) in sizes.items()
    )
    cxl, rdma = tiers
    if rdma.read_bytes_s > cxl.read_bytes_s and rdma.latency_s > cxl.latency_s:
        even = (rdma.latency_s - cxl.latency_s) / (1 / cxl.read_bytes_s - 1 / rdma.read_bytes_s)
        advice = f"Read less than {even / 1e3:,.0f} kB at a time over CXL, more over RDMA."
    elif cxl.read_bytes_s >= rdma.read_bytes_s and cxl.latency_s <= rdma.latency_s:
        advice = "CXL is no slower at any size here; what it costs is its reach, one rack."
    else:
        advice = "RDMA is no slower at any size here: shared memory gains nothing but simpler code."
    return Section(f"Shared CXL memory and RDMA, {tokens:,} tokens of one request", rows, advice)
