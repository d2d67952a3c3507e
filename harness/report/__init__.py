"""The report of a run: what was decided, why, and what it rests on. Reads a verdict and its samples, never a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.places import Place, encode, remove, write_atomic
from harness.report import html, junit, lmeval, markdown, model_index, plots, sheet
from harness.report import records as parquet
from harness.report.page import build
from harness.report.terminal import text_table

__all__ = ["step_summary", "text_table", "write"]

PAIRED = ("baseline", "candidate")  # roles of the cells whose samples are shown
SUMMARY_LIMIT = 1 << 20  # bytes that GitHub takes for one step


def write(folder: Place, verdict: Mapping[str, Any], records: pd.DataFrame) -> list[Place]:
    """Writes the whole report into ``folder`` and returns the paths, the HTML page first.

    The same verdict and samples give the same bytes: nothing here reads a clock or draws a random number.

    Args:
        folder: Made if it does not exist. Other files in it are left alone; a file of ours that this verdict does not
            have is removed, so that nothing of an older verdict stands beside this one.
        verdict: Content of verdict.json, schema ``kvgate.verdict/1``. Any number may be None.
        records: One row per cell and sample, as ``judge`` gives them; the baseline's own rows are those of strategy ``full``.
    """
    samples = records if records.empty else records[records["role"].isin(PAIRED)]
    pictures = plots.draw(verdict, samples)
    page = build(verdict, samples)
    files = {
        "report.html": encode(html.render(page, pictures)),
        "report.md": encode(markdown.render(page, pictures, model_index.render(verdict))),
        "summary.csv": encode(sheet.render(verdict)),
        "junit.xml": junit.render(verdict),
        "records.parquet": parquet.render(records),
        **lmeval.render(verdict),
        **{name: content for picture in pictures for name, content in picture.files.items()},
    }
    some = {
        "comparisons.csv": sheet.comparisons(verdict),
        "families.csv": sheet.families_sheet(verdict),
        "routing.csv": sheet.routing(verdict),
        "ladders.csv": sheet.ladders_sheet(verdict),
    }
    files |= {name: encode(text) for name, text in some.items() if text}
    results = [f"lm_eval/{path.parent.name}/{path.name}" for path in folder.glob("lm_eval/*/results_*.json")]
    known = (*some, *results, *plots.FILES)
    remove(folder / name for name in known if name not in files)
    return [write_atomic(folder / name, content) for name, content in files.items()]


def step_summary(verdict: Mapping[str, Any]) -> bytes:
    """The verdict as Markdown for the summary of a CI step: the answer and the table of strategies by tasks."""
    page = build(verdict, pd.DataFrame())
    whole = encode(markdown.summary(page))
    return whole if len(whole) < SUMMARY_LIMIT else encode(markdown.first_words(page))
