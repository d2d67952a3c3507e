"""Pictures, by their data: what is drawn, what is not, and that all three forms are the same, safe and repeatable."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.report import plots
from harness.report.outlook import Outlook
from harness.report.plots import (
    fidelity,
    labels,
    ladder,
    latencies,
    lengths,
    load_memory,
    matrix,
    memory,
    needle,
    quality_bytes,
    quality_throughput,
    theme,
    turns,
)
from harness.report.plots.front import front
from harness.report.plots.names import short

HOSTILE = '=1+1</text><script>x</script>\x00\x1b[2J & "q" 漢字 $a$\n' + "n" * 300


def cell(strategy: str, task: str = "t", **facts: Any) -> dict[str, Any]:
    """A judged cell that takes half of the bytes and loses nothing."""
    usual = {"mode": "prompt", "decision": "GO", "gating": True, "baseline": 0.9, "score": 0.9, "delta": 0.0}
    usual |= {"ci_low": -0.01, "ci_high": 0.01, "margin": 0.02, "n": 100, "memory": taken(50.0)}
    return {"strategy": strategy, "task": task, **usual, **facts}


def taken(deployed: float, **facts: Any) -> dict[str, Any]:
    known = {"deploy_bytes_per_token": deployed, "deploy_full_bytes_per_token": 100.0}
    return {**known, "formula_bytes_per_token": 2 * deployed, "stored_bytes_per_token": 2 * deployed + 1, **facts}


def verdict(*cells: Mapping[str, Any], engine: str = "hf", **facts: Any) -> dict[str, Any]:
    names = dict.fromkeys(one["strategy"] for one in cells)
    strategies = [{"name": name, "decision": "GO", "reasons": [], "stack": "s"} for name in names]
    return {
        "schema": "kvgate.verdict/1",
        "engine": {"name": engine},
        "strategies": strategies,
        "cells": list(cells),
        **facts,
    }


def sample(strategy: str, at: int, **facts: Any) -> dict[str, Any]:
    usual = {
        "role": "baseline" if strategy == "full" else "candidate",
        "task": "t",
        "mode": "prompt",
        "state": "scored",
    }
    usual |= {
        "sample_id": f"s{at}",
        "score": 1.0,
        "baseline_score": 1.0,
        "output_tokens": 10,
        "length": None,
        "depth": None,
    }
    return {"strategy": strategy, **usual, **facts}


def nothing(kind: str) -> pd.DataFrame:
    return pd.DataFrame([sample("full", 0, **{kind: None})])


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_of_a_picture_is_what_it_draws() -> None:
    outlook = Outlook(verdict(cell("a"), cell("b", delta=None, ci_low=None)))
    plot = matrix.draw(outlook)
    assert plot is not None
    rows = read(plot.csv)
    assert [row["strategy"] for row in rows] == [row.strategy for row in matrix.rows(outlook)] == ["a", "b"]
    assert (rows[0]["delta"], rows[1]["delta"], rows[1]["ci_low"]) == ("0.0", "", ""), (
        "what is missing is an empty field"
    )
    assert {f"plots/{plot.name}.{kind}" for kind in ("svg", "png", "csv")} == set(plot.files)


def test_a_square_that_was_not_run_has_no_decision() -> None:
    found = matrix.rows(Outlook(verdict(cell("a", "x"), cell("b", "y"))))
    assert [(row.strategy, row.task, row.decision) for row in found] == [
        ("a", "x", "GO"), ("a", "y", None), ("b", "x", None), ("b", "y", "GO")
    ]  # fmt: skip


def test_quality_against_bytes_leaves_out_what_has_either_not() -> None:
    cells = (
        cell("a"),
        cell("b", delta=None),
        cell("c", memory=None),
        cell("d", decision="MEASURED"),
        cell("z", memory=taken(0.0)),
        cell("e", ci_low=None),
    )
    found = quality_bytes.rows(Outlook(verdict(*cells)))
    assert [(row.strategy, row.kv_share, row.ci_low) for row in found] == [("a", 0.5, -0.01), ("e", 0.5, None)]
    assert quality_bytes.draw(Outlook(verdict(cell("b", delta=None)))) is None


def test_the_pareto_line_of_bytes_passes_what_is_beaten_and_what_tested_nothing() -> None:
    cells = (
        cell("small", delta=-0.1, memory=taken(20.0)),
        cell("half", delta=-0.01),
        cell("beaten", delta=-0.2),
        cell("worse than full", delta=-0.001, memory=taken(100.0)),
        cell("void", decision="VOID", delta=0.0, memory=taken(1.0)),
    )
    found = {row.strategy: row.pareto for row in quality_bytes.rows(Outlook(verdict(*cells)))}
    assert found == {"small": True, "half": True, "beaten": False, "worse than full": False, "void": False}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_what_is_on_the_front_is_beaten_by_nothing_and_beats_the_rest(points: list[tuple[float, float]]) -> None:
    kept = front(points)
    assert [points[at][0] for at in kept] == sorted(points[at][0] for at in kept)
    for at, (x, y) in enumerate(points):
        beaten = any(a >= x and b >= y and (a > x or b > y) for a, b in points)
        assert (at in kept) is not beaten


def test_settings_that_are_alike_do_not_beat_each_other() -> None:
    assert front([(1.2, 0.0), (1.2, 0.0), (1.1, 0.0)]) == [0, 1]


def test_a_needle_map_has_the_mean_of_each_square_and_its_difference() -> None:
    where = {"length": 1024, "depth": 0.5}
    rows = [
        *(sample("full", at, **where, score=1.0) for at in range(4)),
        sample("a", 0, **where, score=0.0),
        sample("a", 1, **where, score=1.0),
        sample("a", 2, **where, score=None, state="truncated"),
        sample("a", 3, **where, score=1.0, baseline_score=None),
    ]
    full, mine = needle.rows(Outlook(verdict(cell("a"))), pd.DataFrame(rows))
    assert (full.strategy, full.n, full.score, full.pairs, full.delta) == ("full", 4, 1.0, 0, None)
    assert (mine.n, mine.pairs, mine.delta) == (3, 2, -0.5) and mine.score == pytest.approx(2 / 3)
    assert (mine.length_from_tokens, mine.length_to_tokens, mine.depth_from) == (1024, 1024, 0.5)


def test_a_square_in_which_nothing_was_scored_has_no_score() -> None:
    rows = [sample("a", 0, length=8, depth=0.0, score=None, state="failed")]
    (square,) = needle.rows(Outlook(verdict(cell("a"))), pd.DataFrame(rows))
    assert (square.n, square.score, square.pairs, square.delta) == (0, None, 0, None)


def test_many_depths_and_lengths_are_binned_and_no_sample_is_lost() -> None:
    rows = [sample("a", at, length=1000 + at, depth=at / 199) for at in range(200)]
    squares = needle.rows(Outlook(verdict(cell("a"))), pd.DataFrame(rows))
    assert sum(square.n for square in squares) == 200
    assert len({square.depth_from for square in squares}) == needle.DEPTH_BINS
    assert len({square.length_from_tokens for square in squares}) == needle.LENGTH_BINS
    assert all(square.depth_from < square.depth_to for square in squares)


def test_turns_are_those_of_the_verdict_in_their_order() -> None:
    def part(name: str, group: str = "turn") -> dict[str, Any]:
        return {
            "group": group,
            "name": name,
            "n": 9,
            "baseline": 0.9,
            "score": 0.8,
            "delta": -0.1,
            "ci_low": -0.3,
            "ci_high": 0.1,
        }

    asked = verdict(cell("a", parts=[part("2"), part("10"), part("512", "length")]), cell("b", parts=[]), cell("c"))
    found = turns.rows(Outlook(asked))
    assert [(row.strategy, row.turn, row.full_score, row.score) for row in found] == [
        ("a", "2", 0.9, 0.8),
        ("a", "10", 0.9, 0.8),
    ]
    assert turns.draw(Outlook(asked)) and turns.draw(Outlook(verdict(cell("c")))) is None


def test_output_lengths_pair_the_samples_that_both_answered() -> None:
    rows = [sample("full", at, output_tokens=10 * (at + 1)) for at in range(3)]
    rows += [sample("a", 0, output_tokens=14), sample("a", 1, output_tokens=18), sample("a", 2, output_tokens=None)]
    rows += [sample("a", 7, output_tokens=99)]
    asked = Outlook(verdict(cell("a"), cell("b")))
    (row,) = lengths.rows(asked, pd.DataFrame(rows))
    assert (row.pairs, row.full_tokens, row.tokens, row.drift_tokens) == (2, 15.0, 16.0, 1.0)
    assert (row.drift_p10_tokens, row.drift_p90_tokens) == (pytest.approx(-1.4), pytest.approx(3.4))
    assert lengths.draw(asked, nothing("output_tokens")) is None and lengths.draw(asked, pd.DataFrame()) is None


def test_answers_that_were_given_do_not_drift() -> None:
    rows = pd.DataFrame([sample("full", 0), sample("a", 0)])
    assert lengths.rows(Outlook(verdict(cell("a", decision="MEASURED"))), rows) == []


@pytest.mark.parametrize(
    ("engine", "loaded", "figures"),
    [
        ("hf", {}, {("simulated", 100.0), ("simulated", 50.0), ("materialised", 101.0)}),
        ("vllm", {"kv_bytes_per_token": 64.0},
         {("simulated", 100.0), ("simulated", 50.0), ("engine-measured", 101.0), ("engine-measured", 64.0)}),
        ("endpoint", {}, {("simulated", 100.0), ("simulated", 50.0)}),
    ],
)  # fmt: skip
def test_memory_says_how_each_figure_came_about(engine: str, loaded: dict[str, float], figures: set[Any]) -> None:
    found = memory.rows(Outlook(verdict(cell("a", loaded=loaded, loaded_baseline={}), engine=engine)))
    assert {(str(row.source), row.high_bytes_per_token) for row in found if row.strategy == "a"} == figures
    assert [row.high_bytes_per_token for row in found if row.strategy == "full"] == [100.0]


def test_memory_spans_the_tasks_and_has_no_figure_that_nobody_took() -> None:
    cells = (cell("a", "x"), cell("a", "y", memory=taken(60.0, stored_bytes_per_token=None)), cell("b", memory=None))
    found = [row for row in memory.rows(Outlook(verdict(*cells))) if row.strategy != "full"]
    assert {row.strategy for row in found} == {"a"}
    spans = {(str(row.source), row.low_bytes_per_token, row.high_bytes_per_token, row.tasks) for row in found}
    assert spans == {("simulated", 100.0, 120.0, 2), ("simulated", 50.0, 60.0, 2), ("materialised", 101.0, 101.0, 1)}
    assert memory.draw(Outlook(verdict(cell("b", memory=None)))) is None


def test_fidelity_is_sorted_and_what_is_not_known_comes_last() -> None:
    told = {"kl_p99": 0.1, "top1_agreement": 0.9}
    cells = [
        cell(name, decision="MEASURED", fidelity={"kl_mean": mean, **told})
        for name, mean in (("a", None), ("b", 0.2), ("c", 0.1))
    ]
    assert [row.strategy for row in fidelity.rows(Outlook(verdict(*cells)))] == ["c", "b", "a"]


def arm(strategy: str, **facts: Any) -> dict[str, Any]:
    steps = {kind: [] for kind in ("queue", "ttft", "tpot", "itl", "e2e")}
    held = {"stored_bytes": 2**20, "formula_bytes": 2**20, "kv_bytes_per_token": 32.0, "peak_bytes": None}
    at = {"ecdf_s": steps, "memory": held, "allocated": False, "values": {}, "cached_share": None, **facts}
    return {"strategy": strategy, "points": [at]}


def candidate(strategy: str, speed: float | None, delta: float | None, **facts: Any) -> dict[str, Any]:
    gains = {
        name: {"gain": {"mean": mean, "low": mean, "high": mean}}
        for name, mean in (("throughput", speed), ("capacity", 2.0))
    }
    quality = {"decision": "GO", "run": "r", "engine": "hf", "task": "t", "delta": delta, "answer_length": None}
    return {**arm(strategy, metrics=gains, **facts), "quality": quality}


def payoff(*candidates: dict[str, Any], engine: str = "hf", **facts: Any) -> dict[str, Any]:
    load = {
        "points": [{"label": "", "value": None, "describe": "d"}],
        "load": {"option": None},
        "engine": {"name": engine},
    }
    return {**load, "baseline": arm("full", **facts), "candidates": list(candidates)}


def test_quality_against_throughput_has_the_full_cache_and_what_has_all_three() -> None:
    asked = payoff(
        candidate("a", 1.2, -0.01), candidate("b", None, 0.0), candidate("c", 1.1, None), candidate("d", 1.1, -0.02)
    )
    found = quality_throughput.rows(asked)
    assert [(row.strategy, row.throughput_gain, row.kv_share, row.pareto) for row in found] == [
        ("full", 1.0, 1.0, True), ("a", 1.2, 0.5, True), ("d", 1.1, 0.5, False)
    ]  # fmt: skip
    assert quality_throughput.rows(payoff(candidate("b", None, 0.0))) == []


def test_a_setting_that_tested_nothing_beats_nobody() -> None:
    void = candidate("void", 9.0, 0.5)
    void["quality"]["decision"] = "VOID"
    found = {row.strategy: row.pareto for row in quality_throughput.rows(payoff(candidate("a", 1.2, 0.0), void))}
    assert found == {"full": False, "a": True, "void": False}


def test_latencies_are_the_measured_ones_in_ms() -> None:
    mine = {"ttft": [(0.5, 0.5), (1.0, 1.0)], "itl": [], "tpot": [(0.01, 1.0)], "e2e": [], "queue": [(9.0, 1.0)]}
    found = latencies.rows(payoff(candidate("a", 1.0, 0.0, ecdf_s=mine)))
    assert [(row.latency, row.strategy, row.milliseconds, row.share) for row in found] == [
        ("ttft", "a", 500.0, 0.5), ("ttft", "a", 1000.0, 1.0), ("tpot", "a", 10.0, 1.0)
    ]  # fmt: skip
    assert latencies.draw(payoff(candidate("a", 1.0, 0.0))) is None


@pytest.mark.parametrize(
    ("engine", "allocated", "sources"),
    [
        ("hf", False, ["simulated", "materialised", "simulated"]),
        ("vllm", True, ["simulated", "engine-measured", "engine-measured"]),
        ("endpoint", False, ["simulated", "simulated"]),
    ],
)
def test_memory_under_a_load_says_how_each_figure_came_about(engine: str, allocated: bool, sources: list[str]) -> None:
    asked = payoff(
        candidate("a", 1.0, 0.0, allocated=allocated), candidate("lost", 1.0, 0.0, memory=None), engine=engine
    )
    assert [str(row.source) for row in load_memory.rows(asked) if row.strategy == "a"] == sources
    assert not [row for row in load_memory.rows(asked) if row.strategy == "lost"]


LONG = "strategy number {} with a long name indeed"


def many(made: Any, name: str = LONG, times: int = 3) -> tuple[dict[str, Any], pd.DataFrame]:
    """The fixture's twelve strategies so many times over, one task with turns, and samples of two depths."""
    given, samples = made.verdict(), made.samples()
    samples = samples[~(samples["depth"] > 0.2)]
    renamed = {
        entry["name"]: [name.format(times * at + turn) for turn in range(times)]
        for at, entry in enumerate(given["strategies"])
    }
    strategies = [{**entry, "name": new} for entry in given["strategies"] for new in renamed[entry["name"]]]
    turn = {"group": "turn", "n": 9, "baseline": 0.9, "score": 0.8, "delta": -0.1, "ci_low": -0.3, "ci_high": 0.1}
    parts = {"instructions": [{**turn, "name": str(at)} for at in (1, 2, 3)]}
    cells = [
        {**one, "parts": parts.get(one["task"], []), "strategy": new}
        for one in given["cells"]
        for new in renamed[one["strategy"]]
    ]
    frames = [samples[samples["strategy"] == "full"]]
    frames += [
        samples[samples["strategy"] == old].assign(strategy=new) for old, mine in renamed.items() for new in mine
    ]
    rungs = [
        {"value": value, "strategy": renamed[old][0], "certified": value == 0.5}
        for value, old in ((0.5, "snapkv-50"), (0.25, "snapkv-25"), (0.12, "h2o-12"))
    ]
    asked = {"policy": name, "option": "keep", "smallest_certified": 0.5, "rungs": rungs}
    return {**given, "strategies": strategies, "cells": cells, "ladders": [asked]}, pd.concat(frames, ignore_index=True)


