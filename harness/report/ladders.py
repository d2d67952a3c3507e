"""What ladders came to: the curve of each on each task, its knee, and how far down it is certified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.report.format import missing, percent, plain
from harness.report.outlook import Outlook, fraction


@dataclass(frozen=True)
class Rung:
    """One value of the option, and what the strategy with it came to on one task."""

    value: Any
    strategy: str
    certified: bool
    share: float | None  # of the full cache's bytes
    delta: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    decision: str
    stopped_at: int | None


@dataclass(frozen=True)
class Curve:
    """A ladder on one task, from mild to harsh; ``knee`` is the place of the rung below which quality falls off."""

    policy: str
    option: str
    task: str
    margin: float | None
    rungs: Sequence[Rung]
    knee: int | None

    @property
    def x(self) -> list[float]:
        """Where the full cache and each rung stand: the share of bytes, or the place where bytes do not tell rungs apart."""
        return by_bytes if (by_bytes := _falling(self.rungs)) else [-float(at) for at in range(len(self.rungs) + 1)]

    @property
    def in_bytes(self) -> bool:
        return bool(_falling(self.rungs))


def curves(outlook: Outlook) -> list[Curve]:
    """Every ladder on every judged task, those without any score left out."""
    judged = [column for column in outlook.columns if outlook.judged(column)]
    found = (_curve(outlook, ladder, column) for ladder in outlook.ladders for column in judged)
    return [curve for curve in found if curve.rungs]


def told(outlook: Outlook) -> list[str]:
    """A sentence for each ladder: the smallest certified value, and the knee of each curve that has one."""
    found = curves(outlook)
    sentences = []
    for ladder in outlook.ladders:
        mine = [curve for curve in found if (curve.policy, curve.option) == (ladder["policy"], ladder["option"])]
        sentences.append(f"ladder {ladder['policy']}: {_certified(outlook, ladder)}{''.join(map(_knee, mine))}")
    return sentences


def rows(outlook: Outlook) -> list[dict[str, Any]]:
    """The points of every curve, as they are drawn."""
    return [
        {
            **{"ladder": curve.policy, "option": curve.option, "task": curve.task, "margin": curve.margin},
            **vars(rung),
            "knee": at == curve.knee,
        }
        for curve in curves(outlook)
        for at, rung in enumerate(curve.rungs)
    ]


def knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """The place, neither first nor last, that lies furthest above the straight line between both ends.

    Kneedle of Satopaa et al. 2011 (ICDCSW, 166), offline and unsmoothed, for a curve that ends at its lowest; None where no
    place lies above the line, or the ends are level.
    """
    wide, high = x[0] - x[-1], y[0] - y[-1]
    if len(x) < 3 or wide <= 0 or high <= 0:
        return None
    above = [(b - y[-1]) / high - (a - x[-1]) / wide for a, b in zip(x, y, strict=True)]
    best = max(range(1, len(x) - 1), key=lambda at: above[at])
    return best if above[best] > 0 else None


def _curve(outlook: Outlook, ladder: Mapping[str, Any], column: tuple[str, str]) -> Curve:
    rungs, margin = [], None
    for rung in ladder["rungs"]:
        cell = outlook.cell(rung["strategy"], column)
        if cell is None or missing(cell.get("delta")):
            continue
        margin = cell.get("margin")
        facts = {name: cell.get(name) for name in ("delta", "ci_low", "ci_high", "n", "decision", "stopped_at")}
        rungs.append(Rung(**rung, share=fraction(cell), **facts))
    curve = Curve(ladder["policy"], ladder["option"], outlook.label(column), margin, rungs, None)
    if not rungs or margin is None or min(rung.delta for rung in rungs) >= -margin:
        return curve  # it does not fall by what would matter: there is no knee to speak of
    place = knee(curve.x, [0.0, *(rung.delta for rung in rungs)])
    return curve if place is None else Curve(**{**vars(curve), "knee": place - 1})


def _falling(rungs: Sequence[Rung]) -> list[float]:
    """Shares of the full cache and of the rungs, if each is less than the one before; else nothing."""
    shares = [1.0, *(rung.share for rung in rungs)]
    known = [share for share in shares if share is not None]
    return known if len(known) == len(shares) and all(a > b for a, b in pairwise(known)) else []


def _certified(outlook: Outlook, ladder: Mapping[str, Any]) -> str:
    option, mildest = ladder["option"], ladder["rungs"][0]
    if ladder["smallest_certified"] is None:
        return f"nothing is certified, for {option} {plain(mildest['value'])} is not GO on every gating task"
    name = [rung["strategy"] for rung in ladder["rungs"] if rung["certified"]][-1]
    shares = outlook.fractions(name)
    kept = f" ({percent(max(shares))} of the full cache's bytes)" if shares else ""
    return f"certified down to {option} {plain(ladder['smallest_certified'])}{kept}"


def _knee(curve: Curve) -> str:
    if curve.knee is None:
        return ""
    return f"; the curve of {curve.task} has its knee at {curve.option} {plain(curve.rungs[curve.knee].value)}"
