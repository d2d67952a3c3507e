"""The files of a report: complete, escaped, parseable, repeatable, and honest about what is missing."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from harness import report
from harness.report import format, lmeval, markdown, sheet
from harness.report.plots import FILES
from harness.report.plots.picture import paths
from harness.types import Decision

PLOTS = ("task_strategy", "quality_bytes", "needle_length_depth", "output_length", "fidelity", "memory")


class Tags(HTMLParser):
    """Every tag that a browser would make of the page, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="session")
def page(written) -> Tags:
    return Tags((written.folder / "report.html").read_text())


def test_every_file_is_written_and_nothing_else_is_left(written):
    tables = ("summary.csv", "comparisons.csv", "families.csv", "routing.csv")
    machines = ("junit.xml", "records.parquet", *lmeval.render(written.verdict))
    expected = {"report.html", "report.md", *tables, *machines, *(path for name in PLOTS for path in paths(name))}
    on_disk = {str(p.relative_to(written.folder)) for p in written.folder.rglob("*") if p.is_file()}
    assert on_disk == expected == {str(p.relative_to(written.folder)) for p in written.paths}
    for name in PLOTS:
        assert (written.folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_html_shows_hostile_text_and_runs_nothing(page, made):
    tags = [tag for tag, _ in page.tags]
    assert "iframe" not in tags and "b" not in tags
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert {one.get("type") for one in scripts} == {None, "text/plain"} and scripts.count({}) == 1
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert made.HOSTILE in "".join(page.text)


def test_the_policy_allows_the_page_s_own_script_and_style_and_nothing_else(written, page):
    text = (written.folder / "report.html").read_text()
    (policy,) = (one["content"] for _, one in page.tags if one.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        code = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{code}'"
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}


def test_html_is_one_file(page):
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert sources and all(value.startswith(("data:image/svg+xml;base64,", "#")) for value in sources)
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == len(PLOTS) and all(len(image["alt"]) > 30 for image in images)


def test_links_inside_the_page_lead_somewhere(page):
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {attributes["href"][1:] for tag, attributes in page.tags if tag == "a"} <= ids


@pytest.mark.parametrize("name", ["report.html", "report.md"])
@pytest.mark.parametrize(
    "sentence",
    [
        "The verdict holds for example/Small-0.6B-Instruct and for these tasks only",
        "Speed was not measured here",
        "needs no correction for the number of tasks",
        "confirm the choice once on a fresh seed",
        "margin changed after the run: planned 0.01",
        "9d2f6c0b8e77a1c3",
        "prefix/radix never hit",
        "it takes n = 1,180",
        "kvgate report qwen-ladder",
    ],
)
def test_what_must_be_said_is_said(written, name, sentence):
    assert sentence in (written.folder / name).read_text()


def test_the_page_says_whose_the_peak_is(page):
    assert "process peak of the joint decode, shared by all strategies" in "".join(page.text)


def test_what_must_always_be_printed_is_a_column(page):
    heads = {text.strip() for text in page.text}
    wanted = {"n", "b", "c", "ψ", "d", "CI of d", "δ", "alpha", "look", "min\N{NO-BREAK SPACE}δ", "clusters"}
    assert wanted <= heads


def test_every_decision_has_its_word_and_its_sign(page):
    text = "".join(page.text)
    assert all(badge in text for badge in ("✓ GO", "✗ NO-GO", "? INCONCLUSIVE", "∅ VOID", "≈ MEASURED"))


def test_csv_has_a_row_a_cell_and_keeps_numbers_and_nulls(written):
    table = pd.read_csv(written.folder / "summary.csv")
    assert len(table) == len(written.verdict["cells"])
    given = {(c["strategy"], c["task"]): c for c in written.verdict["cells"]}
    for row in table.to_dict("records"):
        cell = given[row["strategy"], row["task"]]
        assert row["decision"] == cell["decision"]
        if cell["delta"] is None:
            assert pd.isna(row["delta"]) and pd.isna(row["lost"])
        else:
            assert row["delta"] == pytest.approx(cell["delta"])
    fractions = table.set_index("strategy")["memory_deploy_fraction"]
    assert fractions["fp8"].max() == pytest.approx(0.5)


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@x", "\t=1", "  =1+1"])
def test_csv_text_is_never_a_formula(made, start):
    verdict = made.verdict()
    verdict["name"] = start
    verdict["cells"][0]["reasons"] = [start]
    text = sheet.render(verdict)
    assert f"'{start}" in text and f",{start}" not in text and not text.splitlines()[1].startswith(start)


def test_csv_header_does_not_depend_on_the_verdict(made):
    assert sheet.render({}).splitlines()[0] == sheet.render(made.verdict()).splitlines()[0]


def test_candidates_are_compared_in_every_format(written, page, made):
    text = (written.folder / "report.md").read_text()
    for shown in (text, "".join(page.text), report.text_table(written.verdict, width=120)):
        assert "Candidate against candidate" in shown and "On none of 400 samples did both strategies act" in shown
    assert "after Holm over all 3 comparisons that could be made" in text
    assert "fp8 better, but within δ" in text
    table = pd.read_csv(written.folder / "comparisons.csv")
    assert list(table["finding"]) == [pair["finding"] for pair in written.verdict["comparisons"]]
    assert table["p_value"].isna().tolist() == [False, False, False, True]
    assert made.verdict()["comparisons"][0].keys() <= set(table.columns) | {"reasons"}


def test_without_comparisons_nothing_is_said_of_them(written, tmp_path):
    (tmp_path / "comparisons.csv").write_text("old")
    verdict = {**written.verdict, "comparisons": []}
    report.write(tmp_path, verdict, written.samples)
    assert not (tmp_path / "comparisons.csv").exists()
    shown = [(tmp_path / name).read_text() for name in ("report.html", "report.md")]
    assert not any("andidate against candidate" in text for text in [*shown, report.text_table(verdict)])


def test_the_comparisons_table_has_the_fields_of_a_comparison(made):
    from dataclasses import fields

    from harness.compare import Comparison, Finding

    names = [field.name for field in fields(Comparison)]
    assert {*sheet.COMPARISON_FIELDS, "reasons"} == set(names)
    assert {pair["finding"] for pair in made.verdict()["comparisons"]} <= set(Finding)
    assert all(list(pair) == names for pair in made.verdict()["comparisons"])


def test_markdown_tables_are_rectangular(written):
    text = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", (written.folder / "report.md").read_text())
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) > 20
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_markdown_outside_code_has_no_foreign_tag_or_link(written):
    text = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", (written.folder / "report.md").read_text())
    assert set(re.findall(r"<[^>]*>", text)) == {"<br>"}
    assert "[click\\](" in markdown.escape("[click](http://example.org)")


