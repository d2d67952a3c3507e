"""Which timed run stands beside a judged strategy: the same layers and weights, the same engine's first, then the newest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import payoffs
from tests.bench.conftest import Bench
from tests.cli import Kvgate

FP8 = {"quant": {"name": "fp8"}}
RUN = {"model": {"weights_sha": "w"}, "engine": {"name": "hf"}}


def timed(name: str, created: str, *, weights: str = "w", engine: str = "hf", stack: Any = FP8) -> Any:
    gain = {"mean": 1.5, "low": 1.4, "high": 1.6, "pairs": 5, "needed": None}
    metrics = {"throughput": {"gain": gain}, "goodput": {"gain": {**gain, "mean": None, "pairs": 0}}}
    arms = [
        {"role": "baseline", "strategy": "full", "stack": {}},
        {"role": "candidate", "strategy": "its name", "stack": stack},
    ]
    made = {"name": name, "created": created, "model": {"weights_sha": weights}, "engine": {"name": engine}}
    made["points"] = [{"label": "", "describe": "2 requests", "arms": arms}]
    return made, {
        "created": created,
        "candidates": [{"strategy": "its name", "decision": "GO", "points": [{"metrics": metrics}]}],
    }


def test_what_was_measured_is_told_and_what_was_not_is_left_out() -> None:
    assert payoffs.of([timed("b", "1")], RUN, FP8) == {
        "run": "b",
        "engine": "hf",
        "decision": "GO",
        "points": [{"label": "2 requests", "gains": {"throughput": {"mean": 1.5, "low": 1.4, "high": 1.6}}}],
    }


@pytest.mark.parametrize(
    ("benches", "run"),
    [
        ([], None),
        ([timed("old", "1"), timed("new", "2")], "new"),
        ([timed("here", "1"), timed("elsewhere", "2", engine="vllm")], "here"),
        ([timed("elsewhere", "2", engine="vllm")], "elsewhere"),
        ([timed("other weights", "1", weights="x")], None),
        ([timed("other layers", "1", stack={})], None),
        ([timed("goes on", "2")[:1] + timed("goes on", "1")[1:]], None),
        ([({"schema": "kvgate.bench/1"}, {})], None),
    ],
)
def test_which_measurement_it_is(benches: Any, run: str | None) -> None:
    found = payoffs.of(benches, RUN, FP8)
    assert (found and found["run"]) == run


@pytest.mark.slow
def test_a_report_has_the_speed_that_was_measured_after_its_run(bench: Bench, kvgate: Kvgate) -> None:
    folder = kvgate.results / "runs" / "r"
    assert kvgate.run("strategy=fp8").code == 0
    assert json.loads((folder / "verdict.json").read_text())["strategies"][0]["payoff"] is None
    assert bench("strategy=fp8").code == 0
    assert kvgate("report", "r", f"results_dir={kvgate.results}").code == 0
    payoff = json.loads((folder / "verdict.json").read_text())["strategies"][0]["payoff"]
    assert payoff["run"] == "b" and payoff["points"][0]["gains"]["throughput"]["mean"] > 0
    assert "Engine-measured by kvgate bench in run b" in (folder / "report.html").read_text()
