"""Samples as a file: made once for a task, read by every cell."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict
from io import BytesIO
from typing import Any

import pandas as pd

from harness.places import Place, write_atomic
from harness.types import BadInput, Sample, Thinking, digest

_JSON = ("answers", "stop", "instructions", "meta", "turns", "think")


def save(samples: list[Sample], path: Place) -> None:
    """Write a parquet file that ``datasets`` and ``pandas`` read; sequences and facts are JSON text in their columns."""
    from datasets import Dataset, disable_progress_bars, enable_progress_bars

    rows = [{**asdict(s), **{key: json.dumps(asdict(s)[key]) for key in _JSON}} for s in samples]
    file = BytesIO()
    disable_progress_bars()
    Dataset.from_list(rows).to_parquet(file)
    enable_progress_bars()
    write_atomic(path, file.getvalue())


def load(path: Place, n: int | None = None) -> list[Sample]:
    """Read the first ``n`` samples (all by default). Raises BadInput if the file is missing or damaged."""
    try:
        rows = pd.read_parquet(BytesIO(path.read_bytes())).to_dict("records")
        return [_sample(row) for row in rows[:n]]
    except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own errors derive from these
        reason = str(error).splitlines()[0]
        raise BadInput(f"samples: {path} cannot be read ({reason}); start the run again to make it anew") from error


def _sample(row: Mapping[Hashable, Any]) -> Sample:
    facts = {str(key): json.loads(value) if key in _JSON else value for key, value in row.items()}
    facts.update({key: tuple(value) for key, value in facts.items() if isinstance(value, list)})
    facts["turns"] = tuple(map(tuple, facts.get("turns", ())))
    facts["think"] = Thinking(**facts["think"]) if facts.get("think") else None
    return Sample(**facts)


def set_hash(samples: list[Sample]) -> str:
    """Digest of a set of samples: which ones, and all that the model sees of them."""
    return digest(sorted((sample.id, sample.hash) for sample in samples))
