"""How latencies are distributed: a panel a latency and load, a line a setting, as measured and not as a mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.format import general, percent
from harness.report.plots.names import label, legend, legend_inches
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import FULL, GRID, WIDTH, line

NAME = "latencies"
HIGH, COLUMNS = 1.8, 2  # inches of a panel, columns of the legend
KINDS = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "end to end"}


@dataclass(frozen=True)
class Row:
    """A measured value, and the share of all that was to be measured that was not longer. What failed is longer than any."""

    load: str
    latency: str
    strategy: str
    milliseconds: float
    share: float


def rows(verdict: Mapping[str, Any]) -> list[Row]:
    """Load by load, latency by latency, the full cache first. TPOT stands in for ITL where no token was seen by itself."""
    arms, found = (verdict["baseline"], *verdict["candidates"]), []
    for number, point in enumerate(verdict["points"]):
        itl = any(arm["points"][number]["ecdf_s"]["itl"] for arm in arms)
        for kind in ("ttft", "itl" if itl else "tpot", "e2e"):
            for arm in arms:
                steps = arm["points"][number]["ecdf_s"][kind]
                found += [Row(point["label"], kind, arm["strategy"], 1000 * time, share) for time, share in steps]
    return found


def draw(verdict: Mapping[str, Any]) -> Plot | None:
    """None where no latency was seen."""
    found = rows(verdict)
    if not found:
        return None
    looks = {arm["strategy"]: line(at) for at, arm in enumerate(verdict["candidates"])}
    looks = {verdict["baseline"]["strategy"]: FULL, **looks}
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        panels.setdefault((row.load, row.latency), []).append(row)
    loads = len({row.load for row in found})
    return picture(
        NAME,
        "Latencies",
        "Share of requests (of gaps between tokens: ITL) that took no longer. Left is faster. The full cache is dashed. All "
        "trials pooled; a line that ends below 100 % has requests that failed. TTFT: time to first token.",
        f"{len(panels)} panels of how latencies are distributed; a line for the full cache and each of {len(looks) - 1} others.",
        found,
        (WIDTH, HIGH * loads + legend_inches(looks, COLUMNS)),
        lambda figure: _fill(figure, panels, looks),
    )


def _fill(
    figure: Figure,
    panels: Mapping[tuple[str, str], Sequence[Row]],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """A row a load, a column a latency."""
    loads, kinds = (list(dict.fromkeys(key[side] for key in panels)) for side in (0, 1))
    for (load, kind), mine in panels.items():
        across = kinds.index(kind)
        axes = figure.add_subplot(len(loads), len(kinds), loads.index(load) * len(kinds) + across + 1)
        for strategy, look in looks.items():
            _line(axes, [row for row in mine if row.strategy == strategy], look)
        _frame(axes, mine, first=across == 0)
        axes.set_title(KINDS[kind], fontsize=8.5)
        if across == 0:
            axes.set_ylabel(label(load, 18), fontsize=8)
    legend(figure, looks, COLUMNS)


def _line(axes: Axes, mine: Sequence[Row], look: Mapping[str, Any]) -> None:
    """Stairs, with a mark at about each eighth of the way."""
    times, shares = [row.milliseconds for row in mine], [row.share for row in mine]
    axes.step(times, shares, where="post", linewidth=1.4, markersize=3.5, markevery=max(1, len(mine) // 8), **look)


def _frame(axes: Axes, mine: Sequence[Row], first: bool) -> None:
    times = [row.milliseconds for row in mine]
    if min(times) > 0 and max(times) / min(times) > 20:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: general(value))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.tick_params(labelsize=7, labelleft=first)
    axes.set_xlabel("ms", fontsize=7.5, labelpad=1)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
