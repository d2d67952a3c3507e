"""The verdict as a table for a terminal, printed at the end of a run. ASCII but for the dash of a missing number."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import families, ladders, sentences
from harness.report.format import MINUS, general, interval, number, percent, plain, shorten, signed
from harness.report.outlook import Cell, Outlook
from harness.report.tables import Table
from harness.types import Decision

NAME_LIMIT = 28
_SHORT = {Decision.INCONCLUSIVE: "INCONCL"}
GAP = "  "


def text_table(verdict: Mapping[str, Any], width: int | None = None, by: str = "task") -> str:
    """Strategies by tasks, as many tasks beside each other as fit into ``width``, the others below; or families of tasks.

    Args:
        verdict: Content of verdict.json.
        width: Columns of the terminal; asked of the terminal if None, 100 where there is none.
        by: task, or family: families by strategies, and which stack to take for which task.
    """
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 60)
    outlook = Outlook(verdict)
    blocks = _by_family(outlook, width) if by == "family" else _by_task(outlook, width)
    return "\n\n".join([_title(outlook), *blocks, *_comparisons(outlook, width), *_footer(outlook, width)]) + "\n"


def _by_task(outlook: Outlook, width: int) -> list[str]:
    head = _column(["strategy", *(shorten(safe_line(entry["name"]), NAME_LIMIT, "..") for entry in outlook.strategies)])
    share = _column(["KV share", *(outlook.memory(entry["name"]) for entry in outlook.strategies)])
    overall = _column(["verdict", *(entry["decision"] for entry in outlook.strategies)])
    fixed = [head, overall, share]
    columns = [_task(outlook, column) for column in outlook.columns]
    return [_block(fixed, group) for group in _groups(fixed, columns, width)]


def _by_family(outlook: Outlook, width: int) -> list[str]:
    """Families of tasks and routes; a sentence where there is nothing to put beside each other."""
    wrap = textwrap.TextWrapper(width=width, subsequent_indent="  ")
    found = families.families(outlook)
    one_task = "Families of tasks: one task was judged, so there is no mean to take."
    means = (
        [table_text(families.families_table(found)), wrap.fill(safe_line(families.FAMILIES_NOTE))]
        if found
        else [one_task]
    )
    return [*means, *_routes(outlook, wrap)]


def _routes(outlook: Outlook, wrap: textwrap.TextWrapper) -> list[str]:
    found = families.routes(outlook)
    if not found:
        return ["Which stack for which task: one strategy was judged, so there is nothing to choose."]
    reasons = [wrap.fill(safe_line(f"{route.task}: {route.reason}")) for route in found if route.reason]
    return [table_text(families.routes_table(found)), "\n".join([*reasons, wrap.fill(safe_line(families.ROUTES_NOTE))])]


def table_text(table: Table) -> str:
    """A table of the report as columns of text under its title; reasons are too long for a column."""
    columns = [
        _column([shorten(safe_line(text), 34, "..") for text in (name, *(row[at] for row in table.rows))])
        for at, name in enumerate(table.columns)
        if name != families.WHY
    ]
    return f"{table.title}\n\n{_block([], columns)}"


def _task(outlook: Outlook, column: tuple[str, str]) -> list[str]:
    cells = [outlook.cell(entry["name"], column) for entry in outlook.strategies]
    gating = any(cell and cell.get("gating") for cell in cells)
    label = safe_line(outlook.label(column)) + ("" if gating else " (not gating)")
    return _column([shorten(label, 34, ".."), *map(_cell, cells)])


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "not run"
    decision = Decision(cell["decision"])
    if decision == Decision.MEASURED:
        fidelity = cell.get("fidelity") or {}
        text = f"KL {number(fidelity.get('kl_mean'), 4)} top-1 {percent(fidelity.get('top1_agreement'))}"
    else:
        text = f"{signed(cell.get('delta'))} {interval(cell.get('ci_low'), cell.get('ci_high'))}".rstrip()
        text = f"{_SHORT.get(decision, decision.value):<7} {text}"
    return text.replace(MINUS, "-")


def _column(cells: Sequence[str]) -> list[str]:
    """Cells padded to one width, with a rule under the first."""
    wide = max(map(len, cells))
    head, *rest = (cell.ljust(wide) for cell in cells)
    return [head, "-" * wide, *rest]


def _groups(fixed: list[list[str]], columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """The task columns dealt into blocks that fit; a block holds at least one."""
    room = width - sum(len(column[0]) + len(GAP) for column in fixed)
    groups: list[list[list[str]]] = [[]]
    used = 0
    for column in columns:
        needed = len(column[0]) + len(GAP)
        if groups[-1] and used + needed > room:
            groups.append([])
            used = 0
        groups[-1].append(column)
        used += needed
    return groups


def _block(fixed: list[list[str]], group: list[list[str]]) -> str:
    return "\n".join(GAP.join(line).rstrip() for line in zip(*fixed, *group, strict=True))


def _title(outlook: Outlook) -> str:
    gate, looks = outlook.gate, plain(outlook.gate.get("looks"))
    return safe_line(
        f"{plain(outlook.verdict.get('name'))}: {plain(outlook.model.get('id'))}, margin {general(gate.get('margin'))} "
        f"{gate.get('margin_kind') or 'absolute'}, alpha {general(gate.get('alpha'))} one-sided over {looks} looks"
        + (f"; {outlook.generated}" if outlook.generated else "")
    )


def _comparisons(outlook: Outlook, width: int) -> list[str]:
    wrap = textwrap.TextWrapper(width=width, subsequent_indent="  ")
    lines = [wrap.fill(safe_line(sentences.comparison_why(outlook, pair))) for pair in outlook.comparisons]
    return ["\n".join(["Candidate against candidate", *lines])] if lines else []


def _footer(outlook: Outlook, width: int) -> list[str]:
    wrap = textwrap.TextWrapper(width=width, subsequent_indent="  ")
    why = [
        wrap.fill(safe_line(f"{entry['name']}: {entry['decision']}. {sentences.why(entry)}"))
        for entry in outlook.strategies
        if entry["decision"] != Decision.GO
    ]
    notes = [wrap.fill(safe_line(f"note: {note}")) for note in outlook.verdict.get("notes") or ()]
    legend = (
        f"delta [CI] = strategy - full; KV share of the full cache, formula at "
        f"{outlook.deploy_dtype}. Holds for this model and these tasks; speed was not measured."
    )
    notes += [wrap.fill(safe_line(told))] if (told := sentences.reused(outlook)) else []
    certified = [wrap.fill(safe_line(f"{sentence}.")) for sentence in ladders.told(outlook)]
    return ["\n".join(part) for part in (certified, why, notes, [wrap.fill(safe_line(legend))]) if part]


def safe_line(text: str) -> str:
    """Text that cannot move the cursor or start a colour: names and reasons may come from anywhere."""
    return "".join(char if char.isprintable() else " " for char in text).replace(MINUS, "-")