def test_a_fence_is_longer_than_what_it_holds():
    assert markdown.fenced("a ````` b").startswith("``````text\n")


def test_markdown_pictures_exist(written):
    found = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (written.folder / "report.md").read_text())
    assert len(found) == markdown.PICTURES and all((written.folder / path).is_file() for path in found)


def test_the_same_input_gives_the_same_bytes(written, tmp_path):
    again = report.write(tmp_path, copy.deepcopy(written.verdict), written.samples.copy())
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written.paths]


def test_a_rebuilt_report_keeps_no_picture_of_an_older_verdict(written, tmp_path):
    for name in FILES:
        (tmp_path / "plots").mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    (tmp_path / "plots" / "mine.png").write_bytes(b"kept")
    for name in ("lm_eval/a+gone/results_2024-01-01.json", "lm_eval/mine.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    verdict = {**written.verdict, "cells": [c for c in written.verdict["cells"] if c["task"] == "arithmetic_chain"]}
    report.write(tmp_path, verdict, pd.DataFrame())
    drawn = {path for name in ("task_strategy", "quality_bytes", "memory") for path in paths(name)}
    on_disk = {str(path.relative_to(tmp_path)) for path in (tmp_path / "plots").iterdir()}
    assert on_disk == {*drawn, "plots/mine.png"}
    left = {str(path.relative_to(tmp_path)) for path in (tmp_path / "lm_eval").rglob("*.json")}
    assert left == {"lm_eval/mine.json", *lmeval.render(verdict)}


def test_nothing_but_the_schema_is_enough(tmp_path):
    paths = report.write(tmp_path, {"schema": "kvgate.verdict/1"}, pd.DataFrame())
    assert [path.name for path in paths] == ["report.html", "report.md", "summary.csv", "junit.xml", "records.parquet"]
    assert "No strategy was judged." in paths[0].read_text()


def test_one_strategy_on_one_task_with_every_number_missing(made, tmp_path):
    verdict = made.verdict()
    cell = {key: None for key in verdict["cells"][0]}
    cell |= {"strategy": "fp8", "task": "t", "mode": "context", "decision": "VOID", "gating": True}
    verdict |= {"strategies": [{"name": "fp8", "decision": "VOID"}], "cells": [cell]}
    text = report.write(tmp_path, verdict, pd.DataFrame())[1].read_text()
    assert (
        "fp8 is VOID on t at a 2-point margin." in text and "0.000" not in text and not re.search(r"(?i)\bnan\b", text)
    )


def test_two_modes_of_one_task_are_two_columns(made):
    verdict = made.verdict()
    verdict["cells"].append({**verdict["cells"][0], "mode": "context"})
    assert "niah_multikey · context" in report.text_table(verdict, width=200)


def test_markdown_is_short_and_says_where_the_rest_is(written):
    text = (written.folder / "report.md").read_text()
    assert "samples of each cell, are in report.html" in text
    assert len(text) < (written.folder / "report.html").stat().st_size / 10


def test_terminal_table_is_aligned_and_fits(made):
    text = report.text_table(made.verdict(), width=120)
    assert max(map(len, text.splitlines())) <= 120
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("strategy ")]
    assert len(blocks) == 2 and all(len(block) == 14 for block in blocks)
    for block in blocks:
        starts = [match.start() for match in re.finditer(r"-+", block[1])]
        assert all(line[start - 2 : start].strip() == "" for line in block for start in starts[1:])


