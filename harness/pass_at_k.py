"""pass@k of a run's items, from the k answers that were drawn to each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import stats
from harness.generation import item_of
from harness.types import Record, Sample, State


@dataclass(frozen=True)
class PassAtK:
    """pass@1 to pass@k of one cell. What does not exist is None."""

    strategy: str
    task: str
    mode: str
    items: int  # with k scored answers
    left_out: int  # items with fewer
    pass_at: tuple[float, ...] | None  # mean over the items of the unbiased estimates, for 1 to k answers


def pass_at_k(cell: tuple[str, str, str], samples: Sequence[Sample], records: Mapping[str, Record], k: int) -> PassAtK:
    """The mean estimates over the items of ``samples`` that ``records`` hold ``k`` scored answers to.

    Args:
        cell: Strategy, task and mode.
        samples: Draws of right/wrong items.
        records: By sample id.
        k: Answers drawn to each item.
    """
    passed: dict[str, list[float]] = defaultdict(list)  # by item, the scores that there are
    for sample in samples:
        scores = passed[item_of(sample)]
        record = records.get(sample.id)
        if record and record.state is State.SCORED and record.score is not None:
            scores.append(record.score)
    whole = [int(sum(scores)) for scores in passed.values() if len(scores) == k]
    means = tuple(sum(stats.pass_at_k(k, c, j) for c in whole) / len(whole) for j in range(1, k + 1)) if whole else None
    return PassAtK(*cell, len(whole), len(passed) - len(whole), means)
