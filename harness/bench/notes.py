"""What a reader of gains has to know beside them: what failed, what memory no formula explains, how engines were set up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.bench import metrics
from harness.bench.facts import Trials
from harness.judge import loaded_notes
from harness.store import ResultStore
from harness.types import Served

FORMULA_SLACK = 0.01  # stored bytes farther from the formula are told,
CAPACITY_SLACK = 0.05  # so is a capacity farther from it,
PEAK_SLACK = 0.1  # and a peak farther from the baseline's with its store exchanged


def of_setting(strategy: str, mine: Trials, failures: Sequence[str] = ()) -> list[str]:
    notes = [f"{strategy}: a measurement failed: {error}" for error in failures]
    lost = [request.error for served in mine.values() for request in served.requests if request.error]
    if lost:
        notes.append(f"{strategy}: {len(lost)} requests failed, such as: {lost[0]}")
    memory = next((served.memory for served in mine.values()), None)
    if memory and abs(memory.stored_bytes / memory.formula_bytes - 1) > FORMULA_SLACK:
        notes.append(
            f"{strategy}: {memory.stored_bytes:,} bytes are stored where the formula says {memory.formula_bytes:,}"
        )
    return notes


def of_memory(full: Served, mine: Served, load: Mapping[str, Any], allocated: bool) -> list[str]:
    """Where memory is not what the layers' own formulas lead to expect, of one measurement of each side. ``allocated``: the
    engine has a pool and tells what of it a token takes; what it holds is then no part of a peak."""
    if allocated:
        ratio = full.memory.kv_bytes_per_token / mine.memory.kv_bytes_per_token
        formula = full.memory.formula_bytes / mine.memory.formula_bytes
        off = ratio / formula - 1
        says = f"{ratio:.3g} times as many tokens fit, and {formula:.3g} times by formula"
        return [says] if abs(off) > CAPACITY_SLACK else []
    if not full.memory.peak_bytes or not mine.memory.peak_bytes:
        return []
    share = min(load.get("in_flight") or len(mine.requests), len(mine.requests)) / len(mine.requests)
    expected = full.memory.peak_bytes + share * (mine.memory.stored_bytes - full.memory.stored_bytes)
    over = mine.memory.peak_bytes / expected - 1
    says = f"its peak is {abs(over):.0%} {'above' if over > 0 else 'below'} the baseline's with the store exchanged"
    return [says] if abs(over) > PEAK_SLACK else []


def of_reuse(full: Trials) -> list[str]:
    """Whether the baseline, which reuses nothing, found something to reuse."""
    share = metrics.cached_share([request for served in full.values() for request in served.requests])
    says = f"the baseline reused {share or 0:.0%} of its prompts: its prefix cache is on, so this is no gain of reuse"
    return [says] if share else []


def of_engines(store: ResultStore, manifest: Mapping[str, Any]) -> list[str]:
    """What engines were found to be that a reader of ratios has to know."""
    arms = manifest["points"][0]["arms"]
    (_, whole), *others = ((arm["strategy"], store.load(arm["address"]).loaded()) for arm in arms)
    model, notes = manifest["model"], []
    if whole.get("kv_bytes_per_token") and model["element_bytes"] != model["deploy_element_bytes"]:
        notes.append(
            f"the baseline's cache is held in {model['element_bytes']} bytes an element here and would be in "
            f"{model['deploy_element_bytes']} where it is deployed ({model['deploy_dtype']}): capacity is told against the former"
        )
    for strategy, mine in others:
        notes += loaded_notes(strategy, mine, whole)
    return list(dict.fromkeys(notes))
