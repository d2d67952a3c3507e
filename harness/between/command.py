"""What ``kvgate report RUN_A RUN_B ...`` does: reads the runs, says what changed, writes it beside them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from harness.between import judge
from harness.between.runs import load
from harness.places import place, write_atomic
from harness.report import between as reports
from harness.types import BadInput


def compare_runs(names: Sequence[str], config: Mapping[str, Any]) -> int:
    """Compare the later runs with the first. Returns the exit code: 0, since this describes and decides nothing."""
    if problems := _problems(config):
        raise BadInput(*problems)
    results = place(config["results_dir"])
    comparison = judge.compare_runs(load(names, results, config), config["rescore"], _command(names, config))
    folder = results / "comparisons" / comparison["name"]
    text = json.dumps(comparison, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(folder / "comparison.json", text)
    page = reports.write(folder, comparison)
    if config["format"] == "json":
        print(json.dumps(comparison, indent=1))
    else:
        print(reports.text(comparison))
        print(f"comparison: {page}")
    return 0


def _command(names: Sequence[str], config: Mapping[str, Any]) -> str:
    """As it can be typed again."""
    gate = {f"gate.{key}": value for key, value in config["gate"].items()}
    asked = {**gate, "rescore": config["rescore"] or None, "privacy": config["privacy"]}
    options = [f"{key}={_typed(value)}" for key, value in asked.items() if value is not None]
    return shlex.join(["kvgate", "report", *names, f"results_dir={config['results_dir']}", *options])


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problems(config: Mapping[str, Any]) -> list[str]:
    """Options that say nothing where runs are compared."""
    found = []
    if config["compare"]:
        names = ", ".join(config["compare"])
        found.append(f"compare must be empty where runs are compared: it pairs candidates of one run, got {names}")
    if config["by"] != "task":
        found.append(f"by must be task where runs are compared, got {config['by']}")
    if config["gate"]["strict"]:
        found.append("gate.strict must not be set where runs are compared: nothing is decided there, got true")
    return found
