"""Quality, bytes and throughput of the same settings in one picture, with the Pareto line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.format import general, missing, signed
from harness.report.plots.front import decisions, front
from harness.report.plots.labels import beside, key, key_inches, place
from harness.report.plots.names import short
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import QUIET, WIDTH, mark
from harness.types import Decision

NAME = "quality_throughput"
HIGH = 4.4  # inches
SIZE = (
    16.0  # points across the mark of a setting that takes as many bytes as the full cache; its area goes with its bytes
)
FULL_MARK = {"marker": "o", "markerfacecolor": QUIET, "markeredgecolor": "white"}


@dataclass(frozen=True)
class Row:
    """A setting under the last load, or the full cache.

    ``throughput_gain``: times the full cache's, with its limits. ``delta``: difference of score on its worst task.
    ``kv_share``: its bytes a token over the full cache's.
    """

    load: str
    strategy: str
    decision: str
    throughput_gain: float
    gain_low: float | None
    gain_high: float | None
    task: str
    delta: float
    kv_share: float
    pareto: bool  # nothing that was tested is as fast and as good, and better in one


def rows(verdict: Mapping[str, Any]) -> list[Row]:
    """The full cache and the settings of which all three were measured; none without such a setting."""
    found = [one for one in verdict["candidates"] if _measured(one)]
    if not found:
        return []
    load = verdict["points"][-1]["label"]
    full = Row(load, verdict["baseline"]["strategy"], Decision.MEASURED, 1.0, None, None, "", 0.0, 1.0, pareto=False)
    everyone = [full, *(_row(load, one) for one in found)]
    tested = [row for row in everyone if row.decision != Decision.VOID]
    best = [tested[at] for at in front([(row.throughput_gain, row.delta) for row in tested])]
    return [replace(row, pareto=row in best) for row in everyone]


def draw(verdict: Mapping[str, Any]) -> Plot | None:
    """None where no setting has all three."""
    found = rows(verdict)
    if not found:
        return None
    at, names = found[0].load, _names(found)
    return picture(
        NAME,
        "Quality, bytes and throughput",
        "Right is faster, up is better; the smaller a mark, the fewer bytes a token. Quality: the difference to the full "
        "cache on the worst task, from the newest run of the same results folder; the mark is that run's decision. "
        f"Throughput: the gain measured here{f', at {at}' if at else ''}, with its limits. The line joins what no "
        "other setting beats.",
        f"{len(found) - 1} settings and the full cache: worst difference of score over throughput gain, area by KV bytes.",
        found,
        (WIDTH, HIGH + key_inches(names)),
        lambda figure: _fill(figure, found, names),
    )


def _gain(one: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    gain: Mapping[str, Any] = one["points"][-1]["metrics"][metric]["gain"]
    return gain


def _measured(one: Mapping[str, Any]) -> bool:
    known = not any(missing(_gain(one, metric)["mean"]) for metric in ("throughput", "capacity"))
    return known and bool(one["quality"]) and not missing(one["quality"]["delta"])


def _row(load: str, one: Mapping[str, Any]) -> Row:
    speed, quality = _gain(one, "throughput"), one["quality"]
    return Row(
        load,
        one["strategy"],
        quality["decision"],
        speed["mean"],
        speed["low"],
        speed["high"],
        quality["task"],
        quality["delta"],
        1 / _gain(one, "capacity")["mean"],
        pareto=False,
    )


def _names(found: Sequence[Row]) -> list[str]:
    """Of each setting with its bytes."""
    shown = short((row.strategy for row in found), 24)
    return [
        f"{shown[row.strategy]}, {row.kv_share:.0%} KV" if at else shown[row.strategy] for at, row in enumerate(found)
    ]


def _fill(figure: Figure, found: Sequence[Row], names: Sequence[str]) -> None:
    below = 0.5 + key_inches(names)
    axes = figure.add_axes((0.13, below / figure.get_figheight(), 0.83, (HIGH - 1.0) / figure.get_figheight()))
    gains, deltas = zip(*sorted((row.throughput_gain, row.delta) for row in found if row.pareto), strict=True)
    axes.step(gains, deltas, where="pre", color=QUIET, linewidth=1, zorder=1)
    for row in found:
        look = _look(row, full=row is found[0])
        if row.gain_low is not None and row.gain_high is not None:
            axes.hlines(row.delta, row.gain_low, row.gain_high, color=QUIET, linewidth=1.2, alpha=0.6)
        axes.plot(row.throughput_gain, row.delta, linestyle="", alpha=0.85, zorder=3, **look)
    decisions(figure, {row.decision for row in found[1:]})
    ends = [end for row in found for end in (row.throughput_gain, row.gain_low, row.gain_high) if end is not None]
    axes.set_xlim(_roomy(ends))
    axes.set_ylim(_roomy([row.delta for row in found]))
    _name_axes(axes)
    place(axes, [(row.throughput_gain, row.delta) for row in found], beside(names))
    key(figure, names)


def _look(row: Row, full: bool) -> dict[str, Any]:
    """The mark of its decision, as large as its bytes; the full cache's is a grey disc."""
    look = FULL_MARK if full else mark(Decision(row.decision))
    return {**look, "markersize": SIZE * math.sqrt(row.kv_share)}


def _roomy(values: Sequence[float]) -> tuple[float, float]:
    room = max(0.15 * (max(values) - min(values)), 0.02)
    return min(values) - room, max(values) + room


def _name_axes(axes: Axes) -> None:
    axes.set_xlabel("throughput, times the full cache's", fontsize=8)
    axes.set_ylabel("difference of score on its worst task", fontsize=8)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(lambda value, _: signed(value, 2 if high - low > 0.08 else 3))
    axes.xaxis.set_major_formatter(lambda value, _: general(value))
    axes.tick_params(labelsize=8)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
