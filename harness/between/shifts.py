"""What moved from one run to another on the samples that both have: paired differences with intervals, and no decision.

Pure functions of pairs, with the units and the tests of ``verdict``. In every pair the reference run stands where the baseline
stands, so a difference is other - reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness import stats
from harness.types import Pair
from harness.verdict import CellInput, SortedPairs, check_left_out, deciding_test, even, is_clustered, sort_pairs

TAIL = 0.025  # outside each end of an interval, so that it holds 95 %


@dataclass(frozen=True)
class Shift:
    """How the score of one setting on one task moved.

    Scores, differences and limits are fractions of 1; ``n``, ``gained`` and ``lost`` count units: clusters where samples share
    one, else samples.
    """

    n: int
    clusters: int | None  # None: every sample stands alone
    samples: int  # pairs in the n units
    reference: float
    other: float
    delta: float  # other - reference
    ci_low: float  # 95 %, of the paired difference
    ci_high: float
    test: str  # that the interval inverts
    gained: int
    lost: int
    unfinished: int  # samples that one of the runs has no record of
    left_out: int  # pairs lost to infrastructure failures
    not_acted: int  # samples whose prompt gave a layer of either run nothing to do
    prompts_differ: int  # of the pairs: the same sample, fed as other tokens


@dataclass(frozen=True)
class Effect:
    """How what a setting does to the score, candidate - baseline, moved; on the samples that count in both runs."""

    n: int
    reference: float
    other: float
    delta: float  # other - reference, in [-2, 2]
    ci_low: float
    ci_high: float


def shift(cell: CellInput, names: tuple[str, str]) -> Shift | str:
    """How a cell moved, or why that cannot be told. ``names`` are those of the reference run and of the other."""
    found = sort_pairs(even(cell.pairs))
    if fault := _fault(found, len(cell.pairs), names):
        return fault
    test = deciding_test(cell, found.used)
    low, high = test.interval(TAIL, 0.0)
    return Shift(
        n=test.n,
        clusters=test.n if is_clustered(cell) else None,
        samples=len(found.used),
        reference=float(test.baseline.mean()),
        other=float(test.candidate.mean()),
        delta=float(test.d.mean()),
        ci_low=low,
        ci_high=high,
        test=test.name,
        gained=test.gained,
        lost=test.lost,
        unfinished=len(cell.pairs) - found.num_finished,
        left_out=found.left_out,
        not_acted=found.not_acted,
        prompts_differ=sum(not pair.prompts_agree for pair in found.used),
    )


def _fault(found: SortedPairs, samples: int, names: tuple[str, str]) -> str | None:
    if not found.num_finished:
        return f"none of {samples} samples finished in both runs"
    if not found.num_acted:
        return f"on none of {found.num_finished} samples did every layer act in both runs"
    return check_left_out(found, *names)


def effect(reference: CellInput, other: CellInput) -> Effect | None:
    """How what the setting does moved, from each run's own pairs of baseline and candidate; None if no sample counts in both.

    Both cells hold pairs of the same samples. A unit's difference of differences is in [-2, 2], so half of it is what is bet on.
    """
    counted = _ids(reference.pairs) & _ids(other.pairs)
    if not counted:
        return None
    before, after = (
        deciding_test(cell, [pair for pair in cell.pairs if pair.sample_id in counted]) for cell in (reference, other)
    )
    moved = after.d - before.d
    low, high = stats.betting_interval(moved / 2, TAIL, 0.0)
    return Effect(
        before.n,
        float(before.d.mean()),
        float(after.d.mean()),
        float(moved.mean()),
        max(2 * low, -2.0),
        min(2 * high, 2.0),
    )


def _ids(pairs: Iterable[Pair]) -> set[str]:
    return {pair.sample_id for pair in sort_pairs(pairs).used}


def measure(strategy: str, task: str, mode: str, pairs: Sequence[Pair], *, chance: float, graded: bool) -> CellInput:
    """Pairs as the input of a test, without what only a verdict needs."""
    return CellInput(
        strategy=strategy,
        task=task,
        mode=mode,
        pairs=tuple(pairs),
        noise=(),
        control=(),
        planned_n=len(pairs),
        look=1,
        chance=chance,
        graded=graded,
        fidelity=False,
        fidelity_measures={},
    )
