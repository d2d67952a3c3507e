"""Verdicts in MLflow, in a local file store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli import Kvgate

CALLBACK = "+hydra.callbacks.mlflow._target_=harness.mlflow_log.MLflowLog"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer releases want to be told
    return f"file:{tmp_path / 'mlruns'}"


@pytest.mark.parametrize("grid", [[], ["-m"]])
def test_a_run_is_logged_with_a_run_for_each_strategy(kvgate: Kvgate, store: str, grid: list[str]) -> None:
    import mlflow

    strategies = ["fp8", "window"] if grid else ["fp8"]
    callback = (CALLBACK, f"+hydra.callbacks.mlflow.tracking_uri='{store}'")
    words = (*grid, f"strategy={','.join(strategies)}", "n=2", *callback)
    assert kvgate.run(*words, "dry_run=true").code == 0
    assert kvgate.run(*words, "gate.margin=7").code == 2
    said = kvgate.run(*words)
    assert said.code == 0, said.err
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = client.search_experiments(filter_string="name = 'kvgate'")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"r", *strategies}  # neither the dry run nor the refused one
    assert [artifact.path for artifact in client.list_artifacts(runs["r"].info.run_id)] == ["report.html"]
    fp8 = runs["fp8"].data
    assert fp8.params["stack"].startswith("quant/fp8") and fp8.params["gate.margin"] == "0.02"
    assert fp8.metrics["needle_single.prompt.n"] == 2 and fp8.metrics["needle_single.prompt.delta"] == 0
    assert fp8.metrics["needle_single.prompt.stored_bytes_per_token"] > 0
    assert "needle_single.prompt.ci_low" not in fp8.metrics  # VOID: there is none, and it is not 0
    assert fp8.tags["decision"] == "VOID"


def test_without_mlflow_it_is_said_what_to_install(kvgate: Kvgate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = kvgate.run("strategy=fp8", CALLBACK)
    assert said.code == 2 and "pip install 'kvgate[mlflow]'" in said.err and "Traceback" not in said.err
