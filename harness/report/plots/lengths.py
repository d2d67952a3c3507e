"""Output-length drift: by how many tokens answers got longer or shorter than the full cache's to the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.format import number
from harness.report.outlook import Outlook
from harness.report.plots.names import label, short
from harness.report.plots.picture import Plot, by_task, picture
from harness.report.plots.theme import GRID, INK, MARKER, QUIET, STRONG, WIDTH
from harness.types import Decision

NAME = "output_length"
ROW, LEFT, AROUND = 0.24, 1.75, 0.85  # inches
BLUE = STRONG[Decision.MEASURED]
KEY = ["task", "mode", "sample_id"]


@dataclass(frozen=True)
class Row:
    """A strategy on a task, over the samples that both sides answered. Tokens are thinking and answer."""

    task: str
    mode: str
    strategy: str
    pairs: int
    full_tokens: float  # means
    tokens: float
    drift_tokens: float
    drift_p10_tokens: float
    drift_p90_tokens: float


def rows(outlook: Outlook, samples: pd.DataFrame) -> list[Row]:
    """Every cell with an answer on both sides; tasks whose answers are given are not among them."""
    if samples.empty:
        return []
    said = samples[samples["output_tokens"].notna()]
    full = said.loc[said["role"] == "baseline", [*KEY, "output_tokens"]].rename(
        columns={"output_tokens": "full_tokens"}
    )
    mine = said[said["role"] == "candidate"].merge(full, on=KEY)
    cells = dict(iter(mine.groupby(["task", "mode", "strategy"], sort=False)))
    return [
        _row((*column, entry["name"]), cells[*column, entry["name"]])
        for column in outlook.columns
        for entry in outlook.strategies
        if outlook.judged(column) and (*column, entry["name"]) in cells
    ]


def draw(outlook: Outlook, samples: pd.DataFrame) -> Plot | None:
    """None where no sample was answered on both sides."""
    found = rows(outlook, samples)
    if not found:
        return None
    panels = by_task(found, outlook.label)
    return picture(
        NAME,
        "Output length",
        "Tokens of an answer less those of the full cache's to the same sample: mean (mark), and where the middle 80 % of the "
        "samples lie (bar). In grey, mean lengths: full cache → strategy.",
        f"{len(panels)} panels of the drift of output length in tokens, a line a strategy.",
        found,
        (WIDTH, sum(_high(mine) for _, mine in panels)),
        lambda figure: _fill(figure, panels),
    )


def _row(cell: tuple[str, str, str], mine: pd.DataFrame) -> Row:
    full, tokens = mine["full_tokens"].astype(float), mine["output_tokens"].astype(float)
    drift = tokens - full
    measured = (full.mean(), tokens.mean(), drift.mean(), *drift.quantile([0.1, 0.9]))
    return Row(*cell, len(mine), *map(float, measured))


def _high(mine: Sequence[Row]) -> float:
    return ROW * len(mine) + AROUND


def _fill(figure: Figure, panels: Sequence[tuple[str, Sequence[Row]]]) -> None:
    width, height = figure.get_size_inches()
    top = 0.0
    for task, mine in panels:
        bottom = height - top - _high(mine) + AROUND - 0.35
        axes = figure.add_axes((LEFT / width, bottom / height, 1 - (LEFT + 1.05) / width, ROW * len(mine) / height))
        _panel(axes, mine)
        axes.set_title(label(task, 40), fontsize=9)
        top += _high(mine)


def _panel(axes: Axes, mine: Sequence[Row]) -> None:
    axes.set_ylim(len(mine) - 0.5, -0.5)
    axes.axvline(0, color=QUIET, linewidth=0.9)
    for at, row in enumerate(mine):
        axes.hlines(at, row.drift_p10_tokens, row.drift_p90_tokens, color=BLUE, linewidth=3, alpha=0.35)
        axes.plot(row.drift_tokens, at, marker=MARKER[Decision.MEASURED], markersize=7, color=BLUE, linestyle="")
        lengths = f"{number(row.full_tokens, 1)} → {number(row.tokens, 1)}"
        axes.text(1.03, at, lengths, transform=axes.get_yaxis_transform(), va="center", fontsize=7, color=QUIET)
    names = short((row.strategy for row in mine), 24)
    axes.set_yticks(range(len(mine)), [names[row.strategy] for row in mine], fontsize=8, color=INK)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1), max(high, 1))  # less than a token is not made to look large
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.spines[["left"]].set_visible(False)
    axes.set_xlabel("tokens more (+) or fewer than the full cache's answer", fontsize=7.5)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
