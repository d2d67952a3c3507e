"""Load what was kept, or compute it again."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.section import Section, gb, rate_text
from harness.sizing.sections.prefill import prefill_tokens_s
from harness.sizing.sections.tiers import hits
from harness.sizing.transfer import break_even_bytes_s, transfer_s, ttft_s


def section(case: Case) -> Section | None:
    speed = prefill_tokens_s(case)
    if speed is None or not case.hardware.tiers:
        return None
    tokens, share = case.load.prompt_tokens, hits(case)
    moved = case.full.held_bytes(tokens) / case.load.devices
    even = break_even_bytes_s(moved / tokens, speed)
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "tier": tier.name,
            "read_gb_s": gb(tier.read_bytes_s),
            "break_even_gb_s": gb(even),
            "load_s": transfer_s(moved, tier.read_bytes_s, latency_s=tier.latency_s),
            "recompute_s": tokens / speed,
            "ttft_at_hit_share_s": ttft_s(tokens, int(tokens * share), speed, moved / tokens, tier.read_bytes_s),
        }
        for tier in case.hardware.tiers
    )
    faster = [row["tier"] for row in rows if row["load_s"] < row["recompute_s"]]
    where = f"Load from {', '.join(map(str, faster))}" if faster else "Compute again"
    return Section(
        f"A hit of {tokens:,} tokens: loaded in full precision, or computed again at {speed:,.0f} tokens/s",
        rows,
        f"{where}: a link must give more than {rate_text(even)} a device for a kept token to be worth its way.",
        (
            f"ttft at hit share: {share:.0%} of the prompt loaded, the rest computed after that",
            "asked for at once, so that one latency is waited for; the device does nothing else meanwhile",
        ),
    )
