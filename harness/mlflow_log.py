"""Verdicts in MLflow, as a Hydra callback: a run of MLflow for each run, and in it one for each strategy.

Params are the stack, metrics the differences, counts and bytes of each task, the report is an artifact. Switched on by
``+hydra.callbacks.mlflow._target_=harness.mlflow_log.MLflowLog``; what is logged is read from the results folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hydra.experimental.callback import Callback

from harness.places import Place, place
from harness.types import BadInput

CELL_METRICS = ("delta", "ci_low", "ci_high", "score", "baseline", "n", "saved")
MEMORY_METRICS = ("stored_bytes_per_token", "deploy_bytes_per_token")


class MLflowLog(Callback):
    """Logs a run when it has ended.

    Args:
        experiment: Name of the experiment.
        tracking_uri: Where MLflow keeps it; None for what MLflow's environment says.
    """

    def __init__(self, experiment: str = "kvgate", tracking_uri: str | None = None) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise BadInput("hydra.callbacks.mlflow needs MLflow: pip install 'kvgate[mlflow]'") from error
        self.mlflow, self.experiment, self.tracking_uri = mlflow, experiment, tracking_uri

    def on_run_end(self, config: Any, **kwargs: Any) -> None:
        self._log()

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        self._log()

    def _log(self) -> None:
        from harness import cli

        if "task" not in cli.ran or cli.ran["dry_run"]:  # another command, or nothing was run
            return
        folder = place(cli.ran["results_dir"]) / "runs" / str(cli.ran["name"])
        if verdict := _verdict(folder):
            if self.tracking_uri:
                self.mlflow.set_tracking_uri(self.tracking_uri)
            self.mlflow.set_experiment(self.experiment)
            with self.mlflow.start_run(run_name=verdict["name"]):
                self.mlflow.log_params(_run_params(verdict))
                self.mlflow.log_text((folder / "report.html").read_text(encoding="utf-8"), "report.html")
                for strategy in verdict["strategies"]:
                    self._log_strategy(strategy, verdict)

    def _log_strategy(self, strategy: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
        with self.mlflow.start_run(run_name=strategy["name"], nested=True):
            self.mlflow.log_params({**_run_params(verdict), "stack": strategy["stack"]})
            self.mlflow.set_tag("decision", strategy["decision"])
            for cell in (cell for cell in verdict["cells"] if cell["strategy"] == strategy["name"]):
                task = _name(f"{cell['task']}.{cell['mode']}")
                self.mlflow.set_tag(f"decision.{task}", cell["decision"])
                self.mlflow.log_metrics({f"{task}.{name}": value for name, value in _metrics(cell).items()})


def _verdict(folder: Place) -> dict[str, Any] | None:
    """The verdict of the run that has just ended; None where it came to none, so that an older one may lie there."""
    try:
        run, verdict = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("run", "verdict"))
    except (OSError, ValueError):
        return None
    return dict(verdict) if run["created"] == verdict["created"] else None


def _run_params(verdict: Mapping[str, Any]) -> dict[str, Any]:
    gate = {f"gate.{name}": verdict["gate"][name] for name in ("margin", "margin_kind", "alpha", "looks")}
    return {"model": verdict["model"]["id"], "engine": verdict["engine"]["name"], "seed": verdict["seed"], **gate}


def _metrics(cell: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that there are: a missing one is not logged, and never 0."""
    memory, fidelity = cell.get("memory") or {}, cell.get("fidelity") or {}
    found = {
        **{name: cell.get(name) for name in CELL_METRICS},
        **{name: memory.get(name) for name in MEMORY_METRICS},
        **fidelity,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _name(text: str) -> str:
    """A task's label as MLflow takes it in a name."""
    return re.sub(r"[^\w\-./ ]", "_", text)
