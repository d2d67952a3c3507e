"""Quality against bytes: what each strategy loses, and how little it stores, one panel a task."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from harness.report.format import MINUS, general, missing, percent, shorten, signed
from harness.report.outlook import ORDER, Cell, Outlook, fraction
from harness.report.plots.labels import place
from harness.report.plots.theme import MARKER, QUIET, STRONG, Plot, paint
from harness.types import Decision

FILE = "quality_bytes.png"
WIDE, HIGH = 6.2, 4.3
NAME_LIMIT = 24
_TICKS = (0.01, 0.02, 0.03, 0.05, 0.0625, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.5, 2.0, 4.0)


def draw(outlook: Outlook) -> Plot | None:
    """Difference to the full cache over KV share, for cells that have both."""
    panels = {
        column: cells
        for column in outlook.columns
        if (cells := [cell for entry in outlook.strategies if _shown(cell := outlook.cell(entry["name"], column))])
    }
    if not panels:
        return None
    across = min(2, len(panels))
    down = math.ceil(len(panels) / across)
    high = HIGH + 0.09 * max(0, len(outlook.strategies) - 8)
    judged = [cell for cell in outlook.cells if cell["decision"] != Decision.MEASURED]
    absent = len(judged) - sum(map(len, panels.values()))
    left_out = f" {absent} cells without a difference or a memory figure are not shown." if absent else ""
    return Plot(
        FILE,
        "Quality against bytes",
        f"Left is smaller, up is better. Bars are the intervals of d. GO is a whole bar above {MINUS}δ (dashed). "
        f"KV share: predicted bytes a token at {outlook.deploy_dtype}, against the full cache.{left_out}",
        f"{len(panels)} panels, one a task: difference to the full cache over the share of KV bytes, a mark for each "
        "strategy, with its interval and the margin line.",
        paint(WIDE * across, high * down + 0.45, lambda figure: _fill(figure, outlook, panels, across, down)),
    )


def _shown(cell: Cell | None) -> bool:
    return (
        cell is not None
        and cell["decision"] != Decision.MEASURED
        and not missing(cell.get("delta"))
        and fraction(cell) is not None
    )


def _fill(figure: Figure, outlook: Outlook, panels: dict[tuple[str, str], list[Cell]], across: int, down: int) -> None:
    width, height = figure.get_size_inches()
    high = (height - 0.45) / down
    shares = [fraction(cell) for cells in panels.values() for cell in cells]
    for i, (column, cells) in enumerate(panels.items()):
        row, position = divmod(i, across)
        box = (position * WIDE + 0.85, height - 0.45 - row * high - high + 0.6, WIDE - 1.1, high - 1.0)
        axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        _panel(axes, outlook, column, cells, (min(shares), max(shares)))
    present = {cell["decision"] for cells in panels.values() for cell in cells}
    marks = [Line2D([], [], linestyle="", label=kind.value, **_look(kind)) for kind in ORDER if kind in present]
    marks.append(
        Line2D([], [], linestyle="--", color=STRONG[Decision.NO_GO], linewidth=1, label=f"{MINUS}δ, the margin")
    )
    figure.legend(handles=marks, loc="upper center", ncols=len(marks), frameon=False, fontsize=8.5, columnspacing=1.4)


def _panel(
    axes: Axes, outlook: Outlook, column: tuple[str, str], cells: list[Cell], shares: tuple[float, float]
) -> None:
    margins = {cell["margin"] for cell in cells if not missing(cell.get("margin"))}
    _scales(axes, cells, max(margins, default=0.02), shares)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axhline(0, color=QUIET, linewidth=0.9)
    for margin in margins:
        axes.axhline(-margin, color=STRONG[Decision.NO_GO], linewidth=1, linestyle="--")
    bars = [_mark(axes, cell) for cell in cells]
    axes.set_title(outlook.label(column), pad=8)
    axes.set_xlabel("KV bytes, share of the full cache (log)", fontsize=8)
    axes.set_ylabel("d, strategy minus full", fontsize=8)
    points = [(fraction(cell), cell["delta"]) for cell in cells]
    place(axes, points, [shorten(cell["strategy"], NAME_LIMIT) for cell in cells], bars)


def _mark(axes: Axes, cell: Cell) -> Bbox:
    """Draws a cell's mark and interval; returns the box of the interval in pixels."""
    x, y, kind = fraction(cell), cell["delta"], Decision(cell["decision"])
    low = y if missing(cell.get("ci_low")) else cell["ci_low"]
    high = y if missing(cell.get("ci_high")) else cell["ci_high"]
    axes.plot([x, x], [low, high], color=STRONG[kind], linewidth=1.3, alpha=0.75, zorder=3)
    axes.plot(x, y, linestyle="", zorder=4, **_look(kind))
    (left, bottom), (_, top) = axes.transData.transform([(x, low), (x, high)])
    return Bbox.from_extents(left - 2, bottom, left + 2, top)


def _look(kind: Decision) -> dict[str, Any]:
    """A decision's mark: its own shape as well as its colour, hollow where nothing was tested."""
    colour, hollow = STRONG[kind], kind == Decision.VOID
    return {
        "marker": MARKER[kind],
        "markersize": 9 if kind == Decision.NO_GO else 7.5,
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": colour if hollow else "white",
        "markeredgewidth": 1.2 if hollow else 0.8,
    }


def _scales(axes: Axes, cells: list[Cell], margin: float, shares: tuple[float, float]) -> None:
    """Logarithmic in bytes. In d, linear around the margin and, where a strategy falls far below it, logarithmic there:
    a strategy that loses everything must not press the ones worth reading into a line."""
    axes.set_xscale("log")
    low, high = shares[0] * 0.8, max(shares[1], 1.0) * 1.25
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    apart = math.log(high / low) / 9
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or math.log(kept[-1] / tick) > apart:
            kept.append(tick)
    axes.set_xlim(low, high)
    axes.set_xticks(kept, [percent(tick) for tick in kept], fontsize=8)
    axes.minorticks_off()
    ends = [cell[key] for cell in cells for key in ("delta", "ci_low", "ci_high") if not missing(cell.get(key))]
    bottom, top = min(*ends, -1.6 * margin), max(*ends, 0.8 * margin)
    if bottom > -8 * margin and top < 8 * margin:
        room = 0.12 * (top - bottom)
        axes.set_ylim(bottom - room, top + room)
        axes.yaxis.set_major_formatter(lambda value, _: signed(value, 2 if top - bottom > 0.08 else 3))
        axes.tick_params(axis="y", labelsize=8)
        return
    axes.set_yscale("symlog", linthresh=2 * margin, linscale=1.6)
    axes.set_ylim(bottom * 1.35, max(top * 1.35, 1.5 * margin))
    steps = [step * margin for step in (0, 1, 2, 5, 10, 20, 50) if step * margin <= 1]
    marks = [sign * step for step in steps for sign in (1, -1) if bottom * 1.35 <= sign * step <= axes.get_ylim()[1]]
    marks = list(np.unique(marks))
    axes.set_yticks(marks, [signed(mark, 2 if margin >= 0.01 else 3) for mark in marks], fontsize=8)
    axes.minorticks_off()
    note = f"log scale beyond ±{general(2 * margin)}"
    axes.text(1, 1.02, note, transform=axes.transAxes, ha="right", fontsize=7, color=QUIET)
