"""The table "Inside this task": the score by what samples differ in, and the parts that a score is made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from harness.report.format import MISSING, count, interval, number, signed
from harness.report.outlook import Outlook
from harness.report.tables import Table

LOWEST = "▼"
ABREAST = 5  # strategies
SHOWN = 30  # rows of one group; of more, those are shown on which some strategy lost most
NOTE = (
    f"Inside this task: the score of each strategy, then its difference from full with a 95 % interval; {LOWEST} marks the "
    "lowest score of a group. These are many comparisons and none was promised, so no decision rests on them: a loss that "
    "shows only here is worth a run of its own, on a fresh seed."
)

Part = Mapping[str, Any]
Key = tuple[str, str]  # group and name
Side = Mapping[Key, Part]  # all that one strategy has inside the task


def inside(outlook: Outlook, column: tuple[str, str]) -> tuple[Table, ...]:
    """Each value of a facet or part of the score a row, each strategy a column; no table if the task has neither.

    A table has ``ABREAST`` strategies at most, so that nothing has to be scrolled or is cut off in print.
    """
    cells = {entry["name"]: outlook.cell(entry["name"], column) for entry in outlook.strategies}
    sides = {name: _by_key(cell["parts"]) for name, cell in cells.items() if cell and cell.get("parts")}
    names = list(sides)
    chunks = [names[at : at + ABREAST] for at in range(0, len(names), ABREAST)]
    return tuple(_table({name: sides[name] for name in chunk}, sides) for chunk in chunks)


def _table(shown_sides: Mapping[str, Side], sides: Mapping[str, Side]) -> Table:
    """One table of some strategies; the rows are those of all."""
    keys = dict.fromkeys(key for side in sides.values() for key in side)
    full = {key: part for side in sides.values() for key, part in side.items()}
    rows: list[tuple[str, ...]] = []
    cut = []
    for group, members in groupby(sorted(keys, key=lambda key: key[0]), key=lambda key: key[0]):
        mine = list(members)
        shown = _most_lost(mine, sides.values())
        rows += _rows(mine, shown, full, shown_sides)
        if len(shown) < len(mine):
            cut.append(f"{group or 'parts'}: {len(shown)} of {count(len(mine))} rows, those with the largest losses")
    return Table("; ".join(["Inside this task", *cut]), ("inside", "n", "full", *shown_sides), tuple(rows))


def _by_key(parts: Sequence[Part]) -> Side:
    return {(part["group"], part["name"]): part for part in parts}


def _most_lost(keys: Sequence[Key], sides: Collection[Side]) -> list[Key]:
    """At most ``SHOWN`` of the keys, in their order."""
    by_loss = sorted(keys, key=lambda key: min(side[key]["delta"] for side in sides if key in side))
    shown = set(by_loss[:SHOWN])
    return [key for key in keys if key in shown]


def _rows(keys: Sequence[Key], shown: Sequence[Key], full: Side, sides: Mapping[str, Side]) -> list[tuple[str, ...]]:
    """The rows of one group, of which some may not be shown, with the lowest score of every column marked."""
    lowest = _lowest([full[key]["baseline"] for key in keys], keys)
    lows = {name: _lowest([side[key]["score"] for key in keys if key in side], keys) for name, side in sides.items()}
    return [
        (
            ": ".join(filter(None, key)),
            count(full[key]["n"]),
            _score(full[key]["baseline"], lowest),
            *(_square(side.get(key), lows[name]) for name, side in sides.items()),
        )
        for key in shown
    ]


def _lowest(scores: Sequence[float], keys: Sequence[Key]) -> float | None:
    """The score to mark: parts that stand alone ("leak", "strict") are no group, and what most of a group has marks none."""
    if not keys[0][0] or len(scores) < 2:
        return None
    return min(scores) if 2 * scores.count(min(scores)) <= len(scores) else None


def _square(part: Part | None, lowest: float | None) -> str:
    if part is None:
        return MISSING
    change = f"{signed(part['delta'], 2)} {interval(part['ci_low'], part['ci_high'], 2)}"
    return f"{_score(part['score'], lowest)} ({change})"


def _score(score: float, lowest: float | None) -> str:
    return f"{LOWEST if score == lowest else ''}{number(score, 2)}"
