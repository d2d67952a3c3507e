"""A user's own data from a file: ``task=jsonl task.path=my.jsonl``.

The file may be jsonl, json, csv or parquet, and of our own schema (``tasks/items.py``), LongBench's or RULER's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks import checks, files, formats, items
from tasks.given import Given
from tasks.items import Items


@dataclass(frozen=True, kw_only=True)
class Jsonl(Given):
    """Every row of a file is a question.

    Attributes:
        path: The file. It is known by its content: the same data elsewhere, or under another name, is the same task.
        format: What its rows look like: kvgate, longbench, ruler, or auto, which looks at the first.
    """

    path: str
    format: str = "auto"

    @cached_property
    def data(self) -> Items:
        kind = files.kind(self._file)
        rows = formats.translated(kind.rows(self._file), self.format, scored=self.scorer is None)
        return items.read(rows, kind.unit, self.fallback)

    @cached_property
    def data_digest(self) -> str:
        return files.digest_of(self._file)

    def unit(self) -> str:
        return files.kind(self._file).unit

    def broken(self) -> list[str]:
        return super().broken() + checks.one_of("task.format", self.format, formats.FORMATS)

    def scorers_used(self) -> set[str]:
        try:
            return {item.scorer for item in self.data.items}
        except ValueError:
            return {self.scorer_name}

    @property
    def _file(self) -> Path:
        return Path(self.path).expanduser()
