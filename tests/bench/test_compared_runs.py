"""Runs of ``kvgate bench``, compared: gains side by side, and what was timed in one of them alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.between.pairing import SAME_ANSWERS
from harness.between.payoffs import SAME_TIMES
from tests.bench.conftest import Bench

Change = Callable[[dict[str, Any]], object]


def compared(bench: Bench, *names: str) -> dict[str, Any]:
    said = bench.kvgate("report", *names, f"results_dir={bench.results}", "format=json")
    assert said.code == 0, said.err
    (against,) = json.loads(said.out)["against"]
    return dict(against)


def copied(bench: Bench, change: Change, results: str = "elsewhere") -> str:
    """Run ``b`` once more as run ``c`` of another results folder, with another payoff. Returns its address."""
    folder = bench.results.parent / results / "runs" / "c"
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("bench.json", "payoff.json"):
        content = bench.file(file)
        change(content)
        (folder / file).write_text(json.dumps(content))
    return str(folder)


def doubled(content: dict[str, Any]) -> None:
    for candidate in content.get("candidates", ()):
        gain = candidate["points"][0]["metrics"]["throughput"]["gain"]
        gain.update({key: 2 * gain[key] for key in ("mean", "low", "high")})
    content["kvgate"] = "9.9"


def test_gains_stand_side_by_side(bench: Bench) -> None:
    assert bench("-m", "strategy=fp8,int8").code == 0
    against = compared(bench, "b", copied(bench, doubled))
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

    found = compared(bench, "b", copied(bench, without))["not_compared"]
    whys = {(one["strategy"], one["why"]) for one in found}
    assert whys == {("fp8", "speed: only b timed it"), ("int8", "capacity under the load: only b measured it")}

    def other_load(content: dict[str, Any]) -> None:
        for point in content["points"]:
            point["describe"] = "one long request"

    against = compared(bench, "b", copied(bench, other_load))
    assert not against["payoffs"] and len(against["not_compared"]) == 2
    assert "(one long request): b was timed under another load" in against["not_compared"][1]["why"]
    copied(bench, doubled, bench.results.name)
    whys = {(one["strategy"], one["why"]) for one in compared(bench, "b", "c")["not_compared"]}
    assert whys == {(name, f"speed under the load: {SAME_TIMES}") for name in ("fp8", "int8")}


def test_a_timed_run_and_a_judged_one_have_nothing_in_common(bench: Bench) -> None:
    assert bench("strategy=fp8").code == 0
    assert bench.kvgate.run("strategy=fp8", "name=q").code == 0
    said = bench.kvgate("report", "b", "q", f"results_dir={bench.results}")
    assert said.code == 2 and "got b with a timed load only and q with needle_single (prompt)" in said.err
    assert bench.kvgate.run("strategy=fp8", "name=b").code == 0  # the same folder: judged and timed
    *same, alone = compared(bench, "b", "q")["not_compared"]
    assert [one["why"] for one in same] == [SAME_ANSWERS] * 2
    assert (alone["strategy"], alone["why"]) == (None, "speed: only b was timed")
