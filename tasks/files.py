"""Rows of a data file, by its suffix: jsonl, json (a list), csv, parquet.

Rows are numbered as an editor shows them: lines of jsonl and csv, items of json, rows of parquet, from 1 on.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tasks.items import Row

_LISTS = ("answers", "stop", "instructions", "turns", "messages")  # cells of a table that may hold JSON


class Kind(NamedTuple):
    """How files of one suffix are read, and what one of their rows is called."""

    rows: Callable[[Path], Iterator[tuple[int, Row | str]]]
    unit: str


def kind(path: Path) -> Kind:
    """How ``path`` is read. Raises ValueError if it is not a file of a known suffix."""
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"task.path must end in {', '.join(KINDS)}, got {str(path)!r}")
    if not path.is_file():
        raise ValueError(f"task.path must be a file, got {str(path)!r}")
    return KINDS[path.suffix.lower()]


def digest_of(path: Path) -> str:
    """SHA-256 of the file's bytes, shortened as all digests are."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _jsonl(path: Path) -> Iterator[tuple[int, Row | str]]:
    """One object a line; blank lines are no rows. Bytes are parted first: a text may hold any other mark of a line's end."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not line.strip():
                continue
            try:
                yield number, _object(json.loads(line.decode()))
            except UnicodeDecodeError:
                yield number, "not UTF-8"
            except (ValueError, RecursionError) as error:
                yield number, f"not JSON ({getattr(error, 'msg', error)})"


def _json(path: Path) -> Iterator[tuple[int, Row | str]]:
    try:
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"task.path: {path} is not JSON in UTF-8 ({error})") from error
    if not isinstance(data, list):
        raise ValueError(f"task.path: {path} must hold a list of objects, got {type(data).__name__}")
    yield from ((number, _object(item)) for number, item in enumerate(data, 1))


def _csv(path: Path) -> Iterator[tuple[int, Row | str]]:
    """A header, then one row a line (more where a cell has line breaks). Empty cells are not there, but for the texts."""
    csv.field_size_limit(2**31 - 1)  # Python's own limit is shorter than a long context
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True, restkey="", restval=None)
        first = 2
        try:
            for row in reader:
                yield first, _cells(row) if "" not in row else f"more cells than the header's {len(row) - 1}"
                first = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            yield first, f"not CSV in UTF-8 ({error}); what follows was not read"


def _parquet(path: Path) -> Iterator[tuple[int, Row | str]]:
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
        batches = (row for batch in file.iter_batches(batch_size=256) for row in batch.to_pylist())
        yield from enumerate(batches, 1)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"task.path: {path} is not a parquet file that can be read ({error})") from error


def _object(value: Any) -> Row | str:
    return value if isinstance(value, dict) else f"must be an object, got {type(value).__name__}"


def _cells(row: Mapping[str, str | None]) -> Row:
    """Cells as fields: lists are written as JSON, numbers as digits."""
    cells: dict[str, Any] = {key: cell for key, cell in row.items() if cell or key in ("context", "question")}
    for name in _LISTS:
        if str(cells.get(name, "")).startswith("["):
            with suppress(ValueError):  # a text that begins with a bracket
                cells[name] = json.loads(cells[name])
    if str(cells.get("max_new_tokens", "")).isdecimal():
        cells["max_new_tokens"] = int(cells["max_new_tokens"])
    return cells


KINDS: Mapping[str, Kind] = {
    ".jsonl": Kind(_jsonl, "line"),
    ".json": Kind(_json, "item"),
    ".csv": Kind(_csv, "line"),
    ".parquet": Kind(_parquet, "row"),
}
