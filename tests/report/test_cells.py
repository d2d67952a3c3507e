"""The cells of a page and their flipped samples: the same numbers as the tables, the same flips as the test counts."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.groups import read_run
from harness.judge import judge
from harness.report import cells, flips, packed, sentences, tables
from harness.report.format import MISSING
from harness.report.outlook import Outlook
from harness.report.page import Page, build
from harness.store import ResultStore
from harness.table import to_table
from harness.types import Gate
from tests import planted


@pytest.fixture(scope="module")
def page(written: Any) -> Page:
    return build(written.verdict, written.samples)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], pd.DataFrame]:
    """Verdict and samples of a run whose records lie in a store."""
    results = tmp_path_factory.mktemp("results")
    manifest = json.loads((planted.plant(results) / "run.json").read_text())
    stored = read_run(ResultStore(results), manifest)
    verdict, records = judge(stored, Gate(margin=0.1)), to_table(stored.groups)
    return verdict, records[records["role"].isin(("baseline", "candidate"))]


def unpacked(chunk: packed.Chunk) -> list[dict[str, Any]]:
    return list(json.loads(zlib.decompress(base64.b64decode(chunk.data))))


# --- the cell ---


def test_a_cell_says_what_the_tables_of_its_task_say(page: Page) -> None:
    columns = {part.label: part.tables for part in page.tasks}
    for cell in page.cells:
        told = dict(fact for _, facts in cell.facts for fact in facts)
        for table in columns[cell.task]:
            (row,) = (row for row in table.rows if row[0] == cell.strategy)
            shown = {cells.IN_WORDS.get(name, name): text for name, text in zip(table.columns, row, strict=True)}
            assert (
                told.items()
                >= {name: shown[name] for name in shown if name not in ("strategy", tables.DECISION)}.items()
            )


def test_every_square_has_its_cell_and_says_the_same(page: Page) -> None:
    told = {cell.anchor: cell for cell in page.cells}
    squares = [square for _, row in page.matrix for square in row if square]
    assert len(squares) == len(told) == len(page.cells)
    for square in squares:
        assert (square.decision, (square.first, square.second)) == (
            told[square.anchor].decision,
            told[square.anchor].lines,
        )


@given(
    both=st.integers(0, 40),
    gained=st.integers(0, 40),
    lost=st.integers(0, 40),
    neither=st.integers(0, 40),
)
def test_right_and_wrong_on_both_sides_add_up(both: int, gained: int, lost: int, neither: int) -> None:
    n = both + gained + lost + neither
    cell = {"decision": "GO", "test": "exact unconditional", "n": n, "gained": gained, "lost": lost}
    cell |= {"score": (both + gained) / n if n else None, "baseline": (both + lost) / n if n else None}
    table = cells._pairs(cell)
    rows = (("full cache right", str(both), str(lost)), ("full cache wrong", str(gained), str(neither)))
    assert table.rows == (rows if n else ())


def test_graded_scores_rise_fall_or_stay(made: Any) -> None:
    (cell,) = (c for c in made.verdict()["cells"] if (c["strategy"], c["task"]) == ("int2-kivi-g32", "instructions"))
    assert cells._pairs(cell).rows[0] == ("better than the full cache", "2")
    assert sum(int(row[1]) for row in cells._pairs(cell).rows) == cell["n"]


@pytest.mark.parametrize(
    ("engine", "source"),
    [("hf", "materialised"), ("vllm", "engine-measured"), ("endpoint", "simulated"), ("x", MISSING)],
)
def test_bytes_say_where_they_come_from(written: Any, engine: str, source: str) -> None:
    verdict = {**written.verdict, "engine": {**written.verdict["engine"], "name": engine}}
    cell = build(verdict, pd.DataFrame()).cells[0]
    sources = {name: said for name, said, _ in cell.memory.rows}
    assert sources["stored B/token"].startswith(source) and sources["formula B/token"].startswith("simulated")
    assert MISSING not in {text for *_, text in cell.memory.rows}


def test_what_was_timed_stands_in_the_cell_with_its_source(written: Any) -> None:
    gains = {
        "throughput": {"mean": 1.25, "low": 1.2, "high": 1.3},
        "capacity": {"mean": 2.0, "low": None, "high": None},
    }
    payoff = {"run": "b", "engine": "vllm", "decision": "GO", "points": [{"label": "offline", "gains": gains}]}
    strategies = [{**one, "payoff": payoff if one["name"] == "fp8" else None} for one in written.verdict["strategies"]]
    built = build({**written.verdict, "strategies": strategies}, pd.DataFrame())
    timed = [cell for cell in built.cells if cell.payoff.rows]
    assert {cell.strategy for cell in timed} == {"fp8"}
    assert timed[0].payoff.rows[0] == ("output tokens a second", "offline", "1.25 [1.2, 1.3]")
    assert timed[0].payoff.rows[1][2] == "2"
    assert timed[0].payoff_note.startswith("Engine-measured by kvgate bench in run b, which says GO")


# --- its flipped samples ---


def test_flips_are_those_that_the_test_counts(stored: tuple[dict[str, Any], pd.DataFrame]) -> None:
    """Right/wrong samples that stand alone: as many lost and gained ones as verdict.json has, of every decision."""
    verdict, samples = stored
    checked = 0
    for cell in build(verdict, samples).cells:
        (facts,) = (c for c in verdict["cells"] if (c["strategy"], c["task"]) == (cell.strategy, cell.task))
        if facts["decision"] not in ("VOID", "MEASURED") and facts["samples"] == planted.N:
            assert (cell.num_lost, cell.num_gained) == (facts["lost"], facts["gained"])
            checked += facts["lost"]
        if facts["decision"] == "MEASURED":
            assert not cell.flips
    assert checked > 40


def row(**facts: Any) -> dict[str, Any]:
    known = {
        "strategy": "s",
        "role": "candidate",
        "task": "t",
        "mode": "m",
        "sample_id": "1",
        "score": 0.0,
        "state": "scored",
    }
    return {**known, "baseline_score": 1.0, "baseline_state": "scored", "answer": "", "baseline_answer": "7", **facts}


FULL = {"strategy": "full", "role": "baseline", "score": 1.0, "text": "it is 7"}


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, "lost"),
        ({"score": 1.0}, None),
        ({"score": 1.0, "baseline_score": 0.0}, "gained"),
        ({"score": 0.4, "baseline_score": 0.6}, "lost"),  # graded: any change is one
        ({"score": None, "state": "truncated"}, "lost"),
        ({"score": 1.0, "baseline_score": None, "baseline_state": "truncated"}, "gained"),
        ({"score": None, "state": "failed", "fault": "model"}, "lost"),
        ({"score": None, "state": "failed", "fault": "infrastructure"}, None),
        ({"score": None, "state": "failed", "fault": None}, None),
        ({"score": None, "state": "not_run"}, None),
        ({"acted": False}, None),
        ({"score": 1.0, "degenerate": True}, "lost"),
        ({"score": None, "baseline_score": None}, None),  # fidelity: nothing is scored
    ],
)
def test_what_is_a_flip(facts: dict[str, Any], kind: str | None) -> None:
    found = flips.Flips(pd.DataFrame([row(**FULL), row(**facts)])).of("s", "t", "m")
    assert [flip.kind for flip in found] == ([kind] if kind else [])
    assert not found or found[0].baseline_text == "it is 7"


def test_the_deepest_falls_come_first() -> None:
    rows = [row(sample_id=str(i), score=score) for i, score in enumerate((0.5, 0.0, 0.9, 0.0))]
    found = flips.Flips(pd.DataFrame([row(**FULL), *rows, row(sample_id="4", baseline_score=0.2, score=1.0)]))
    assert [(flip.sample_id, flip.kind) for flip in found.of("s", "t", "m")] == [
        *(("1", "lost"), ("3", "lost"), ("0", "lost"), ("2", "lost"), ("4", "gained"))
    ]


def test_samples_are_packed_whole_and_can_be_chosen(page: Page) -> None:
    made = packed.pack(page.cells)
    rows = [one for chunk in made.chunks for one in unpacked(chunk)]
    assert len(rows) == made.num_lost + made.num_gained == sum(len(cell.flips) for cell in page.cells) > 100
    choices = dict(made.choices)
    assert all({str(one[name]) for one in rows} == set(values) for name, values in choices.items())
    assert choices["length"] == ("1,024", "2,048", "4,096", "8,192", MISSING)
    assert choices["depth"][:2] == ("0 % to 20 %", "20 % to 40 %") and choices["kind"] == ("lost", *choices["kind"][1:])
    assert packed.pack(page.cells) == made


@given(st.floats(0, 1))
def test_a_depth_lies_in_its_band(depth: float) -> None:
    flip = flips.Flip("1", "lost", "", "scored", "", depth, *[""] * 7)
    low, high = (float(end.strip(" %")) / 100 for end in packed._band(flip).split("to"))
    assert low <= depth + 1e-9 and depth <= high + 1e-9


def test_a_long_text_keeps_both_ends_and_says_how_much_is_left_out() -> None:
    shown = flips._text("a" * 500_000 + "\x1b" + "b" * 500_000)
    assert shown.startswith("aaa") and shown.endswith("bbb") and len(shown) == flips.TEXT_LIMIT
    assert "998," in shown and "\x1b" not in flips._text("\x1b") == "\\x1b"


# --- the sentence at the top ---


def outlook(**decisions: tuple[str, ...]) -> Outlook:
    """Strategies by name, with what was decided on each task."""
    found = [
        {"strategy": name, "task": f"t{i}", "mode": "m", "decision": decision, "gating": True}
        | {"memory": {"deploy_bytes_per_token": 50.0, "deploy_full_bytes_per_token": 100.0}}
        for name, mine in decisions.items()
        for i, decision in enumerate(mine)
    ]
    order = ("NO-GO", "VOID", "INCONCLUSIVE", "GO")
    strategies = [{"name": name, "decision": min(mine, key=order.index)} for name, mine in decisions.items()]
    return Outlook({"strategies": strategies, "cells": found, "gate": {"margin": 0.02}})


@pytest.mark.parametrize(
    ("decisions", "said"),
    [
        ({}, "No strategy was judged."),
        ({"a": ("GO",)}, "a is GO on t0 at a 2-point margin, with 50 % of the full cache's KV bytes."),
        ({"a": ("GO", "GO")}, "a is GO on both tasks at a 2-point margin, with 50 % of the full cache's KV bytes."),
        ({"a": ("VOID",)}, "a is VOID on t0 at a 2-point margin."),
        ({"a": ("GO", "NO-GO")}, "a is GO on 1 of 2 tasks at a 2-point margin: it is NO-GO."),
        ({"a": ("NO-GO", "NO-GO")}, "a is GO on none of 2 tasks at a 2-point margin: it is NO-GO."),
        (
            {"a": ("GO", "GO"), "b": ("GO", "VOID")},
            "1 of 2 strategies is GO on both tasks at a 2-point margin; cheapest passing stack: a, with 50 % of the full "
            "cache's KV bytes.",
        ),
        (
            {"a": ("NO-GO", "NO-GO"), "b": ("GO", "INCONCLUSIVE")},
            "None of 2 strategies is GO on both tasks at a 2-point margin; nearest: b, GO on 1 of 2 tasks.",
        ),
        (
            {"a": ("INCONCLUSIVE",), "b": ("VOID",)},
            "None of 2 strategies is GO on t0 at a 2-point margin; not decided: a.",
        ),
        ({"a": ("NO-GO",), "b": ("VOID",)}, "None of 2 strategies is GO on t0 at a 2-point margin."),
    ],
)
def test_the_first_sentence_is_the_answer(decisions: dict[str, tuple[str, ...]], said: str) -> None:
    assert sentences.headline(outlook(**decisions)) == said


def test_a_relative_margin_is_told_as_one() -> None:
    found = outlook(a=("GO",))
    found.gate = {"margin": 0.05, "margin_kind": "relative"}
    assert "at a margin of 5 % of the full cache's score" in sentences.headline(found)