def many_loads(name: str = LONG, count: int = 30) -> dict[str, Any]:
    """So many settings at three points of a load."""
    steps = {kind: [(0.01 * at, at / 8) for at in range(1, 9)] for kind in ("queue", "ttft", "tpot", "itl", "e2e")}
    at = {"ecdf_s": steps, "values": {"throughput": 9.0, "ttft_p50": 0.1}}
    asked = payoff(*(candidate(name.format(i), 1 + i / 50, -i / 100, **at) for i in range(count)), **at)
    for one in (asked["baseline"], *asked["candidates"]):
        one["points"] = one["points"] * 3
    points = [{"label": f"{name}={value}", "value": value, "describe": "d"} for value in (1, 2, 8)]
    return {**asked, "points": points, "load": {"option": name}}


def everything(made: Any, name: str, times: int, settings: int) -> list[plots.Plot]:
    return [*plots.draw(*many(made, name, times)), *plots.draw_bench(many_loads(name, settings))]


@pytest.fixture(
    scope="module",
    params=[(HOSTILE + "{}", 1, 3), pytest.param((LONG, 3, 30), marks=pytest.mark.slow)],
    ids=["hostile", "many and long"],
)
def drawn(request: pytest.FixtureRequest, made: Any) -> list[plots.Plot]:
    return everything(made, *request.param)


