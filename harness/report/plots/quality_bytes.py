"""Quality against bytes: what each strategy loses, and how little it stores, a panel a task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from harness.report.format import MINUS, general, missing, percent, signed
from harness.report.outlook import Cell, Outlook, fraction
from harness.report.plots.front import decisions, front
from harness.report.plots.labels import beside, key, key_inches, place
from harness.report.plots.names import label, short
from harness.report.plots.picture import Plot, by_task, picture
from harness.report.plots.theme import QUIET, STRONG, WIDTH, mark
from harness.types import Decision

NAME = "quality_bytes"
HIGH, LEGEND = 3.7, 0.5  # inches
NAME_LIMIT = 24
_TICKS = (0.01, 0.02, 0.03, 0.05, 0.0625, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.5, 2.0, 4.0)


@dataclass(frozen=True)
class Row:
    """A strategy on a task. ``kv_share``: its predicted bytes a token over the full cache's, at the dtype to deploy."""

    task: str
    mode: str
    strategy: str
    decision: str
    kv_share: float
    delta: float
    ci_low: float | None
    ci_high: float | None
    margin: float | None
    pareto: bool  # nothing that was tested, nor the full cache, is as small and as good, and better in one


def rows(outlook: Outlook) -> list[Row]:
    """Every judged cell that has a difference and takes bytes that are known."""
    found = []
    for column in outlook.columns:
        cells = [cell for entry in outlook.strategies if (cell := outlook.cell(entry["name"], column))]
        cells = [cell for cell in cells if _shown(cell)]
        best = _front(cells)
        found += [_row(cell, cell in best) for cell in cells]
    return found


def draw(outlook: Outlook) -> Plot | None:
    """Difference to the full cache over KV share, for cells that have both."""
    shown = rows(outlook)
    if not shown:
        return None
    panels = by_task(shown, outlook.label)
    names = short((row.strategy for row in shown), NAME_LIMIT)
    high = HIGH + 0.05 * min(12, max(len(mine) for _, mine in panels))
    absent = sum(cell["decision"] != Decision.MEASURED for cell in outlook.cells) - len(shown)
    left_out = f" {absent} cells without a difference or without bytes are not shown." if absent else ""
    return picture(
        NAME,
        "Quality against bytes",
        f"Left is smaller, up is better. Bars are the intervals of d. GO is a whole bar above {MINUS}δ (dashed). The grey line "
        f"joins what nothing beats in both. KV share: predicted bytes a token at {outlook.deploy_dtype}, against the full "
        f"cache.{left_out}",
        f"{len(panels)} panels, one a task: difference to the full cache over the share of KV bytes, a mark for each "
        "strategy, with its interval, the margin line and the Pareto line.",
        shown,
        (WIDTH, high * len(panels) + LEGEND + key_inches(list(names.values()))),
        lambda figure: _fill(figure, panels, high, names),
    )


def _shown(cell: Cell) -> bool:
    return cell["decision"] != Decision.MEASURED and not missing(cell.get("delta")) and bool(fraction(cell))


def _front(cells: Sequence[Cell]) -> list[Cell]:
    """Cells on the Pareto line, of which the full cache is one end. A VOID cell has tested nothing."""
    tested = [cell for cell in cells if cell["decision"] != Decision.VOID]
    points = [(-(fraction(cell) or 0.0), cell["delta"]) for cell in tested]
    return [tested[at] for at in front([*points, (-1.0, 0.0)]) if at < len(tested)]


def _row(cell: Cell, pareto: bool) -> Row:
    share = fraction(cell)
    assert share is not None
    facts = {name: cell.get(name) for name in ("ci_low", "ci_high", "margin")}
    names = {name: cell[name] for name in ("task", "mode", "strategy", "decision", "delta")}
    return Row(**names, **facts, kv_share=share, pareto=pareto)


def _fill(figure: Figure, panels: Sequence[tuple[str, list[Row]]], high: float, names: Mapping[str, str]) -> None:
    width, height = figure.get_size_inches()
    everyone = [row for _, mine in panels for row in mine]
    shares = [row.kv_share for row in everyone]
    shown = dict(zip(names, beside(list(names.values())), strict=True))
    for at, (task, mine) in enumerate(panels):
        bottom = height - LEGEND - (at + 1) * high + 0.6
        axes = figure.add_axes((0.72 / width, bottom / height, 1 - 0.84 / width, (high - 0.95) / height))
        axes.set_title(label(task, 44), pad=8)
        _panel(axes, mine, (min(shares), max(shares)))
        points = [(row.kv_share, row.delta) for row in mine]
        place(axes, points, [shown[row.strategy] for row in mine], [_bar(axes, row) for row in mine])
    key(figure, list(names.values()))
    margin = Line2D([], [], linestyle="--", color=STRONG[Decision.NO_GO], linewidth=1, label=f"{MINUS}δ, the margin")
    decisions(figure, {row.decision for row in everyone}, margin)


def _panel(axes: Axes, mine: list[Row], shares: tuple[float, float]) -> None:
    margins = {row.margin for row in mine if row.margin is not None}
    _scales(axes, mine, max(margins, default=0.02), shares)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axhline(0, color=QUIET, linewidth=0.9)
    for margin in margins:
        axes.axhline(-margin, color=STRONG[Decision.NO_GO], linewidth=1, linestyle="--")
    _pareto_line(axes, mine)
    for row in mine:
        _mark(axes, row)
    axes.set_xlabel("KV bytes, share of the full cache (log)", fontsize=8)
    axes.set_ylabel("d, strategy minus full", fontsize=8)


def _pareto_line(axes: Axes, mine: list[Row]) -> None:
    """Of stairs: between two settings, what can be had is the smaller one's quality."""
    best = sorted((row.kv_share, row.delta) for row in mine if row.pareto)
    if best:
        shares, deltas = zip(*best, strict=True)
        axes.step(shares, deltas, where="post", color=QUIET, linewidth=1, alpha=0.7, zorder=2)


def _mark(axes: Axes, row: Row) -> None:
    """A mark and its interval."""
    low, high, kind = *_interval(row), Decision(row.decision)
    axes.plot([row.kv_share] * 2, [low, high], color=STRONG[kind], linewidth=1.3, alpha=0.75, zorder=3)
    axes.plot(row.kv_share, row.delta, linestyle="", zorder=4, **mark(kind))


def _bar(axes: Axes, row: Row) -> Bbox:
    """Where the interval lies, in pixels."""
    (left, bottom), (_, top) = axes.transData.transform([(row.kv_share, end) for end in _interval(row)])
    return Bbox.from_extents(left - 2, bottom, left + 2, top)


def _interval(row: Row) -> tuple[float, float]:
    low, high = (row.delta if end is None else end for end in (row.ci_low, row.ci_high))
    return low, high


def _scales(axes: Axes, mine: list[Row], margin: float, shares: tuple[float, float]) -> None:
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
    ends = [end for row in mine for end in (row.delta, row.ci_low, row.ci_high) if end is not None]
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
