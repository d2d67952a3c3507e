"""What a setting paid in two timed runs, each against its own baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.between.runs import Run
from harness.payoff import METRICS

SAME_TIMES = "both runs read the same stored measurements, so nothing can have moved"
Untold = tuple[str | None, str]
"""A strategy, None for all, and why it was not compared."""
Measured = tuple[Mapping[str, Any], Mapping[str, Any]]
"""What was measured of a strategy, and of the baseline beside it."""


@dataclass(frozen=True)
class Gains:
    """One metric of one strategy under one load.

    A gain is by how many times the strategy was better than the baseline beside it, in the same run, with that run's limits. The
    runs were not measured in alternation, so the quotient has no interval. Values are geometric means, in the metric's unit.
    """

    strategy: str
    load: str  # label of the point; "" where there is one
    metric: str
    unit: str
    reference: Mapping[str, Any]  # decision, gain, low, high, pairs, value, baseline_value
    other: Mapping[str, Any]
    quotient: float  # gain of the other / gain of the reference


def payoffs(reference: Run, other: Run) -> tuple[list[Gains], list[Untold]]:
    """Metrics that both runs have gains of, and what cannot be compared and why."""
    ours, theirs = reference.payoff, other.payoff
    if ours is None or theirs is None:
        timed = [run.name for run in (reference, other) if run.payoff]
        return [], [(None, f"speed: only {name} was timed") for name in timed]
    names = (reference.name, other.name)
    loads = [[(point["label"], point["describe"]) for point in one["points"]] for one in (ours, theirs)]
    untold: list[Untold] = [
        (None, f"speed under {label or 'the load'} ({told}): {names[1 - side]} was timed under another load")
        for side in (0, 1)
        for label, told in loads[side]
        if (label, told) not in loads[1 - side]
    ]
    before, after = (_strategies(one) for one in (ours, theirs))
    untold += [
        (name, f"speed: only {names[side]} timed it")
        for side, mine, others in ((0, before, after), (1, after, before))
        for name in mine
        if name not in others
    ]
    gains: list[Gains] = []
    for name in (name for name in before if name in after):
        for load in (load for load in loads[0] if load in loads[1]):
            sides = [_at(one, name, there.index(load)) for one, there in zip((ours, theirs), loads, strict=True)]
            if reference.store == other.store and sides[0][0]["address"] == sides[1][0]["address"]:
                untold.append((name, f"speed under {load[0] or 'the load'}: {SAME_TIMES}"))
                continue
            found, alone = _gains(name, load[0], sides, names)
            gains += found
            untold += alone
        if loads[0] == loads[1] and reference.store != other.store:
            curves = [({"metrics": of[name]["curve"], "values": {}}, {"values": {}}) for of in (before, after)]
            gains += _gains(name, "all loads", curves, names)[0]
    return gains, untold


def _strategies(payoff: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {one["strategy"]: one for one in payoff["candidates"]}


def _at(payoff: Mapping[str, Any], strategy: str, number: int) -> Measured:
    """What was measured of a strategy and of its baseline under one load."""
    return _strategies(payoff)[strategy]["points"][number], payoff["baseline"]["points"][number]


def _gains(
    strategy: str, load: str, sides: Sequence[Measured], names: tuple[str, str]
) -> tuple[list[Gains], list[Untold]]:
    """The metrics that both sides measured, and those that one did."""
    gains, untold = list[Gains](), list[Untold]()
    for name, metric in METRICS.items():
        if not all(name in mine["metrics"] for mine, _ in sides):
            continue
        ours, theirs = (_side(name, *side) for side in sides)
        if ours["gain"] and theirs["gain"]:
            gains.append(Gains(strategy, load, name, metric.unit, ours, theirs, theirs["gain"] / ours["gain"]))
        elif ours["gain"] or theirs["gain"]:
            where = names[0] if ours["gain"] else names[1]
            untold.append((strategy, f"{name} under {load or 'the load'}: only {where} measured it"))
    return gains, untold


def _side(metric: str, mine: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    found = mine["metrics"][metric]
    gain = found["gain"]
    return {
        "decision": found["decision"],
        "gain": gain["mean"],
        "low": gain["low"],
        "high": gain["high"],
        "pairs": gain["pairs"],
        "value": mine["values"].get(metric),
        "baseline_value": baseline["values"].get(metric),
    }
