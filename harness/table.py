"""Every record of a run as one table: a row for each cell and sample, from which pictures, pages and files are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.excerpts import excerpt
from harness.groups import CellRecords, GroupRecords
from harness.pairs import is_degenerate
from harness.types import Record, State, well_formed

# of a sample that was not yet asked
NOTHING = Record(cell="", sample_id="", sample_hash="", prompt_hash="", state=State.NOT_RUN)

Columns = Mapping[str, Sequence[Any]]


def to_table(groups: Sequence[GroupRecords]) -> pd.DataFrame:
    """The rows of every cell, in the order of the samples; ``evidence`` and ``memory`` are as the record has them."""
    columns: dict[str, list[Any]] = {}
    for group in groups:
        asked = _of_samples(group)
        for cell in group.cells:
            for name, values in {**_of_cell(group, cell), **asked, **_of_records(group, cell)}.items():
                columns.setdefault(name, []).extend(values)
    return pd.DataFrame(columns)


def _of_cell(group: GroupRecords, cell: CellRecords) -> Columns:
    """What all rows of a cell have in common."""
    facts = {
        "strategy": cell.planned["strategy"],
        "role": cell.planned["role"],
        "task": group.planned["label"],
        "mode": group.mode,
        "seed": group.planned["seed"],
        "cell": cell.planned["address"],
    }
    return {
        name: [well_formed(fact) if isinstance(fact, str) else fact] * len(group.samples)
        for name, fact in facts.items()
    }


def _of_samples(group: GroupRecords) -> Columns:
    """What the rows of every cell have in common."""
    samples = group.samples
    return {
        "sample_id": _texts(sample.id for sample in samples),
        "sample_hash": [sample.hash for sample in samples],
        "expected": _texts(", ".join(sample.answers) for sample in samples),
        "excerpt": _texts(map(excerpt, samples)),
        **{name: [sample.meta.get(name) for sample in samples] for name in ("prompt_tokens", "length", "depth")},
    }


def _of_records(group: GroupRecords, cell: CellRecords) -> Columns:
    """What was answered, beside what the baseline did."""
    found = [cell.records.get(sample.id) for sample in group.samples]
    mine = [record or NOTHING for record in found]
    full = [group.baseline.records.get(sample.id, NOTHING) for sample in group.samples]
    said = [record.response for record in mine]
    return {
        "prompt_hash": [record.prompt_hash for record in mine],
        "state": [record.state for record in mine],
        "score": [record.score for record in mine],
        "baseline_score": [record.score for record in full],
        "baseline_state": [record.state for record in full],
        "answer": _texts(record.answer for record in mine),
        "baseline_answer": _texts(record.answer for record in full),
        "text": _texts(response.text if response else "" for response in said),
        "finish": [response.finish if response else "" for response in said],
        "output_tokens": [response.output_tokens if response else None for response in said],
        "thinking_tokens": [response.thinking_tokens if response else None for response in said],
        "thinking_cut": [response.thinking_cut if response else None for response in said],
        "acted": [all(one.acted for one in record.evidence) if record else None for record in found],
        "error": _texts(record.error for record in mine),
        "fault": [record.fault for record in mine],
        "degenerate": list(map(is_degenerate, mine)),
        "token_ids": [response.token_ids if response else None for response in said],
        "fidelity": [response.fidelity if response else None for response in said],
        "parts": [record.parts if record else None for record in found],
        "evidence": [record.evidence if record else None for record in found],
        "memory": [record.memory for record in mine],
    }


def _texts(texts: Iterable[str]) -> list[str]:
    return list(map(well_formed, texts))
