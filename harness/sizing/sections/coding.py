"""Few bits before the link, against what coding them costs."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.hardware import Coding
from harness.sizing.holding import Holding
from harness.sizing.section import Section, gb, rate_text
from harness.sizing.transfer import coded_s, coding_break_even_bytes_s, coding_s, transfer_s


def section(case: Case) -> Section | None:
    tokens = case.load.prompt_tokens
    packed = [one for one in case.holdings[1:] if one.slots == ("quant",)]
    costs = {one.name: cost for one in packed if (cost := coding_of(case, one))}
    if not costs or not case.hardware.tiers:
        return None
    full = case.full.held_bytes(tokens) / case.load.devices
    rows: list[dict[str, Any]] = []
    for one in (one for one in packed if one.name in costs):
        cost, coded = costs[one.name], one.held_bytes(tokens) / case.load.devices
        for tier in case.hardware.tiers:
            rows.append(
                {
                    "setting": one.name,
                    "tier": tier.name,
                    "read_gb_s": gb(tier.read_bytes_s),
                    "break_even_gb_s": gb(coding_break_even_bytes_s(full, coded, cost)),
                    "coding_s": coding_s(full, cost),
                    "exact_s": transfer_s(full, tier.read_bytes_s),
                    "coded_s": coded_s(full, coded, cost, tier.read_bytes_s),
                }
            )
    evens = {str(row["setting"]): float(row["break_even_gb_s"]) for row in rows}
    best = max(evens, key=lambda name: evens[name])
    return Section(
        f"Coding {tokens:,} tokens before they move and decoding them behind, one after the other",
        tuple(rows),
        f"Of these {best} pays on the fastest links, on those below {rate_text(1e9 * evens[best])} a device; above that send "
        "what is there.",
        (_source(case),),
    )


def coding_of(case: Case, one: Holding) -> Coding | None:
    """What was measured on this hardware; else, on a device with its own memory, that memory's limit.

    Each way reads or writes the whole cache once, and the coded one once.
    """
    if one.name in case.hardware.coding:
        return case.hardware.coding[one.name]
    if case.hardware.coding or not case.hardware.memory_bytes_s or case.hardware.host_bytes_s is None:
        return None
    share = one.held_bytes(case.load.prompt_tokens) / case.full.held_bytes(case.load.prompt_tokens)
    rate = case.hardware.memory_bytes_s / (1 + share)
    return Coding(rate, rate)


def _source(case: Case) -> str:
    if case.hardware.coding:
        return "rates of coding are measured ones of this hardware file (benchmarks/offload.py)"
    return (
        "coding is taken to be bound by the device's memory, each way one reading and one writing: a kernel that is not fused is "
        "many times slower"
    )
