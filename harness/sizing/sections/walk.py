"""Which layers in which order: paging, prefix reuse, FP8, eviction, drives. Each step with the number that decided it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.sizing import reuse
from harness.sizing.capacity import BLOCK_TOKENS, paged_waste
from harness.sizing.case import DEVICE, Case
from harness.sizing.holding import Holding
from harness.sizing.section import Section
from harness.sizing.sections import tiers
from harness.sizing.stored import Judged

FORMAT = "fp8"
DRIVES = ("nvme", "disk")  # tiers that are drives of the machine itself; the first that is there
YES, NO, OPEN = "yes", "no", "not yet"


@dataclass(frozen=True)
class Step:
    """One layer: whether to switch it on, the number that says so, and the verdict, or the words of a run that gives one."""

    name: str
    take: str
    measure: str
    value: float | None
    why: str
    judged: Judged | None = None
    strategy: str = ""

    def row(self, case: Case) -> dict[str, Any]:
        asks = self.take == OPEN and self.strategy
        return {
            "step": self.name,
            "take": self.take,
            "decided_by": self.measure,
            "value": self.value,
            "why": self.why,
            "verdict": self.judged and self.judged.describe(),
            "command": f"kvgate run model={case.model.option} strategy={self.strategy}" if asks else None,
        }


def section(case: Case) -> Section:
    packed = _format(case)
    held = next((one for one in case.holdings if one.name == FORMAT and packed.take != NO), case.full)
    evict = _eviction(case, held)
    steps = (_paging(case), _prefix(case), packed, evict, _drives(case, held, evict.take == NO))
    taken, wanting = (", ".join(step.name for step in steps if step.take == take) for take in (YES, OPEN))
    first = f"; first decide {wanting} with the commands beside them" if wanting else ""
    if evict.take == NO and evict.value is not None and evict.value > 1:
        first += "; whatever is switched on, so many requests do not fit"
    return Section(
        f"Which layers, in which order, for {case.load.in_flight:,} requests of {case.load.context:,} tokens at once",
        tuple(step.row(case) for step in steps),
        f"Switch on {taken or 'nothing yet'}{first}.",
        (
            "each step is asked only of what the steps before it left, with what is not decided yet taken to be switched on",
            "a verdict holds for its model, tasks and lengths",
        ),
    )


def demand_share(case: Case, one: Holding) -> float | None:
    """What the requests that must fit at once need, as a share of the memory for keys and values; None: not known."""
    budget = case.budget_bytes
    if budget is None:
        return None
    return case.load.in_flight * one.held_bytes(case.load.context) / budget if budget > 0 else float("inf")


def _paging(case: Case) -> Step:
    judged = case.stored.judged(case.model.name, "paging", "paged")
    waste = paged_waste(case.load.context, BLOCK_TOKENS)
    return Step("paging", _taken(judged), "unused_share", waste, f"blocks of {BLOCK_TOKENS} tokens", judged, "paged")


def _prefix(case: Case) -> Step:
    judged, share, why = case.stored.judged(case.model.name, "prefix"), case.load.hit_share, "of prompt tokens"
    words = "prefix_reuse start=warm"
    if case.found:
        share = reuse.hit_rate(case.found, math.inf)
        here = reuse.hit_rate(case.found, case.rooms_tokens.get(DEVICE, 0))
        why = f"of the trace's prompt tokens at the most, {here:.1%} in the device's memory"
    if share is None:
        why = "no hit rate is known: trace=FILE, or hit_share= from an engine's counters"
        return Step("prefix", OPEN, "hit_share", None, why, judged, words)
    if share == 0:
        return Step("prefix", NO, "hit_share", share, "nothing is asked again")
    return Step("prefix", _taken(judged), "hit_share", share, why, judged, words)


def _format(case: Case) -> Step:
    judged = case.stored.judged(case.model.name, "quant", FORMAT)
    if all(one.name != FORMAT for one in case.holdings):
        return Step(FORMAT, NO, "kv_to_weights", None, "it is not among the settings of this plan")
    if case.weight_bytes is None:
        return Step(FORMAT, _taken(judged), "kv_to_weights", None, "the weights are not known", judged, FORMAT)
    ratio = case.load.in_flight * case.full.held_bytes(case.load.context) / case.weight_bytes
    if ratio > 1:
        return Step(FORMAT, _taken(judged), "kv_to_weights", ratio, "the caches outgrow the weights", judged, FORMAT)
    share = demand_share(case, case.full)
    if share is not None and share > 1:
        return Step(FORMAT, _taken(judged), "kv_to_memory", share, "the caches do not fit", judged, FORMAT)
    return Step(FORMAT, NO, "kv_to_weights", ratio, "the caches do not outgrow the weights, and fit")


def _eviction(case: Case, held: Holding) -> Step:
    share = demand_share(case, held)
    if share is None:
        return Step("evict", OPEN, "kv_to_memory", None, "the memory is not known: kv_gib=")
    if share == float("inf"):
        return Step("evict", NO, "kv_to_memory", None, "there is no memory for any cache: devices= or weight_bits=")
    if share <= 1:
        return Step("evict", NO, "kv_to_memory", share, f"{held.name} fits already")
    keep = int(1000 / share) / 1000
    if not keep:
        return Step("evict", NO, "kv_to_memory", share, "not even a thousandth of the tokens fits")
    why = f"{held.name} does not fit; keep at most {keep:g} of the tokens"
    judged = case.stored.judged(case.model.name, "evict")
    take = _taken(judged)
    kept = judged.options.get("keep") if judged else None
    if take == YES and (kept is None or kept > keep):
        take, why = OPEN, f"{why}, and the verdict is on another budget"
    return Step("evict", take, "kv_to_memory", share, why, judged, f"snapkv strategy.evict.keep={keep:g}")


def _drives(case: Case, held: Holding, fits: bool) -> Step:
    tier = next((one for name in DRIVES if (one := case.hardware.tier(name))), None)
    host, kept = case.hardware.tier("host"), tiers.kept_bytes(case)
    room = (host.bytes or 0.0) if host else 0.0
    if fits and kept <= room:
        return Step("nvme", NO, "kept_gb", kept / 1e9, "what is kept fits into the host's memory, or is nothing")
    if tier is None:
        return Step("nvme", OPEN, "link_used_share", None, "no drives are known: kvgate bench load=links")
    stores, refills = tiers.traffic_bytes_s(case)
    smaller = held.held_bytes(case.load.context) / case.full.held_bytes(case.load.context)
    used = smaller * (stores / tier.write_bytes_s + refills / tier.read_bytes_s)
    if used > 1:
        return Step("nvme", NO, "link_used_share", used, "the link has no headroom: shrink first")
    judged = case.stored.judged(case.model.name, "offload")
    words = "full strategy/offload=disk strategy.offload.path=FOLDER"
    return Step("nvme", _taken(judged), "link_used_share", used, "the link has headroom", judged, words)


def _taken(judged: Judged | None) -> str:
    """A layer is switched on by a GO, left out by a NO-GO; anything else decides nothing yet."""
    return {"GO": YES, "NO-GO": NO}.get(judged.decision, OPEN) if judged else OPEN
