"""A data set of the hub, or of a local folder, as a task: ``task=hub task.path=openai/gsm8k task.subset=main task.split=test``.

``DATASETS`` knows how some are laid out; any other needs ``task.columns``. What is on the disk is used without a network, and
HF_HUB_OFFLINE is honoured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.types import digest
from tasks import checks, formats, items
from tasks.given import Given
from tasks.items import Item, Items, Row


class Layout(NamedTuple):
    """How a data set's columns become the fields of an item.

    ``columns`` gives for a field a column's name, or a text with {columns} in it. ``scorers`` judges the rows that have one
    of its values in the column ``by``.
    """

    columns: Mapping[str, str] = {}
    scorer: str = "contains"
    max_new_tokens: int | None = None
    chance: float = 0.0
    by: str = ""
    scorers: Mapping[str, str] = {}


FIELDS = tuple(field.name for field in fields(Item) if field.name != "number")
_PLACE = re.compile(r"{(\w+)[^}]*}")
_CHOICES = "(A) {choice_A}\n(B) {choice_B}\n(C) {choice_C}\n(D) {choice_D}"
_REASONED = "{%s}\n\nThink step by step, and give the result %s."

DATASETS: Mapping[str, Layout] = {
    "Xnhyacinth/LongBench": Layout(),  # its rows are LongBench's own: tasks/formats.py reads them
    "THUDM/LongBench-v2": Layout(
        {
            "id": "_id",
            "context": "context",
            "question": "{question}\n\n" + _CHOICES + "\n\nSay which is right: The correct answer is (letter).",
            "answers": "answer",
            "task": "domain",
        },
        scorer="choice",
        max_new_tokens=128,
        chance=0.25,
    ),
    "RMT-team/babilong": Layout(
        {"context": "input", "question": "{question} Answer with one word.", "answers": "target"}, max_new_tokens=24
    ),
    "RMT-team/babilong-1k-samples": Layout(
        {"context": "input", "question": "{question} Answer with one word.", "answers": "target"}, max_new_tokens=24
    ),
    "simonjegou/ruler": Layout(
        {
            "context": "context",
            "question": "question",
            "answers": "answer",
            "answer_prefix": "answer_prefix",
            "max_new_tokens": "max_new_tokens",
            "task": "task",
        },
        scorer="all",
        by="task",
        scorers={"qa_1": "any", "qa_2": "any"},
    ),
    "openai/gsm8k": Layout(
        {"question": _REASONED % ("question", "at the end"), "answers": "answer"}, scorer="number", max_new_tokens=512
    ),
    "HuggingFaceH4/MATH-500": Layout(
        {
            "id": "unique_id",
            "question": _REASONED % ("problem", "in \\boxed{{}}"),
            "answers": "answer",
            "task": "subject",
        },
        scorer="math",
        max_new_tokens=1024,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Hub(Given):
    """Every row of one split is a question.

    Attributes:
        path: owner/name on the hub, or a folder that ``datasets`` can load.
        subset: The data set's configuration, if it has several.
        split: Which part of it.
        revision: A commit or tag on the hub.
        layout: The data set of ``DATASETS`` whose layout this one has. None: its own, if it is there.
        columns: For each field of an item a column's name, or a text with {columns} in it. They go before a known layout's.
    """

    path: str
    subset: str | None = None
    split: str = "test"
    revision: str | None = None
    layout: str | None = None
    columns: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.chance:
            object.__setattr__(self, "chance", self._layout.chance)

    @cached_property
    def data(self) -> Items:
        return items.read(self._rows(), self.unit(), self.fallback)

    @cached_property
    def data_digest(self) -> str:
        return digest([asdict(item) for item in self.data.items])

    def unit(self) -> str:
        return "row"

    def broken(self) -> list[str]:
        found = super().broken()
        if self.layout is not None:
            found += checks.one_of("task.layout", self.layout, DATASETS)
        for name in sorted((self.columns or {}).keys() - FIELDS):
            found += checks.one_of("a field in task.columns", name, FIELDS)
        return found

    def scorers_used(self) -> set[str]:
        if self.scorer is None and self._columns:
            layout = self._layout
            return {"" if "scorer" in self._columns else layout.scorer, *layout.scorers.values()}
        return {self.scorer_name}

    @property
    def _layout(self) -> Layout:
        return DATASETS.get(self.layout or self.path, Layout())

    @property
    def _columns(self) -> Mapping[str, str]:
        """For each field what it is made of; empty for rows whose fields are an item's already."""
        return {**self._layout.columns, **(self.columns or {})}

    def _rows(self) -> Iterator[tuple[int, Row | str]]:
        table = self._table()
        if not self._columns:
            yield from formats.translated(enumerate(table, 1), "auto", scored=self.scorer is None)
            return
        there = set(table.column_names)
        asked = {name for source in self._columns.values() for name in _names(source, there)}
        if self._layout.by:
            asked.add(self._layout.by)
        if unknown := sorted(asked - there):
            listed = ", ".join(sorted(there))
            raise ValueError(f"task.columns must name columns of the data ({listed}), got {', '.join(unknown)}")
        for number, row in enumerate(table, 1):
            yield number, self._item(row)

    def _item(self, row: Row) -> Row:
        """One row's fields, with what the layout adds to them."""
        layout = self._layout
        made = {name: _made(source, row) for name, source in self._columns.items()}
        made["answers"] = _texts(made.get("answers"))
        added = {"context": "", "question": ""}
        if self.scorer is None:
            added["scorer"] = layout.scorers.get(str(row.get(layout.by)), layout.scorer)
        if self.max_new_tokens is None and layout.max_new_tokens:
            made.setdefault("max_new_tokens", layout.max_new_tokens)
        return {**added, **made}

    def _table(self) -> Any:
        """The split, from the disk or the hub. Raises ValueError saying why there is none."""
        from datasets import disable_progress_bars, enable_progress_bars, load_dataset, load_from_disk

        saved = any((Path(self.path) / name).is_file() for name in ("state.json", "dataset_dict.json"))
        disable_progress_bars()
        try:
            if saved:
                table = load_from_disk(self.path)
                return table[self.split] if isinstance(table, dict) else table
            return load_dataset(self.path, self.subset, split=self.split, revision=self.revision)
        except ConnectionError as error:
            advice = "fetch it once where there is a network, or give a folder"
            raise ValueError(
                f"task.path: {self.path} is not on this machine, and the hub cannot be reached; {advice}"
            ) from error
        except Exception as error:  # of many kinds, and each names what is wrong
            reason = str(error).splitlines()[0] if str(error) else ""
            raise ValueError(f"task.path: {self.path} cannot be loaded ({type(error).__name__}: {reason})") from error
        finally:
            enable_progress_bars()


def _names(source: str, there: set[str]) -> list[str]:
    """The columns that a field is made of."""
    return (
        [source] if source in there or "{" not in source else _PLACE.findall(source.replace("{{", "").replace("}}", ""))
    )


def _made(source: str, row: Row) -> Any:
    """A field's value: a column's, or a text with columns in it."""
    return row[source] if source in row else source.format_map(row)


def _texts(value: Any) -> Any:
    """Answers that are numbers, as texts: they are compared as such."""
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
