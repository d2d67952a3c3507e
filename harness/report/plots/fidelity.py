"""Fidelity: how far each strategy's next-token distribution is from the full cache's. Sorted, never judged."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.format import general, missing, percent, shorten
from harness.report.outlook import Cell, Outlook
from harness.report.plots.theme import GRID, MARKER, QUIET, STRONG, Plot, paint
from harness.types import Decision

FILE = "fidelity.png"
ROW, PANEL, LEFT = 0.3, 3.6, 2.6
BLUE = STRONG[Decision.MEASURED]


def draw(outlook: Outlook) -> Plot | None:
    """KL and top-1 agreement of every cell that followed the baseline's tokens; None if none did."""
    parts = {}
    for column in outlook.columns:
        cells = [cell for entry in outlook.strategies if (cell := outlook.cell(entry["name"], column))]
        followed = [cell for cell in cells if cell.get("fidelity")]
        if followed:
            parts[column] = sorted(followed, key=_closeness)
    if not parts:
        return None
    height = sum(_high(cells) for cells in parts.values()) + 0.1
    return Plot(
        FILE,
        "Fidelity",
        "Fed the baseline's own tokens: mean KL of the next-token distribution (large mark), its 99th percentile "
        "(small mark), and how often the most likely token is the same. Sorts candidates; never a ground for GO.",
        f"Dot plot of KL divergence and top-1 agreement of {max(map(len, parts.values()))} strategies, closest first.",
        paint(LEFT + 2 * PANEL + 0.3, height, lambda figure: _fill(figure, outlook, parts)),
    )


def _high(cells: list[Cell]) -> float:
    return ROW * len(cells) + 1.25


def _closeness(cell: Cell) -> float:
    value = cell["fidelity"].get("kl_mean")
    return float("inf") if missing(value) else value


def _fill(figure: Figure, outlook: Outlook, parts: dict[tuple[str, str], list[Cell]]) -> None:
    width, height = figure.get_size_inches()
    top = 0.0
    for column, cells in parts.items():
        figure.text(0.12 / width, 1 - (top + 0.3) / height, outlook.label(column), fontsize=11, fontweight="bold")
        bottom = top + _high(cells) - 0.55
        high = ROW * len(cells)
        for i, fill in enumerate((_kl, _agreement)):
            left = LEFT + i * PANEL
            box = (left / width, 1 - bottom / height, (PANEL - 0.35) / width, high / height)
            axes = figure.add_axes(box)
            axes.set_ylim(len(cells) - 0.5, -0.5)
            axes.tick_params(length=0)
            axes.spines[["left"]].set_visible(False)
            names = [shorten(cell["strategy"], 32) if i == 0 else "" for cell in cells]
            axes.set_yticks(range(len(cells)), names, fontsize=8.5, color="black")
            axes.hlines(range(len(cells)), 0, 1, transform=axes.get_yaxis_transform(), color=GRID, linewidth=0.7)
            fill(axes, cells)
        top += _high(cells)


def _kl(axes: Axes, cells: list[Cell]) -> None:
    means = [(cell["fidelity"].get("kl_mean"), row) for row, cell in enumerate(cells)]
    tails = [(cell["fidelity"].get("kl_p99"), row) for row, cell in enumerate(cells)]
    seen = [value for value, _ in means + tails if not missing(value) and value > 0]
    floor = min(seen, default=1e-4)
    axes.set_xscale("log")
    axes.set_xlim(floor / 2.5, max(seen, default=1.0) * 2.5)
    for row, cell in enumerate(cells):
        mean, tail = cell["fidelity"].get("kl_mean"), cell["fidelity"].get("kl_p99")
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
        loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=7.5, handletextpad=0.2,
    )  # fmt: skip


def _agreement(axes: Axes, cells: list[Cell]) -> None:
    known = [
        (value, row) for row, cell in enumerate(cells) if not missing(value := cell["fidelity"].get("top1_agreement"))
    ]
    low = min((value for value, _ in known), default=0.0)
    axes.set_xlim(max(0, low - 0.25 * (1 - low) - 0.002), 1 + 0.2 * (1 - low) + 0.002)
    for value, row in known:
        axes.plot(value, row, marker=MARKER[Decision.MEASURED], markersize=8, color=BLUE)
        place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(percent(value), (value, row), fontsize=7.5, color=QUIET, **place)
    axes.set_xlabel("top-1 agreement (axis cut)", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: percent(value) if value <= 1 else "")
    axes.tick_params(axis="x", labelsize=8)
