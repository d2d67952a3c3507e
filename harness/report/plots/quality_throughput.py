"""Quality, bytes and throughput of the same settings in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.format import general, missing, shorten, signed
from harness.report.plots.labels import place
from harness.report.plots.theme import MARKER, QUIET, STRONG, Plot, paint
from harness.types import Decision

FILE = "pareto.png"
SIZE = 260.0  # of the mark of a setting that takes as many bytes as the full cache, in square points


@dataclass(frozen=True)
class Setting:
    """``quality``: difference of score on its worst task. ``kv_share``: its bytes a token over the full cache's."""

    name: str
    throughput: float
    quality: float
    kv_share: float
    decision: Decision


def settings(verdict: Mapping[str, Any]) -> list[Setting]:
    """The settings of which all three were measured, under the last load."""
    found = []
    for one in verdict["candidates"]:
        metrics, quality = one["points"][-1]["metrics"], one["quality"]
        speed, room = (metrics[name]["gain"]["mean"] for name in ("throughput", "capacity"))
        if quality and not missing(quality["delta"]) and not missing(speed) and not missing(room):
            found.append(Setting(one["strategy"], speed, quality["delta"], 1 / room, Decision(quality["decision"])))
    return found


def front(found: Sequence[Setting]) -> list[Setting]:
    """Those that no other beats in speed without being worse in quality, slowest first."""
    best = [
        one
        for one in found
        if not any(
            other.throughput >= one.throughput
            and other.quality >= one.quality
            and (other.throughput, other.quality) != (one.throughput, one.quality)
            for other in found
        )
    ]
    return sorted(best, key=lambda one: one.throughput)


def draw(verdict: Mapping[str, Any]) -> Plot | None:
    """None where no setting has all three."""
    found = settings(verdict)
    if not found:
        return None
    at = verdict["points"][-1]["label"]
    return Plot(
        FILE,
        "Quality, bytes and throughput",
        "Right is faster, up is better; the smaller a mark, the fewer bytes a token. Quality: the difference to the full "
        "cache on the worst task, from the newest run of the same results folder. Throughput: the gain measured here"
        f"{f', at {at}' if at else ''}. The line joins what no other setting beats.",
        f"{len(found)} settings and the full cache: worst difference of score over throughput gain, area by KV bytes.",
        paint(6.4, 4.2, lambda figure: _fill(figure, found)),
    )


def _fill(figure: Figure, found: Sequence[Setting]) -> None:
    axes = figure.add_axes((0.13, 0.14, 0.83, 0.82))
    full = Setting("full", 1.0, 0.0, 1.0, Decision.MEASURED)
    everyone = [full, *found]
    best = front(everyone)
    axes.plot([one.throughput for one in best], [one.quality for one in best], color=QUIET, linewidth=1, zorder=1)
    for one in everyone:
        look = {"marker": MARKER[one.decision], "color": STRONG[one.decision] if one != full else QUIET}
        axes.scatter(
            one.throughput, one.quality, s=SIZE * one.kv_share, alpha=0.85, edgecolors="white", zorder=3, **look
        )
    _limits(axes, everyone)
    axes.set_xlabel("throughput, times the full cache's", fontsize=8)
    axes.set_ylabel("difference of score on its worst task", fontsize=8)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(lambda value, _: signed(value, 2 if high - low > 0.08 else 3))
    axes.xaxis.set_major_formatter(lambda value, _: general(value))
    axes.tick_params(labelsize=8)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    names = [f"{shorten(one.name, 24)} ({one.kv_share:.0%} of the bytes)" for one in found]
    place(axes, [(one.throughput, one.quality) for one in everyone], ["full", *names])


def _limits(axes: Axes, everyone: Sequence[Setting]) -> None:
    for low, high, set_limits in (
        (min(one.throughput for one in everyone), max(one.throughput for one in everyone), axes.set_xlim),
        (min(one.quality for one in everyone), max(one.quality for one in everyone), axes.set_ylim),
    ):
        room = max(0.15 * (high - low), 0.02)
        set_limits(low - room, high + room)
