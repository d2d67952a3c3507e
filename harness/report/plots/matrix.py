"""Strategies by tasks at a glance: colour, sign and word say the decision, two lines say the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.report.format import general, percent_range, plain, shorten
from harness.report.outlook import Outlook
from harness.report.page import badge, square_lines
from harness.report.plots.names import label, short
from harness.report.plots.picture import Plot, by_task, picture
from harness.report.plots.theme import INK, QUIET, STRONG, TINT
from harness.types import Decision

NAME = "task_strategy"
WIDE, HIGH = 1.95, 0.66  # inches of one square
LEFT, OVERALL, TOP, EDGE = 2.5, 2.05, 1.05, 0.15
HEADS = TOP - 0.12  # where names of tasks end
NAME_LIMIT = 32


@dataclass(frozen=True)
class Row:
    """A strategy on a task: its own decision and KV share, then the square's. A square that was not run has no decision."""

    strategy: str
    strategy_decision: str
    kv_share_low: float | None  # the smallest and the largest of its tasks
    kv_share_high: float | None
    task: str
    mode: str
    decision: str | None
    gating: bool | None
    baseline: float | None
    score: float | None
    delta: float | None
    ci_low: float | None
    ci_high: float | None
    kl_mean_nats: float | None
    top1_agreement: float | None


def rows(outlook: Outlook) -> list[Row]:
    """Strategy by strategy, best first, each task in turn."""
    return [_row(outlook, entry, column) for entry in outlook.strategies for column in outlook.columns]


def draw(outlook: Outlook) -> Plot | None:
    """The matrix; the column on the left is the strategy's own decision and KV share."""
    squares = rows(outlook)
    if not squares:
        return None
    columns, high = by_task(squares, outlook.label), len(outlook.strategies)
    width = LEFT + OVERALL + WIDE * len(columns) + EDGE
    tally = Counter(entry["decision"] for entry in outlook.strategies)
    title = f"{plain(outlook.verdict.get('name'))}: {plain(outlook.model.get('id'))}"
    return picture(
        NAME,
        "Strategies and tasks",
        f"Decision, baseline → score, and paired difference with its interval. "
        f"Margin: {general(outlook.gate.get('margin'))}, {outlook.gate.get('margin_kind') or 'absolute'}.",
        f"Matrix of {high} strategies by {len(columns)} tasks. Strategies: "
        + ", ".join(f"{n} {decision}" for decision, n in tally.items())
        + ".",
        squares,
        (width, TOP + HIGH * high + EDGE),
        lambda figure: _fill(figure, title, columns),
    )


def _row(outlook: Outlook, entry: Mapping[str, Any], column: tuple[str, str]) -> Row:
    cell, shares = outlook.cell(entry["name"], column) or {}, outlook.fractions(entry["name"])
    fidelity = cell.get("fidelity") or {}
    facts = {name: cell.get(name) for name in ("decision", "gating", "baseline", "score", "delta", "ci_low", "ci_high")}
    return Row(
        entry["name"],
        entry["decision"],
        min(shares, default=None),
        max(shares, default=None),
        *column,
        **facts,
        kl_mean_nats=fidelity.get("kl_mean"),
        top1_agreement=fidelity.get("top1_agreement"),
    )


def _fill(figure: Figure, title: str, columns: Sequence[tuple[str, Sequence[Row]]]) -> None:
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))  # one unit is one inch, and y runs down
    axes.axis("off")
    axes.text(EDGE, 0.14, label(title, int(width * 8)), va="top", fontsize=11, fontweight="bold")
    axes.text(LEFT + OVERALL / 2, HEADS, "overall", ha="center", va="bottom", fontweight="bold")
    names = short((row.strategy for row in columns[0][1]), NAME_LIMIT)
    for at, row in enumerate(columns[0][1]):
        y = TOP + at * HIGH
        axes.text(LEFT - 0.12, y + HIGH / 2, names[row.strategy], ha="right", va="center", fontsize=9)
        shares = [share for share in (row.kv_share_low, row.kv_share_high) if share is not None]
        _square(axes, LEFT, y, OVERALL, row.strategy_decision, f"KV share {percent_range(shares)}", strong=True)
    for position, (task, squares) in enumerate(columns):
        x = LEFT + OVERALL + position * WIDE
        _head(axes, x + WIDE / 2, task, any(row.gating for row in squares))
        for at, row in enumerate(squares):
            _cell(axes, x, TOP + at * HIGH, row)


def _head(axes: Axes, x: float, task: str, gating: bool) -> None:
    lines = _fold(label(task, 80)) + ([] if gating else ["(does not gate)"])
    ink = INK if gating else QUIET
    axes.text(x, HEADS, "\n".join(lines), ha="center", va="bottom", fontweight="bold", color=ink)


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


def _cell(axes: Axes, x: float, y: float, row: Row) -> None:
    if row.decision is None:
        axes.text(x + WIDE / 2, y + HIGH / 2, "not run", ha="center", va="center", color=QUIET, fontsize=8)
        return
    fidelity = {"kl_mean": row.kl_mean_nats, "top1_agreement": row.top1_agreement}
    _square(axes, x, y, WIDE, row.decision, *square_lines({**vars(row), "fidelity": fidelity}))


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
