"""Ladders in a report: the curve, its knee, what is certified, and where that is told."""

from __future__ import annotations

import copy
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import report
from harness.report import ladders, plots, sheet, terminal
from harness.report.outlook import Outlook


def ladder(certified: int, rungs: tuple[tuple[float, str], ...] = ((0.5, "snapkv-50"), (0.25, "snapkv-25"))) -> Any:
    """The fixture's snapkv strategies as a ladder of which so many rungs are certified."""
    return {
        "policy": "evict/snapkv",
        "option": "keep",
        "smallest_certified": rungs[certified - 1][0] if certified else None,
        "rungs": [{"value": v, "strategy": name, "certified": at < certified} for at, (v, name) in enumerate(rungs)],
    }


@pytest.fixture
def verdict(made) -> dict[str, Any]:
    return {**copy.deepcopy(made.verdict()), "ladders": [ladder(1)]}


def test_a_ladder_is_drawn_tabled_and_told(verdict, made, tmp_path: Path) -> None:
    paths = report.write(tmp_path, verdict, made.samples())
    assert tmp_path / "plots" / "ladder.png" in paths and tmp_path / "ladders.csv" in paths
    rows = list(csv.DictReader(io.StringIO((tmp_path / "ladders.csv").read_text())))
    assert len(rows) == 2 * 3  # rungs by judged tasks: fidelity has no score to draw
    first = next(row for row in rows if row["strategy"] == "snapkv-50" and row["task"] == "arithmetic_chain")
    assert (first["value"], first["share"], first["delta"], first["certified"]) == ("0.5", "0.5", "-0.012", "True")
    told = "certified down to keep 0.5 (50 % of the full cache's bytes)"
    assert told in " ".join(terminal.text_table(verdict, 120).split())
    assert told in (tmp_path / "report.html").read_text().replace("&#39;", "'")
    again = report.write(tmp_path, {**verdict, "ladders": []}, made.samples())
    assert not (tmp_path / "ladders.csv").exists() and not (tmp_path / "plots" / "ladder.png").exists()
    assert len(again) == len(paths) - 4  # the picture in its three forms


def test_a_ladder_on_which_nothing_is_certified_says_which_rung_fails(verdict) -> None:
    (told,) = ladders.told(Outlook({**verdict, "ladders": [ladder(0)]}))
    assert "nothing is certified, for keep 0.5 is not GO" in told


def test_values_that_are_no_numbers_and_bytes_that_do_not_fall_are_drawn_by_place(verdict, made) -> None:
    rungs = (("K8V8", "fp8"), (["K4V4", "K2V2"], "prefix-reuse"))
    outlook = Outlook({**verdict, "ladders": [ladder(1, rungs)]})
    curve = ladders.curves(outlook)[0]
    assert not curve.in_bytes and curve.x == [0, -1, -2]
    assert plots.ladder.draw(outlook)


def test_a_rung_without_a_score_is_left_out_and_a_curve_without_rungs_too(verdict) -> None:
    rungs = ((1.0, "xkv-rank-low"), (0.5, """a&b <b>"$x$" with a very long name indeed"""))
    curves = ladders.curves(Outlook({**verdict, "ladders": [ladder(0, rungs)]}))
    assert [(curve.task, len(curve.rungs)) for curve in curves] == [("niah_multikey", 1), ("instructions", 1)]


def test_the_knee_is_where_quality_falls_off(verdict) -> None:
    for cell in verdict["cells"]:
        if cell["strategy"] in ("snapkv-50", "snapkv-25") and cell["task"] == "niah_multikey":
            cell["delta"] = {"snapkv-50": -0.01, "snapkv-25": -0.4}[cell["strategy"]]
    curve = ladders.curves(Outlook(verdict))[0]
    assert curve.knee == 0
    assert "the curve of niah_multikey has its knee at keep 0.5" in ladders.told(Outlook(verdict))[0]
    marked = [row for row in csv.DictReader(io.StringIO(sheet.ladders_sheet(verdict))) if row["knee"] == "True"]
    assert ("niah_multikey", "snapkv-50") in [(row["task"], row["strategy"]) for row in marked]


@pytest.mark.parametrize(
    ("y", "at"),
    [
        ([0, -0.01, -0.02, -0.9], 2),  # holds long, then breaks
        ([0, 0, -0.5, -1.0], 1),
        ([0, -0.8, -0.9, -1.0], None),  # falls at once
        ([0, -0.25, -0.5, -0.75], None),  # a straight line
        ([0, 0, 0, 0], None),
        ([0, -0.2, 0.1, 0.1], None),  # ends above where it began
    ],
)
def test_knee(y: list[float], at: int | None) -> None:
    assert ladders.knee([1.0, 0.75, 0.5, 0.25], y) == at


@given(st.lists(st.floats(-1, 0), min_size=2, max_size=8), st.floats(0.1, 9), st.floats(0.1, 9))
def test_a_knee_does_not_depend_on_units(y: list[float], wide: float, high: float) -> None:
    x = [float(-at) for at in range(len(y) + 1)]
    y = [round(value, 2) for value in (0.0, *y)]
    at = ladders.knee(x, y)
    scaled = ladders.knee([wide * a for a in x], [high * b for b in y])
    if at is None or scaled is None:
        line = [y[0] + (y[-1] - y[0]) * i / (len(y) - 1) for i in range(len(y))]
        assert y[-1] >= y[0] or max(b - a for a, b in zip(line, y, strict=True)) < 1e-9 or at == scaled
    else:
        assert y[at] - y[0] - (y[-1] - y[0]) * at / (len(y) - 1) == pytest.approx(
            y[scaled] - y[0] - (y[-1] - y[0]) * scaled / (len(y) - 1), abs=1e-9
        )


def test_old_verdicts_have_no_ladders(made) -> None:
    assert ladders.told(Outlook(json.loads(json.dumps(made.verdict())))) == []
