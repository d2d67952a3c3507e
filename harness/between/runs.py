"""The runs that are compared, as they lie in their stores: what was asked, what was judged and timed, and the records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness import manifest as manifests
from harness import privacy
from harness.groups import GroupRecords, read_run
from harness.judge import judge, report_gate, results_of
from harness.places import Place
from harness.store import ResultStore
from harness.types import BadInput, strangers

Key = tuple[str, str]
"""Task and mode."""


@dataclass(frozen=True)
class Run:
    """One run. Of one that was only timed there are no groups, and its manifest is bench.json."""

    name: str  # no two that are compared have the same
    store: Place  # the results folder that it lies in
    manifest: Mapping[str, Any]
    verdict: Mapping[str, Any]  # as ``kvgate report`` gives it; empty if it was only timed
    payoff: Mapping[str, Any] | None  # payoff.json; None if it was not timed
    groups: Mapping[Key, GroupRecords]
    asked: Mapping[Key, Mapping[str, Any]]  # the task as it was when it was run; empty where that was not noted
    options: Mapping[str, Any]  # of the engine, as they were composed

    @property
    def cells(self) -> dict[tuple[str, str, str], Mapping[str, Any]]:
        """The verdict's cells by strategy, task and mode."""
        return {(cell["strategy"], cell["task"], cell["mode"]): cell for cell in self.verdict.get("cells", ())}


def load(names: Sequence[str], results: Place, config: Mapping[str, Any]) -> list[Run]:
    """The runs in the order given. Raises BadInput with everything that is wrong with any of them."""
    folders, problems = [], []
    for name in names:
        try:
            folder = manifests.find(name, results, "run.json", "payoff.json")
            folders.append(folder.resolve() if isinstance(folder, Path) else folder)
        except BadInput as error:
            problems += error.problems
    problems += [
        f"run must name each run once, got {folder} {times} times"
        for folder, times in Counter(folders).items()
        if times > 1
    ]
    if problems:
        raise BadInput(*problems)
    manifest_of = {folder: _manifest(folder) for folder in folders}
    hidden = config["privacy"] or (
        "redact" if any(one.get("privacy") == "redact" for one in manifest_of.values()) else "show"
    )
    return [
        _run(label, folder, {**manifest_of[folder], "privacy": hidden}, config)
        for label, folder in zip(_labels([folder.name for folder in folders]), folders, strict=True)
    ]


def _labels(names: Sequence[str]) -> list[str]:
    """The names, with a number where several are called so: runs of two results folders may be."""
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return labels


def _manifest(folder: Place) -> Mapping[str, Any]:
    if (folder / "run.json").exists():
        return manifests.load(str(folder), folder)[1]
    return _json(folder / "bench.json")


def _json(file: Place) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BadInput(f"run: {file} cannot be read ({error}); start the run again to rewrite it") from error


def _run(name: str, folder: Place, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Run:
    store = ResultStore(results_of(folder))
    payoff = _json(folder / "payoff.json") if (folder / "payoff.json").exists() else None
    if "groups" not in manifest:
        return Run(name, store.root, manifest, {}, payoff, {}, {}, {})
    gate = report_gate(manifest["gate"], config["gate"])
    if wrong := strangers(gate, {group["label"]: group["fidelity"] for group in manifest["groups"]}):
        raise BadInput(*(f"{name}: {problem}" for problem in wrong))
    run = read_run(store, manifest, rescore=config["rescore"])
    verdict = judge(run, gate)
    if manifest["privacy"] == "redact":
        errors = [record.error for group in run.groups for cell in group.cells for record in cell.records.values()]
        verdict = privacy.redact_verdict(verdict, manifest, [*map(str, run.damaged), *errors])
    by_key = {(group.planned["label"], group.mode): group for group in run.groups}
    asked = {
        key: store.cell(group.baseline.planned["address"]).asked().get("task", {}) for key, group in by_key.items()
    }
    return Run(name, store.root, manifest, verdict, payoff, by_key, asked, _options(folder))


def _options(folder: Place) -> Mapping[str, Any]:
    """The engine's options, of which its spec holds those that decide results; a run has one engine."""
    file = folder / "config.yaml"
    if not file.exists():
        return {}
    first, *_ = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {key: value for key, value in first["config"]["engine"].items() if key != "_target_"}
