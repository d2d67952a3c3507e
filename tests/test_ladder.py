"""sweep=ladder: one strategy at several budgets, in one run, judged down from the mildest."""

from __future__ import annotations

import pytest

from tests.cli import Kvgate
from tests.test_early import answers, known, load  # noqa: F401  (known is a fixture)

LADDER = ("sweep=ladder", "strategy=window", "keep=[0.9,0.5,0.1]")


def test_a_ladder_is_one_unit_and_what_it_would_do_is_told(kvgate: Kvgate) -> None:
    said = kvgate.run(*LADDER, "dry_run=true")
    assert said.code == 0, said.err
    assert "ladder over strategy.evict.keep, from mild to harsh: window@0.9, window@0.5, window@0.1" in said.out
    assert "1 load(s)" in said.out and "joint decodes of 6 rows" in said.out
    assert not (kvgate.results / "cells").exists()


def test_a_ladder_is_judged_drawn_and_stopped_where_it_harms(known, kvgate: Kvgate) -> None:  # noqa: F811
    said = known(*LADDER, "engine.rows=20")
    assert said.code == 0, said.err
    manifest, verdict = load(kvgate)
    assert manifest["gate"]["early_stop"] is True
    assert manifest["ladders"] == [
        {"option": "strategy.evict.keep", "rungs": [[0.9, "window@0.9"], [0.5, "window@0.5"], [0.1, "window@0.1"]]}
    ]
    (ladder,) = verdict["ladders"]
    assert (ladder["option"], ladder["smallest_certified"]) == ("keep", None)
    assert "nothing is certified, for keep 0.9 is not GO" in " ".join(said.out.split())
    cells = {cell["strategy"]: cell for cell in verdict["cells"]}
    assert cells["window@0.1"]["stopped_at"] and cells["window@0.1"]["saved"] > 0
    folder = kvgate.results / "runs" / "r"
    assert (folder / "plots" / "ladder.png").exists() and (folder / "ladders.csv").exists()
    before, counted = (folder / "report.html").read_bytes(), answers(kvgate)
    assert kvgate("report", "r", f"results_dir={kvgate.results}").code == 0
    assert (folder / "report.html").read_bytes() == before and answers(kvgate) == counted


def test_bits_of_a_format_are_a_ladder_too(kvgate: Kvgate) -> None:
    words = ("sweep=ladder", "strategy=kivi4", "sweep.option=strategy.quant.bits", "sweep.values=[4,2]", "n=2")
    said = kvgate.run(*words)
    assert said.code == 0, said.err
    (ladder,) = load(kvgate)[1]["ladders"]
    assert ladder["option"] == "bits" and [rung["value"] for rung in ladder["rungs"]] == [4, 2]
    assert "bits=" not in ladder["policy"] and ladder["policy"].startswith("quant/kivi")


def test_several_strategies_are_several_ladders(kvgate: Kvgate) -> None:
    said = kvgate.run(
        "-m", "sweep=ladder", "strategy=window,keydiff", "keep=[0.5,0.25]", "task=needle_single,fidelity", "n=2"
    )
    assert said.code == 0, said.err
    manifest, verdict = load(kvgate)
    assert (
        [len(ladder["rungs"]) for ladder in manifest["ladders"]]
        == [2, 2]
        == [len(x["rungs"]) for x in verdict["ladders"]]
    )
    assert len({strategy["name"] for strategy in verdict["strategies"]}) == 4
    # the same cells as without a ladder: a sweep is no part of an address
    grid = kvgate.run("-m", "strategy=window", "strategy.evict.keep=0.5,0.25", "n=2", "dry_run=true")
    assert grid.out.count("2 of 2 in the store") == 5


REFUSED = {
    "no budgets": (["sweep=ladder", "strategy=window"], "sweep.values (keep=[...]) must be two values or more", "got none"),
    "one budget": (["sweep=ladder", "strategy=window", "keep=[0.5]"], "must be two values or more, each once, got [0.5]"),
    "one twice": (["sweep=ladder", "strategy=window", "keep=[0.5,0.5]"], "each once, got [0.5, 0.5]"),
    "a budget alone": (["sweep=ladder", "strategy=window", "keep=0.5"], "sweep.values", "got 0.5"),
    "from harsh to mild": (
        ["sweep=ladder", "strategy=window", "keep=[0.25,0.5]"],
        "sweep.values must go from mild to harsh",
        "strategy.evict.keep=0.5 stores",
    ),
    "a strategy without budgets": (["sweep=ladder", "strategy=fp8", "keep=[0.5,0.25]"], "fp8 has no strategy.evict.keep"),
    "an option of something else": (
        ["sweep=ladder", "strategy=window", "sweep.option=task.lengths", "keep=[1,2]"],
        "sweep.option must be an option of the strategy, such as strategy.evict.keep, got 'task.lengths'",
    ),
    "budgets without a ladder": (["strategy=window", "keep=[0.5,0.25]"], "keep must be left out without sweep=ladder"),
    "budgets named twice": (
        ["sweep=ladder", "strategy=window", "keep=[0.5,0.25]", "sweep.values=[0.5,0.1]"],
        "and beside sweep.values, got [0.5, 0.25]",
    ),
    "two kinds": (["-m", "sweep=ladder,none", "strategy=window"], "sweep: one run is one sweep"),
    "budgets of the full cache": (["sweep=ladder", "strategy=full", "keep=[0.5,0.25]"], "full has no strategy.evict.keep"),
    "a budget that is none": (["sweep=ladder", "strategy=window", "keep=[0.5,-1]"], "keep must be in (0, 1]", "-1"),
    "no such sweep": (["sweep=stairs", "strategy=window"], "stairs"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_ladder_is_refused(kvgate: Kvgate, words: tuple[list[str], str]) -> None:
    overrides, *expected = words
    said = kvgate.run(*overrides)
    assert said.code == 2 and "Traceback" not in said.err, said
    assert all(word in said.err for word in expected), said.err
    assert not (kvgate.results / "cells").exists() and not (kvgate.results / "runs").exists()