def test_terminal_table_cannot_move_the_cursor(made):
    verdict = made.verdict()
    verdict["notes"] = ["\x1b[2Jgone\r\nline"]
    assert "\x1b" not in report.text_table(verdict) and "\r" not in report.text_table(verdict)


def test_strategies_are_ordered_by_decision_then_by_size(made):
    lines = report.text_table(made.verdict(), width=120).splitlines()
    assert [line.split()[0] for line in lines[4:8]] == ["int4-kivi-g32", "fp8", "int8-per-token", "snapkv-50"]


def test_a_missing_number_is_a_dash_and_zero_is_zero():
    for show in (
        format.number,
        format.signed,
        format.count,
        format.percent,
        format.size,
        format.general,
        format.p_value,
    ):
        assert show(None) == show(float("nan")) == format.MISSING != show(0)
    assert format.signed(-0.0001) == "0.000" and format.signed(-0.5) == f"{format.MINUS}0.500"
    assert format.percent_range([0.25, 0.5]) == "25 % to 50 %" and format.percent_range([]) == format.MISSING
    assert format.shorten("abcdefghij", 5) == "ab…ij"


def test_big_reports_draw_without_complaint(made: ModuleType, tmp_path: Path, recwarn):
    verdict = made.verdict()
    verdict["cells"] = [{**c, "task": f"{c['task']}_{i}"} for i in range(3) for c in verdict["cells"]]
    report.write(tmp_path, verdict, pd.DataFrame())
    assert not list(recwarn)


def test_reporting_loads_no_engine():
    code = "import sys, harness.report; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'vllm')))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


def test_every_decision_of_the_contract_has_a_colour_and_a_sign():
    from harness.report.outlook import ORDER, SYMBOLS
    from harness.report.plots.theme import MARKER, STRONG, TINT

    assert all(set(Decision) == set(kinds) for kinds in (SYMBOLS, ORDER, STRONG, TINT, MARKER))
