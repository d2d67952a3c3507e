"""A plan as text for a terminal, as Markdown, or as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.report.format import MISSING, general, plain
from harness.report.markdown import escape, grid
from harness.report.tables import Table
from harness.report.terminal import safe_line, table_text
from harness.sizing.section import Section

SCHEMA = "kvgate.plan/1"
LONG = 34  # characters; of a column of text; what is longer has its own line


def as_json(told: Mapping[str, Section], facts: Mapping[str, Any], command: Sequence[str]) -> str:
    sections = {name: asdict(section) for name, section in told.items()}
    return json.dumps(
        {"schema": SCHEMA, "command": " ".join(command), **facts, "sections": sections},
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def as_text(told: Mapping[str, Section], left_out: Sequence[str]) -> str:
    width = max(shutil.get_terminal_size((120, 24)).columns, 80)
    parts = [_section_text(name, section, width) for name, section in told.items()]
    return "\n\n".join([*parts, *(f"left out: {reason}" for reason in left_out)])


def as_markdown(told: Mapping[str, Section], left_out: Sequence[str]) -> str:
    """A heading, a table and a quote for each part."""
    parts = [_section_markdown(name, section) for name, section in told.items()]
    return "\n\n".join([*parts, *(f"Left out: {escape(reason)}" for reason in left_out)])


def _section_markdown(name: str, section: Section) -> str:
    cells = _cells(section)
    table = grid([_header(one) for one in cells[0]], ([escape(text) for text in row.values()] for row in cells))
    notes = "\n".join(f"- {escape(note)}" for note in section.notes)
    parts = (f"### {name}: {escape(section.title)}", table, f"> {escape(section.advice)}", notes)
    return "\n\n".join(part for part in parts if part)


def _section_text(name: str, section: Section, width: int) -> str:
    wrap = textwrap.TextWrapper(width=width, subsequent_indent="  ")
    cells = _cells(section)
    long = any(len(text) > LONG for row in cells for text in row.values())
    body = _records(cells, width) if long else _table(cells)
    lines = [*(f"note: {note}" for note in section.notes), f"> {section.advice}"]
    said = [wrap.fill(safe_line(line)) for line in lines]
    return "\n".join([wrap.fill(safe_line(f"[{name}] {section.title}")), "", body, "", *said])


def _cells(section: Section) -> list[dict[str, str]]:
    """Rows as text; a column that is empty in every row is left out."""
    names = [name for name in section.rows[0] if any(row[name] is not None for row in section.rows)]
    return [{name: _cell(row[name]) for name in names} for row in section.rows]


def _header(name: str) -> str:
    return name.replace("_", " ")


def _table(cells: Sequence[Mapping[str, str]]) -> str:
    rows = tuple(tuple(row.values()) for row in cells)
    return table_text(Table("", tuple(map(_header, cells[0])), rows)).strip("\n")


def _records(cells: Sequence[Mapping[str, str]], width: int) -> str:
    """Rows with texts that are too long for a column: the first value, the short ones behind it, a line for each long one."""
    wrap = textwrap.TextWrapper(width=width, initial_indent="  ", subsequent_indent="    ")
    lines = []
    for row in cells:
        (_, head), *rest = ((_header(name), safe_line(text)) for name, text in row.items())
        short = ", ".join(f"{name} {text}" for name, text in rest if len(text) <= LONG and text != MISSING)
        lines += [head, wrap.fill(short)]
        lines += [wrap.fill(f"{name}: {text}") for name, text in rest if len(text) > LONG]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else general(value, 4)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)
