"""The report of ``kvgate bench``: what was equal, what was gained, what it rests on. Reads payoff.json and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.payoff import METRICS
from harness.places import Place, remove, write_atomic
from harness.report.format import MINUS, MISSING, count, gain_limits, general, missing, percent, plain, size
from harness.report.html import template
from harness.report.markdown import bullets, escape, table_grid
from harness.report.plots import BENCH_FILES, Plot, draw_bench
from harness.report.tables import DECISION, Table
from harness.report.terminal import safe_line, table_text

ROOFLINE_NOTE = (
    "What must move and run at the least, over the rates of hardware: a lower limit. Beside it the fastest prefill and the "
    "median decode step, of a batch in which other prompts may be prefilled meanwhile."
)
DECISIONS_NOTE = (
    "Payoff and quality are two gates. A setting is worth it when both say GO. Answer length: tokens of answers that ended by "
    "themselves in that run, over the baseline's. Here all answers have the length that the load says."
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
    plots: tuple[Plot, ...]


def write(folder: Place, verdict: Mapping[str, Any]) -> Place:
    """Write bench.html, bench.md and the pictures into ``folder``; returns the HTML page. Older pictures go."""
    page = build(verdict)
    pictures = {name: content for plot in page.plots for name, content in plot.files.items()}
    remove(folder / name for name in BENCH_FILES if name not in pictures)
    for name, content in pictures.items():
        write_atomic(folder / name, content)
    write_atomic(folder / "bench.md", markdown(page).encode())
    return write_atomic(
        folder / "bench.html", template("bench.html.j2").render(page=page, decision_column=DECISION).encode()
    )


def build(verdict: Mapping[str, Any]) -> BenchPage:
    """The page of a payoff verdict, schema ``kvgate.payoff/2``."""
    wanted = ", ".join(f"{name} {general(gain)}" for name, gain in verdict["payoff"]["wanted"].items())
    return BenchPage(
        title=f"{verdict['name']}: {verdict['model']['id']} on {verdict['engine']['name']}",
        created=verdict["created"],
        headline=f"{_load(verdict)}; {verdict['pairs']} pairs in alternation; "
        + (f"wanted: {wanted}" if wanted else "no gain was asked for"),
        tables=tuple(
            (table, note)
            for table, note in (
                (_decisions(verdict), DECISIONS_NOTE),
                _equal(verdict, "load", "Equal load: the same requests, each setting alone"),
                _equal(verdict, "memory", "Equal memory: the same bytes for keys and values"),
                _equal_slo(verdict),
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
            f"What was measured at equal SLO: {_slo(verdict)}.",
        ),
        command=verdict["command"],
        plots=tuple(draw_bench(verdict)),
    )


def _load(verdict: Mapping[str, Any]) -> str:
    first, *others = (point["describe"] for point in verdict["points"])
    labels = ", ".join(point["label"] for point in verdict["points"])
    return f"{first}, and so on at {labels}" if others else str(first)


def _slo(verdict: Mapping[str, Any]) -> str:
    slo = {name: limit for name, limit in verdict["payoff"]["slo"].items() if limit is not None and name != "share"}
    if not slo:
        return "nothing, no limit was set"
    rate = (
        f", and the rate at which {verdict['payoff']['slo']['share']:.0%} meet them"
        if len(verdict["points"]) > 1
        else ""
    )
    return f"goodput under {plain(slo)}{rate}"


def _decisions(verdict: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            one["strategy"],
            one["decision"],
            *_at(verdict, [f"{point['label']} {at['decision']}" for point, at in _pointed(verdict, one)]),
            _quality(one["quality"]),
            one["describe"],
            _answer_length(one["quality"]),
            count(min(at["pairs"] for at in one["points"])),
            plain(max(at["look"] for at in one["points"])),
        )
        for one in verdict["candidates"]
    )
    columns = ("strategy", DECISION, *_at(verdict, ["by load"]), "quality", "layers", "answer length", "pairs", "look")
    return Table("Payoff", columns, rows, words=len(columns) - 3)


def _at(verdict: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """What is said where there are several loads, as one cell; nothing where there is one."""
    return [", ".join(words)] if len(verdict["points"]) > 1 else []


def _pointed(verdict: Mapping[str, Any], arm: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each load with what was found of a setting under it."""
    return list(zip(verdict["points"], arm["points"], strict=True))


def _found(
    verdict: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]
) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Load by load and setting by setting, the first cells of a row and what was found."""
    return [
        ((*_at(verdict, [point["label"]]), arm["strategy"]), arm["points"][number])
        for number, point in enumerate(verdict["points"])
        for arm in arms
    ]


def _everyone(verdict: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    return _found(verdict, [verdict["baseline"], *verdict["candidates"]])


def _quality(quality: Mapping[str, Any] | None) -> str:
    return f"{quality['decision']} ({quality['run']}, {quality['engine']})" if quality else "not judged here"


def _answer_length(quality: Mapping[str, Any] | None) -> str:
    """Of answers that ended by themselves, to the baseline's of the same samples."""
    return f"{quality['answer_length']:.2f}" if quality and quality["answer_length"] else MISSING


