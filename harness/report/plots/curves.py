"""How speed and latency go with the load: a panel a metric, a line a setting, for a load with several points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.format import general, missing
from harness.report.plots.names import label, legend, legend_inches
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import FULL, GRID, WIDTH, line

NAME = "curves"
HIGH, ACROSS = 2.0, 2  # inches, panels


@dataclass(frozen=True)
class Row:
    """What was measured of a setting at one point of the load: geometric means; None where it was not seen."""

    load: str
    load_value: float
    strategy: str
    throughput_tok_s: float | None
    ttft_p50_ms: float | None
    tpot_p50_ms: float | None
    itl_p99_ms: float | None
    goodput_requests_s: float | None
    reused_share: float | None


PANELS = {
    "throughput_tok_s": "output tokens a second",
    "ttft_p50_ms": "TTFT, median (ms)",
    "tpot_p50_ms": "TPOT, median (ms)",
    "itl_p99_ms": "ITL, 99th percentile (ms)",
    "goodput_requests_s": "requests a second within limits",
    "reused_share": "share of prompts reused",
}


def rows(verdict: Mapping[str, Any]) -> list[Row]:
    """Setting by setting, the baseline first, at each point of the load."""
    return [
        _row(point, arm["strategy"], at)
        for arm in (verdict["baseline"], *verdict["candidates"])
        for point, at in zip(verdict["points"], arm["points"], strict=True)
    ]


def draw(verdict: Mapping[str, Any]) -> Plot | None:
    """None where there is one load, or nothing was measured."""
    found = rows(verdict)
    panels = [name for name in PANELS if any(getattr(row, name) is not None for row in found)]
    if len(verdict["points"]) < 2 or not panels:
        return None
    arms = [found[at : at + len(verdict["points"])] for at in range(0, len(found), len(verdict["points"]))]
    looks = {arm[0].strategy: line(at - 1) if at else FULL for at, arm in enumerate(arms)}
    down = -(-len(panels) // ACROSS)
    option = verdict["load"]["option"]
    return picture(
        NAME,
        "Along the load",
        f"Geometric means of the measurements at each {option}. The full cache is dashed. TTFT: time to first token. TPOT: time "
        "per output token after it. ITL: from one token to the next.",
        f"{len(panels)} panels over {option}: {', '.join(PANELS[name] for name in panels)}; a line for the full cache and "
        f"each of {len(arms) - 1} settings.",
        found,
        (WIDTH, HIGH * down + legend_inches(looks, ACROSS)),
        lambda figure: _fill(figure, label(option, 24), arms, panels, looks),
    )


def _row(point: Mapping[str, Any], strategy: str, at: Mapping[str, Any]) -> Row:
    def value(name: str, scale: float = 1.0) -> float | None:
        known = at["values"].get(name)
        return None if missing(known) else known * scale

    return Row(
        point["label"],
        point["value"],
        strategy,
        value("throughput"),
        value("ttft_p50", 1000),
        value("tpot_p50", 1000),
        value("itl_p99", 1000),
        value("goodput"),
        at["cached_share"] or None,
    )


def _fill(
    figure: Figure,
    option: str,
    arms: Sequence[Sequence[Row]],
    panels: Sequence[str],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    down = -(-len(panels) // ACROSS)
    for at, name in enumerate(panels, start=1):
        axes = figure.add_subplot(down, ACROSS, at)
        _panel(axes, arms, name, looks)
        axes.set_title(PANELS[name], fontsize=8.5)
        axes.set_xlabel(option, fontsize=8)
    legend(figure, looks, ACROSS)


def _panel(axes: Axes, arms: Sequence[Sequence[Row]], name: str, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for arm in arms:
        known = sorted((row.load_value, getattr(row, name)) for row in arm if getattr(row, name) is not None)
        x, y = ([pair[side] for pair in known] for side in (0, 1))
        axes.plot(x, y, linewidth=1.5, markersize=4.5, **looks[arm[0].strategy])
    loads = sorted({row.load_value for arm in arms for row in arm})
    if loads[0] > 0 and loads[-1] / loads[0] > 3:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(loads, [general(load) for load in loads], fontsize=7.5)
    axes.tick_params(axis="y", labelsize=7.5)
    axes.set_ylim(bottom=0)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
