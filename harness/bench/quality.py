"""What runs of the same results folder decided of a setting: the other gate, beside what it pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness import manifest as manifests
from harness.types import Decision, canonical

Runs = Sequence[tuple[Mapping[str, Any], ...]]
"""run.json and verdict.json of each run."""


def of(runs: Runs, manifest: Mapping[str, Any], stack: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the newest of these runs decided of the same layers on the same weights; the same engine's first."""
    found = []
    for run, verdict in runs:
        if run.get("schema") != manifests.SCHEMA or run["model"]["weights_sha"] != manifest["model"]["weights_sha"]:
            continue
        cells = [cell for group in run["groups"] for cell in group["cells"] if cell["role"] == "candidate"]
        names = {cell["strategy"] for cell in cells if canonical(cell["stack"]) == canonical(stack)}
        found += [(run, verdict, entry) for entry in verdict["strategies"] if entry["name"] in names]
    best = manifests.nearest(found, manifest)
    return best and _quality(*best)


def _quality(run: Mapping[str, Any], verdict: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The decision on a setting, its worst difference of score, and how long its answers were where they ended by themselves."""
    cells = [cell for cell in verdict["cells"] if cell["strategy"] == entry["name"]]
    judged = [cell for cell in cells if cell.get("delta") is not None]
    worst = min(judged, key=lambda cell: float(cell["delta"]), default={"task": None, "delta": None})
    lengths = [(cell.get("output_tokens"), cell.get("output_tokens_baseline")) for cell in judged]
    mine, full = (sum(one or 0 for one in side) for side in zip(*lengths, strict=True)) if lengths else (0, 0)
    return {
        "decision": Decision(entry["decision"]).value,
        "run": run["name"],
        "engine": run["engine"]["name"],
        "task": worst["task"],
        "delta": worst["delta"],
        "answer_length": mine / full if mine and full else None,
    }
