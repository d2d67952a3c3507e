"""Samples as a file: made once for a task, read by every cell."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from harness.types import Sample, digest

_JSON = ("answers", "stop", "meta")


def save(samples: list[Sample], path: Path) -> None:
    """Write a parquet file that ``datasets`` and ``pandas`` read; sequences and facts are JSON text in their columns."""
    from datasets import Dataset, disable_progress_bars, enable_progress_bars

    rows = [{**asdict(s), **{key: json.dumps(asdict(s)[key]) for key in _JSON}} for s in samples]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    disable_progress_bars()
    Dataset.from_list(rows).to_parquet(str(beside))
    enable_progress_bars()
    os.replace(beside, path)


def load(path: Path, n: int | None = None) -> list[Sample]:
    """Read the first ``n`` samples (all by default)."""
    rows = pd.read_parquet(path).to_dict("records")
    samples = []
    for row in rows[:n]:
        facts = {str(key): json.loads(value) if key in _JSON else value for key, value in row.items()}
        facts["answers"], facts["stop"] = tuple(facts["answers"]), tuple(facts["stop"])
        samples.append(Sample(**facts))
    return samples


def set_hash(samples: list[Sample]) -> str:
    """Digest of a set of samples: which ones, and all that the model sees of them."""
    return digest(sorted((sample.id, sample.hash) for sample in samples))
