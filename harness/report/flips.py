"""Flipped samples: those on which a candidate did worse, or better, than the full cache. All of them, as text for a reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.report.format import MISSING, missing, plain, shorten, visible
from harness.types import State

LOST, GAINED = "lost", "gained"
TEXT_LIMIT = 2000  # characters of one text; the middle of a longer one is cut out

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Flip:
    """One sample. Everything in it may be hostile and is escaped by the renderers."""

    sample_id: str
    kind: str  # lost or gained
    facts: str  # scores, prompt length, depth, how the answer ended
    state: str  # of the candidate
    length: str  # as the task was asked for it; a dash where it has none
    depth: float | None  # where in the context the answer stands, 0 to 1
    expected: str
    excerpt: str  # of the context, around the answer; "" where it cannot be found there
    baseline_answer: str
    answer: str
    baseline_text: str
    text: str
    error: str


class Flips:
    """The flipped samples of a run, by cell."""

    def __init__(self, samples: pd.DataFrame) -> None:
        self._full: dict[tuple[str, str], dict[str, Row]] = {}
        self._cells: dict[tuple[str, str, str], list[Row]] = {}
        for row in _differing(samples).to_dict("records"):
            column = row["task"], row["mode"]
            if row["role"] == "baseline":
                self._full.setdefault(column, {})[row["sample_id"]] = row
            elif row["role"] == "candidate":
                self._cells.setdefault((row["strategy"], *column), []).append(row)

    def of(self, strategy: str, task: str, mode: str) -> tuple[Flip, ...]:
        """Those that the test of a cell counts: the deepest falls first, the highest rises last, equal ones by id."""
        told = self._full.get((task, mode), {})
        found = []
        for row in self._cells.get((strategy, task, mode), ()):
            full = told.get(row["sample_id"], {})
            if change := _change(row, full):
                found.append((change, str(row["sample_id"]), row, full))
        return tuple(_flip(row, full, change) for change, _, row, full in sorted(found, key=lambda one: one[:2]))


def _differing(samples: pd.DataFrame) -> pd.DataFrame:
    """The candidates' samples that may have flipped, and the full cache's of the same ids: of many samples these are few."""
    if samples.empty:
        return samples
    alike = (samples["score"] == samples["baseline_score"]) & (samples["state"] == samples["baseline_state"])
    if "degenerate" in samples:
        alike &= samples["degenerate"].ne(True)
    differ = (samples["role"] == "candidate") & ~alike
    full = (samples["role"] == "baseline") & samples["sample_id"].isin(samples.loc[differ, "sample_id"])
    return samples[differ | full]


def _change(row: Row, full: Row) -> float:
    """Candidate minus full cache, as it is tested: an answer that was not finished, or whose form the candidate alone broke, is
    not right. 0 for samples that the test leaves out, for a machine failed, or a layer had nothing to do."""
    sides = ((row["baseline_state"], full.get("fault")), (row["state"], row.get("fault")))
    gone = any(state == State.NOT_RUN or (state == State.FAILED and fault != "model") for state, fault in sides)
    if gone or row.get("acted") is False:
        return 0.0
    broken = row.get("degenerate") is True and full.get("degenerate") is not True
    before = _score(row["baseline_score"], row["baseline_state"])
    after = 0.0 if broken else _score(row["score"], row["state"])
    return after - before


def _score(score: float | None, state: str) -> float:
    return 0.0 if state != State.SCORED or missing(score) else float(score or 0.0)


def _flip(row: Row, full: Row, change: float) -> Flip:
    facts = {
        "prompt tokens": row.get("prompt_tokens"),
        "depth": row.get("depth"),
        "score": f"{plain(row['baseline_score'])} → {plain(row['score'])}",
        "state": str(row["state"]),
        "finish": row.get("finish"),
    }
    return Flip(
        sample_id=visible(str(row["sample_id"])),
        kind=LOST if change < 0 else GAINED,
        facts=", ".join(f"{name} {plain(value)}" for name, value in facts.items() if not missing(value)),
        state=str(row["state"]),
        length=MISSING if missing(row.get("length")) else plain(row["length"]),
        depth=None if missing(row.get("depth")) else float(row["depth"]),
        expected=_text(row.get("expected")),
        excerpt=_or_nothing(row.get("excerpt")),
        baseline_answer=_text(row.get("baseline_answer")),
        answer=_text(row.get("answer")),
        baseline_text=_text(full.get("text")),
        text=_text(row.get("text")),
        error=_or_nothing(row.get("error")),
    )


def _text(value: Any) -> str:
    """A field as readable text; an empty answer is said, so that nothing looks like a missing file."""
    if missing(value):
        return MISSING
    text = value if isinstance(value, str) else plain(value)
    return _shown(text) if text.strip() else "(empty)"


def _or_nothing(value: Any) -> str:
    return "" if missing(value) else _shown(str(value))


def _shown(text: str) -> str:
    """Shortened first: control signs become longer as they become visible."""
    return visible(shorten(text, TEXT_LIMIT, f" [… {len(text) - TEXT_LIMIT:,} characters …] "))
