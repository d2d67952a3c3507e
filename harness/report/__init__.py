"""The report of a run: what was decided, why, and what it rests on. Reads a verdict and its samples, never a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.places import Place, remove, write_atomic
from harness.report import html, markdown, plots, sheet
from harness.report.page import build
from harness.report.terminal import text_table

__all__ = ["text_table", "write"]


def write(folder: Place, verdict: Mapping[str, Any], samples: pd.DataFrame) -> list[Place]:
    """Writes the whole report into ``folder`` and returns the paths, the HTML page first.

    The same verdict and samples give the same bytes: nothing here reads a clock or draws a random number.

    Args:
        folder: Made if it does not exist. Other files in it are left alone; a plot or table of ours that this verdict
            does not have is removed, so that nothing of an older verdict stands beside this one.
        verdict: Content of verdict.json, schema ``kvgate.verdict/1``. Any number may be None.
        samples: One row per (strategy, task, mode, sample); the baseline's own rows are those of strategy ``full``.
    """
    pictures = plots.draw(verdict, samples)
    page = build(verdict, samples)
    files = {
        "report.html": html.render(page, pictures).encode(),
        "report.md": markdown.render(page, pictures).encode(),
        "summary.csv": sheet.render(verdict).encode(),
        **{f"plots/{picture.file}": picture.png for picture in pictures},
    }
    some = {
        "comparisons.csv": sheet.comparisons(verdict),
        "families.csv": sheet.families_sheet(verdict),
        "routing.csv": sheet.routing(verdict),
    }
    files |= {name: text.encode() for name, text in some.items() if text}
    remove(folder / name for name in (*some, *(f"plots/{file}" for file in plots.FILES)) if name not in files)
    return [write_atomic(folder / name, content) for name, content in files.items()]
