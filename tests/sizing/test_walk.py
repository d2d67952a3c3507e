"""The walk through the layers: what decides each step, which stored verdict it used, and what a bench has calibrated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.sizing import stored
from harness.sizing.case import Case
from harness.sizing.hardware import Hardware, Tier
from harness.sizing.sections import walk
from harness.sizing.stored import Stored
from tests.cli import Kvgate
from tests.sizing.conftest import LOAD, Planner, case, exact, row, rows

BOX = Hardware("box", 80e9, 3e12, 1e15, tiers=(Tier("nvme", 10e9, 5e9, bytes=1e13, drive_bytes_s=5e9),))


def run(
    decision: str, slot: str, layer: str, created: str = "1", model: str = "m", keep: float | None = None, **more: str
) -> tuple[Any, Any]:
    """A run.json and its verdict.json, as far as a plan reads them."""
    stack = {
        slot: {"slot": slot, "name": layer, "options": {"keep": keep}},
        **{extra: {"name": name} for extra, name in more.items()},
    }
    cells = [{"role": "candidate", "strategy": "s", "describe": f"{slot}/{layer}", "stack": stack}]
    groups = [{"label": "needle", "fidelity": False, "cells": cells}, {"label": "kl", "fidelity": True, "cells": []}]
    asked = {
        "name": f"run{created}",
        "created": created,
        "model": {"id": model},
        "engine": {"name": "hf"},
        "groups": groups,
    }
    return asked, {"strategies": [{"name": "s", "decision": decision}]}


def walked(*verdicts: tuple[Any, Any], **load: Any) -> dict[str, dict[str, Any]]:
    """Steps by name, for Llama-3.1-8B with 4.29 GB a request and 55.9 GB for caches."""
    here = case(hardware=BOX, stored=Stored(verdicts), load=replace(LOAD, **load))
    half = replace(exact(here.model), name="fp8", by_layer=lambda tokens: (tokens * 65536,), slots=("quant",))
    return {str(step["step"]): dict(step) for step in walk.section(replace(here, holdings=(here.full, half))).rows}


def takes(steps: dict[str, dict[str, Any]]) -> list[str]:
    return [step["take"] for step in steps.values()]


LOSSLESS = (run("GO", "paging", "paged"), run("GO", "prefix", "reuse"))


def test_nothing_is_switched_on_without_a_verdict() -> None:
    steps = walked(hit_share=0.4)
    assert takes(steps) == ["not yet", "not yet", "not yet", "no", "not yet"]
    assert all(step["command"] or step["take"] == "no" for step in steps.values())
    assert steps["fp8"]["value"] == pytest.approx(8 * 32768 * 131072 / 16.06e9)


def test_go_s_switch_on_and_are_named() -> None:
    steps = walked(*LOSSLESS, run("GO", "quant", "fp8"), run("GO", "offload", "disk"), hit_share=0.4)
    assert takes(steps) == ["yes", "yes", "yes", "no", "yes"]
    assert steps["fp8"]["verdict"] == "GO of quant/fp8 in run run1 (hf; needle)" and steps["fp8"]["command"] is None
    assert steps["prefix"]["value"] == 0.4


def test_a_no_go_leaves_a_layer_out_and_the_next_must_do_more() -> None:
    """16 requests need 68.7 GB: in FP8 they fit, without it eviction must keep 0.81 of the tokens."""
    bad = walked(*LOSSLESS, run("NO-GO", "quant", "fp8"), in_flight=16, hit_share=0.4)
    assert bad["fp8"]["take"] == "no" and bad["evict"]["take"] == "not yet"
    assert bad["evict"]["command"].endswith("strategy.evict.keep=0.814")
    assert bad["evict"]["value"] == pytest.approx(1.228, abs=0.001) and 0.814 * bad["evict"]["value"] <= 1
    good = walked(*LOSSLESS, run("GO", "quant", "fp8"), in_flight=16, hit_share=0.4)
    assert good["evict"]["take"] == "no"


def test_a_go_on_a_milder_budget_is_no_proof() -> None:
    """Half of the tokens must go; a verdict on nine tenths says nothing of that, one on a quarter does."""
    load = {"in_flight": 50, "hit_share": 0.4}
    fp8 = run("GO", "quant", "fp8")
    mild, harsh = (walked(*LOSSLESS, fp8, run("GO", "evict", "snapkv", keep=keep), **load) for keep in (0.9, 0.25))
    assert mild["evict"]["take"] == "not yet" and "another budget" in mild["evict"]["why"] and mild["evict"]["command"]
    assert harsh["evict"]["take"] == "yes" and harsh["evict"]["value"] == pytest.approx(1.92, abs=0.01)


def test_what_no_eviction_reaches_is_said() -> None:
    here = case(hardware=BOX, load=replace(LOAD, in_flight=10**6))
    told = walk.section(here)
    step = next(one for one in told.rows if one["step"] == "evict")
    assert "do not fit" in told.advice and step["take"] == "no" and "thousandth" in step["why"]


def test_fp8_is_not_asked_for_while_weights_outweigh_the_caches() -> None:
    steps = walked(run("GO", "quant", "fp8"), in_flight=1)
    assert steps["fp8"]["take"] == "no" and steps["fp8"]["value"] == pytest.approx(0.267, abs=0.001)


def test_no_hits_no_prefix_layer() -> None:
    assert walked(*LOSSLESS, hit_share=0.0)["prefix"]["take"] == "no"
    unknown = walked(*LOSSLESS)["prefix"]
    assert unknown["take"] == "not yet" and unknown["value"] is None and "hit_share=" in unknown["why"]


def test_drives_come_after_the_headroom_of_their_link() -> None:
    full = walked(*LOSSLESS, run("GO", "offload", "disk"), hit_share=0.4, requests_s=50.0)["nvme"]
    assert full["take"] == "no" and full["value"] > 1 and "no headroom" in full["why"]
    assert walked(*LOSSLESS, hit_share=0.4, kept_requests=0)["nvme"]["take"] == "no"


@pytest.mark.parametrize("decision", ["INCONCLUSIVE", "VOID"])
def test_what_decided_nothing_decides_nothing_here(decision: str) -> None:
    step = walked(run(decision, "quant", "fp8"), hit_share=0.4)["fp8"]
    assert step["take"] == "not yet" and step["verdict"].startswith(decision) and step["command"]


def test_the_newest_verdict_on_this_model_of_this_layer_alone_counts() -> None:
    known = Stored(
        (
            run("GO", "quant", "fp8", "2"),
            run("NO-GO", "quant", "fp8", "3"),
            run("GO", "quant", "fp8", "9", model="another"),
            run("GO", "quant", "int8", "8"),
            run("GO", "quant", "fp8", "7", evict="snapkv"),
        )
    )
    judged = known.judged("m", "quant", "fp8")
    assert judged and (judged.decision, judged.created, judged.tasks) == ("NO-GO", "3", ("needle",))
    assert known.judged("m", "paging") is None
    newest = known.judged("m", "quant")
    assert newest and newest.created == "8"


def test_damaged_and_unfinished_runs_decide_nothing(tmp_path: Path) -> None:
    for name, texts in {
        "whole": [json.dumps(one) for one in run("GO", "quant", "fp8")],
        "unfinished": ["{}"],
        "damaged": ["{", "{}"],
        "strange": ["{}", "{}"],
    }.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file, text in zip(("run.json", "verdict.json"), texts, strict=False):
            (tmp_path / "runs" / name / file).write_text(text)
    assert len(stored.read(tmp_path).verdicts) == 1
    assert stored.read(tmp_path / "nowhere") == Stored()


def test_gaps_are_medians_of_this_hardware() -> None:
    stack = {"quant": {"name": "fp8"}}
    arms = [{"strategy": "fp8", "stack": stack}]

    def bench(hardware: str, name: str, full: float, fp8: float) -> tuple[Any, Any]:
        asked = {"name": name, "hardware": {"name": hardware}, "points": [{"arms": arms}]}
        points = lambda times: {"points": [{"roofline": [{"what": "decode", "gap": times}]}]}  # noqa: E731
        return asked, {"baseline": points(full), "candidates": [{"strategy": "fp8", **points(fp8)}]}

    known = Stored(payoffs=(bench("box", "a", 1.2, 1.5), bench("box", "b", 1.4, 1.4), bench("tower", "c", 9.0, 9.0)))
    gap = known.gap("decode", "box")
    assert gap and (gap.times, gap.measurements, gap.runs) == (pytest.approx(1.3), 2, ("a", "b"))
    realized = known.realized("box", [json.dumps(stack, sort_keys=True, separators=(",", ":"))])
    assert realized and realized.times == pytest.approx((0.8 + 1.0) / 2)
    assert known.gap("prefill", "box") is None and known.realized("box", ["{}"]) is None


def test_a_plan_uses_what_a_run_and_a_bench_have_stored(kvgate: Kvgate, plan: Planner) -> None:
    """The whole way: a verdict and a measured gap of the tiny model, and the plan of it."""
    done = kvgate.run("strategy=fp8", "n=8", "name=judged", "gate.margin=0.9")
    assert done.code == 0, done.err
    box = ["+hardware.name=box", "+hardware.memory_bytes_s=1e10", "+hardware.matmul_flop_s=1e11"]
    small = ["load=offline_tiny", "engine.threads=1", "name=timed", "pairs=5"]
    paths = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}"]
    timed = kvgate("bench", "strategy=fp8", *box, *small, *paths)
    assert timed.code == 0, timed.err
    words = ["model=hf", f"model.path={kvgate.model}", "context=2048", "output_tokens=64", "in_flight=100000"]
    told = plan("hardware=here", *box, "+hardware.memory_bytes=1e9", *words)
    step = row(told, "walk", step="fp8")
    assert "in run judged (hf; needle_single)" in step["verdict"]
    payoff = json.loads((kvgate.results / "runs/timed/payoff.json").read_text())
    gap = next(one["gap"] for one in payoff["baseline"]["points"][0]["roofline"] if one["what"] == "decode")
    full = row(told, "decode", context_tokens=2048, setting="full")
    assert full["calibrated_tokens_s"] == pytest.approx(full["tokens_s"] / gap)
    assert row(told, "decode", context_tokens=2048, setting="fp8")["calibrated_gain_times"] > 0
    assert any("timed" in note for note in told["sections"]["decode"]["notes"])
    assert rows(told, "prefill")[0]["calibrated_ttft_s"] is not None


def test_a_case_has_what_its_walk_needs() -> None:
    here: Case = case(hardware=Hardware("bare"))
    steps = {str(step["step"]): step for step in walk.section(here).rows}
    assert steps["evict"]["take"] == "not yet" and "kv_gib=" in steps["evict"]["why"]
    assert steps["nvme"]["take"] == "not yet"
