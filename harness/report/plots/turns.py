"""Score by turn of a conversation: a panel a strategy, with the full cache's line in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.outlook import Outlook
from harness.report.plots.names import label, legend, legend_inches, short
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import FULL, GRID, WIDTH, line

NAME = "turns"
HIGH, ACROSS = 1.75, 2  # inches, panels
LOOKS = {"full cache": FULL, "strategy": line(0)}
FACET = "turn"
MEASURED = ("score", "delta", "ci_low", "ci_high")


@dataclass(frozen=True)
class Row:
    """A strategy in one turn of a task: its score, and the difference to the full cache with a 95 % interval."""

    task: str
    mode: str
    strategy: str
    turn: str
    n: int
    full_score: float
    score: float
    delta: float
    ci_low: float
    ci_high: float


def rows(outlook: Outlook) -> list[Row]:
    """Every turn of every cell whose samples have turns."""
    return [
        Row(*column, entry["name"], part["name"], part["n"], part["baseline"], *(part[name] for name in MEASURED))
        for column in outlook.columns
        for entry in outlook.strategies
        if (cell := outlook.cell(entry["name"], column))
        for part in cell.get("parts") or ()
        if part["group"] == FACET
    ]


def draw(outlook: Outlook) -> Plot | None:
    """None where nothing has several turns."""
    found = rows(outlook)
    if not found:
        return None
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        panels.setdefault((outlook.label((row.task, row.mode)), row.strategy), []).append(row)
    down = -(-len(panels) // ACROSS)
    return picture(
        NAME,
        "Score by turn",
        "Dashed: the full cache. Bars: 95 % intervals of the difference, around the strategy's score. Nothing rests on them: "
        "a loss that shows only here is worth a run of its own.",
        f"{len(panels)} panels of the mean score by turn of a conversation, a strategy beside the full cache in each.",
        found,
        (WIDTH, HIGH * down + legend_inches(LOOKS, ACROSS)),
        lambda figure: _fill(figure, panels, down),
    )


def _fill(figure: Figure, panels: dict[tuple[str, str], Sequence[Row]], down: int) -> None:
    several, names = len({task for task, _ in panels}) > 1, short((strategy for _, strategy in panels), 26)
    for at, ((task, strategy), mine) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(down, ACROSS, at)
        _panel(axes, mine)
        axes.set_title(f"{label(task, 26)}\n{names[strategy]}" if several else names[strategy], fontsize=8.5)
    legend(figure, LOOKS, ACROSS)


def _panel(axes: Axes, mine: Sequence[Row]) -> None:
    x = range(len(mine))
    scores = [row.score for row in mine]
    ends = [[row.delta - row.ci_low for row in mine], [row.ci_high - row.delta for row in mine]]
    axes.plot(x, [row.full_score for row in mine], linewidth=1.3, markersize=4, **LOOKS["full cache"])
    axes.errorbar(x, scores, yerr=ends, linewidth=1.3, markersize=4, elinewidth=0.8, **LOOKS["strategy"])
    axes.set_ylim(-0.05, 1.08)
    axes.set_xlim(-0.4, len(mine) - 0.6)
    axes.set_xticks(x, [label(row.turn, 6) for row in mine], fontsize=7.5)
    axes.set_xlabel("turn", fontsize=7.5, labelpad=1)
    axes.set_ylabel("score", fontsize=7.5)
    axes.tick_params(axis="y", labelsize=7.5)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
