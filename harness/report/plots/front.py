"""The Pareto line: the points that no other beats, and the legend of pictures that have it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.outlook import ORDER
from harness.report.plots.theme import QUIET, mark


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other equals in both numbers and exceeds in one, by rising first number. More is better."""
    kept = [
        at for at, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]
    return sorted(kept, key=lambda at: points[at][0])


def decisions(figure: Figure, present: Collection[str], *others: Line2D) -> None:
    """The marks of these decisions, other lines and the Pareto line, along the upper edge."""
    marks = [Line2D([], [], linestyle="", label=kind.value, **mark(kind)) for kind in ORDER if kind in present]
    pareto = Line2D([], [], color=QUIET, linewidth=1, label="Pareto line")
    figure.legend(
        handles=[*marks, *others, pareto], loc="upper center", ncols=4, frameon=False, fontsize=8, columnspacing=1.2,
        handletextpad=0.4,
    )  # fmt: skip
