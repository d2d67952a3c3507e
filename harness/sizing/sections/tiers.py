"""In the order in which deployments fail: the link, then the drives, then the room."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.hardware import Tier
from harness.sizing.section import Section, gb, rate_text
from harness.sizing.transfer import drives

LINKS = ("peer",)  # ways to another device, which keeps its own caches there
HITS = 0.5  # of the prompts' tokens, where nobody says


def section(case: Case) -> Section | None:
    rows = tuple(_row(case, tier) for tier in case.hardware.tiers if tier.name not in LINKS)
    if not rows:
        return None
    return Section(
        f"Caches that leave the device: {case.load.requests_s:g} requests/s of {case.load.prompt_tokens:,} prompt tokens, "
        f"{hits(case):.0%} of them kept from before{_source(case)}; {case.load.kept_requests:,} requests kept",
        rows,
        _advice(case, rows),
        (
            "full precision, all rates and rooms a device; stores are what is computed anew, refills what is hit",
            "the first that fails is told: link, then drives, then room",
        ),
    )


def hits(case: Case) -> float:
    """Share of prompt tokens that lie somewhere."""
    return HITS if case.hit_share is None else case.hit_share


def _source(case: Case) -> str:
    if case.found:
        return " (on the trace, in the largest room)"
    return "" if case.hit_share is not None else f" (assumed: hit_share is not given, and {HITS:.0%} is taken)"


def traffic_bytes_s(case: Case) -> tuple[float, float]:
    """Stores and refills a device: tokens computed anew, answers among them, and tokens hit."""
    per_token, share = case.full.bytes_per_token(case.load.context), hits(case)
    new = case.load.prompt_tokens * (1 - share) + case.load.output_tokens
    rate = case.load.requests_s * per_token / case.load.devices
    return rate * new, rate * share * case.load.prompt_tokens


def kept_bytes(case: Case) -> float:
    """Room a device that the kept requests need."""
    return case.load.kept_requests * case.full.held_bytes(case.load.context) / case.load.devices


def _row(case: Case, tier: Tier) -> dict[str, Any]:
    stores, refills = traffic_bytes_s(case)
    used = stores / tier.write_bytes_s + refills / tier.read_bytes_s
    row = {
        "tier": tier.name,
        "stores_gb_s": gb(stores),
        "refills_gb_s": gb(refills),
        "write_gb_s": gb(tier.write_bytes_s),
        "read_gb_s": gb(tier.read_bytes_s),
        "link_used_share": used,
        "drives_needed": drives(stores + refills, tier.drive_bytes_s) if tier.drive_bytes_s else None,
        "kept_gb": gb(kept_bytes(case)),
        "room_gb": gb(tier.bytes) if tier.bytes else None,
    }
    return {**row, "fails_first": fails_first(row, tier)}


def fails_first(row: dict[str, Any], tier: Tier) -> str:
    """What gives out first: a link before its drives, drives before the room."""
    if row["link_used_share"] > 1:
        return "link"
    if tier.drive_bytes_s and row["drives_needed"] > tier.read_bytes_s / tier.drive_bytes_s + 1e-9:
        return "drives"
    if row["room_gb"] is not None and row["kept_gb"] > row["room_gb"]:
        return "room"
    return "nothing"


def _advice(case: Case, rows: tuple[dict[str, Any], ...]) -> str:
    fits = [row["tier"] for row in rows if row["fails_first"] == "nothing"]
    if fits:
        return f"{fits[0]} is the nearest tier that carries this load; look at the link first when it grows."
    stores, refills = traffic_bytes_s(case)
    return (
        f"No tier here carries {rate_text(stores)} of stores and {rate_text(refills)} of refills a device and keeps what is "
        "asked: shrink the cache before it moves, or keep less."
    )
