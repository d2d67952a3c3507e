"""One cell of the matrix with all that is known of it: why it was decided so, what that rests on, and how to get it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.payoff import METRICS
from harness.report import sentences, tables
from harness.report.flips import GAINED, LOST, Flip
from harness.report.format import MISSING, count, gain_limits, missing, signed, visible
from harness.report.outlook import Cell, Outlook, at
from harness.report.sources import Source, stored_by
from harness.report.tables import DECISION, Table
from harness.types import Decision

IN_WORDS = {  # what the letters of the tables stand for, where there is room to say it
    "full → it": "score, full cache → strategy",
    "d": "difference d",
    "CI of d": "interval of d",
    "δ": "margin δ that was promised",
    "min\N{NO-BREAK SPACE}δ": "smallest margin that this n decides",
    "b": "gained (b)",
    "c": "lost (c)",
    "ψ": "flip rate ψ",
    "noise ψ₀": "noise floor ψ₀, full cache against itself",
    "control d": "positive control, d of what must hurt",
    "look": "looks spent",
}
STORED = {
    Source.MATERIALISED: "the tensors that the reference engine held",
    Source.ENGINE: "blocks that the engine allocated",
    Source.SIMULATED: "by formula, for servers do not tell",
}
SOURCE_NOTE = (
    f"{Source.SIMULATED.capitalize()}: computed by a formula, nothing was held. {Source.MATERIALISED.capitalize()}: real "
    f"tensors were held and weighed. {Source.ENGINE.capitalize()}: a serving engine's, or the process's, own figure."
)


@dataclass(frozen=True)
class CellPart:
    """Everything that a reader may ask of one cell."""

    anchor: str
    strategy: str  # name, and
    task: str  # label, with control signs as escapes: a reader chooses samples by both
    decision: str
    lines: tuple[str, str]  # what its square of the matrix says
    gating: bool
    reasons: tuple[str, ...]
    next_step: str  # empty if the cell is settled
    pairs: Table
    facts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # by title, what and how much
    evidence: Table
    loaded: Table
    memory: Table
    payoff: Table
    payoff_note: str
    address: str
    command: str
    whole_run: bool  # the command is that of the run, for the cell's own is not known
    flips: tuple[Flip, ...]

    @property
    def num_lost(self) -> int:
        return sum(flip.kind == LOST for flip in self.flips)

    @property
    def num_gained(self) -> int:
        return sum(flip.kind == GAINED for flip in self.flips)


def part(outlook: Outlook, cell: Cell, anchor: str, lines: tuple[str, str], flips: Sequence[Flip]) -> CellPart:
    """The cell as it is told. ``lines`` are those of its square."""
    entry = next(one for one in outlook.strategies if one["name"] == cell["strategy"])
    payoff, note = _payoff(entry.get("payoff"))
    return CellPart(
        anchor=anchor,
        strategy=visible(cell["strategy"]),
        task=visible(outlook.label(at(cell))),
        decision=cell["decision"],
        lines=lines,
        gating=bool(cell.get("gating")),
        reasons=tuple(reason for reason in cell.get("reasons") or () if reason),
        next_step=sentences.next_step(outlook, cell) if cell["decision"] == Decision.INCONCLUSIVE else "",
        pairs=_pairs(cell),
        facts=_facts(cell),
        evidence=tables.evidence(cell),
        loaded=tables.loaded(cell),
        memory=_memory(outlook, cell),
        payoff=payoff,
        payoff_note=note,
        address=cell.get("address") or MISSING,
        command=cell.get("command") or outlook.verdict.get("command") or MISSING,
        whole_run=not cell.get("command"),
        flips=tuple(flips),
    )


def _pairs(cell: Cell) -> Table:
    """Right and wrong on both sides where answers are either; else what rose, fell and stayed."""
    n, gained, lost = (cell.get(name) for name in ("n", "gained", "lost"))
    if cell["decision"] == Decision.MEASURED or not n or missing(gained) or missing(lost):
        return Table("The pairs", (), ())
    if (right := _right_on_both(cell)) is None:
        rows = (("better than the full cache", gained), ("worse", lost), ("the same", n - gained - lost))
        return Table("The pairs", ("with the strategy", "pairs"), tuple((name, count(value)) for name, value in rows))
    rows = (("full cache right", right, lost), ("full cache wrong", gained, n - gained - lost - right))
    return Table("The pairs", ("", "strategy right", "strategy wrong"), tuple((a, *map(count, b)) for a, *b in rows))


def _right_on_both(cell: Cell) -> int | None:
    """Pairs that both sides got right: what the scores come to. None where scores are graded, or means of clusters."""
    if "betting" in (cell.get("test") or "betting") or missing(cell.get("score")) or missing(cell.get("baseline")):
        return None
    right = round(cell["score"] * cell["n"]) - cell["gained"]
    return right if right == round(cell["baseline"] * cell["n"]) - cell["lost"] and right >= 0 else None


def _facts(cell: Cell) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The tables of the task, of this cell alone and with words in the place of letters, and what has no column there."""
    told = {table.title: _row(table) for table in tables.of_cell(cell)}
    titles = list(told)
    if cell["decision"] != Decision.MEASURED:
        told[titles[0]] += _known(
            ("n needed if nothing changes", count(cell.get("n_needed"))),
            ("n needed if d is what it seems", count(cell.get("n_needed_observed"))),
            ("harm was shown after", count(cell.get("stopped_at"))),
        )
        kernels = ("d of the baseline on these attention kernels", signed(cell.get("kernel_delta")))
        told[titles[1]] += _known(kernels)
    return tuple(told.items())


