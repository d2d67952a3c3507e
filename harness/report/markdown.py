"""The report in short, as Markdown, for a pull request or a model card: the answer, what it rests on, two pictures.

What one reads of a single cell (evidence, memory, flipped samples) is in report.html. The pictures stand beside as files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.report.format import visible
from harness.report.page import Card, Page, Square, badge
from harness.report.plots import Plot
from harness.report.tables import DECISION, Table

PICTURES = 2  # the first ones: decisions at a glance, and what they cost in bytes


def render(page: Page, pictures: Sequence[Plot], metadata: str = "") -> str:
    """The whole report; blocks are parted by one empty line. ``metadata`` is YAML for a model card."""
    return "\n\n".join((*_answer(page), *_blocks(page, pictures, metadata))) + "\n"


def summary(page: Page) -> str:
    """The report's beginning: the answer, and the table of strategies by tasks."""
    return "\n\n".join(_answer(page)) + "\n"


def first_words(page: Page) -> str:
    """The sentence that answers, under the report's title."""
    return f"# kvgate report: {escape(page.title)}\n\n**{escape(page.headline)}** Made {escape(page.created)}."


def _answer(page: Page) -> Iterator[str]:
    yield first_words(page)
    for note in page.notes:
        yield f"> **Note:** {escape(note)}"
    yield "## Verdict"
    yield grid(
        ("decision", "strategy", "layers", "KV share", "why"),
        [
            (f"**{badge(card.decision)}**", *map(escape, (card.strategy, _layers(card), card.memory, card.why)))
            for card in page.cards
        ],
    )
    yield escape(page.memory_quoted)
    yield bullets(page.scope)
    yield "## Strategies by tasks"
    yield grid(
        ("strategy", "overall", *map(escape, page.matrix_columns)),
        [
            (escape(card.strategy), f"**{badge(card.decision)}**", *(_square(square) for square in squares))
            for card, squares in page.matrix
        ],
    )
    yield escape(page.matrix_note)


def _blocks(page: Page, pictures: Sequence[Plot], metadata: str) -> Iterator[str]:
    for table, note in ((page.routes, page.routes_note), (page.families, page.families_note)):
        if table.rows:
            yield f"## {table.title}"
            yield table_grid(table)
            yield escape(note)
    if page.comparisons.rows:
        yield f"## {page.comparisons.title}"
        yield table_grid(page.comparisons)
        yield bullets(page.comparison_whys)
        yield escape(page.comparisons_note)
    yield "## What to do next"
    yield table_grid(page.next_steps) if page.next_steps.rows else "Every strategy is decided."
    yield "## Task by task"
    for part in page.tasks:
        yield f"### {escape(part.label)}"
        for table in part.tables:
            yield f"**{table.title}**"
            yield table_grid(table)
        for table in part.inside:
            yield f"**{escape(table.title)}**"
            yield table_grid(table)
        if part.inside:
            yield escape(page.inside_note)
    yield bullets(f"{term}: {meaning}" for term, meaning in page.glossary)
    yield "## Plots"
    for picture in pictures[:PICTURES]:
        yield f"![{escape(picture.alt)}](plots/{picture.name}.png)"
        yield f"*{escape(picture.caption)}*"
    yield "More of them, and the evidence, memory and flipped samples of each cell, are in report.html."
    yield "## Provenance"
    for table in page.provenance:
        yield f"**{table.title}**"
        yield table_grid(table)
    yield "## How to reproduce"
    for purpose, command in page.reproduce:
        yield f"{escape(purpose)}:"
        yield fenced(command)
    if metadata:
        yield "## For a model card"
        yield "Metadata of what is GO; n and limits stand beside each difference."
        yield fenced(metadata.rstrip("\n"), "yaml")


def _square(square: Square | None) -> str:
    if square is None:
        return "not run"
    lines = (f"**{badge(square.decision)}**", escape(square.first), escape(square.second))
    return "<br>".join(lines if square.gating else (*lines, "*not gating*"))


def _layers(card: Card) -> str:
    return "; ".join(filter(None, (card.stack, card.ladder))) or "no stack recorded"


def table_grid(table: Table) -> str:
    badges = table.columns.index(DECISION) if DECISION in table.columns else -1
    rows = [[f"**{badge(text)}**" if i == badges else escape(text) for i, text in enumerate(row)] for row in table.rows]
    return grid(list(map(escape, table.columns)), rows, table.words)


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int | None = None) -> str:
    """A pipe table of cells that are Markdown already; columns after the first ``words`` are aligned right."""
    rules = ["---" if words is None or i < words else "---:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, rules, *rows))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {escape(item)}" for item in items)


def escape(text: str) -> str:
    """One line of Markdown that shows ``text`` and does nothing else: no tag, link, picture, table or emphasis."""
    line = " ".join(visible(str(text)).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*|])", r"\\\1", line)
    return re.sub(r"\](?=[(\[:])", r"\]", line)


def fenced(text: str, language: str = "text") -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    text = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
