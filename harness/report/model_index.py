"""What is GO as ``model-index`` metadata of a Hugging Face model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from huggingface_hub.repocard_data import EvalResult, eval_results_to_model_index

from harness.report.format import missing
from harness.report.outlook import Cell, Outlook
from harness.types import Decision

ARGS = ("n", "ci_low", "ci_high", "margin", "alpha")  # what the difference is to be read with
METRICS = ("score", "baseline", "delta")


def render(verdict: Mapping[str, Any]) -> str:
    """YAML for a card's metadata, an entry for each strategy that is GO on some task; empty if none is."""
    outlook = Outlook(verdict)
    entries = [entry for strategy in outlook.strategies for entry in _entry(outlook, strategy["name"])]
    return yaml.safe_dump({"model-index": entries}, sort_keys=False, width=120) if entries else ""


def _entry(outlook: Outlook, strategy: str) -> list[dict[str, Any]]:
    found = [
        result for cell in outlook.of(strategy) if cell["decision"] == Decision.GO for result in _results(outlook, cell)
    ]
    return eval_results_to_model_index(f"{outlook.model.get('id')} with {strategy}", found) if found else []


def _results(outlook: Outlook, cell: Cell) -> list[EvalResult]:
    """Score, the full cache's score and the difference, whose arguments say how sure it is."""
    args = {name: cell[name] for name in ARGS if not missing(cell.get(name))}
    return [
        EvalResult(
            task_type="text-generation",
            task_name=cell["task"],
            dataset_type=f"kvgate/{cell['task']}",
            dataset_name=cell["task"],
            dataset_config=cell["mode"],
            dataset_args={"seed": outlook.verdict.get("seed")},
            metric_type=name,
            metric_name={"score": "score", "baseline": "score of the full cache", "delta": "paired difference"}[name],
            metric_value=cell[name],
            metric_args=args if name == "delta" else None,
        )
        for name in METRICS
        if not missing(cell.get(name))
    ]
