"""How speed and latency go with the load: a panel a metric, a line a setting, for a load with several points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.format import general, missing, shorten
from harness.report.plots.theme import GRID, LINES, QUIET, Plot, paint

FILE = "curves.png"
WIDE, HIGH, ACROSS = 4.4, 2.7, 2
LEGEND = 0.35  # inches
Pick = Callable[[Mapping[str, Any]], float | None]


def _value(name: str, scale: float = 1.0) -> Pick:
    def pick(at: Mapping[str, Any]) -> float | None:
        value = at["values"].get(name)
        return None if missing(value) else value * scale

    return pick


PANELS: Mapping[str, Pick] = {
    "output tokens a second": _value("throughput"),
    "median time to first token (ms)": _value("ttft_p50", 1000),
    "median time per output token (ms)": _value("tpot_p50", 1000),
    "99th percentile of gaps between tokens (ms)": _value("itl_p99", 1000),
    "requests a second within limits": _value("goodput"),
    "share of prompts reused": lambda at: at["cached_share"] or None,
}


def draw(verdict: Mapping[str, Any]) -> Plot | None:
    """None where there is one load, or nothing was measured."""
    points = [point["value"] for point in verdict["points"]]
    if len(points) < 2:
        return None
    arms = [verdict["baseline"], *verdict["candidates"]]
    panels = {
        name: pick for name, pick in PANELS.items() if any(pick(at) is not None for arm in arms for at in arm["points"])
    }
    if not panels:
        return None
    down = -(-len(panels) // ACROSS)
    option = verdict["load"]["option"]
    return Plot(
        FILE,
        "Along the load",
        f"Geometric means of the measurements at each {option}. The full cache is dashed.",
        f"{len(panels)} panels over {option}: {', '.join(panels)}; a line for the full cache and each of "
        f"{len(arms) - 1} settings.",
        paint(WIDE * ACROSS, HIGH * down + LEGEND, lambda figure: _fill(figure, option, points, arms, panels, down)),
    )


def _fill(
    figure: Figure,
    option: str,
    points: Sequence[float],
    arms: Sequence[Mapping[str, Any]],
    panels: Mapping[str, Pick],
    down: int,
) -> None:
    axes: Axes | None = None
    for at, (name, pick) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(down, ACROSS, at)
        _panel(axes, points, arms, pick)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(option, fontsize=8)
    assert axes is not None
    handles, labels = axes.get_legend_handles_labels()
    top = 1 - LEGEND / figure.get_figheight()
    figure.legend(handles, labels, loc="upper center", ncols=min(4, len(arms)), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, top))


def _panel(axes: Axes, points: Sequence[float], arms: Sequence[Mapping[str, Any]], pick: Pick) -> None:
    for arm, look in zip(arms, [{"color": QUIET, "marker": "o", "linestyle": "--"}, *LINES * len(arms)], strict=False):
        found = sorted(
            (point, value) for point, at in zip(points, arm["points"], strict=True) if (value := pick(at)) is not None
        )
        axes.plot(
            *zip(*found, strict=True) if found else ([], []), label=shorten(arm["strategy"], 28), linewidth=1.5, **look
        )  # type: ignore[arg-type]
    if min(points) > 0 and max(points) / min(points) > 3:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(points, [general(point) for point in points], fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
