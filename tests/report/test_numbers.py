"""Every number in report.md is one of verdict.json's, in the row of its cell, or follows from some by a rule written here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html import unescape
from statistics import fmean
from typing import Any

import pandas as pd
import pytest

from harness import report
from harness.report import format
from harness.report.markdown import escape
from harness.types import Decision

NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e[-+−]?\d+)?")
SHOWS = (
    *(lambda x, digits=digits: format.number(x, digits) for digits in (1, 2, 3, 4)),
    *(lambda x, digits=digits: format.signed(x, digits) for digits in (2, 3, 4)),
    *(format.general, format.count, format.percent, format.size, format.p_value, format.plain),
)


def found(text: str) -> set[str]:
    return {token.rstrip(",") for token in NUMBER.findall(text)}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def shows(values: Iterable[Any]) -> set[str]:
    """What numbers look like, in any of the report's formats, and the numbers inside texts."""
    shown: set[str] = set()
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            shown |= {token for show in SHOWS for token in found(show(value))}
        else:
            shown |= found(escape(str(value)))
    return shown


def of_cell(cell: dict[str, Any]) -> set[str]:
    """A cell's numbers, and what follows from two of them."""
    memory = cell["memory"] or {}
    ratios = [
        memory[above] / memory[below]
        for above, below in (
            ("deploy_bytes_per_token", "deploy_full_bytes_per_token"),
            ("stored_bytes_per_token", "formula_bytes_per_token"),
        )
        if memory
    ]
    return shows([*leaves(cell), *ratios, *([cell["look"] + 1] if cell["look"] else [])])


def of_families(verdict: dict[str, Any]) -> set[str]:
    """Means of tasks, the worst of them, and how many have which decision."""
    judged = [cell for cell in verdict["cells"] if cell["decision"] != Decision.MEASURED]
    values: list[float] = []
    for family in {cell["family"] for cell in judged} | {None}:
        for strategy in {cell["strategy"] for cell in judged}:
            mine = [c for c in judged if c["strategy"] == strategy and family in (None, c["family"])]
            for name in ("baseline", "delta"):
                known = [cell[name] for cell in mine if cell[name] is not None]
                values += [fmean(known)] if known else []
            values += [len(mine), *Counter(cell["decision"] for cell in mine).values()]
    return shows(values)


def strangers(text: str, verdict: dict[str, Any], constant: set[str]) -> list[str]:
    """Numbers of the report, each with its line, that are not where the verdict has them."""
    names = {escape(one["name"]): one["name"] for one in verdict["strategies"]}
    tallies = Counter(one["decision"] for one in verdict["strategies"])
    routed = Counter((cell["task"], cell["decision"]) for cell in verdict["cells"])
    counts = [len(names), len(names) + 1, *tallies.values(), *routed.values(), 0, 0.95, 1]
    cells = [*map(of_cell, verdict["cells"])]
    anywhere = (
        constant | shows([*leaves({**verdict, "cells": []}), *counts]) | of_families(verdict) | set().union(*cells)
    )
    wrong, section, task = [], "", ""
    for line in re.sub(r"(?ms)^(`{3,})\w+$.*?^\1$", "", text).splitlines():
        if line.startswith("## "):
            section, task = line[3:], ""
        if line.startswith("### "):
            task = line[4:]
        first = line.split(" | ")[0].removeprefix("| ")
        if section == "Task by task" and first in names:
            allowed = set().union(
                *(of_cell(c) for c in verdict["cells"] if (c["strategy"], escape(c["task"])) == (names[first], task))
            )
        else:
            allowed = anywhere
        wrong += [f"{token}: {line}" for token in found(line) - allowed]
    return wrong


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Numbers in the report's own sentences: those of a report on nothing."""
    folder = tmp_path_factory.mktemp("nothing")
    report.write(folder, {"schema": "kvgate.verdict/1"}, pd.DataFrame())
    return found((folder / "report.md").read_text())


