"""Memory under a load: what its prompts take by formula and as stored, and the bytes a token that decide how many fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from harness.report.plots import bars
from harness.report.plots.bars import Bar, Groups
from harness.report.plots.picture import Plot, picture
from harness.report.plots.theme import WIDTH
from harness.report.sources import MEASURED, Source, stored_by

NAME = "load_memory"
MIB = 2**20
PROMPTS, TOKEN = "prompts of one measurement", "a token"


@dataclass(frozen=True)
class Row:
    """A figure of a setting under the last load, in bytes: of all prompts of a measurement, or of a token."""

    load: str
    strategy: str
    of: str
    source: Source
    figure: str
    bytes: float


def rows(verdict: Mapping[str, Any]) -> list[Row]:
    """Of the full cache, then of each setting that was measured."""
    return [
        Row(verdict["points"][-1]["label"], arm["strategy"], *figure)
        for arm in (verdict["baseline"], *verdict["candidates"])
        for figure in _figures(verdict["engine"]["name"], arm["points"][-1])
    ]


def draw(verdict: Mapping[str, Any]) -> Plot | None:
    """None where nothing was measured."""
    found = rows(verdict)
    if not found:
        return None
    prompts: dict[str, list[Bar]] = {}
    token: dict[str, list[Bar]] = {}
    for row in found:
        groups, size = (prompts, row.bytes / MIB) if row.of == PROMPTS else (token, row.bytes)
        groups.setdefault(row.strategy, []).append(Bar(row.source, row.figure, size, size))
    load = found[0].load
    return picture(
        NAME,
        "Memory under the load",
        f"Above: keys and values of all prompts of a measurement{f', at {load}' if load else ''}. Below: bytes a token of prompt "
        "and answer takes; capacity is the room over these. Simulated is by formula, and nothing was weighed; a figure that "
        "was not taken has no bar.",
        f"Bars of KV bytes for {len(prompts)} settings: {', '.join(dict.fromkeys(row.source for row in found))}.",
        found,
        (WIDTH, bars.high(prompts) + bars.high(token)),
        lambda figure: _fill(figure, prompts, token),
    )


def _figures(engine: str, at: Mapping[str, Any]) -> Iterator[tuple[str, Source, str, float]]:
    if (memory := at["memory"]) is None:
        return
    yield PROMPTS, Source.SIMULATED, "formula", memory["formula_bytes"]
    if (stored := stored_by(engine)) in MEASURED:
        yield PROMPTS, stored, "stored", memory["stored_bytes"]
    how = (Source.ENGINE, "allocated") if at["allocated"] else (Source.SIMULATED, "formula, as deployed")
    yield TOKEN, *how, memory["kv_bytes_per_token"]


def _fill(figure: Figure, prompts: Groups, token: Groups) -> None:
    bars.fill(figure, prompts, "MiB for the prompts of one measurement")
    bars.fill(figure, token, "KV bytes a token of prompt and answer", top=bars.high(prompts))