def test_every_picture_is_drawn_of_many_strategies(drawn: list[plots.Plot]) -> None:
    files = [name for plot in drawn for name in plot.files]
    assert files == [*plots.FILES, *plots.BENCH_FILES]
    assert all(plot.png.startswith(b"\x89PNG") and len(plot.alt) > 30 for plot in drawn)
    assert all(len(read(plot.csv)) > 2 for plot in drawn)


def test_an_svg_stands_alone_and_runs_nothing(drawn: list[plots.Plot]) -> None:
    for plot in drawn:
        assert plot.svg.startswith("<svg") and "<!--" not in plot.svg
        elements = list(ElementTree.fromstring(plot.svg).iter())
        tags = {element.tag.rpartition("}")[2] for element in elements}
        assert tags <= {"svg", "defs", "style", "g", "path", "use", "text", "clipPath", "rect", "pattern"}, plot.name
        links = [value for element in elements for name, value in element.attrib.items() if name.endswith("href")]
        assert all(link.startswith("#") for link in links)
        assert not [name for element in elements for name in element.attrib if name.startswith("on")]


def test_a_name_in_a_csv_is_no_formula(drawn: list[plots.Plot]) -> None:
    values = [value for plot in drawn for row in read(plot.csv) for value in row.values()]
    assert not [value for value in values if value[:1] in "=+@" and value]