def test_every_number_is_the_verdict_s(written: Any, constant: set[str]) -> None:
    text = (written.folder / "report.md").read_text()
    wrong = strangers(text, written.verdict, constant)
    assert not wrong, "\n".join(wrong)
    assert len(found(text)) > 250


COLUMNS = {  # of the tables of a task, and what of the cell stands there
    "n": ("n",),
    "clusters": ("clusters",),
    "full → it": ("baseline", "score"),
    "d": ("delta",),
    "CI of d": ("ci_low", "ci_high"),
    "δ": ("margin",),
    "min δ": ("min_margin",),
    "b": ("gained",),
    "c": ("lost",),
    "ψ": ("flip_rate",),
    "alpha": ("alpha",),
    "p": ("p_value",),
    "look": ("look", "looks"),
    "noise ψ₀": ("noise_flip_rate",),
    "control d": ("control_delta",),
    "lost pairs": ("lost_pairs",),
    "truncated": ("truncated",),
    "left out": ("left_out",),
    "not acted": ("not_acted",),
    "failed, full → it": ("failed_baseline", "failed"),
    "at token limit, full → it": ("at_limit_baseline", "at_limit"),
    "output tokens, full → it": ("output_tokens_baseline", "output_tokens"),
}


def rows(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Task, strategy and squares by column, of every row of the tables of tasks."""
    for section in text.partition("## Task by task")[2].partition("## Plots")[0].split("\n### ")[1:]:
        for block in section.split("\n\n"):
            head, *lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("|")] or [
                []
            ]
            for line in lines[1:]:
                yield section.partition("\n")[0], line[0], dict(zip(head, line, strict=True))


def misplaced(text: str, verdict: dict[str, Any]) -> tuple[int, list[str]]:
    """How many numbers stand in a column of ``COLUMNS``, and those that are not the verdict's to the digits that are shown."""
    cells = {(escape(cell["task"]), escape(cell["strategy"])): cell for cell in verdict["cells"]}
    seen, wrong = 0, []
    for task, strategy, squares in rows(text):
        for column, fields in COLUMNS.items():
            shown = unescape(squares.get(column, ""))
            if not shown or (task, strategy) not in cells:
                continue
            values = [cells[task, strategy].get(field) for field in fields]
            tokens = re.findall(rf"{format.MISSING}|[+−]?[\d,.]+(?:e[−-]\d+)?", shown)
            if all(value is None for value in values):
                tokens, values = tokens[:1], [None]  # an interval that is not known is one dash
            seen += len(tokens)
            same = [stands_for(token, value, shown) for token, value in zip(tokens, values, strict=True)]
            wrong += [f"{task}, {strategy}, {column}: {shown}, not {values}"] * (not all(same))
    return seen, wrong


def stands_for(token: str, value: float | None, square: str) -> bool:
    if value is None or token == format.MISSING:
        return value is None and token == format.MISSING
    digits = token.replace("−", "-").replace(",", "")
    shown = float(digits) / (100 if "%" in square else 1)
    if square.startswith("< "):
        return value < shown
    step = 10.0 ** -len(digits.partition(".")[2]) / (100 if "%" in square else 1)
    return abs(shown - value) <= 0.5001 * step


def test_every_number_of_a_task_s_tables_stands_in_its_column(written: Any) -> None:
    seen, wrong = misplaced((written.folder / "report.md").read_text(), written.verdict)
    assert not wrong, "\n".join(wrong)
    assert seen > 800


@pytest.mark.parametrize("field", sorted({field for fields in COLUMNS.values() for field in fields}))
def test_a_number_that_is_not_the_verdict_s_is_found(written: Any, field: str) -> None:
    """The same report beside a verdict in which one cell says otherwise."""
    cells = [dict(cell) for cell in written.verdict["cells"]]
    value = cells[0].get(field)
    cells[0][field] = (value or 0) + (0.2 if isinstance(value, float) else 1)
    text = (written.folder / "report.md").read_text()
    assert len(misplaced(text, {**written.verdict, "cells": cells})[1]) == 1
