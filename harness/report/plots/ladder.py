"""Quality down a budget ladder: the loss with its interval against the bytes that are left, a panel a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report import ladders
from harness.report.format import MINUS, missing, percent, plain
from harness.report.ladders import Curve
from harness.report.outlook import Outlook
from harness.report.plots.names import label, legend, legend_inches
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import GRID, INK, QUIET, WIDTH, line

NAME = "ladder"
HIGH = 2.9  # inches


def draw(outlook: Outlook) -> Plot | None:
    """None where there is no ladder."""
    curves = ladders.curves(outlook)
    if not curves:
        return None
    tasks: dict[str, list[Curve]] = {}
    for curve in curves:
        tasks.setdefault(curve.task, []).append(curve)
    looks = {name: line(at) for at, name in enumerate(dict.fromkeys(map(_name, curves)))}
    return picture(
        NAME,
        "Down the ladder",
        f"Difference from the full cache, where the line begins, with its interval. Ring: the smallest certified budget. K: the "
        f"knee, where the curve lies furthest above the line between its ends. Hollow: stopped early. Dotted: {MINUS}δ. "
        + " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in ladders.told(outlook)),
        f"{len(tasks)} panels of the loss of quality over stored bytes: {', '.join(tasks)}; "
        f"{len(outlook.ladders)} ladders from mild to harsh.",
        ladders.rows(outlook),
        (WIDTH, HIGH * len(tasks) + legend_inches(looks, 1)),
        lambda figure: _fill(figure, tasks, looks),
    )


def _name(curve: Curve) -> str:
    return f"{curve.policy} over {curve.option}"


def _fill(figure: Figure, tasks: Mapping[str, list[Curve]], looks: Mapping[str, Mapping[str, Any]]) -> None:
    for at, (task, curves) in enumerate(tasks.items(), start=1):
        axes = figure.add_subplot(len(tasks), 1, at)
        _panel(axes, curves, looks)
        axes.set_title(label(task, 44), fontsize=9)
    legend(figure, looks, 1)


def _panel(axes: Axes, curves: Sequence[Curve], looks: Mapping[str, Mapping[str, Any]]) -> None:
    in_bytes = all(curve.in_bytes for curve in curves)
    for curve in curves:
        x = curve.x if in_bytes else [-float(at) for at in range(len(curve.rungs) + 1)]
        _line(axes, curve, x, looks[_name(curve)])
    margins = {curve.margin for curve in curves if not missing(curve.margin)}
    for margin in margins:
        axes.axhline(-margin, color=QUIET, linestyle=":", linewidth=1)
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.invert_xaxis()
    axes.set_xlabel("share of the full cache's bytes" if in_bytes else "from mild to harsh", fontsize=8)
    axes.set_ylabel("difference of score", fontsize=8)
    axes.tick_params(labelsize=8)
    if in_bytes:
        axes.xaxis.set_major_formatter(lambda value, _: percent(value))
    else:
        axes.set_xticks([])
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.1, y=0.18)


def _line(axes: Axes, curve: Curve, x: Sequence[float], look: Mapping[str, Any]) -> None:
    axes.plot(x, [0.0, *(rung.delta for rung in curve.rungs)], linewidth=1.5, markersize=0, **look)
    x = x[1:]  # the full cache is where the line begins
    certified = [at for at, rung in enumerate(curve.rungs) if rung.certified]
    for at, rung in enumerate(curve.rungs):
        if not missing(rung.ci_low) and not missing(rung.ci_high):
            axes.plot([x[at], x[at]], [rung.ci_low, rung.ci_high], color=look["color"], linewidth=1, alpha=0.6)
        inside = look["color"] if missing(rung.stopped_at) else "white"
        axes.plot(x[at], rung.delta, marker=look["marker"], color=look["color"], markerfacecolor=inside, markersize=6)
        value = label(plain(rung.value), 16) + (" K" if at == curve.knee else "")
        place = {"xytext": (6, 6), "textcoords": "offset points", "fontsize": 7.5, "color": INK}
        axes.annotate(value, (x[at], rung.delta), **place)
    if certified:
        last = certified[-1]
        axes.plot(x[last], curve.rungs[last].delta, marker="o", markersize=13, markerfacecolor="none", color=INK)