def test_the_same_data_give_the_same_bytes(made: Any) -> None:
    """Those pictures that the report of the fixture does not have; the others are held with its other files."""

    def once() -> list[plots.Plot | None]:
        outlook = Outlook(many(made, times=1)[0])
        return [ladder.draw(outlook), turns.draw(outlook), *plots.draw_bench(many_loads(count=3))]

    assert once() == once()


def test_what_was_not_measured_has_no_picture() -> None:
    assert plots.draw({"schema": "kvgate.verdict/1"}, pd.DataFrame()) == []
    idle = payoff(memory=None)
    assert plots.draw_bench(idle) == []


def test_no_two_of_many_lines_look_alike() -> None:
    looks = [tuple(map(str, theme.line(at).values())) for at in range(28)]
    assert len(set(looks)) == 28 and all(look[2] != theme.FULL["linestyle"] for look in looks)


@given(st.lists(st.text("ab- 0", min_size=1, max_size=60), unique_by=lambda name: " ".join(name.split())))
def test_names_that_differ_look_different(names: list[str]) -> None:
    shown = short(names, 20)
    assert len(set(shown.values())) == len(names) and all(len(text) <= 20 for text in shown.values())


def test_names_that_begin_alike_show_where_they_part() -> None:
    first, last = (f"snapkv over everything keep={keep} and then quantized" for keep in (0.25, 0.5))
    shown = short([first, last, "x"], 24)
    assert shown == {first: "…0.25 and then quantized", last: "…0.5 and then quantized", "x": "x"}


@pytest.mark.parametrize("count", [1, 5, labels.FEW])
def test_names_lie_beside_their_points_and_on_no_other(count: int) -> None:
    figure = Figure(figsize=(theme.WIDTH, 4), dpi=theme.DPI)
    axes = figure.add_axes((0.1, 0.1, 0.85, 0.85))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points = [(0.5 + 0.02 * at, 0.5 + 0.01 * (at % 3)) for at in range(count)]
    labels.place(axes, points, [f"setting number {at}" for at in range(count)])
    renderer = FigureCanvasAgg(figure).get_renderer()
    for text in axes.texts:
        text.update_positions(renderer)
    boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]  # without the line to its point
    assert len(boxes) == count
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
