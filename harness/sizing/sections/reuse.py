"""What prefix reuse finds on a trace, in the device's memory and in each tier, under several rules of what goes first."""

from __future__ import annotations

import math
from typing import Any

from harness.sizing import reuse
from harness.sizing.case import Case
from harness.sizing.reuse import Curve
from harness.sizing.section import Section

ALL = "without end"
NEARLY = 0.9  # of what can be found: more room than for that is hardly worth its price


def section(case: Case) -> Section | None:
    if case.found is None:
        return _wanted(case)
    assert case.trace is not None
    found, block = case.found, case.trace.block_tokens
    rooms = {**{name: room for name, room in case.rooms_tokens.items() if room >= block}, ALL: math.inf}
    here = {tier.name: tier.token_hit_rate for tier in reuse.tiers(found, rooms)}
    curves = {policy: _curve(case, policy) for policy in case.simulated.policies}
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "room": name,
            "cache_tokens": None if math.isinf(room) else int(room),
            **{f"{policy}_hit_share": reuse.hit_rate(curve, room) for policy, curve in curves.items()},
            "not_found_nearer_share": here[name],
        }
        for name, room in rooms.items()
    )
    return Section(
        f"Prompt tokens of {found.requests:,} requests that lie in a cache already, {case.trace.path.name}, "
        f"{found.prompt_tokens / found.requests:,.0f} prompt tokens in the mean, blocks of {block}",
        rows,
        _advice(case, found, rooms, curves),
        (
            "one cache of the whole trace in full precision, requests one after the other; a format that is half as large has "
            "twice the room, and running requests take theirs from the device's",
            "not found nearer: what least recently used (lru) finds in this room and in none above it, each of which keeps what "
            "those above it keep too",
        ),
    )


def _curve(case: Case, policy: str) -> Curve:
    assert case.trace is not None and case.found is not None
    sizes = [point.cache_tokens for point in case.found.points]
    return (
        case.found
        if policy == case.found.policy
        else reuse.curve(case.trace.requests(), case.trace.block_tokens, sizes, policy)
    )


def _advice(case: Case, found: Curve, rooms: dict[str, float], curves: dict[str, Curve]) -> str:
    ceiling = reuse.hit_rate(found, math.inf)
    if not ceiling:
        return "No prompt begins like one before it: prefix reuse has nothing to find here."
    nearest = next(name for name, room in rooms.items() if reuse.hit_rate(found, room) >= NEARLY * ceiling)
    first, room = next(iter(rooms.items()))
    best = max(curves, key=lambda policy: reuse.hit_rate(curves[policy], room), default=found.policy)
    reach = "no room here reaches" if nearest == ALL else f"{nearest} is the nearest room that reaches"
    return (
        f"At most {ceiling:.1%} of the prompt tokens can be found, {reach} {NEARLY:.0%} of that, and {first} has "
        f"{reuse.hit_rate(found, room):.1%} with the least recently used going first ({best} finds most there)."
    )


def _wanted(case: Case) -> Section | None:
    """Without a trace: what each room holds, and what would tell how much of it is asked for again."""
    if not case.rooms_tokens:
        return None
    rows: tuple[dict[str, Any], ...] = tuple(
        {"room": name, "cache_tokens": int(room), "prompts_held_requests": int(room // case.load.prompt_tokens)}
        for name, room in case.rooms_tokens.items()
    )
    return Section(
        f"Room for prefixes, for prompts of {case.load.prompt_tokens:,} tokens that have nothing in common",
        rows,
        "What is found in it depends on who asks for what again, so that only a trace tells: trace=FILE.jsonl, a request a line "
        "(docs/simulators.md).",
    )
