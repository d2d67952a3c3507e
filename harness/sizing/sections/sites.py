"""Several sites: where a prefix lies, and what keeping copies costs the links between them."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.placement import hit_share_of_copies, replication_bytes_s
from harness.sizing.section import Section, gb
from harness.sizing.sections.prefill import prefill_tokens_s
from harness.sizing.sections.tiers import hits, kept_bytes, traffic_bytes_s
from harness.sizing.transfer import break_even_bytes_s


def section(case: Case) -> Section | None:
    sites, link = case.load.sites, case.load.site_bytes_s
    if sites < 2:
        return None
    share = hits(case)
    new = traffic_bytes_s(case)[0] * case.load.devices
    rows: list[dict[str, Any]] = []
    for copies in sorted({1, 2, sites}):
        sent = replication_bytes_s(new, copies)
        rows.append(
            {
                "copies": copies,
                "local_hit_share": hit_share_of_copies(share, sites, copies),
                "replication_gb_s_per_site": gb(sent),
                "site_link_used_share": sent / link,
                "kept_gb_per_site": gb(kept_bytes(case) * case.load.devices * copies),
            }
        )
    fits = [row["copies"] for row in rows if row["site_link_used_share"] <= 1]
    speed = prefill_tokens_s(case)
    even = break_even_bytes_s(case.full.bytes_per_token(case.load.context), speed) if speed else None
    ship = (
        ""
        if even is None
        else (
            " and shipping a prefix is "
            + ("faster" if link > even else "slower")
            + " than computing it where it is asked"
        )
    )
    return Section(
        f"{sites} sites with {gb(link):g} GB/s between two: each prefix at so many of them, requests arriving anywhere",
        tuple(rows),
        f"Send a conversation back to the site that has its cache before you copy: the link carries {max(fits)} "
        f"{'copy' if max(fits) == 1 else 'copies'} of what is computed{ship}.",
        ("sites meet every prefix alike; a router that knows where prefixes lie hits as one shared cache does",),
    )