def _known(*facts: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(fact for fact in facts if fact[1] != MISSING)


def _row(table: Table) -> tuple[tuple[str, str], ...]:
    """A table of one row as names and texts, without the strategy and what was decided."""
    (row,) = table.rows
    return tuple(
        (IN_WORDS.get(column, column), text)
        for column, text in zip(table.columns[1:], row[1:], strict=True)
        if column != DECISION
    )


def _memory(outlook: Outlook, cell: Cell) -> Table:
    """The cell's memory, a quantity a row, each with where it comes from."""
    engine = (outlook.verdict.get("engine") or {}).get("name")
    stored = stored_by(engine)
    held = stored if stored is Source.MATERIALISED else Source.SIMULATED
    sources = {
        "tokens kept": held,
        "stored B/token (measured)": f"{stored}: {STORED[stored]}" if stored else MISSING,
        "stored / formula": "their ratio",
        "scratch copy B/token": held,
        "process peak (measured)": f"{Source.ENGINE}: {sentences.PEAK_SCOPE}",
        "tokens in equal bytes (read back)": Source.ENGINE,
    }
    table = tables.memory(cell)
    rows = tuple(
        (column.partition(" (")[0], sources.get(column, f"{Source.SIMULATED}: by formula"), text)
        for row in table.rows
        for column, text in zip(table.columns, row, strict=True)
        if text != MISSING
    )
    return Table(table.title, ("", "where it comes from", "this cell"), rows, words=2)


def _payoff(payoff: Mapping[str, Any] | None) -> tuple[Table, str]:
    """By how many times the strategy is better than the full cache at what was timed, and by whom; no rows if nothing was."""
    if not payoff:
        return Table("Speed", (), ()), ""
    rows = tuple(
        (METRICS[name].says, point["label"], gain_limits(gain))
        for point in payoff["points"]
        for name, gain in point["gains"].items()
    )
    timed = (
        "the reference engine, whose times are no serving engine's" if payoff["engine"] == "hf" else payoff["engine"]
    )
    note = f"{Source.ENGINE.capitalize()} by kvgate bench in run {payoff['run']}, which says {payoff['decision']}, on {timed}."
    return Table("Speed: gain over the full cache, above 1 is better", ("in", "load", "gain"), rows, words=2), note
