"""Fidelity: how far each strategy's next-token distribution is from the full cache's. Sorted, never judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.format import general, missing, percent
from harness.report.outlook import Cell, Outlook
from harness.report.plots.names import label, short
from harness.report.plots.picture import Plot, by_task, picture
from harness.report.plots.theme import GRID, MARKER, QUIET, STRONG, WIDTH
from harness.types import Decision

NAME = "fidelity"
ROW, PANEL, LEFT = 0.3, 1.95, 1.6  # inches
BLUE = STRONG[Decision.MEASURED]


@dataclass(frozen=True)
class Row:
    """A strategy on a task that follows the baseline's own tokens."""

    task: str
    mode: str
    strategy: str
    kl_mean_nats: float | None
    kl_p99_nats: float | None
    top1_agreement: float | None


def rows(outlook: Outlook) -> list[Row]:
    """Every cell that followed the baseline's tokens: task by task, closest to the full cache first."""
    found = []
    for column in outlook.columns:
        cells = [cell for entry in outlook.strategies if (cell := outlook.cell(entry["name"], column))]
        mine = [_row(cell) for cell in cells if cell.get("fidelity")]
        found += sorted(mine, key=lambda row: math.inf if missing(row.kl_mean_nats) else row.kl_mean_nats)
    return found


def draw(outlook: Outlook) -> Plot | None:
    """KL and top-1 agreement; None if nothing followed."""
    found = rows(outlook)
    if not found:
        return None
    parts = by_task(found, outlook.label)
    return picture(
        NAME,
        "Fidelity",
        "Fed the baseline's own tokens: mean KL of the next-token distribution (large mark), its 99th percentile "
        "(small mark), and how often the most likely token is the same. Sorts candidates; never a ground for GO.",
        f"Dot plot of KL divergence and top-1 agreement of {max(len(mine) for _, mine in parts)} strategies, closest first.",
        found,
        (WIDTH, sum(_high(mine) for _, mine in parts) + 0.1),
        lambda figure: _fill(figure, parts),
    )


def _row(cell: Cell) -> Row:
    told = cell["fidelity"]
    measured = [told.get(name) for name in ("kl_mean", "kl_p99", "top1_agreement")]
    return Row(cell["task"], cell["mode"], cell["strategy"], *measured)


def _high(mine: Sequence[Row]) -> float:
    return ROW * len(mine) + 1.25


def _fill(figure: Figure, parts: Sequence[tuple[str, list[Row]]]) -> None:
    width, height = figure.get_size_inches()
    top = 0.0
    for task, cells in parts:
        figure.text(0.12 / width, 1 - (top + 0.3) / height, label(task, 50), fontsize=11, fontweight="bold")
        bottom = top + _high(cells) - 0.55
        high = ROW * len(cells)
        for i, fill in enumerate((_kl, _agreement)):
            left = LEFT + i * PANEL
            box = (left / width, 1 - bottom / height, (PANEL - 0.25) / width, high / height)
            axes = figure.add_axes(box)
            axes.set_ylim(len(cells) - 0.5, -0.5)
            axes.tick_params(length=0)
            axes.spines[["left"]].set_visible(False)
            names = short((cell.strategy for cell in cells), 20)
            axes.set_yticks(
                range(len(cells)), [names[cell.strategy] if i == 0 else "" for cell in cells], fontsize=8, color="black"
            )
            axes.hlines(range(len(cells)), 0, 1, transform=axes.get_yaxis_transform(), color=GRID, linewidth=0.7)
            fill(axes, cells)
        top += _high(cells)


def _kl(axes: Axes, cells: list[Row]) -> None:
    means = [(cell.kl_mean_nats, row) for row, cell in enumerate(cells)]
    tails = [(cell.kl_p99_nats, row) for row, cell in enumerate(cells)]
    seen = [value for value, _ in means + tails if not missing(value) and value > 0]
    floor = min(seen, default=1e-4)
    axes.set_xscale("log")
    axes.set_xlim(floor / 2.5, max(seen, default=1.0) * 2.5)
    for row, cell in enumerate(cells):
        mean, tail = cell.kl_mean_nats, cell.kl_p99_nats
        if not missing(mean) and not missing(tail):
            axes.plot([max(mean, floor), max(tail, floor)], [row, row], color=BLUE, linewidth=1, alpha=0.5)
    for points, mark in ((means, MARKER[Decision.MEASURED]), (tails, "|")):
        known = [(max(value, floor), row) for value, row in points if not missing(value)]
        for value, row in known:
            axes.plot(value, row, linestyle="", marker=mark, markersize=8, color=BLUE)
    axes.set_xlabel("KL to the full cache, nats (log)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: general(value, 1))
    axes.minorticks_off()
    axes.legend(
        handles=[
            Line2D([], [], linestyle="", marker=MARKER[Decision.MEASURED], color=BLUE, label="mean"),
            Line2D([], [], linestyle="", marker="|", color=BLUE, label="99th percentile"),
        ],
        loc="lower right", bbox_to_anchor=(1.05, 1), ncols=2, frameon=False, fontsize=7.5, handletextpad=0.2,
    )  # fmt: skip


def _agreement(axes: Axes, cells: list[Row]) -> None:
    known = [(value, row) for row, cell in enumerate(cells) if not missing(value := cell.top1_agreement)]
    low = min((value for value, _ in known), default=0.0)
    axes.set_xlim(max(0, low - 0.25 * (1 - low) - 0.002), 1 + 0.4 * (1 - low) + 0.002)
    for value, row in known:
        axes.plot(value, row, marker=MARKER[Decision.MEASURED], markersize=8, color=BLUE)
        place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(percent(value), (value, row), fontsize=7.5, color=QUIET, **place)
    axes.set_xlabel("top-1 agreement (axis cut)", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: percent(value) if value <= 1 else "")
    axes.tick_params(axis="x", labelsize=8)
