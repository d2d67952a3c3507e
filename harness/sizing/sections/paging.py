"""What blocks leave unused, and how many requests fit by how room is given: how long formats and tiers can wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from harness.sizing import paging
from harness.sizing.capacity import BLOCK_TOKENS, pool_tokens
from harness.sizing.case import Case
from harness.sizing.holding import Holding
from harness.sizing.paging import Batches
from harness.sizing.section import Section
from harness.sizing.traces import Request

LONGEST, POWER, BLOCKS, SHARED = "the longest request", "powers of two", "blocks", "shared blocks"


def section(case: Case) -> Section:
    requests = list(islice(case.trace.requests(BLOCK_TOKENS), case.simulated.requests)) if case.trace else case.requests
    waste = paging.waste(requests, BLOCK_TOKENS)
    format = next((one for one in case.holdings if one.slots == ("quant",)), case.full)
    admitted = _admitted(case, requests, waste.longest_tokens, format)
    unused = {LONGEST: waste.reserved, BLOCKS: waste.paged}
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "room": room,
            "unused_share": unused.get(room),
            "max_batch_requests": _finite(admitted.get(room)),
            "times_more": _finite(admitted[room] / admitted[LONGEST]) if admitted else None,
        }
        for room in (admitted or unused)
    )
    return Section(
        f"Room for {len(requests):,} requests of {waste.mean_tokens:,.0f} tokens in the mean and {waste.longest_tokens:,} at "
        f"most, {case.lengths}",
        rows,
        _advice(case, waste, admitted, len(requests)),
        (
            f"blocks of {BLOCK_TOKENS} tokens by the paging layer's own allocator; batches are filled in order, prompt and "
            "answer, until one more has no room, and the mean of the full ones is told",
            *_not_told(case, waste.longest_tokens, admitted),
        ),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _fits(case: Case, longest: int, one: Holding) -> bool:
    budget = case.budget_bytes
    tokens = pool_tokens(budget, one.bytes_per_token(case.load.context)) if budget is not None else 0
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS >= longest


def _admitted(case: Case, requests: Sequence[Request], longest: int, format: Holding) -> dict[str, float]:
    """By how room is given, requests at once; inf: all of them. Empty where not even the longest fits."""
    if not _fits(case, longest, case.full):
        return {}
    assert case.budget_bytes is not None
    sizes = [one.bytes_per_token(case.load.context) for one in (case.full, format)]
    found = paging.admitted(requests, BLOCK_TOKENS, case.budget_bytes, *sizes)
    told: dict[str, Batches] = {
        LONGEST: found.reserved,
        POWER: found.power_of_two,
        BLOCKS: found.paged,
    }
    if case.trace:
        told[SHARED] = found.paged_reuse
    if format is not case.full:
        told[f"{SHARED if case.trace else BLOCKS} of {format.name}"] = found.paged_reuse_format
    return {room: batches.requests or math.inf for room, batches in told.items()}


def _advice(case: Case, waste: paging.Waste, admitted: dict[str, float], requests: int) -> str:
    saved = f"Blocks leave {waste.paged:.2%} unused where room for the longest leaves {waste.reserved:.0%}"
    if not admitted:
        return f"{saved}; how many requests fit is not known, or not even the longest does."
    wanted = f"the {case.load.in_flight:,} requests that must fit at once"
    rooms = [room for room in admitted if room not in (LONGEST, POWER)]
    enough = next((room for room in rooms if min(admitted[room], requests) >= case.load.in_flight), None)
    if enough is None and math.inf in admitted.values():
        return f"{saved}; all {requests:,} simulated requests fit, which are fewer than {wanted} (simulated.requests)."
    if enough is None:
        return f"{saved}, and not even {rooms[-1]} admit {wanted}: keep fewer tokens, or move them."
    if enough == BLOCKS:
        return f"{saved}: they alone admit {wanted}, without a format or a tier."
    return f"{saved}, and do not admit {wanted}, which {enough} do."


def _not_told(case: Case, longest: int, admitted: dict[str, float]) -> tuple[str, ...]:
    notes = (
        []
        if case.trace
        else ["made-up requests have nothing in common: what sharing admits, a trace tells (trace=FILE)"]
    )
    if not admitted:
        notes.append(
            f"requests that fit are not counted: the memory is not known, or holds less than {longest:,} tokens"
        )
    elif math.inf in admitted.values():
        notes.append("where no batch is told, all requests fit at once: simulated.requests asks for more")
    return tuple(notes)
