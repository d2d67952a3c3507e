"""Runs of ``kvgate bench``, compared: gains side by side, and what was timed in one of them alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.bench.conftest import Bench

Change = Callable[[dict[str, Any]], object]


def compared(bench: Bench, *names: str) -> dict[str, Any]:
    said = bench.kvgate("report", *names, f"results_dir={bench.results}", "format=json")
    assert said.code == 0, said.err
    (against,) = json.loads(said.out)["against"]
    return dict(against)


def copied(bench: Bench, change: Change, files: tuple[str, ...] = ("bench.json", "payoff.json")) -> None:
    """Run ``b`` once more as run ``c``, with another payoff."""
    shutil.rmtree(bench.results / "runs" / "c", ignore_errors=True)
    for file in files:
        (bench.results / "runs" / "c").mkdir(parents=True, exist_ok=True)
        content = bench.file(file)
        change(content)
        (bench.results / "runs" / "c" / file).write_text(json.dumps(content))


def doubled(content: dict[str, Any]) -> None:
    for candidate in content.get("candidates", ()):
        gain = candidate["points"][0]["metrics"]["throughput"]["gain"]
        gain.update({key: 2 * gain[key] for key in ("mean", "low", "high")})
    content["kvgate"] = "9.9"


def test_gains_stand_side_by_side(bench: Bench) -> None:
    assert bench("-m", "strategy=fp8,int8").code == 0
    copied(bench, doubled)
    against = compared(bench, "b", "c")
    assert not against["not_compared"] and not against["cells"]
    assert [one["field"] for one in against["differences"]] == ["kvgate"]
    quotients = {(one["strategy"], one["metric"]): one["quotient"] for one in against["payoffs"]}
    assert quotients["fp8", "throughput"] == quotients["int8", "throughput"] == pytest.approx(2)
    assert {value for (_, metric), value in quotients.items() if metric != "throughput"} == {1.0}
    throughput = next(one for one in against["payoffs"] if (one["strategy"], one["metric"]) == ("fp8", "throughput"))
    mine = bench.candidate("fp8")
    assert throughput["reference"]["gain"] == mine["metrics"]["throughput"]["gain"]["mean"]
    assert throughput["reference"]["value"] == mine["values"]["throughput"]
    page = (bench.results / "comparisons" / "b+c" / "comparison.html").read_text()
    assert "What it pays" in page and "No strategy was judged in both runs" in page

    def without(content: dict[str, Any]) -> None:
        for candidate in content.get("candidates", ())[:1]:
            del content["candidates"][0]
            candidate = content["candidates"][0]
            candidate["points"][0]["metrics"]["capacity"]["gain"].update(mean=None, low=None, high=None)

    copied(bench, without)
    whys = {(one["strategy"], one["why"]) for one in compared(bench, "b", "c")["not_compared"]}
    assert whys == {("fp8", "speed: only b timed it"), ("int8", "capacity under the load: only b measured it")}

    def other_load(content: dict[str, Any]) -> None:
        for point in content["points"]:
            point["describe"] = "one long request"

    copied(bench, other_load)
    against = compared(bench, "b", "c")
    assert not against["payoffs"] and len(against["not_compared"]) == 2
    assert "(one long request): b was timed under another load" in against["not_compared"][1]["why"]


def test_a_timed_run_and_a_judged_one_have_nothing_in_common(bench: Bench) -> None:
    assert bench("strategy=fp8").code == 0
    assert bench.kvgate.run("strategy=fp8", "name=q").code == 0
    said = bench.kvgate("report", "b", "q", f"results_dir={bench.results}")
    assert said.code == 2 and "got b with a timed load only and q with needle_single (prompt)" in said.err
    assert bench.kvgate.run("strategy=fp8", "name=b").code == 0  # the same folder: judged and timed
    (alone,) = compared(bench, "b", "q")["not_compared"]
    assert (alone["strategy"], alone["why"]) == (None, "speed: only b was timed")
