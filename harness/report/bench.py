"""The report of ``kvgate bench``: what was equal, what was gained, what it rests on. Reads payoff.json and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.payoff import METRICS
from harness.report.files import write_atomic
from harness.report.format import MINUS, MISSING, count, general, missing, plain, size
from harness.report.html import template
from harness.report.markdown import bullets, escape, table_grid
from harness.report.tables import DECISION, Table
from harness.report.terminal import safe_line, table_text

ROOFLINE_NOTE = (
    "What must move and run at the least, over the rates of hardware: a lower limit. Beside it the fastest prefill and the "
    "median decode step, of a batch in which other prompts may be prefilled meanwhile."
)
UNSHOWN = ("Latencies in ms", "Memory")  # in a terminal
WIDTH = 100  # of lines of prose in a terminal
BASELINE = "full, measured again"
UNITS: Mapping[str, Any] = {"s": lambda value: f"{_ms(value)} ms", "bytes": size}
REFERENCE = (
    "The reference engine computes on a dense copy of what it has stored: these are its own times, not those of a serving "
    "engine or of any kernel."
)


@dataclass(frozen=True)
class BenchPage:
    """What the report says, in its order."""

    title: str
    created: str
    headline: str
    tables: tuple[tuple[Table, str], ...]  # each with what it means
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    scope: tuple[str, ...]
    command: str


def write(folder: Path, verdict: Mapping[str, Any]) -> Path:
    """Write bench.html and bench.md into ``folder``; returns the HTML page."""
    page = build(verdict)
    write_atomic(folder / "bench.md", markdown(page).encode())
    return write_atomic(
        folder / "bench.html", template("bench.html.j2").render(page=page, decision_column=DECISION).encode()
    )


def build(verdict: Mapping[str, Any]) -> BenchPage:
    """The page of a payoff verdict, schema ``kvgate.payoff/1``."""
    wanted = ", ".join(f"{name} {general(gain)}" for name, gain in verdict["payoff"]["wanted"].items())
    slo = {name: limit for name, limit in verdict["payoff"]["slo"].items() if limit is not None}
    return BenchPage(
        title=f"{verdict['name']}: {verdict['model']['id']} on {verdict['engine']['name']}",
        created=verdict["created"],
        headline=f"{verdict['load']['describe']}; {verdict['pairs']} pairs in alternation; "
        + (f"wanted: {wanted}" if wanted else "no gain was asked for"),
        tables=tuple(
            (table, note)
            for table, note in (
                (_decisions(verdict), "Payoff and quality are two gates. A setting is worth it when both say GO."),
                _equal(verdict, "load", "Equal load: the same requests, each setting alone"),
                _equal(verdict, "memory", "Equal memory: the same bytes for keys and values"),
                (_values(verdict), "Geometric means of the measurements."),
                (_latencies(verdict), "Of all requests, pooled; 95 % limits where there are enough of them."),
                (_roofline(verdict), ROOFLINE_NOTE),
                (
                    _memory(verdict),
                    "Stored and formula: all prompts of a measurement. Bytes a token: prompt and answer.",
                ),
            )
            if table.rows
        ),
        reasons=tuple(
            f"{one['strategy']}: {one['decision']}. {reason}"
            for one in verdict["candidates"]
            for reason in one["reasons"]
        ),
        notes=tuple(verdict["notes"]),
        scope=(
            *([REFERENCE] if verdict["engine"]["name"] == "hf" else []),
            f"Holds for this load on this machine ({plain(verdict['engine'].get('cpu'))}, {verdict['machine']['cores']} cores, "
            f"{plain(verdict['engine'].get('device'))}).",
            "A gain above 1 is better: candidate / baseline where more is better, baseline / candidate for times and bytes.",
            "What was measured at equal SLO: "
            + (f"goodput under {plain(slo)}." if slo else "nothing, no limit was set."),
        ),
        command=verdict["command"],
    )


def _decisions(verdict: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            one["strategy"],
            one["decision"],
            _quality(one["quality"]),
            one["describe"],
            count(one["pairs"]),
            plain(one["look"]),
        )
        for one in verdict["candidates"]
    )
    return Table("Payoff", ("strategy", DECISION, "quality", "layers", "pairs", "look"), rows, words=4)


def _quality(quality: Mapping[str, str] | None) -> str:
    return f"{quality['decision']} ({quality['run']}, {quality['engine']})" if quality else "not judged here"


def _equal(verdict: Mapping[str, Any], equal: str, title: str) -> tuple[Table, str]:
    """Gains of the metrics that were compared with this equal, and how far the baseline differs from itself."""
    some = [one["metrics"] for one in verdict["candidates"]]
    names = [
        name
        for name, metric in METRICS.items()
        if metric.equal == equal and any(metrics[name]["gain"]["pairs"] for metrics in some)
    ]
    rows = [(one["strategy"], *(_gain(one["metrics"][name]) for name in names)) for one in verdict["candidates"]]
    noise = [(BASELINE, *(_limits(some[0][name]["noise"]) for name in names))] if some else []
    told = "; ".join(f"{name}: {METRICS[name].says}" for name in names)
    return Table(title, ("strategy", *names), tuple([*rows, *noise] if names else ())), f"{told}." if told else ""


def _gain(metric: Mapping[str, Any]) -> str:
    wanted = f", wanted {general(metric['wanted'])}: {metric['decision']}" if metric["wanted"] is not None else ""
    return _limits(metric["gain"]) + wanted


def _limits(gain: Mapping[str, Any]) -> str:
    if missing(gain["mean"]):
        return MISSING
    ends = "" if missing(gain["low"]) else f" [{general(gain['low'])}, {general(gain['high'])}]"
    return general(gain["mean"]) + ends


def _values(verdict: Mapping[str, Any]) -> Table:
    arms = [verdict["baseline"], *verdict["candidates"]]
    names = [name for name in METRICS if any(not missing(arm["values"][name]) for arm in arms)]
    priced = any(not missing(arm["usd_per_million_tokens"]) for arm in arms)
    rows = tuple(
        (
            arm["strategy"],
            *(_value(name, arm["values"][name]) for name in names),
            *([f"${general(arm['usd_per_million_tokens'])}"] if priced else []),
            f"{arm['failed']} of {arm['requests']}",
        )
        for arm in arms
    )
    titles = [f"{name} ({METRICS[name].unit})" if METRICS[name].unit not in UNITS else name for name in names]
    columns = ("strategy", *titles, *(["a million tokens"] if priced else []), "failed")
    return Table("What was measured", columns, rows)


def _value(name: str, value: float | None) -> str:
    shown = UNITS.get(METRICS[name].unit)
    if missing(value):
        return MISSING
    return str(shown(value)) if shown else _short(value)


def _latencies(verdict: Mapping[str, Any]) -> Table:
    kinds = ("queue", "ttft", "tpot", "itl", "e2e")
    rows = []
    for arm in (verdict["baseline"], *verdict["candidates"]):
        for kind in kinds:
            spread = arm["latencies"][kind]
            if any(spread.values()):
                rows.append(
                    (arm["strategy"], kind, *map(_percentile, spread.values()), count((spread["p50"] or {}).get("n")))
                )
    return Table("Latencies in ms", ("strategy", "what", "p50", "p90", "p99", "n"), tuple(rows), words=2)


def _percentile(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return MISSING
    ends = found["interval"]
    return _ms(found["value"]) + (f" [{_ms(ends[0])}, {_ms(ends[1])}]" if ends else "")


def _ms(seconds: float) -> str:
    return _short(1000 * seconds)


def _short(value: float) -> str:
    """Three digits, and all of those before the point."""
    return count(value) if abs(value) >= 1000 else general(value)


def _roofline(verdict: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            arm["strategy"],
            one["what"],
            one["bound"],
            size(one["moved_bytes"]),
            f"{general(one['flop'] / 1e9)} GFLOP",
            _ms(one["seconds"]),
            _ms(one["measured_s"]),
            f"{general(one['gap'])} times",
        )
        for arm in (verdict["baseline"], *verdict["candidates"])
        for one in arm["roofline"]
    )
    columns = ("strategy", "what", "bound by", "moves", "runs", "limit (ms)", "measured (ms)", "gap")
    return Table("Roofline", columns, rows, words=3)


def _memory(verdict: Mapping[str, Any]) -> Table:
    arms = [arm for arm in (verdict["baseline"], *verdict["candidates"]) if arm["memory"]]
    rows = tuple(
        (
            arm["strategy"],
            size(arm["memory"]["stored_bytes"]),
            size(arm["memory"]["formula_bytes"]),
            count(arm["memory"]["kv_bytes_per_token"]),
            size(arm["memory"]["peak_bytes"]),
        )
        for arm in arms
    )
    return Table("Memory", ("strategy", "stored", "formula", "bytes a token", "peak"), rows)


def markdown(page: BenchPage) -> str:
    """The report for a pull request or a model card."""
    blocks = [f"# kvgate bench: {escape(page.title)}", f"**{escape(page.headline)}** Made {escape(page.created)}."]
    blocks += [f"> **Note:** {escape(note)}" for note in page.notes]
    for table, note in page.tables:
        blocks += [f"## {table.title}", table_grid(table), *([escape(note)] if note else [])]
    blocks += ["## Why", bullets(page.reasons), "## What this claims, and what it does not", bullets(page.scope)]
    blocks += ["## How to reproduce", f"    {escape(page.command)}"]
    return "\n\n".join(blocks) + "\n"


def text(verdict: Mapping[str, Any]) -> str:
    """Decisions, gains and reasons for a terminal."""
    page = build(verdict)
    shown = [table_text(table).replace(MINUS, "-") for table, _ in page.tables if table.title not in UNSHOWN]
    prose = [*page.reasons, *(f"note: {note}" for note in page.notes), *page.scope]
    return "\n\n".join([f"{page.title}; {page.headline}", *shown, *_wrapped(prose)]) + "\n"


def _wrapped(prose: Sequence[str]) -> list[str]:
    return ["\n".join(textwrap.fill(safe_line(one), WIDTH, subsequent_indent="  ") for one in prose)]
