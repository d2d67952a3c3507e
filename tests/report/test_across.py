"""Inside a task and across tasks: what the tables show, mark and choose."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pytest

from harness import report
from harness.report.families import families, routes
from harness.report.inside import ABREAST, LOWEST, SHOWN, inside
from harness.report.outlook import Outlook


def cell(strategy: str, task: str, decision: str, size: float | None = 10.0, **changes: Any) -> dict[str, Any]:
    memory = None if size is None else {"deploy_bytes_per_token": size, "deploy_full_bytes_per_token": 100.0}
    whole = {
        "strategy": strategy,
        "task": task,
        "mode": "prompt",
        "decision": decision,
        "gating": True,
        "memory": memory,
    }
    return {
        **whole,
        "family": "retrieval",
        "baseline": 0.8,
        "score": 0.7,
        "delta": -0.1,
        "reasons": [f"{task} says so"],
        **changes,
    }


def outlook(*cells: dict[str, Any], **decisions: str) -> Outlook:
    entries = [{"name": name, "decision": decision, "reasons": [f"{name} why"]} for name, decision in decisions.items()]
    return Outlook({"cells": list(cells), "strategies": entries})


def test_a_task_gets_the_cheapest_stack_that_is_go_there() -> None:
    seen = outlook(
        cell("small", "a", "GO", 5.0),
        cell("small", "b", "NO-GO", 5.0),
        cell("middle", "a", "GO", 20.0),
        cell("middle", "b", "GO", 30.0),
        cell("unknown", "a", "GO", None),
        cell("unknown", "b", "GO", None),
        small="NO-GO",
        middle="GO",
        unknown="GO",
    )
    by_task = {route.task: route for route in routes(seen)}
    assert [(r.strategy, r.bytes_per_token, r.share, r.go, r.tried) for r in by_task.values()] == [
        ("small", 5.0, 0.05, 3, 3),
        ("middle", 30.0, 0.3, 2, 3),
        ("middle", 30.0, 0.3, 2, 3),
    ]
    assert list(by_task) == ["a", "b", "all gating tasks"]


def test_where_none_is_go_the_nearest_says_why() -> None:
    seen = outlook(
        cell("x", "a", "NO-GO"), cell("y", "a", "INCONCLUSIVE", reasons=["too few"]), x="NO-GO", y="INCONCLUSIVE"
    )
    (route,) = routes(seen)
    assert route.strategy == "" and route.reason == "1 INCONCLUSIVE, 1 NO-GO; y: too few"


def test_there_is_nothing_to_choose_or_to_average_with_one_strategy_or_task() -> None:
    seen = outlook(cell("x", "a", "GO"), cell("x", "f", "MEASURED", baseline=None, delta=None), x="GO")
    assert routes(seen) == families(seen) == []
    text = report.text_table(seen.verdict, by="family")
    assert "there is nothing to choose" in text and "there is no mean to take" in text


def test_a_family_has_the_plain_means_the_worst_task_and_the_counts() -> None:
    seen = outlook(
        cell("x", "a", "GO", delta=0.02, baseline=0.9),
        cell("x", "b", "NO-GO", delta=-0.5, baseline=0.7),
        cell("x", "c", "VOID", delta=None, baseline=None),
        cell("x", "d", "GO", family="code"),
        cell("x", "f", "MEASURED", family="fidelity", baseline=None, delta=None),
        x="NO-GO",
    )
    code, retrieval = families(seen)
    assert (code.family, code.tasks, code.worst) == ("code", 1, "d")
    assert (retrieval.tasks, retrieval.worst, retrieval.worst_delta) == (3, "b", -0.5)
    assert (retrieval.baseline, retrieval.delta) == pytest.approx((0.8, -0.24))
    assert retrieval.decisions == {"GO": 1, "NO-GO": 1, "INCONCLUSIVE": 0, "VOID": 1}


def test_every_decision_of_the_fixture_is_counted_once(written) -> None:
    table = pd.read_csv(written.folder / "families.csv")
    judged = Counter(cell["decision"] for cell in written.verdict["cells"] if cell["decision"] != "MEASURED")
    assert {name: table[name].sum() for name in judged} == judged
    routing = pd.read_csv(written.folder / "routing.csv")
    assert list(routing["task"]) == ["niah_multikey", "arithmetic_chain", "instructions", "all gating tasks"]
    assert set(routing["strategy"]) == {"int4-kivi-g32"}  # the smallest of those that are GO


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_both_are_in_the_report_with_what_they_do_not_say(written, name: str) -> None:
    text = (written.folder / name).read_text()
    for words in (
        "Which stack for which task",
        "Families of tasks",
        "confirm it once on another seed",
        "no decision rests on them",
    ):
        assert words in text


def test_the_terminal_shows_them_when_asked(made) -> None:
    by_task, by_family = (report.text_table(made.verdict(), width=160, by=by) for by in ("task", "family"))
    assert "Families of tasks" not in by_task and "niah_multikey" in by_task
    assert "Families of tasks" in by_family and "Which stack for which task" in by_family
    assert "confirm it once on another seed" in by_family.replace("\n  ", " ")


def part(group: str, name: str, score: float, baseline: float = 0.9) -> dict[str, Any]:
    delta = score - baseline
    return {
        "group": group,
        "name": name,
        "n": 8,
        "baseline": baseline,
        "score": score,
        "delta": delta,
        "ci_low": -1.0,
        "ci_high": 1.0,
    }


def test_the_lowest_of_a_group_is_marked_in_each_column() -> None:
    parts = [
        part("kind", "begins", 0.9),
        part("kind", "ends", 0.1, 0.8),
        part("", "strict", 0.5),
        part("turn", "1", 0.5),
    ]
    worse = [{**parts[0], "score": 0.0, "delta": -0.9}]
    seen = outlook(cell("x", "a", "GO", parts=parts), cell("y", "a", "GO", parts=worse), x="GO", y="GO")
    (table,) = inside(seen, ("a", "prompt"))
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ("inside", "n", "full", "x", "y")
    assert [name for name, row in rows.items() if LOWEST in row[1]] == ["kind: ends"]
    assert [name for name, row in rows.items() if LOWEST in row[2]] == ["kind: ends"]
    assert rows["strict"] == ("8", "0.90", "0.50 (−0.40 [−1.00, +1.00])", "–")


def test_of_many_rows_those_that_lost_most_are_shown_and_the_rest_is_counted() -> None:
    parts = [part("task", f"t{at:03}", at / 100) for at in range(90)]
    (table,) = inside(outlook(cell("x", "a", "GO", parts=parts[::-1]), x="GO"), ("a", "prompt"))
    assert {row[0] for row in table.rows} == {f"task: t{at:03}" for at in range(SHOWN)}
    assert f"task: {SHOWN} of 90 rows" in table.title


def test_many_strategies_stand_in_tables_below_each_other_with_the_same_rows() -> None:
    names = [f"s{at}" for at in range(ABREAST + 2)]
    cells = [cell(name, "a", "GO", parts=[part("turn", str(at % 2), 0.5)]) for at, name in enumerate(names)]
    seen = outlook(*cells, cell("void", "a", "VOID"), **dict.fromkeys(names, "GO"), void="VOID")
    first, second = inside(seen, ("a", "prompt"))
    assert first.columns[3:] + second.columns[3:] == tuple(names)
    assert [row[:3] for row in first.rows] == [row[:3] for row in second.rows] and len(first.rows) == 2


def test_a_task_with_nothing_inside_has_no_such_table(written, tmp_path) -> None:
    verdict = {**written.verdict, "cells": [{**cell, "parts": []} for cell in written.verdict["cells"]]}
    pages = report.write(tmp_path, verdict, written.samples)[:2]
    assert not any("Inside this task" in page.read_text() for page in pages)
