"""What two runs were asked differently, field by field, from what each stored of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness.between.runs import Run
from harness.privacy import UTTERED, Hiding
from harness.report.format import flat

ORIGIN = ("kvgate", "git")
PARTS = ("model", "engine", "machine", "hardware", "gate", "gen", "load", "pairs", "seed")


@dataclass(frozen=True)
class Difference:
    """One field; None where a run does not have it."""

    field: str
    reference: Any
    other: Any


def differences(reference: Run, other: Run) -> list[Difference]:
    """Fields that differ, of the two runs, and of the tasks and strategies that both have. Texts that models see are hidden
    where either run is redacted."""
    ours, theirs = _facts(reference, other), _facts(other, reference)
    found = [
        Difference(field, ours.get(field), theirs.get(field))
        for field in dict.fromkeys((*ours, *theirs))
        if ours.get(field) != theirs.get(field)
    ]
    return [_hidden(one, Hiding(reference.manifest)) for one in found] if _redacted(reference) else found


def _facts(run: Run, beside: Run) -> dict[str, Any]:
    manifest = run.manifest
    parts = {name: manifest[name] for name in (*ORIGIN, *PARTS) if name in manifest}
    engine = {**run.options, **manifest["engine"]}
    tasks = {
        " ".join(key): {**run.asked[key], "n": group.planned["n"], "seed": group.planned["seed"]}
        for key, group in run.groups.items()
        if key in beside.groups
    }
    return flat({**parts, "engine": engine, "tasks": tasks, "strategies": _strategies(run, beside)})


def _strategies(run: Run, beside: Run) -> dict[str, Any]:
    """The layers of each strategy that both runs have, and what the engine was found to be when it served them."""
    return {
        name: {"stack": cell.planned["stack"], "loaded": cell.loaded}
        for key, group in run.groups.items()
        if key in beside.groups
        for name, cell in {"full": group.baseline, **group.candidates}.items()
        if name == "full" or name in beside.groups[key].candidates
    }


def _redacted(run: Run) -> bool:
    return bool(run.manifest.get("privacy") == "redact")


def _hidden(one: Difference, hide: Hiding) -> Difference:
    return Difference(one.field, *(_told(one.field, value, hide) for value in (one.reference, one.other)))


def _told(field: str, value: Any, hide: Hiding) -> Any:
    """What models may see or say is hidden, as in commands; names and settings are not."""
    if field in UTTERED:
        return hide.inside(value)
    if field.startswith("tasks.") and isinstance(value, str) and re.search(r"\s", value):
        return hide(value)
    return value
