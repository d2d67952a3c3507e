"""All records of a run as one Parquet file: a row for each cell and sample, readable with ``datasets`` and ``pandas``."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.report.format import missing

MEMORY = tuple(
    f"memory_{name}"
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
        ("memory_kept_fraction", pa.float64()),
    ]
)


def render(records: pd.DataFrame) -> bytes:
    """The file. What a record does not have is null: no score, no response, no memory; an empty answer is an empty text.

    ``parts``, ``fidelity`` and ``evidence`` are JSON texts, because layers differ in what they tell.
    """
    rows = [_row(row) for row in records.to_dict("records")]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink)
    return bytes(sink.getvalue())


def _row(record: dict[str, Any]) -> dict[str, Any]:
    memory = record.get("memory")
    known = {**record, **({} if missing(memory) else {f"memory_{name}": value for name, value in memory.items()})}
    return {field.name: _value(field, known.get(field.name)) for field in SCHEMA}


def _value(field: pa.Field, value: Any) -> Any:
    if missing(value):
        return None
    if field.name in JSONS:
        return json.dumps(value, sort_keys=True)
    if field.type == pa.string():
        return str(value)
    return int(value) if field.type == pa.int64() else value
