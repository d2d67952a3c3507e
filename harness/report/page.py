"""What the report says, in its order, as plain data. How it looks is the renderers' matter; so is escaping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.report import families, resamples, sentences, tables
from harness.report.cells import SOURCE_NOTE, CellPart, part
from harness.report.flips import Flips
from harness.report.format import MISSING, interval, number, percent, signed
from harness.report.inside import NOTE, inside
from harness.report.outlook import ORDER, SYMBOLS, Cell, Outlook, at
from harness.report.tables import Table
from harness.types import Decision


@dataclass(frozen=True)
class Card:
    """A strategy at one glance."""

    strategy: str
    anchor: str
    decision: str
    why: str
    memory: str
    stack: str
    ladder: str


@dataclass(frozen=True)
class Square:
    """One cell of the matrix: its decision and two short lines. ``anchor`` is where all of it is told."""

    anchor: str
    decision: str
    first: str
    second: str
    gating: bool


@dataclass(frozen=True)
class TaskPart:
    """Everything that must be printed of one task: the test, and what the test stands on."""

    label: str
    tables: tuple[Table, ...]
    inside: tuple[Table, ...]  # the strategies in turn; none if the task has nothing inside


@dataclass(frozen=True)
class StrategyPart:
    """A strategy's card, and why it was decided so."""

    card: Card
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """The report."""

    title: str
    created: str
    subject: str  # which model, on which engine
    headline: str
    tally: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    memory_quoted: str
    cards: tuple[Card, ...]
    scope: tuple[str, ...]
    matrix_columns: tuple[str, ...]
    matrix: tuple[tuple[Card, tuple[Square | None, ...]], ...]
    matrix_note: str
    cells: tuple[CellPart, ...]
    source_note: str
    families: Table  # without rows if one task was judged
    families_note: str
    routes: Table  # without rows if one strategy was judged
    routes_note: str
    comparisons: Table  # without rows if no candidates were compared with each other
    comparison_whys: tuple[str, ...]
    comparisons_note: str
    next_steps: Table
    tasks: tuple[TaskPart, ...]
    inside_note: str
    glossary: tuple[tuple[str, str], ...]
    strategies: tuple[StrategyPart, ...]
    provenance: tuple[Table, ...]
    reproduce: tuple[tuple[str, str], ...]  # what for, command


def build(verdict: Mapping[str, Any], samples: pd.DataFrame) -> Page:
    """Says everything there is to say; a missing number is a dash and a missing part says so."""
    outlook, flips = Outlook(verdict), Flips(samples)
    parts = {
        _key(cell): _cell(outlook, cell, flips) for entry in outlook.strategies for cell in outlook.of(entry["name"])
    }
    cards = {strategy["name"]: _card(outlook, strategy, i) for i, strategy in enumerate(outlook.strategies)}
    tally = Counter(card.decision for card in cards.values())
    return Page(
        title=str(verdict.get("name") or "kvgate"),
        created=str(verdict.get("created") or MISSING),
        subject=sentences.subject(outlook),
        headline=sentences.headline(outlook),
        tally=tuple((decision.value, tally[decision]) for decision in ORDER if tally[decision]),
        notes=tuple(verdict.get("notes") or ()),
        memory_quoted=sentences.memory_quoted(outlook),
        cards=tuple(cards.values()),
        scope=sentences.scope(outlook),
        matrix_columns=tuple(outlook.label(column) for column in outlook.columns),
        matrix=tuple(
            (card, tuple(_square(parts.get((name, *column))) for column in outlook.columns))
            for name, card in cards.items()
        ),
        matrix_note=sentences.matrix_note(outlook),
        cells=tuple(parts.values()),
        source_note=SOURCE_NOTE,
        families=families.families_table(families.families(outlook)),
        families_note=families.FAMILIES_NOTE,
        routes=families.routes_table(families.routes(outlook)),
        routes_note=families.ROUTES_NOTE,
        comparisons=tables.comparisons(outlook),
        comparison_whys=tuple(sentences.comparison_why(outlook, pair) for pair in outlook.comparisons),
        comparisons_note=sentences.comparisons_note(outlook),
        next_steps=tables.next_steps(outlook),
        tasks=tuple(_task(outlook, column) for column in outlook.columns),
        inside_note=NOTE,
        glossary=sentences.glossary(outlook),
        strategies=tuple(
            StrategyPart(cards[entry["name"]], tuple(entry.get("reasons") or ())) for entry in outlook.strategies
        ),
        provenance=tables.provenance(outlook),
        reproduce=sentences.reproduce(outlook),
    )


def _task(outlook: Outlook, column: tuple[str, str]) -> TaskPart:
    shown = (*tables.of_task(outlook, column), *resamples.pass_at_k(outlook, column))
    return TaskPart(outlook.label(column), shown, inside(outlook, column))


def _card(outlook: Outlook, strategy: Mapping[str, Any], index: int) -> Card:
    return Card(
        strategy=strategy["name"],
        anchor=f"strategy-{index}",
        decision=strategy["decision"],
        why=sentences.why(strategy),
        memory=outlook.memory(strategy["name"]),
        stack=strategy.get("stack") or "",
        ladder=sentences.ladder(strategy),
    )


def _cell(outlook: Outlook, cell: Cell, flips: Flips) -> CellPart:
    row = [entry["name"] for entry in outlook.strategies].index(cell["strategy"])
    anchor = f"cell-{row}-{outlook.columns.index(at(cell))}"
    return part(outlook, cell, anchor, square_lines(cell), flips.of(*_key(cell)))


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell["strategy"], *at(cell)


def _square(cell: CellPart | None) -> Square | None:
    return cell and Square(cell.anchor, cell.decision, *cell.lines, cell.gating)


def square_lines(cell: Cell) -> tuple[str, str]:
    """What a square of the matrix says under its decision; the picture and the pages say the same."""
    if cell["decision"] == Decision.MEASURED:
        fidelity = cell.get("fidelity") or {}
        return f"KL {number(fidelity.get('kl_mean'), 4)}", f"top-1 {percent(fidelity.get('top1_agreement'))}"
    return (
        f"{number(cell.get('baseline'))} → {number(cell.get('score'))}",
        f"{signed(cell.get('delta'))} {interval(cell.get('ci_low'), cell.get('ci_high'))}".rstrip(),
    )


def badge(decision: str) -> str:
    """``✓ GO``: the sign and the word."""
    return f"{SYMBOLS[Decision(decision)]} {decision}"
