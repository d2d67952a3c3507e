"""Which layers in which order: paging, prefix reuse, FP8, eviction, drives. Each step with the number that decided it."""

from __future__ import annotations

from typing import Any

from harness.sizing.capacity import paged_waste
from harness.sizing.case import Case
from harness.sizing.holding import Holding
from harness.sizing.section import Section
from harness.sizing.sections import tiers
from harness.sizing.stored import Judged

BLOCK = 16
FORMAT = "fp8"
DRIVES = ("nvme", "disk")  # tiers that are drives of the machine itself, the first that is there
YES, NO, OPEN = "yes", "no", "not yet"


def section(case: Case) -> Section:
    steps = [_paging(case), _prefix(case)]
    steps.append(_format(case))
    held = (
        next((one for one in case.holdings if one.name == FORMAT), case.full) if steps[-1]["take"] != NO else case.full
    )
    steps.append(_eviction(case, held))
    steps.append(_drives(case, held, steps[-1]["take"] != NO))
    taken = [str(step["step"]) for step in steps if step["take"] == YES]
    wanting = [str(step["step"]) for step in steps if step["take"] == OPEN]
    return Section(
        f"Which layers, in which order, for {case.load.in_flight:,} requests of {case.load.context:,} tokens at once",
        tuple(steps),
        f"Switch on {', '.join(taken) or 'nothing yet'}"
        + (f"; first decide {', '.join(wanting)} with the commands beside them." if wanting else "."),
        (
            "each step is asked only of what the steps before it left",
            "a verdict holds for its model, tasks and lengths",
        ),
    )


def demand_share(case: Case, one: Holding) -> float | None:
    """What the requests that must fit at once need, as a share of the memory for keys and values."""
    budget = case.budget_bytes
    if budget is None:
        return None
    return case.load.in_flight * one.held_bytes(case.load.context) / budget if budget > 0 else float("inf")


def _paging(case: Case) -> dict[str, Any]:
    judged = case.stored.judged(case.model.name, "paging", "paged")
    waste = paged_waste(case.load.context, BLOCK)
    return _step(
        "paging",
        _taken(judged),
        "unused_share_of_blocks",
        waste,
        "blocks of 16 tokens, filled in the mean",
        case,
        judged,
        "paged",
    )


def _prefix(case: Case) -> dict[str, Any]:
    judged, share = case.stored.judged(case.model.name, "prefix"), case.load.hit_share
    if share is None:
        why = "no hit rate is given: hit_share=, from an engine's counters or a trace"
        return _step("prefix", OPEN, "hit_share", None, why, case, judged, "prefix_reuse start=warm")
    if share == 0:
        return _step("prefix", NO, "hit_share", share, "nothing is asked again", case, None, "")
    return _step(
        "prefix", _taken(judged), "hit_share", share, "of prompt tokens", case, judged, "prefix_reuse start=warm"
    )


def _format(case: Case) -> dict[str, Any]:
    name, judged = FORMAT, case.stored.judged(case.model.name, "quant", FORMAT)
    if all(one.name != FORMAT for one in case.holdings):
        return _step(name, NO, "kv_to_weights", None, "cannot be counted on this model", case, None, "")
    if case.weight_bytes is None:
        return _step(
            name, _taken(judged), "kv_to_weights", None, "what the weights take is not known", case, judged, FORMAT
        )
    ratio = case.load.in_flight * case.full.held_bytes(case.load.context) / case.weight_bytes
    if ratio <= 1 and (demand_share(case, case.full) or 0) <= 1:
        return _step(name, NO, "kv_to_weights", ratio, "the caches do not outgrow the weights, and fit", case, None, "")
    return _step(
        name,
        _taken(judged),
        "kv_to_weights",
        ratio,
        "the caches outgrow the weights, or do not fit",
        case,
        judged,
        FORMAT,
    )


def _eviction(case: Case, held: Holding) -> dict[str, Any]:
    share = demand_share(case, held)
    if share is None:
        return _step(
            "evict", OPEN, "kv_to_memory", None, "the memory for keys and values is not known: kv_gib=", case, None, ""
        )
    if share <= 1:
        return _step("evict", NO, "kv_to_memory", share, f"{held.name} fits already", case, None, "")
    if share == float("inf"):
        return _step(
            "evict",
            NO,
            "kv_to_memory",
            None,
            "there is no memory for any cache: more devices, or fewer weight bits",
            case,
            None,
            "",
        )
    judged = case.stored.judged(case.model.name, "evict")
    keep = f"{1 / share:.2g}"
    why = f"{held.name} does not fit; keep at most {keep} of the tokens"
    return _step(
        "evict", _taken(judged), "kv_to_memory", share, why, case, judged, f"snapkv strategy.evict.keep={keep}"
    )


def _drives(case: Case, held: Holding, still: bool) -> dict[str, Any]:
    tier = next((one for name in DRIVES if (one := case.hardware.tier(name))), None)
    room = case.hardware.tier("host")
    kept = tiers.kept_bytes(case)
    if not still and (kept == 0 or (room is not None and room.bytes is not None and kept <= room.bytes)):
        return _step(
            "nvme", NO, "kept_gb", kept / 1e9, "what is kept fits into the memory that is there", case, None, ""
        )
    if tier is None:
        return _step(
            "nvme",
            OPEN,
            "link_used_share",
            None,
            "this hardware file has no drives: kvgate bench load=links",
            case,
            None,
            "",
        )
    stores, refills = tiers.traffic_bytes_s(case)
    scale = held.held_bytes(case.load.context) / case.full.held_bytes(case.load.context)
    used = scale * (stores / tier.write_bytes_s + refills / tier.read_bytes_s)
    if used > 1:
        return _step("nvme", NO, "link_used_share", used, "the link has no headroom: shrink first", case, None, "")
    judged = case.stored.judged(case.model.name, "offload")
    words = "full strategy/offload=disk strategy.offload.path=FOLDER"
    return _step("nvme", _taken(judged), "link_used_share", used, "the link has headroom", case, judged, words)


def _taken(judged: Judged | None) -> str:
    """A layer is switched on by a GO, left out by a NO-GO; anything else decides nothing yet."""
    return {"GO": YES, "NO-GO": NO}.get(judged.decision, OPEN) if judged else OPEN


def _step(
    name: str, take: str, measure: str, value: float | None, why: str, case: Case, judged: Judged | None, strategy: str
) -> dict[str, Any]:
    told = (
        f"{judged.decision} of {judged.describe} in run {judged.run} ({judged.engine}; {', '.join(judged.tasks)})"
        if judged
        else None
    )
    return {
        "step": name,
        "take": take,
        "decided_by": measure,
        "value": value,
        "why": why,
        "verdict": told,
        "command": f"kvgate run model={case.model.option} strategy={strategy}" if take == OPEN and strategy else None,
    }
