"""The verdict in lm-eval's result layout (0.4.13), a file for each strategy, for tools that collect such files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from harness.report.format import missing, visible
from harness.report.outlook import Cell, Outlook, at
from harness.types import digest

METRICS = (
    "score",
    "baseline",
    "delta",
)  # with an error that is not told: the interval below is exact, and no mean +- error
LIMITS = ("ci_low", "ci_high", "margin")
FIDELITY = {"kl_mean": False, "kl_p99": False, "kl_max": False, "top1_agreement": True, "nll_delta": False}
HIGHER_IS_BETTER = {**dict.fromkeys(METRICS, True), **FIDELITY}
NAME_LIMIT = 100  # characters of a model's or a strategy's name in a folder's


def render(verdict: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by their path: ``lm_eval/<model>__<strategy>/results_<time>.json``, the time being the run's."""
    outlook = Outlook(verdict)
    made = datetime.fromisoformat(verdict["created"]) if verdict.get("created") else None
    time = made.replace(tzinfo=None).isoformat(timespec="microseconds").replace(":", "-") if made else "unknown"
    return {
        f"lm_eval/{folder(outlook, name)}/results_{time}.json": json.dumps(
            _results(outlook, name, made), indent=2, allow_nan=False
        ).encode()
        for name in (strategy["name"] for strategy in outlook.strategies)
    }


def model_name(outlook: Outlook, strategy: str) -> str:
    """What was evaluated: the model with the setting, ``org/model+fp8``."""
    return f"{outlook.model.get('id') or 'unknown'}+{strategy}"


def folder(outlook: Outlook, strategy: str) -> str:
    """``model_name`` as lm-eval makes folders of names; a strategy's that cannot be in one carries a digest: no two share one."""
    model = re.sub(r"[^\w.+@=, -]+", "__", str(outlook.model.get("id") or "unknown"), flags=re.ASCII)[-NAME_LIMIT:]
    plain = re.sub(r"[^\w.+@=, -]+", "__", strategy, flags=re.ASCII)[:NAME_LIMIT]
    return f"{model}+{plain if plain == strategy else f'{plain}-{digest(visible(strategy), 8)}'}"


def _results(outlook: Outlook, strategy: str, made: datetime | None) -> dict[str, Any]:
    cells = {outlook.label(at(cell)): cell for cell in outlook.of(strategy)}
    verdict, model, name = outlook.verdict, outlook.model, model_name(outlook, strategy)
    return {
        "results": {label: _metrics(label, cell) for label, cell in cells.items()},
        "group_subtasks": {label: [] for label in cells},
        "configs": {label: _config(outlook, label, cell) for label, cell in cells.items()},
        "versions": {label: cell.get("task_version") for label, cell in cells.items()},
        "n-shot": {label: cell["shots"] for label, cell in cells.items() if not missing(cell.get("shots"))},
        "higher_is_better": {
            label: {name: up for name, up in HIGHER_IS_BETTER.items() if f"{name},none" in _metrics(label, cell)}
            for label, cell in cells.items()
        },
        "n-samples": {label: {"original": cell.get("n"), "effective": cell.get("n")} for label, cell in cells.items()},
        "config": {
            "model": (verdict.get("engine") or {}).get("name"),
            "model_args": {"strategy": strategy, "stack": _stack(outlook, strategy)},
            "model_dtype": model.get("dtype"),
            "model_revision": model.get("revision"),
            "model_sha": model.get("weights_sha"),
            "gen_kwargs": verdict.get("gen"),
            "random_seed": verdict.get("seed"),
        },
        "git_hash": verdict.get("git"),
        "date": made.timestamp() if made else None,
        "model_source": (verdict.get("engine") or {}).get("name"),
        "model_name": name,
        "model_name_sanitized": folder(outlook, strategy),
        "kvgate_version": verdict.get("kvgate"),
    }


def _stack(outlook: Outlook, strategy: str) -> Any:
    return next(one.get("stack") for one in outlook.strategies if one["name"] == strategy)


def _metrics(label: str, cell: Cell) -> dict[str, Any]:
    """The numbers that exist, under lm-eval's names ``metric,filter``."""
    known = {name: cell.get(name) for name in (*METRICS, *LIMITS)} | dict(cell.get("fidelity") or {})
    found: dict[str, Any] = {"alias": label, "sample_len": cell.get("n")}
    for name, value in known.items():
        if not missing(value):
            found[f"{name},none"] = value
            if name in METRICS:
                found[f"{name}_stderr,none"] = "N/A"
    return found


def _config(outlook: Outlook, label: str, cell: Cell) -> dict[str, Any]:
    return {
        "task": label,
        "output_type": "generate_until",
        "num_fewshot": cell.get("shots"),
        "metric_list": [{"metric": "score", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {
            "version": cell.get("task_version"),
            "mode": cell["mode"],
            "decision": cell["decision"],
            "gating": cell.get("gating"),
            "address": cell.get("address"),
        },
    }
