"""Deployment profiles: what ``kvgate plan`` proposes is what ``kvgate run`` and ``kvgate bench`` test."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli import Kvgate
from tests.sizing.conftest import Planner, row, rows

CONF = Path(__file__).resolve().parents[2] / "conf"
SCENARIOS = sorted(file.stem for file in (CONF / "scenario").glob("*.yaml"))
OWN = ["strategy=fp8", "task=needle_single"]


def told(scenario: str) -> dict[str, dict[str, str]]:
    found = yaml.safe_load((CONF / f"scenario/{scenario}.yaml").read_text())["scenario"]
    assert isinstance(found, dict) and found["name"] == scenario
    return found


def test_there_are_seven() -> None:
    assert SCENARIOS == ["datacenter", "edge", "long_concurrent", "long_request", "multi_turn", "own", "reasoning"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_a_run(scenario: str, kvgate: Kvgate) -> None:
    """Its strategies on its tasks with its gate, down to the plan of the run; a word of the user's comes before its own."""
    small = ["n=6", "task.lengths=[900]", *(["gen.think_tokens=64"] if scenario == "reasoning" else [])]
    own = OWN if scenario == "own" else []
    paths = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "engine.threads=1"]
    said = kvgate("run", f"scenario={scenario}", "dry_run=true", *small, *own, *paths)
    assert said.code == 0, said.err
    facts = told(scenario)["run"] or {"task": "needle_single", "gate.margin": 0.02}
    assert f"margin {facts['gate.margin']} " in said.out
    for task in facts["task"].split(","):
        assert f"\n{task} compress=" in said.out
    candidates = {line.split()[1] for line in said.out.splitlines() if line.startswith("  candidate")}
    assert len(candidates) == len(facts.get("strategy", "fp8").split(","))
    assert "0 of 6 in the store" in said.out


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_a_bench(scenario: str, kvgate: Kvgate) -> None:
    own = ["strategy=fp8"] if scenario == "own" else []
    paths = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "load.prompt_tokens=512"]
    said = kvgate("bench", f"scenario={scenario}", "dry_run=true", *own, *paths)
    assert said.code == 0, said.err
    facts = told(scenario)["bench"]
    if facts:
        assert f"capacity {facts['gate.payoff.capacity']:g}" in said.out and f" {facts['load']}: " in said.out


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_a_plan(scenario: str, plan: Planner) -> None:
    """Its proposals are rows of every table, and the walk says how each step would be decided."""
    found = plan(f"scenario={scenario}")
    assert found["scenario"] == scenario
    facts = told(scenario)["plan"]
    load = {key: value for key, value in facts.items() if key in found["load"]}
    assert {key: found["load"][key] for key in load} == load
    settings = [one["setting"] for one in rows(found, "layers")]
    assert settings[0] == "full" and len(settings) == len(set(settings))
    if scenario == "edge":
        assert settings[1:4] == ["kivi4", "kivi2", "snapkv_kivi4"] and found["hardware"]["name"] == "laptop"
        assert "nvme" not in [one["step"] for one in rows(found, "walk") if one["take"] == "yes"]
    assert [one["step"] for one in rows(found, "walk")] == ["paging", "prefix", "fp8", "evict", "nvme"]


def test_a_user_s_word_comes_before_the_scenario_s(plan: Planner) -> None:
    found = plan("scenario=edge", "context=4096", "hardware=rtx4090", "strategy=minicache")
    assert found["load"]["context"] == 4096 and found["hardware"]["name"] == "rtx4090"
    assert [one["setting"] for one in rows(found, "layers")][:2] == ["full", "minicache"]


def test_a_profile_of_one_s_own(plan: Planner, tmp_path: Path) -> None:
    (tmp_path / "scenario").mkdir()
    facts = "{name: mine, run: {}, bench: {}, plan: {context: 2048, strategy: int8}}"
    text = f"# @package _global_\nhydra: {{mode: MULTIRUN}}\nscenario: {facts}\n"
    (tmp_path / "scenario/mine.yaml").write_text(text)
    found = plan("--config-dir", str(tmp_path), "scenario=mine", "formats.int8=null")
    assert found["scenario"] == "mine" and found["load"]["context"] == 2048
    assert row(found, "layers", setting="int8")["times_smaller"] > 1.9


def test_an_experiment_still_sweeps(kvgate: Kvgate) -> None:
    paths = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}"]
    said = kvgate("run", "experiment=demo", "dry_run=true", "n=3", "strategy=fp8,window", "task=needle_single", *paths)
    assert said.code == 0, said.err
    assert "candidate fp8" in said.out and "candidate window" in said.out
