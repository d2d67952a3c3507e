"""Flips worth reading: samples that the full cache got right and a candidate got wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.report.format import MISSING, missing, plain, shorten
from harness.types import State

RIGHT = 0.5  # a graded score from here on counts as right when flips are looked for; no test uses this
PER_CELL = 5
TEXT_LIMIT = 700


@dataclass(frozen=True)
class Flip:
    """One sample, as text for a reader. Everything in it may be hostile and is escaped by the renderers."""

    sample_id: str
    facts: str  # prompt length, depth, score, state
    expected: str
    baseline_answer: str
    answer: str
    text: str
    error: str


@dataclass(frozen=True)
class Flips:
    """The flips of one cell: how many there are, and the first few."""

    total: int
    shown: tuple[Flip, ...]


def find(samples: pd.DataFrame, strategy: str, task: str, mode: str) -> Flips:
    """The flips of a cell: samples that gave no score first, then the deepest falls, then by id."""
    if samples.empty:
        return Flips(0, ())
    rows = samples[(samples["strategy"] == strategy) & (samples["task"] == task) & (samples["mode"] == mode)]
    before = pd.to_numeric(rows["baseline_score"], errors="coerce").astype(float)
    after = pd.to_numeric(rows["score"], errors="coerce").astype(float)
    unanswered = rows["state"].isin([State.TRUNCATED, State.FAILED])
    wrong = (before >= RIGHT) & ((after < RIGHT) | unanswered)
    found = rows[wrong].assign(_fall=(before - after.fillna(-1.0))[wrong])
    found = found.sort_values(["_fall", "sample_id"], ascending=[False, True], kind="stable")
    return Flips(len(found), tuple(_flip(row) for row in found.head(PER_CELL).to_dict("records")))


def _flip(row: dict[str, Any]) -> Flip:
    facts = {
        "prompt tokens": row.get("prompt_tokens"),
        "depth": row.get("depth"),
        "score": row.get("score"),
        "state": str(row.get("state")),
        "finish": row.get("finish"),
    }
    return Flip(
        sample_id=str(row["sample_id"]),
        facts=", ".join(f"{name} {plain(value)}" for name, value in facts.items() if not missing(value)),
        expected=_text(row.get("expected")),
        baseline_answer=_text(row.get("baseline_answer")),
        answer=_text(row.get("answer")),
        text=_text(row.get("text")),
        error="" if missing(row.get("error")) else shorten(str(row["error"]), TEXT_LIMIT),
    )


def _text(value: Any) -> str:
    """A field as readable text; an empty answer is said, so that nothing looks like a missing file."""
    if missing(value):
        return MISSING
    text = value if isinstance(value, str) else plain(value)
    return shorten(text, TEXT_LIMIT, " […] ") if text.strip() else "(empty)"
