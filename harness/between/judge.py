"""From the stored facts of runs to comparison.json: what moved on the same samples, what differs, what cannot be compared.

The first run is the reference. This describes and decides nothing: the decisions are each run's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from harness.between.differences import differences
from harness.between.pairing import Pairing, Uncompared
from harness.between.payoffs import payoffs
from harness.between.runs import Run
from harness.privacy import Hiding
from harness.privacy import command as command_without_texts
from harness.types import BadInput

Name = TypeVar("Name")
SCHEMA = "kvgate.comparison/1"


def compare_runs(runs: Sequence[Run], rescore: bool, command: str) -> dict[str, Any]:
    """The content of comparison.json: every later run against the first. Raises BadInput where two have nothing in common."""
    reference, *others = runs
    if problems := [problem for other in others for problem in _strangers(reference, other)]:
        raise BadInput(*problems)
    return {
        "schema": SCHEMA,
        "name": "+".join(run.name for run in runs),
        "command": command,
        "runs": [_origin(run) for run in runs],
        "against": [_against(reference, other, rescore) for other in others],
    }


def _strangers(reference: Run, other: Run) -> list[str]:
    if _both(reference.groups, other.groups) or (reference.payoff and other.payoff):
        return []
    have = [
        ", ".join(f"{task} ({mode})" for task, mode in run.groups) or "a timed load only" for run in (reference, other)
    ]
    return [
        f"run must name runs with a task in common, got {reference.name} with {have[0]} and {other.name} with {have[1]}"
    ]


def _origin(run: Run) -> dict[str, Any]:
    told = run.verdict or {**run.manifest, "command": _command(run.manifest)}  # one that was only timed
    facts = {key: told[key] for key in ("created", "command", "kvgate", "git", "notes")}
    return {"name": run.name, "model": run.manifest["model"]["id"], "engine": run.manifest["engine"]["name"], **facts}


def _command(manifest: Mapping[str, Any]) -> str:
    words = str(manifest["command"])
    return command_without_texts(words, Hiding(manifest)) if manifest.get("privacy") == "redact" else words


def _against(reference: Run, other: Run, rescore: bool) -> dict[str, Any]:
    untold: list[Uncompared] = [*_alone(reference, other), *_alone(other, reference)]
    tasks, cells = [], []
    for key in _both(reference.groups, other.groups):
        pairing = Pairing(reference, other, key, rescore)
        untold += pairing.left_out
        tasks.append(pairing.task(untold))
        cells += pairing.candidates(untold)
    timed, untimed = payoffs(reference, other)
    untold += [Uncompared(strategy, None, None, why) for strategy, why in untimed]
    return {
        "run": other.name,
        "differences": [asdict(one) for one in differences(reference, other)],
        "strategies": _strategies(reference, other),
        "tasks": tasks,
        "cells": cells,
        "payoffs": [asdict(one) for one in timed],
        "not_compared": [asdict(one) for one in untold],
    }


def _both(ours: Mapping[Name, Any], theirs: Mapping[Name, Any]) -> list[Name]:
    return [name for name in ours if name in theirs]


def _alone(run: Run, beside: Run) -> Iterator[Uncompared]:
    """Cells that one run has and the other has not."""
    for (task, mode), group in run.groups.items():
        if (task, mode) in beside.groups:
            mine = [name for name in group.candidates if name not in beside.groups[task, mode].candidates]
            why = f"only {run.name} has it"
        else:
            mine = list(group.candidates)
            modes = [there for name, there in beside.groups if name == task]
            why = f"only {run.name} has this task"
            why = f"{run.name} has it in this mode, {beside.name} in {', '.join(modes)}" if modes else why
        for name in mine:
            decision = run.cells[name, task, mode]["decision"]
            yield Uncompared(name, task, mode, f"{why}: {decision}")


def _strategies(reference: Run, other: Run) -> list[dict[str, Any]]:
    """The decision on each strategy in both runs, None where one has not judged it; of one that changed the other's reasons."""
    before, after = ({one["name"]: one for one in run.verdict.get("strategies", ())} for run in (reference, other))
    found = []
    for name in dict.fromkeys((*before, *after)):
        ours, theirs = before.get(name), after.get(name)
        changed = ours and theirs and ours["decision"] != theirs["decision"]
        told = {"reference": ours and ours["decision"], "other": theirs and theirs["decision"]}
        found.append({"name": name, **told, "why": theirs["reasons"] if theirs and changed else []})
    return found
