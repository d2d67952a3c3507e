"""The report of runs against a run: what moved, what differs, what was not compared. Reads comparison.json and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.places import Place, encode, write_atomic
from harness.report.format import (
    MINUS,
    MISSING,
    count,
    gain_limits,
    general,
    interval,
    missing,
    number,
    percent,
    plain,
    signed,
    size,
)
from harness.report.html import template
from harness.report.markdown import bullets, escape, table_grid
from harness.report.page import badge
from harness.report.tables import DECISION, Table
from harness.report.terminal import safe_line, table_text

WIDTH = 100  # of lines of prose in a terminal
UNITS: Mapping[str, Any] = {"s": lambda value: f"{general(1000 * value)} ms", "bytes": size}
ALL = "all"

BASELINE_NOTE = (
    "Score of the full cache in both runs, on the samples that both have. Where it moved, the model, the engine or the machine "
    "did, and no setting."
)
CANDIDATE_NOTE = "The paired difference of the setting's own scores."
COST_NOTE = (
    "Cost: setting - full cache within each run. By how much that moved says whether the setting itself became better or worse, "
    "whatever the baseline did."
)
SPEED_NOTE = (
    "A gain is by how many times the setting was better than the full cache beside it, with the limits of that run. The runs "
    "were not measured in alternation, so neither the quotient nor anything between their times has an interval."
)
REMARKS = {
    "unfinished": "samples are not finished in both runs",
    "left_out": "pairs are left out: infrastructure failures",
    "not_acted": "samples are not counted: their prompts gave the layers nothing to do",
    "prompts_differ": "pairs are the same sample fed as other tokens: another tokenizer or chat template",
}
SCOPE = (
    "This describes and decides nothing: each decision is its run's own, under the gate of that run.",
    "Intervals hold 95 % each, of paired differences, exact or by betting as in the verdicts. They are not corrected for how "
    "many there are.",
    "Only samples are paired that are the same in both runs, by all that the model sees and is judged by.",
    "What moved may be the doing of anything that differs, listed above, or of chance where answers are not computed alike.",
)


@dataclass(frozen=True)
class Part:
    """One run against the reference."""

    title: str
    headline: str
    tables: tuple[tuple[Table, str], ...]  # each with what it means
    untold: tuple[str, ...]  # what was not compared and why, and what to mind of the pairs that were


@dataclass(frozen=True)
class ComparisonPage:
    """What the report says, in its order."""

    title: str
    runs: Table
    notes: tuple[str, ...]
    parts: tuple[Part, ...]
    scope: tuple[str, ...]
    command: str


def write(folder: Place, comparison: Mapping[str, Any]) -> Place:
    """Write comparison.html and comparison.md into ``folder``; returns the HTML page."""
    page = build(comparison)
    write_atomic(folder / "comparison.md", encode(markdown(page)))
    whole = template("between.html.j2").render(page=page, decision_column=DECISION)
    return write_atomic(folder / "comparison.html", encode(whole))


def build(comparison: Mapping[str, Any]) -> ComparisonPage:
    """The page of a comparison, schema ``kvgate.comparison/1``."""
    runs = comparison["runs"]
    facts = ("model", "engine", "kvgate", "git", "created", "command")
    rows = tuple((run["name"], *(plain(run[fact]) for fact in facts)) for run in runs)
    reference, *others = [run["name"] for run in runs]
    return ComparisonPage(
        title=f"{', '.join(others)} against {reference}",
        runs=Table("The runs", ("run", *facts), rows, words=len(facts) + 1),
        notes=tuple(f"{run['name']}: {note}" for run in runs for note in run["notes"]),
        parts=tuple(_part(reference, one) for one in comparison["against"]),
        scope=SCOPE,
        command=comparison["command"],
    )


def _part(reference: str, against: Mapping[str, Any]) -> Part:
    names = (reference, against["run"])
    tables = (
        (_decisions(names, against), _why(names, against)),
        (_baselines(names, against), BASELINE_NOTE),
        (_candidates(names, against), CANDIDATE_NOTE),
        (_costs(names, against), COST_NOTE),
        (
            _memory(names, against),
            "Bytes of a prompt token as stored, and against the full cache at the dtype to deploy.",
        ),
        (
            _fidelity(names, against),
            "Along each run's own baseline's words: two measurements, with no pairs between them.",
        ),
        (_speed(names, against), SPEED_NOTE),
        (_differences(names, against), "Field by field, from what each run stored of itself."),
    )
    return Part(
        title=f"{names[1]} against {names[0]}",
        headline=_headline(against),
        tables=tuple((table, note) for table, note in tables if table.rows),
        untold=(*map(_untold, against["not_compared"]), *_remarks(against)),
    )


def _headline(against: Mapping[str, Any]) -> str:
    """The answer in three sentences: decisions, baselines, settings."""
    both = [one for one in against["strategies"] if one["reference"] and one["other"]]
    changed = [f"{one['name']} {one['reference']} → {one['other']}" for one in both if one["reference"] != one["other"]]
    judged = f"Of {len(both)} decisions {len(changed)} changed" if both else "No strategy was judged in both runs"
    baselines = [one["baseline"] for one in against["tasks"] if one["baseline"]]
    shifts = [one["shift"] for one in against["cells"] if one["shift"]]
    effects = [one["effect"] for one in against["cells"] if one["effect"]]
    moved = [
        f"{_apart(found)} of {len(found)} {what}"
        for what, found in (
            ("baselines", baselines),
            ("scores of settings", shifts),
            ("costs of settings", effects),
        )
        if found
    ]
    intervals = len(baselines) + len(shifts) + len(effects)
    told = f" Moved, by an interval without 0: {', '.join(moved)}." if moved else " Nothing could be paired."
    chance = f" By chance alone about {general(intervals / 20, 2)} of {intervals} intervals would." if moved else ""
    return f"{judged}{': ' + ', '.join(changed) if changed else ''}.{told}{chance}"


def _apart(found: Sequence[Mapping[str, Any]]) -> int:
    return sum(one["ci_low"] > 0 or one["ci_high"] < 0 for one in found)


def _decisions(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    rows = tuple(
        (one["name"], *(badge(one[side]) if one[side] else "not judged" for side in ("reference", "other")))
        for one in against["strategies"]
    )
    return Table("Decisions", ("strategy", *names), rows, words=3)


def _why(names: tuple[str, str], against: Mapping[str, Any]) -> str:
    """What the other run gives as the reason of each decision that changed."""
    told = [f"{one['name']} in {names[1]}: {' '.join(one['why'])}" for one in against["strategies"] if one["why"]]
    return " ".join(told)


def _baselines(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    rows = tuple((_where(one), *_shift(one["baseline"])) for one in against["tasks"] if one["baseline"])
    return Table("Did the baseline move?", ("task", *_shift_columns(names)), rows)


def _candidates(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    rows = tuple((one["strategy"], _where(one), *_shift(one["shift"])) for one in against["cells"] if one["shift"])
    return Table("Did the settings move?", ("strategy", "task", *_shift_columns(names)), rows, words=2)


def _costs(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    columns = ("strategy", "task", "decisions", "n", *(f"cost in {name}" for name in names), "moved", "95 % of it")
    rows = tuple(
        (one["strategy"], _where(one), _decided(one), *_effect(one["effect"]))
        for one in against["cells"]
        if one["effect"]
    )
    return Table("Did what they cost move?", columns, rows, words=3)


def _where(one: Mapping[str, Any]) -> str:
    return f"{one['task']} ({one['mode']})"


def _decided(cell: Mapping[str, Any]) -> str:
    return " → ".join(dict.fromkeys(cell[side]["decision"] for side in ("reference", "other")))


def _shift_columns(names: tuple[str, str]) -> tuple[str, ...]:
    return ("n", *names, "moved", "95 % of it", "gained", "lost")


def _shift(shift: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        count(shift["n"]),
        number(shift["reference"]),
        number(shift["other"]),
        signed(shift["delta"]),
        interval(shift["ci_low"], shift["ci_high"]),
        count(shift["gained"]),
        count(shift["lost"]),
    )


def _effect(effect: Mapping[str, Any]) -> tuple[str, ...]:
    means = (signed(effect[key]) for key in ("reference", "other", "delta"))
    return (count(effect["n"]), *means, interval(effect["ci_low"], effect["ci_high"]))


def _memory(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    held = ("reference", "other")
    columns = (
        "strategy",
        "task",
        *(f"B/token in {name}" for name in names),
        *(f"share in {name}" for name in names),
    )
    rows = tuple(
        (
            one["strategy"],
            _where(one),
            *(count(one[side]["stored_bytes_per_token"]) for side in held),
            *(percent(one[side]["kv_share"]) for side in held),
        )
        for one in against["cells"]
        if not all(missing(one[side]["stored_bytes_per_token"]) for side in held)
    )
    return Table("Stored bytes (measured) and share (by formula)", columns, rows, words=2)


def _fidelity(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    measures = (("kl_mean", "KL"), ("top1_agreement", "top-1"))
    columns = ("strategy", "task", *(f"{told} in {name}" for _, told in measures for name in names))
    rows = tuple(
        (
            one["strategy"],
            _where(one),
            *(number(one[side]["fidelity"].get(key), 4) for key, _ in measures for side in ("reference", "other")),
        )
        for one in against["cells"]
        if one["reference"]["fidelity"] and one["other"]["fidelity"]
    )
    return Table("Fidelity", columns, rows, words=2)


def _speed(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    columns = ("strategy", "load", "metric", *(f"gain in {name}" for name in names), "quotient")
    columns += tuple(f"{what} in {name}" for what in ("setting", "full") for name in names)
    rows = tuple(
        (
            one["strategy"],
            one["load"] or "the load",
            one["metric"],
            *(gain_limits({**one[side], "mean": one[side]["gain"]}) for side in ("reference", "other")),
            general(one["quotient"]),
            *(_value(one, side, key) for key in ("value", "baseline_value") for side in ("reference", "other")),
        )
        for one in against["payoffs"]
    )
    return Table("What it pays", columns, rows, words=3)


def _value(one: Mapping[str, Any], side: str, key: str) -> str:
    value = one[side][key]
    if missing(value):
        return MISSING
    shown = UNITS.get(one["unit"])
    return str(shown(value)) if shown else f"{general(value, 4)} {one['unit']}"


def _differences(names: tuple[str, str], against: Mapping[str, Any]) -> Table:
    rows = tuple((one["field"], plain(one["reference"]), plain(one["other"])) for one in against["differences"])
    return Table("What differs", ("field", *names), rows, words=3)


def _untold(one: Mapping[str, Any]) -> str:
    where = [one["strategy"], one["task"] and _where(one)]
    return f"{', '.join(filter(None, where)) or ALL}: {one['why']}"


def _remarks(against: Mapping[str, Any]) -> Iterator[str]:
    """Samples that are no pair, and pairs of one sample that was fed otherwise."""
    found = [
        *(("full", one, one["baseline"]) for one in against["tasks"]),
        *((one["strategy"], one, one["shift"]) for one in against["cells"]),
    ]
    for strategy, one, shift in found:
        for key, told in REMARKS.items():
            if shift and shift[key]:
                yield f"{strategy}, {_where(one)}: {shift[key]} {told}"


def markdown(page: ComparisonPage) -> str:
    """The comparison for a pull request."""
    blocks = [f"# kvgate: {escape(page.title)}"]
    blocks += [f"> **Note:** {escape(note)}" for note in page.notes]
    for part in page.parts:
        blocks += [f"## {escape(part.title)}", f"**{escape(part.headline)}**"]
        for table, note in part.tables:
            blocks += [f"### {escape(table.title)}", table_grid(table), *([escape(note)] if note else [])]
        blocks += [
            "### Not compared, and what to mind",
            bullets(part.untold) if part.untold else "Everything was compared.",
        ]
    blocks += ["## What this claims, and what it does not", bullets(page.scope)]
    blocks += [f"## {page.runs.title}", table_grid(page.runs), "## How to reproduce", f"    {escape(page.command)}"]
    return "\n\n".join(blocks) + "\n"


def text(comparison: Mapping[str, Any]) -> str:
    """The same for a terminal."""
    page = build(comparison)
    blocks = [page.title, *_wrapped([f"note: {note}" for note in page.notes])]
    for part in page.parts:
        blocks += _wrapped([f"{part.title}: {part.headline}"])
        for table, note in part.tables:
            blocks += [table_text(table).replace(MINUS, "-"), *_wrapped([note] * bool(note))]
        blocks += _wrapped([f"note: {why}" for why in part.untold])
    return "\n\n".join([*blocks, *_wrapped(page.scope)]) + "\n"


def _wrapped(prose: Sequence[str]) -> list[str]:
    lines = [textwrap.fill(safe_line(one), WIDTH, subsequent_indent="  ") for one in prose]
    return ["\n".join(lines)] if lines else []
