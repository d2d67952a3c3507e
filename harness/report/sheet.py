"""The tables of a report as CSV, safe to open in a spreadsheet: cells, pairs of candidates, families, routes, ladders."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from harness.report import families, ladders
from harness.report.format import missing
from harness.report.outlook import Outlook, fraction

CELL_FIELDS = (
    *("strategy", "task", "mode", "decision", "gating", "n", "clusters", "baseline", "score", "delta", "ci_low"),
    *("ci_high", "margin", "alpha", "p_value", "test", "gained", "lost", "lost_pairs", "flip_rate", "noise_flip_rate"),
    *(
        "control_delta",
        "kernel_delta",
        "n_needed",
        "n_needed_observed",
        "min_margin",
        "look",
        "looks",
        "left_out",
        "not_acted",
        "stopped_at",
        "saved",
    ),
    *("truncated", "failed", "failed_baseline", "degenerate_baseline", "degenerate", "at_limit_baseline", "at_limit"),
    *("output_tokens_baseline", "output_tokens", "thinking_cut_baseline", "thinking_cut", "family", "address"),
)
COMPARISON_FIELDS = (
    *("a", "b", "task", "mode", "finding", "within_margin", "n", "clusters", "samples", "a_score", "b_score", "delta"),
    *("ci_low", "ci_high", "margin", "alpha", "p_value", "p_holm", "p_equivalence", "test", "a_alone", "b_alone"),
    *("flip_rate", "n_needed", "n_needed_observed", "look", "looks", "left_out", "not_acted"),
)
FIDELITY_FIELDS = ("kl_mean", "kl_p99", "top1_agreement", "nll_delta")
MEMORY_FIELDS = (
    *("formula_bytes_per_token", "stored_bytes_per_token", "peak_bytes", "kept_fraction", "deploy_bytes_per_token"),
    *("deploy_full_bytes_per_token", "working_bytes_per_token"),
)

FORMULA_STARTS = tuple("=+-@\t\r＝＋－＠")


def render(verdict: Mapping[str, Any]) -> str:
    """The table as CSV text. A null is an empty field; the header is the same for every verdict."""
    outlook = Outlook(verdict)
    rows = [_row(outlook, strategy, cell) for strategy in outlook.strategies for cell in outlook.of(strategy["name"])]
    return csv_text(_row(outlook, {}, {}), rows)


def comparisons(verdict: Mapping[str, Any]) -> str:
    """Candidate against candidate as CSV text; empty if there is no such comparison."""
    outlook = Outlook(verdict)
    rows = [_comparison(outlook, pair) for pair in outlook.comparisons]
    return csv_text(_comparison(outlook, {}), rows) if rows else ""


def families_sheet(verdict: Mapping[str, Any]) -> str:
    """Families of tasks by strategies as CSV text; empty if one task was judged."""
    outlook = Outlook(verdict)
    rows = [{**_run(outlook), **asdict(one), **one.decisions} for one in families.families(outlook)]
    for row in rows:
        del row["decisions"]
    return csv_text(rows[0], rows) if rows else ""


def routing(verdict: Mapping[str, Any]) -> str:
    """The stack to take for each task as CSV text; empty if one strategy was judged."""
    outlook = Outlook(verdict)
    rows = [{**_run(outlook), **asdict(route)} for route in families.routes(outlook)]
    return csv_text(rows[0], rows) if rows else ""


def ladders_sheet(verdict: Mapping[str, Any]) -> str:
    """The points of the ladders' curves as CSV text; empty if there is no ladder."""
    outlook = Outlook(verdict)
    rows = [{**_run(outlook), **row} for row in ladders.rows(outlook)]
    return csv_text(rows[0], rows) if rows else ""


def csv_text(header: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of the same keys as CSV text: what is missing is an empty field, and no text is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_field(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _run(outlook: Outlook) -> dict[str, Any]:
    return {"run": outlook.verdict.get("name"), "model": outlook.model.get("id"), "seed": outlook.verdict.get("seed")}


def _comparison(outlook: Outlook, pair: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_run(outlook),
        **{name: pair.get(name) for name in COMPARISON_FIELDS},
        "reasons": "; ".join(pair.get("reasons") or ()),
    }


def _row(outlook: Outlook, strategy: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    verdict, ladder = outlook.verdict, strategy.get("ladder") or {}
    fidelity, memory = cell.get("fidelity") or {}, cell.get("memory") or {}
    return {
        "run": verdict.get("name"),
        "model": outlook.model.get("id"),
        "revision": outlook.model.get("revision"),
        "seed": verdict.get("seed"),
        "stack": strategy.get("stack"),
        "strategy_decision": strategy.get("decision"),
        "ladder_policy": ladder.get("policy"),
        "ladder_option": ladder.get("option"),
        "ladder_value": ladder.get("value"),
        "ladder_certified": ladder.get("certified"),
        **{name: cell.get(name) for name in CELL_FIELDS},
        "reasons": "; ".join(cell.get("reasons") or ()),
        **{f"fidelity_{name}": fidelity.get(name) for name in FIDELITY_FIELDS},
        **{f"memory_{name}": memory.get(name) for name in MEMORY_FIELDS},
        "memory_deploy_fraction": fraction(cell),
    }


def _field(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets a leading quote; numbers stay numbers."""
    if missing(value):
        return ""
    if isinstance(value, str) and value.lstrip(" \n").startswith(FORMULA_STARTS):
        return "'" + value
    return value
