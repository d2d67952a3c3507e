"""run.json: what one command asked for, as plain data. It points at cells; a report needs nothing else but the store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from harness import provenance
from harness.places import Place, place, write_atomic
from harness.types import BadInput

if TYPE_CHECKING:
    from harness.engines.base import Engine, ModelFacts
    from harness.plan import Group, Plan, PlannedCell  # a report reads manifests without what planning needs

SCHEMA = "kvgate.run/1"
FOLDERS = ("--config-dir", "-cd")  # of a command; a folder of the user's own options follows


def make_manifest(plan: Plan, command: Sequence[str], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Describe a plan. ``command`` is what the user typed, ``notes`` are what a report has to tell of how the plan came about."""
    return {
        "schema": SCHEMA,
        "name": plan.name,
        **origin(plan.facts, plan.engine, command),
        "gate": asdict(plan.gate),
        "gen": asdict(plan.generation),
        "compare": list(plan.compare),
        "notes": list(notes),
        "groups": [_group(plan, group, command) for group in plan.groups],
    }


def origin(facts: ModelFacts, engine: Engine, command: Sequence[str]) -> dict[str, Any]:
    """Where results come from: when and how they were asked for, which model, which engine, which code."""
    shape = facts.shape
    model = {
        **facts.identity,
        "id": facts.display,
        "weights_sha": facts.identity["weights"],
        "deploy_dtype": facts.deploy_dtype,
        "deploy_element_bytes": facts.deploy_bytes,
        "element_bytes": shape.element_bytes,
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "query_heads": shape.query_heads,
        "head_dim": shape.head_dim,
        **({"value_dim": shape.value_dim} if shape.latent else {}),
        "max_tokens": facts.max_tokens,
    }
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"{command[0]} {shlex.join(command[1:])}",
        "model": model,
        "engine": {**engine.spec(), "versions": provenance.versions(), "cpu": provenance.cpu()},
        "kvgate": provenance.versions()["kvgate"],
        "git": provenance.git_commit(),
    }


def _group(plan: Plan, group: Group, command: Sequence[str]) -> dict[str, Any]:
    return {
        "label": group.label,
        "task": dict(group.task_config),
        "chance": group.task.chance,
        "graded": group.task.graded,
        "fidelity": group.task.fidelity,
        "compress": group.compress,
        "prefill": group.prefill,
        "start": group.start,
        "history": group.history,
        "seed": group.seed,
        "n": group.n,
        "samples_file": group.samples_file.name,
        "samples_set": group.samples_set,
        "cells": [
            {**part(cell), "command": _alone(plan, group, cell, command) if cell.role == "candidate" else None}
            for cell in group.cells
        ],
    }


def _alone(plan: Plan, group: Group, cell: PlannedCell, command: Sequence[str]) -> str:
    """The command that asks for one cell: the overrides that made it, in a run of another name, so that this one stays."""
    words = command[1:]
    folders = [word for before, word in zip(["", *words], words, strict=False) if {before, word} & {*FOLDERS}]
    folders += [word for word in words if word.startswith("--config-dir=")]
    overrides = [word for word in cell.overrides if not _of_the_run(word.lstrip("+~").partition("=")[0])]
    overrides += ["gate.early_stop=true"] * plan.gate.early_stop
    overrides += [f"seed={group.seed}", f"name={plan.name}-{cell.address[:8]}"]
    return f"{command[0]} {shlex.join([*folders, *overrides])}"


def _of_the_run(key: str) -> bool:
    """Whether an option concerns several cells together, or is said anew for one."""
    return key in ("name", "seed", "keep", "compare", "gate.tasks", "gate.early_stop") or key.split(".")[0] in (
        "sweep",
        "hydra",
    )


def part(cell: PlannedCell) -> dict[str, Any]:
    """What takes part in a run, and where its results are."""
    return {
        "address": cell.address,
        "role": cell.role,
        "strategy": cell.strategy,
        "describe": cell.stack.describe(),
        "stack": dict(cell.stack.spec()),
    }


def save(manifest: Mapping[str, Any], folder: Place) -> None:
    write_atomic(folder / "run.json", json.dumps(manifest, indent=1, ensure_ascii=False))


def find(run: str, results_dir: Place, *files: str) -> Place:
    """The folder of a run given by name or address, which holds one of these files. Raises BadInput if there is none."""
    for folder in (place(run), results_dir / "runs" / run):
        if any((folder / file).exists() for file in files):
            return folder
    known = sorted({found.parent.name for file in files for found in (results_dir / "runs").glob(f"*/{file}")})
    there = f"; there are {', '.join(known[-8:])}" if known else ""
    raise BadInput(f"run must be a run folder or the name of a run in {results_dir}/runs, got {run!r}{there}")


Found = TypeVar("Found", bound=tuple[Any, ...])


def nearest(found: Iterable[Found], manifest: Mapping[str, Any]) -> Found | None:
    """Of tuples that begin with a manifest the newest, of the same engine's first; None if there is none."""
    engine = manifest["engine"]["name"]
    return max(found, key=lambda one: (one[0]["engine"]["name"] == engine, one[0]["created"]), default=None)


def load(run: str, results_dir: Place) -> tuple[Place, dict[str, Any]]:
    """The folder and manifest of a run given by name or address. Raises BadInput if there is none."""
    folder = find(run, results_dir, "run.json")
    try:
        manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"run: {folder / 'run.json'} is damaged ({error}); start the run again to rewrite it") from error
    if manifest.get("schema") != SCHEMA:
        raise BadInput(f"run: {folder / 'run.json'} must have schema {SCHEMA}, got {manifest.get('schema')!r}")
    return folder, manifest
