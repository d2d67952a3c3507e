"""Across tasks: families of tasks by strategies, and which stack to take for each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from harness.report.format import MISSING, count, missing, number, percent, signed
from harness.report.outlook import ORDER, Cell, Outlook, at, fraction
from harness.report.tables import Table
from harness.types import Decision

JUDGED = (Decision.GO, Decision.NO_GO, Decision.INCONCLUSIVE, Decision.VOID)
ALL_GATING = "all gating tasks"
WHY = "why none"  # a column that is there if a task has no strategy that is GO
FAMILIES_NOTE = (
    "Plain means over the tasks of a family, each task the same weight; the mean of RULER's 13 tasks, where they are the "
    "run's, is such a mean. A mean is no verdict: it hides the one task that is ruined, so the worst stands beside it."
)
ROUTES_NOTE = (
    "Cheapest: fewest bytes a prompt token at the dtype to deploy, of the strategies that are GO. Taking the cheapest of "
    "several is a choice made on these samples: confirm it once on another seed."
)


@dataclass(frozen=True)
class Family:
    """What a strategy did to the tasks of a family; means over the tasks that have a score, None if none has."""

    family: str
    strategy: str
    tasks: int
    baseline: float | None
    delta: float | None
    worst: str  # label of the task that lost most; "" if none has a score
    worst_delta: float | None
    decisions: Mapping[str, int]


@dataclass(frozen=True)
class Route:
    """The cheapest strategy that is GO on a task, or on all that gate; "" and the reason if there is none."""

    task: str
    strategy: str
    bytes_per_token: float | None
    share: float | None  # of the full cache's bytes
    go: int  # strategies that are GO
    tried: int
    reason: str


def families(outlook: Outlook) -> list[Family]:
    """Every family by every strategy, judged tasks only; empty with one task, where there is no mean to take."""
    judged = [cell for cell in outlook.cells if cell["decision"] in JUDGED]
    if len({at(cell) for cell in judged}) < 2:
        return []
    names = [entry["name"] for entry in outlook.strategies]
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in judged:
        groups.setdefault((cell.get("family") or "own", cell["strategy"]), []).append(cell)
    order = sorted(groups, key=lambda key: (key[0], names.index(key[1])))
    return [_family(outlook, *key, groups[key]) for key in order]


def _family(outlook: Outlook, family: str, strategy: str, cells: Sequence[Cell]) -> Family:
    scored = [cell for cell in cells if not missing(cell.get("delta"))]
    worst = min(scored, key=lambda cell: cell["delta"], default=None)
    tally = Counter(cell["decision"] for cell in cells)
    return Family(
        family=family,
        strategy=strategy,
        tasks=len(cells),
        baseline=fmean(cell["baseline"] for cell in scored) if scored else None,
        delta=fmean(cell["delta"] for cell in scored) if scored else None,
        worst=outlook.label(at(worst)) if worst else "",
        worst_delta=worst["delta"] if worst else None,
        decisions={decision.value: tally[decision] for decision in JUDGED},
    )


def routes(outlook: Outlook) -> list[Route]:
    """The stack to take for each judged task, and for all gating ones at once; empty with one strategy."""
    if len(outlook.strategies) < 2:
        return []
    columns = [column for column in outlook.columns if outlook.judged(column)]
    found = [_route(outlook.label(column), _at(outlook, column)) for column in columns]
    gating = [
        (entry, [cell for cell in outlook.of(entry["name"]) if cell.get("gating")]) for entry in outlook.strategies
    ]
    several = len({at(cell) for _, cells in gating for cell in cells}) > 1
    return [*found, _route(ALL_GATING, [(entry, cells) for entry, cells in gating if cells])] if several else found


Entry = tuple[Mapping[str, Any], Sequence[Cell]]  # what was decided, and the cells that its bytes are measured on


def _at(outlook: Outlook, column: tuple[str, str]) -> list[Entry]:
    cells = (outlook.cell(entry["name"], column) for entry in outlook.strategies)
    return [({**cell, "name": cell["strategy"]}, [cell]) for cell in cells if cell]


def _route(task: str, entries: Sequence[Entry]) -> Route:
    passed = [(entry, cells) for entry, cells in entries if entry["decision"] == Decision.GO]
    if not passed:
        return Route(task, "", None, None, 0, len(entries), _why_none([entry for entry, _ in entries]))
    entry, cells = min(passed, key=lambda one: _or_last(_bytes(one[1])))
    shares = [share for cell in cells if (share := fraction(cell)) is not None]
    return Route(task, entry["name"], _bytes(cells), max(shares, default=None), len(passed), len(entries), "")


def _bytes(cells: Iterable[Cell]) -> float | None:
    """Bytes a prompt token, on the task where they are most."""
    known = [(cell.get("memory") or {}).get("deploy_bytes_per_token") for cell in cells]
    return max((value for value in known if not missing(value)), default=None)


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


def _why_none(entries: Sequence[Mapping[str, Any]]) -> str:
    """The decisions there are, and what kept the strategy that came nearest from GO."""
    tally = Counter(entry["decision"] for entry in entries)
    counts = ", ".join(f"{tally[decision]} {decision.value}" for decision in ORDER if tally[decision])
    nearest = min(entries, key=lambda entry: ORDER.index(Decision(entry["decision"])))
    why = next(iter(nearest.get("reasons") or ()), "no reason was recorded")
    return f"{counts}; {nearest['name']}: {why}"


def families_table(found: Sequence[Family]) -> Table:
    columns = ("family", "strategy", "worst task", "tasks", "mean full", "mean d", "d of worst", *_names())
    rows = tuple(
        (
            one.family,
            one.strategy,
            one.worst or MISSING,
            count(one.tasks),
            number(one.baseline),
            signed(one.delta),
            signed(one.worst_delta),
            *(count(one.decisions[decision]) for decision in _names()),
        )
        for one in found
    )
    return Table("Families of tasks", columns, rows, words=3)


def routes_table(found: Sequence[Route]) -> Table:
    why = any(one.reason for one in found)
    columns = ("task", "take", *(WHY,) * why, "B/token deployed", "KV share", "GO")
    rows = tuple(
        (
            one.task,
            one.strategy or "none is GO: keep full",
            *(one.reason or MISSING,) * why,
            count(one.bytes_per_token),
            percent(one.share),
            f"{one.go} of {one.tried}",
        )
        for one in found
    )
    return Table("Which stack for which task", columns, rows, words=2 + why)


def _names() -> tuple[str, ...]:
    return tuple(decision.value for decision in JUDGED)
