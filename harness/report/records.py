"""All records of a run as one Parquet file: a row for each cell and sample, readable with ``datasets`` and ``pandas``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.report.format import missing

encode = json.JSONEncoder(sort_keys=True, default=vars).encode

OF_MEMORY = "memory_"
MEMORY = tuple(
    f"{OF_MEMORY}{name}"
    for name in (
        *("stored_bytes", "stored_bytes_end", "formula_bytes", "working_bytes", "peak_bytes", "unpacked_elements"),
        "full_elements",
    )
)
TEXTS = ("strategy", "role", "task", "mode", "cell", "sample_id", "sample_hash", "prompt_hash", "state")
JSONS = ("parts", "fidelity", "evidence")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in TEXTS),
        *((name, pa.float64()) for name in ("score", "baseline_score")),
        *((name, pa.string()) for name in ("baseline_state", "expected", "answer", "baseline_answer", "text")),
        *((name, pa.string()) for name in ("finish", "error", "fault")),
        *((name, pa.int64()) for name in ("seed", "prompt_tokens", "output_tokens", "thinking_tokens", "length")),
        ("depth", pa.float64()),
        ("token_ids", pa.list_(pa.int64())),
        *((name, pa.bool_()) for name in ("thinking_cut", "acted")),
        *((name, pa.string()) for name in JSONS),
        *((name, pa.int64()) for name in MEMORY),
        (f"{OF_MEMORY}kept_fraction", pa.float64()),
    ]
)


def render(records: pd.DataFrame) -> bytes:
    """The file. What a record does not have is null: no score, no response, no memory; an empty answer is an empty text.

    ``parts``, ``fidelity`` and ``evidence`` are JSON texts, because layers differ in what they tell.
    """
    memory = [vars(held) if held else {} for held in _of(records, "memory")]
    columns = [_column(field, _values(field.name, records, memory)) for field in SCHEMA]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), sink)
    return bytes(sink.getvalue())


def _values(name: str, records: pd.DataFrame, memory: Sequence[Mapping[str, Any]]) -> Sequence[Any] | pd.Series:
    """What the records have in a column, or their memory has of that name."""
    if name.startswith(OF_MEMORY):
        return [held.get(name.removeprefix(OF_MEMORY)) for held in memory]
    return _of(records, name)


def _of(records: pd.DataFrame, name: str) -> Sequence[Any] | pd.Series:
    return records.get(name, [None] * len(records))


def _column(field: pa.Field, values: Sequence[Any] | pd.Series) -> pa.Array:
    if field.name in JSONS:
        values = [None if missing(value) else encode(value) for value in values]
    return pa.array(values, type=field.type, from_pandas=True)
