"""Bytes of keys and values a token takes, side by side: by formula, as they were stored, and as an engine has allocated them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.report.format import missing
from harness.report.outlook import Cell, Outlook
from harness.report.plots import bars
from harness.report.plots.bars import Bar
from harness.report.plots.names import label
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import WIDTH
from harness.report.sources import MEASURED, Source, stored_by

NAME = "memory"
FULL = "full"


@dataclass(frozen=True)
class Row:
    """A figure of a strategy: the smallest and the largest of its tasks, in bytes a prompt token."""

    strategy: str
    source: Source
    figure: str
    low_bytes_per_token: float
    high_bytes_per_token: float
    tasks: int


def rows(outlook: Outlook) -> list[Row]:
    """What is known of the full cache, then of each strategy; a figure that nobody has is not there."""
    full = _rows(FULL, (figure for cell in outlook.cells for figure in _of_full(outlook, cell)))
    return full + [
        row
        for entry in outlook.strategies
        for row in _rows(entry["name"], (figure for cell in outlook.of(entry["name"]) for figure in _of(outlook, cell)))
    ]


def draw(outlook: Outlook) -> Plot | None:
    """None where no memory was told."""
    found = rows(outlook)
    if not found:
        return None
    groups: dict[str, list[Bar]] = {}
    for row in found:
        bar = Bar(row.source, row.figure, row.low_bytes_per_token, row.high_bytes_per_token)
        groups.setdefault(row.strategy, []).append(bar)
    return picture(
        NAME,
        "Memory",
        "Bytes of keys and values a prompt token takes. A bar ends at the largest of the strategy's tasks; a line in it "
        "begins at the smallest, where they differ. Simulated is by formula, and nothing was weighed; a figure that was not "
        "taken has no bar.",
        f"Bars of KV bytes a token for {len(groups)} settings: {', '.join(dict.fromkeys(row.source for row in found))}.",
        found,
        (WIDTH, bars.high(groups)),
        lambda figure: bars.fill(figure, groups, "KV bytes a prompt token"),
    )


Figure = tuple[Source, str, float | None]


def _of(outlook: Outlook, cell: Cell) -> Iterator[Figure]:
    memory, loaded = cell.get("memory") or {}, cell.get("loaded") or {}
    yield Source.SIMULATED, "formula at the dtype of this run", memory.get("formula_bytes_per_token")
    yield Source.SIMULATED, _deployed(outlook), memory.get("deploy_bytes_per_token")
    stored = stored_by((outlook.verdict.get("engine") or {}).get("name"))
    if stored in MEASURED:
        yield stored, "stored in this run", memory.get("stored_bytes_per_token")
    yield Source.ENGINE, "allocated for a token", loaded.get("kv_bytes_per_token")


def _of_full(outlook: Outlook, cell: Cell) -> Iterator[Figure]:
    memory, loaded = cell.get("memory") or {}, cell.get("loaded_baseline") or {}
    yield Source.SIMULATED, _deployed(outlook), memory.get("deploy_full_bytes_per_token")
    yield Source.ENGINE, "allocated for a token", loaded.get("kv_bytes_per_token")


def _deployed(outlook: Outlook) -> str:
    return f"formula at {label(outlook.deploy_dtype, 20)}, to deploy"


def _rows(strategy: str, figures: Iterable[Figure]) -> list[Row]:
    values: dict[tuple[Source, str], list[float]] = {}
    for source, name, value in figures:
        if value is not None and not missing(value):
            values.setdefault((source, name), []).append(value)
    return [Row(strategy, *kind, min(known), max(known), len(known)) for kind, known in values.items()]
