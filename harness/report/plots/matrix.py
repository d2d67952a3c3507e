"""Strategies by tasks at a glance: colour, sign and word say the decision, two lines say the numbers."""

from __future__ import annotations

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.report.format import general, plain, shorten
from harness.report.outlook import Cell, Outlook
from harness.report.page import badge, square_lines
from harness.report.plots.theme import INK, QUIET, STRONG, TINT, Plot, paint
from harness.types import Decision

FILE = "task_strategy.png"
WIDE, HIGH = 1.95, 0.66  # inches of one square
LEFT, OVERALL, TOP, EDGE = 2.5, 2.05, 1.05, 0.15
NAME_LIMIT = 32


def draw(outlook: Outlook) -> Plot | None:
    """The matrix, best strategy first; the last column on the left is the strategy's own decision and KV share."""
    if not outlook.cells:
        return None
    width = LEFT + OVERALL + WIDE * len(outlook.columns) + EDGE
    height = TOP + HIGH * len(outlook.strategies) + EDGE
    tally = Counter(entry["decision"] for entry in outlook.strategies)
    return Plot(
        FILE,
        "Strategies and tasks",
        f"Decision, baseline → score, and paired difference with its interval. "
        f"Margin: {general(outlook.gate.get('margin'))}, {outlook.gate.get('margin_kind') or 'absolute'}.",
        f"Matrix of {len(outlook.strategies)} strategies by {len(outlook.columns)} tasks. Strategies: "
        + ", ".join(f"{n} {decision}" for decision, n in tally.items())
        + ".",
        paint(width, height, lambda figure: _fill(figure, outlook, width, height)),
    )


def _fill(figure: Figure, outlook: Outlook, width: float, height: float) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))  # one unit is one inch, and y runs down
    axes.axis("off")
    _heads(axes, outlook)
    title = f"{plain(outlook.verdict.get('name'))}: {plain(outlook.model.get('id'))}"
    axes.text(EDGE, 0.14, shorten(title, int(width * 8)), va="top", fontsize=11, fontweight="bold")
    for row, entry in enumerate(outlook.strategies):
        y = TOP + row * HIGH
        middle = y + HIGH / 2
        axes.text(LEFT - 0.12, middle, shorten(entry["name"], NAME_LIMIT), ha="right", va="center", fontsize=9)
        _square(axes, LEFT, y, OVERALL, entry["decision"], f"KV share {outlook.memory(entry['name'])}", strong=True)
        for position, column in enumerate(outlook.columns):
            _cell(axes, LEFT + OVERALL + position * WIDE, y, outlook.cell(entry["name"], column))


def _heads(axes: Axes, outlook: Outlook) -> None:
    base = TOP - 0.12
    axes.text(LEFT + OVERALL / 2, base, "overall", ha="center", va="bottom", fontweight="bold")
    for position, column in enumerate(outlook.columns):
        cells = [cell for entry in outlook.strategies if (cell := outlook.cell(entry["name"], column))]
        gating = any(cell.get("gating") for cell in cells)
        x = LEFT + OVERALL + (position + 0.5) * WIDE
        lines = _fold(outlook.label(column)) + ([] if gating else ["(does not gate)"])
        axes.text(
            x, base, "\n".join(lines), ha="center", va="bottom", fontweight="bold", color=INK if gating else QUIET
        )


def _fold(label: str, limit: int = 22) -> list[str]:
    """A long task name on two lines, broken at a word or underscore near its middle; longer ones are cut."""
    if len(label) <= limit:
        return [label]
    label = shorten(label, 2 * limit - 2)
    breaks = [i + 1 for i, char in enumerate(label) if char in " _-·./"]
    cut = min(breaks, key=lambda i: abs(i - len(label) / 2), default=len(label) // 2)
    if max(cut, len(label) - cut) > limit + 2:
        cut = len(label) // 2
    return [label[:cut].rstrip(), label[cut:].lstrip()]


def _cell(axes: Axes, x: float, y: float, cell: Cell | None) -> None:
    if cell is None:
        axes.text(x + WIDE / 2, y + HIGH / 2, "not run", ha="center", va="center", color=QUIET, fontsize=8)
        return
    _square(axes, x, y, WIDE, cell["decision"], *square_lines(cell))


def _square(axes: Axes, x: float, y: float, wide: float, decision: str, *lines: str, strong: bool = False) -> None:
    kind = Decision(decision)
    inset = 0.025
    box = (x + inset, y + inset), wide - 2 * inset, HIGH - 2 * inset
    axes.add_patch(Rectangle(*box, facecolor=STRONG[kind] if strong else TINT[kind], edgecolor="none"))
    word, ink = ("white", "white") if strong else (STRONG[kind], INK)
    step = HIGH / (len(lines) + 2)
    centre = x + wide / 2
    axes.text(centre, y + step, badge(decision), ha="center", va="center", color=word, fontsize=8.5, fontweight="bold")
    for i, line in enumerate(lines):
        axes.text(centre, y + step * (i + 2), line, ha="center", va="center", color=ink, fontsize=8)