def _equal(verdict: Mapping[str, Any], equal: str, title: str) -> tuple[Table, str]:
    """Gains of the metrics that were compared with this equal, and how far the baseline differs from itself."""
    found = _found(verdict, verdict["candidates"])
    names = [
        name
        for name, metric in METRICS.items()
        if metric.equal == equal and not metric.curve and any(at["metrics"][name]["gain"]["pairs"] for _, at in found)
    ]
    rows = [(*first, *(_gain(at["metrics"][name]) for name in names)) for first, at in found]
    some = verdict["candidates"][:1]  # the baseline once more was measured beside all alike
    noise = [
        (*first[:-1], BASELINE, *(gain_limits(at["metrics"][name]["noise"]) for name in names))
        for first, at in _found(verdict, some)
    ]
    told = "; ".join(f"{name}: {METRICS[name].says}" for name in names)
    columns = (*_at(verdict, ["load"]), "strategy", *names)
    return Table(
        title, columns, tuple([*rows, *noise] if names else ()), len(columns) - len(names)
    ), told and f"{told}."


def _equal_slo(verdict: Mapping[str, Any]) -> tuple[Table, str]:
    """Gains of what is told of all loads together."""
    curves = [(one["strategy"], one["curve"]["rate"]) for one in verdict["candidates"] if one["curve"]]
    seen = any(metric["gain"]["pairs"] for _, metric in curves)
    rows = [(strategy, _gain(metric)) for strategy, metric in curves]
    noise = [(BASELINE, gain_limits(metric["noise"])) for _, metric in curves[:1]]
    note = (
        f"rate: {METRICS['rate'].says}, read off between the loads; not told where all of them meet it, or none does."
    )
    return Table(
        "Equal SLO: the same limits for a request", ("strategy", "rate"), tuple([*rows, *noise] if seen else ())
    ), note


def _gain(metric: Mapping[str, Any]) -> str:
    wanted = f", wanted {general(metric['wanted'])}: {metric['decision']}" if metric["wanted"] is not None else ""
    return gain_limits(metric["gain"]) + wanted


def _values(verdict: Mapping[str, Any]) -> Table:
    found = _everyone(verdict)
    names = [name for name in METRICS if any(not missing(at["values"].get(name)) for _, at in found)]
    priced = any(not missing(at["usd_per_million_tokens"]) for _, at in found)
    reused = any(at["cached_share"] for _, at in found)
    rows = tuple(
        (
            *first,
            *(_value(name, at["values"][name]) for name in names),
            *([percent(at["cached_share"])] if reused else []),
            *([f"${general(at['usd_per_million_tokens'])}"] if priced else []),
            f"{at['failed']} of {at['requests']}",
        )
        for first, at in found
    )
    titles = [f"{name} ({METRICS[name].unit})" if METRICS[name].unit not in UNITS else name for name in names]
    more = [*(["prompt reused"] if reused else []), *(["a million tokens"] if priced else []), "failed"]
    columns = (*_at(verdict, ["load"]), "strategy", *titles, *more)
    return Table("What was measured", columns, rows, len(columns) - len(titles) - len(more))


def _value(name: str, value: float | None) -> str:
    shown = UNITS.get(METRICS[name].unit)
    if missing(value):
        return MISSING
    return str(shown(value)) if shown else _short(value)


def _latencies(verdict: Mapping[str, Any]) -> Table:
    rows = []
    for first, at in _everyone(verdict):
        for kind, spread in at["latencies"].items():
            if any(spread.values()):
                rows.append((*first, kind, *map(_percentile, spread.values()), count((spread["p50"] or {}).get("n"))))
    columns = (*_at(verdict, ["load"]), "strategy", "what", "p50", "p90", "p99", "n")
    return Table("Latencies in ms", columns, tuple(rows), words=len(columns) - 4)


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
            *first,
            one["what"],
            one["bound"],
            size(one["moved_bytes"]),
            f"{general(one['flop'] / 1e9)} GFLOP",
            _ms(one["seconds"]),
            _ms(one["measured_s"]),
            f"{general(one['gap'])} times",
        )
        for first, at in _everyone(verdict)
        for one in at["roofline"]
    )
    columns = ("strategy", "what", "bound by", "moves", "runs", "limit (ms)", "measured (ms)", "gap")
    return Table("Roofline", (*_at(verdict, ["load"]), *columns), rows, words=len(_at(verdict, ["load"])) + 3)


def _memory(verdict: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            *first,
            size(at["memory"]["stored_bytes"]),
            size(at["memory"]["formula_bytes"]),
            count(at["memory"]["kv_bytes_per_token"]),
            size(at["memory"]["peak_bytes"]),
        )
        for first, at in _everyone(verdict)
        if at["memory"]
    )
    columns = (*_at(verdict, ["load"]), "strategy", "stored", "formula", "bytes a token", "peak")
    return Table("Memory", columns, rows, words=len(columns) - 4)


def markdown(page: BenchPage) -> str:
    """The report for a pull request or a model card."""
    blocks = [f"# kvgate bench: {escape(page.title)}", f"**{escape(page.headline)}** Made {escape(page.created)}."]
    blocks += [f"> **Note:** {escape(note)}" for note in page.notes]
    for table, note in page.tables:
        blocks += [f"## {table.title}", table_grid(table), *([escape(note)] if note else [])]
    for plot in page.plots:
        blocks += [f"## {plot.title}", f"![{escape(plot.alt)}](plots/{plot.name}.png)", escape(plot.caption)]
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
