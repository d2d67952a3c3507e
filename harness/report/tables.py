"""The tables of the report: text in columns, with nothing about how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.report import sentences
from harness.report.format import (
    MISSING,
    count,
    flat,
    general,
    interval,
    missing,
    number,
    p_value,
    percent,
    plain,
    signed,
    size,
)
from harness.report.outlook import Cell, Outlook, at, fraction
from harness.types import Decision

OPEN = (Decision.INCONCLUSIVE, Decision.VOID)
DECISION = "decision"  # a column of this name holds badges


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns. The first ``words`` columns are text, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def of_task(outlook: Outlook, column: tuple[str, str]) -> tuple[Table, ...]:
    """What must always be printed of a task, each strategy a row."""
    pairs = [(entry["name"], outlook.cell(entry["name"], column)) for entry in outlook.strategies]
    return _of({name: cell for name, cell in pairs if cell}, outlook.judged(column))


def of_cell(cell: Cell) -> tuple[Table, ...]:
    """The same of one cell alone, as tables of one row."""
    return _of({cell["strategy"]: cell}, cell["decision"] != Decision.MEASURED)


def _of(cells: Mapping[str, Cell], judged: bool) -> tuple[Table, ...]:
    measured = {name: cell for name, cell in cells.items() if cell.get("fidelity")}
    return (*((_test(cells), _basis(cells)) if judged else ()), *((_fidelity(measured),) if measured else ()))


def _test(cells: Mapping[str, Cell]) -> Table:
    columns = ("strategy", DECISION, "n", "clusters", "full → it", "d", "CI of d", "δ", "min\N{NO-BREAK SPACE}δ")
    columns += ("b", "c", "ψ", "alpha", "p", "look")
    tests = list(dict.fromkeys(cell["test"] for cell in cells.values() if cell.get("test")))
    several = len(tests) > 1  # the samples of a task choose its test, so as a rule there is one
    columns += ("test",) * several
    rows = tuple(
        (
            name,
            cell["decision"],
            count(cell.get("n")),
            count(cell.get("clusters")),
            f"{number(cell.get('baseline'))} → {number(cell.get('score'))}",
            signed(cell.get("delta")),
            interval(cell.get("ci_low"), cell.get("ci_high")) or MISSING,
            general(cell.get("margin")),
            general(cell.get("min_margin")),
            count(cell.get("gained")),
            count(cell.get("lost")),
            percent(cell.get("flip_rate")),
            general(cell.get("alpha")),
            p_value(cell.get("p_value")),
            f"{count(cell.get('look'))} of {count(cell.get('looks'))}",
            *(cell.get("test") or MISSING,) * several,
        )
        for name, cell in cells.items()
    )
    return Table(f"The test{'' if several or not tests else f': {tests[0]}'}", columns, rows, words=2)


def _basis(cells: Mapping[str, Cell]) -> Table:
    columns = ("strategy", "gating", "noise ψ₀", "control d", "lost pairs", "truncated", "left out", "not acted")
    columns += ("failed, full → it", "degenerate, full → it", "at token limit, full → it", "output tokens, full → it")
    thinking = any(not missing(cell.get("thinking_cut")) for cell in cells.values())
    columns += ("thinking cut, full → it",) * thinking
    rows = tuple(
        (
            name,
            plain(cell.get("gating")),
            percent(cell.get("noise_flip_rate")),
            signed(cell.get("control_delta")),
            *(plain(cell.get(field)) for field in ("lost_pairs", "truncated", "left_out", "not_acted")),
            f"{count(cell.get('failed_baseline'))} → {count(cell.get('failed'))}",
            f"{count(cell.get('degenerate_baseline'))} → {count(cell.get('degenerate'))}",
            f"{count(cell.get('at_limit_baseline'))} → {count(cell.get('at_limit'))}",
            f"{_tokens(cell.get('output_tokens_baseline'))} → {_tokens(cell.get('output_tokens'))}",
            *(f"{percent(cell.get('thinking_cut_baseline'))} → {percent(cell.get('thinking_cut'))}",) * thinking,
        )
        for name, cell in cells.items()
    )
    return Table("What the test stands on", columns, rows)


def _tokens(value: float | None) -> str:
    return number(value, 1) if isinstance(value, float) and not missing(value) and value < 1000 else count(value)


def _fidelity(cells: Mapping[str, Cell]) -> Table:
    columns = ("strategy", DECISION, "n", "KL mean", "KL p99", "top-1 agreement", "NLL delta")
    ranked = sorted(cells.items(), key=lambda item: _or_last(item[1]["fidelity"].get("kl_mean")))
    rows = tuple(
        (
            name,
            cell["decision"],
            count(cell.get("n")),
            general(cell["fidelity"].get("kl_mean")),
            general(cell["fidelity"].get("kl_p99")),
            percent(cell["fidelity"].get("top1_agreement")),
            signed(cell["fidelity"].get("nll_delta"), 4),
        )
        for name, cell in ranked
    )
    return Table("Fidelity, closest to the full cache first", columns, rows, words=2)


def _or_last(value: float | None) -> float:
    return float("inf") if missing(value) else value


def comparisons(outlook: Outlook) -> Table:
    """Candidate against candidate, each pair and task a row."""
    columns = (
        "a",
        "b",
        "task",
        "finding",
        "n",
        "scores a, b",
        "d",
        "CI of d",
        "δ",
        "a, b alone",
        "alpha",
        "p",
        "p Holm",
    )
    columns += ("look", "left out", "not acted")
    rows = tuple(
        (
            pair["a"],
            pair["b"],
            outlook.label(at(pair)),
            finding(pair),
            f"{count(pair.get('n'))}{'' if missing(pair.get('clusters')) else ' clusters'}",
            f"{number(pair.get('a_score'))}, {number(pair.get('b_score'))}",
            signed(pair.get("delta")),
            interval(pair.get("ci_low"), pair.get("ci_high")) or MISSING,
            general(pair.get("margin")),
            f"{count(pair.get('a_alone'))}, {count(pair.get('b_alone'))}",
            general(pair.get("alpha")),
            p_value(pair.get("p_value")),
            p_value(pair.get("p_holm")),
            f"{count(pair.get('look'))} of {count(pair.get('looks'))}",
            *(plain(pair.get(field)) for field in ("left_out", "not_acted")),
        )
        for pair in outlook.comparisons
    )
    return Table("Candidate against candidate", columns, rows, words=4)


def finding(pair: Mapping[str, Any]) -> str:
    """The finding, with names in the place of a and b."""
    winner = {"a better": pair["a"], "b better": pair["b"]}.get(pair["finding"])
    if winner is None:
        return str(pair["finding"])
    return f"{winner} better{', but within δ' if pair.get('within_margin') else ''}"


def next_steps(outlook: Outlook) -> Table:
    """What would settle each strategy that is not settled: more samples, or the cause of a void put right.

    A strategy that is NO-GO is settled: no answer on another task would change it.
    """
    advice: dict[tuple[str, str, str], list[str]] = {}  # tasks that one sentence settles share a row
    for entry in outlook.strategies:
        for cell in outlook.of(entry["name"]) if entry["decision"] in OPEN else ():
            if cell["decision"] in OPEN:
                key = entry["name"], cell["decision"], sentences.next_step(outlook, cell)
                advice.setdefault(key, []).append(outlook.label(at(cell)))
    rows = tuple((name, ", ".join(tasks), decision, text) for (name, decision, text), tasks in advice.items())
    return Table("What to do next", ("strategy", "task", DECISION, "what would settle it"), rows, words=4)


def evidence(cell: Cell) -> Table:
    """What each layer says it did."""
    rows = tuple(
        (
            item.get("layer", MISSING),
            plain(item.get("acted")),
            item.get("why") or MISSING,
            plain(item.get("facts") or {}),
        )
        for item in cell.get("evidence") or ()
    )
    return Table("Did the layers act?", ("layer", "acted", "in its own words", "facts"), rows, words=4)


def loaded(cell: Cell) -> Table:
    """What the engine was found to be for this strategy, beside the baseline."""
    ours, theirs = cell.get("loaded_baseline") or {}, cell.get("loaded") or {}
    rows = tuple((key, _fact(ours.get(key)), _fact(theirs.get(key))) for key in dict.fromkeys((*ours, *theirs)))
    return Table("Read back from the engine", ("fact", "full", "with the strategy"), rows, words=3)


def _fact(value: Any) -> str:
    return (
        ", ".join(map(str, value)) or "none" if isinstance(value, list) else MISSING if value is None else plain(value)
    )


def memory(cell: Cell) -> Table:
    """Formula, storage and peak side by side; each column says whether it is predicted or measured. No row if none was told."""
    columns = ("tokens kept", "formula B/token (predicted)", "stored B/token (measured)", "stored / formula")
    columns += ("scratch copy B/token", "process peak (measured)", "deployed B/token (predicted)")
    columns += ("full cache deployed B/token", "KV share", "tokens in equal bytes (read back)")
    held = cell.get("memory")
    if held is None:
        return Table("Memory", columns, ())
    formula, stored = held.get("formula_bytes_per_token"), held.get("stored_bytes_per_token")
    known = not missing(formula) and not missing(stored) and formula
    row = (
        percent(held.get("kept_fraction")),
        count(formula),
        count(stored),
        number(stored / formula) if known else MISSING,
        count(held.get("working_bytes_per_token")),
        size(held.get("peak_bytes")),
        count(held.get("deploy_bytes_per_token")),
        count(held.get("deploy_full_bytes_per_token")),
        percent(fraction(cell)),
        MISSING if missing(ratio := cell.get("capacity_ratio")) else f"{ratio:.2f} ×",
    )
    return Table("Memory", columns, (row,))


def provenance(outlook: Outlook) -> tuple[Table, ...]:
    """Versions and hashes, as the verdict carries them."""
    verdict = outlook.verdict
    run = {
        "run": verdict.get("name"),
        "created": verdict.get("created"),
        "seed": verdict.get("seed"),
        "kvgate": verdict.get("kvgate"),
        "git": verdict.get("git"),
        "python": verdict.get("python"),
        "schema": verdict.get("schema"),
    }
    parts = {"Model": outlook.model, "Engine": verdict.get("engine") or {}, "Gate": outlook.gate, "Run": run}
    if outlook.generated:
        parts["Generation"] = verdict["gen"]
    return tuple(Table(title, ("fact", "value"), _facts(facts), words=2) for title, facts in parts.items())


def _facts(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, plain(value)) for name, value in flat(facts).items())
