"""Bars of memory figures, in groups of a strategy: hatch and word say how each came about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.report.format import count, general
from harness.report.plots.names import short
from harness.report.plots.theme import GRID, INK, QUIET, WIDTH
from harness.report.sources import Source

BAR, BETWEEN, LEFT, RIGHT, AROUND = 0.15, 0.14, 1.75, 0.95, 0.65  # inches
LEGEND = 0.165  # inches a line

LOOKS: Mapping[Source, Sequence[Mapping[str, Any]]] = {  # where two figures of a source stand side by side, two
    Source.SIMULATED: (
        {"facecolor": "#cfe3f6", "edgecolor": "#0072b2", "hatch": "////"},
        {"facecolor": "#ffffff", "edgecolor": "#0072b2", "hatch": "----"},
    ),
    Source.MATERIALISED: ({"facecolor": "#00553f", "edgecolor": "#00553f", "hatch": ""},),
    Source.ENGINE: (
        {"facecolor": "#f6cdb4", "edgecolor": "#b34700", "hatch": "xxxx"},
        {"facecolor": "#ffffff", "edgecolor": "#b34700", "hatch": "|||||"},
    ),
}


class Bar(NamedTuple):
    """From nothing to ``high``, with a line from ``low`` where that differs. ``figure`` says what it is, for the legend."""

    source: Source
    figure: str
    low: float
    high: float


Groups = Mapping[str, Sequence[Bar]]  # by strategy


def high(groups: Groups) -> float:
    """Inches of a picture of these bars alone."""
    return _body(groups) + AROUND + LEGEND * len(_looks(groups))


def fill(figure: Figure, groups: Groups, unit: str, top: float = 0.0) -> None:
    """Draws them and their legend, ``top`` inches below the upper edge."""
    width, height = figure.get_size_inches()
    looks = _looks(groups)
    begin = top + LEGEND * len(looks) + 0.1
    box = (LEFT / width, (height - begin - _body(groups)) / height, 1 - (LEFT + RIGHT) / width, _body(groups) / height)
    axes = figure.add_axes(box)
    _bars(axes, groups, looks)
    axes.set_xlabel(unit, fontsize=8)
    marks = [Patch(label=f"{source}: {name}", linewidth=0.8, **look) for (source, name), look in looks.items()]
    axes.legend(
        handles=marks, loc="lower left", bbox_to_anchor=(-LEFT / (WIDTH - LEFT - RIGHT), 1), frameon=False,
        fontsize=8, labelspacing=0.35, handlelength=2.2, borderaxespad=0.2,
    )  # fmt: skip


def _body(groups: Groups) -> float:
    return sum(BAR * len(mine) + BETWEEN for mine in groups.values())


def _looks(groups: Groups) -> dict[tuple[Source, str], Mapping[str, Any]]:
    """A look for each kind of figure, simulated ones first."""
    kinds = dict.fromkeys((bar.source, bar.figure) for mine in groups.values() for bar in mine)
    by_source = {source: [kind for kind in kinds if kind[0] is source] for source in LOOKS}
    return {kind: LOOKS[source][at] for source, mine in by_source.items() for at, kind in enumerate(mine)}


def _bars(axes: Axes, groups: Groups, looks: Mapping[tuple[Source, str], Mapping[str, Any]]) -> None:
    axes.set_ylim(_body(groups), 0)  # one unit is one inch, and y runs down
    y, middles = BETWEEN / 2, []
    for mine in groups.values():
        middles.append(y + BAR * len(mine) / 2)
        for bar in mine:
            _bar(axes, y + BAR / 2, bar, looks[bar.source, bar.figure])
            y += BAR
        y += BETWEEN
    axes.set_yticks(middles, short(groups, 24).values(), fontsize=8, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.xaxis.set_major_formatter(lambda value, _: _said(value))
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlim(left=0)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _bar(axes: Axes, y: float, bar: Bar, look: Mapping[str, Any]) -> None:
    axes.barh(y, bar.high, height=BAR * 0.86, linewidth=0.8, **look)
    if bar.low < bar.high:
        axes.plot([bar.low, bar.high], [y, y], color="white", linewidth=2.4, solid_capstyle="butt")
        axes.plot([bar.low, bar.high], [y, y], color=INK, linewidth=1, solid_capstyle="butt")
    said = " to ".join(dict.fromkeys((_said(bar.low), _said(bar.high))))
    axes.annotate(
        said, (bar.high, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=6.5, color=QUIET
    )


def _said(value: float) -> str:
    """Three digits, and all of those before the point."""
    return count(value) if value >= 1000 else general(value)
