"""What happens inside a task: its score by facets of the samples, and the parts of its score, each as a paired difference.

Everything is shown and nothing is decided here: there are many comparisons, and none was promised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.types import Pair, Record, Sample, State
from harness.verdict import CellInput, candidate_score, cluster_of, right, sort_pairs, test_of

FACETS = ("task", "turn", "length", "kind", "ask")
"""What a sample's ``meta`` may group it by; a facet that has one value in a task says nothing and is left out."""

CACHED = "cached_tokens_"  # evidence: prompt tokens from a place of this name

TAIL = 0.025  # outside each end of an interval, so that it holds 95 %

Scores = tuple[Pair, float | None, float | None]
"""A sample with the baseline's and the candidate's score on what is looked at."""


@dataclass(frozen=True)
class Part:
    """One row inside a task: the samples of a facet's value, or a part of the score where samples have it.

    Scores, differences and limits are fractions of 1; ``n`` counts units as the verdict does: clusters where samples share one.
    """

    group: str  # the facet, or what stands before the colon in the part's name; "" for a part that stands alone
    name: str
    n: int
    baseline: float
    score: float
    delta: float  # score - baseline
    ci_low: float
    ci_high: float


def parts(
    cell: CellInput, samples: Sequence[Sample], baseline: Mapping[str, Record], candidate: Mapping[str, Record]
) -> list[Part]:
    """The values of every facet, then every part of the score, numbers in their order and names in theirs.

    Args:
        cell: The pairs of this candidate, one for each of ``samples``.
        samples: The task's samples, in the pairs' order.
        baseline: The baseline's records by sample id.
        candidate: The candidate's records.
    """
    if cell.fidelity:  # only measured
        return []
    facets = [*_told_by_samples(samples), ("prompt from", [_source(candidate.get(sample.id)) for sample in samples])]
    used = {pair.sample_id for pair in sort_pairs(cell.pairs).used}
    rows = [*_facets(cell.pairs, facets), *_of_scores(cell.pairs, baseline, candidate)]
    measured = (_part(group, name, mine, used) for group, name, mine in rows)
    return [part for part in measured if part]


def _told_by_samples(samples: Sequence[Sample]) -> Iterator[tuple[str, list[str | None]]]:
    """By facet, its value for each sample, None where it has none."""
    for facet in FACETS:
        yield facet, [str(sample.meta[facet]) if facet in sample.meta else None for sample in samples]


def _source(record: Record | None) -> str | None:
    """Where the candidate found its prompt, of a layer that reuses or fetches: a hit on the device, in a tier, or none."""
    evidence = record.evidence if record else ()
    if not any("hit_tokens" in one.facts for one in evidence):
        return None
    facts = {key: value for one in evidence for key, value in one.facts.items()}
    tiers = [key.removeprefix(CACHED) for key, tokens in facts.items() if key.startswith(CACHED) and tokens]
    return " and ".join(tiers) or ("device" if facts["hit_tokens"] else "computed")


def _facets(
    pairs: Sequence[Pair], facets: Sequence[tuple[str, list[str | None]]]
) -> Iterator[tuple[str, str, list[Scores]]]:
    for facet, values in facets:
        known = sorted({value for value in values if value is not None}, key=_order)
        for value in known if len(known) > 1 else ():
            mine = (pair for pair, told in zip(pairs, values, strict=True) if told == value)
            yield facet, value, [(pair, pair.baseline, pair.candidate) for pair in mine]


def _of_scores(
    pairs: Sequence[Pair], baseline: Mapping[str, Record], candidate: Mapping[str, Record]
) -> Iterator[tuple[str, str, list[Scores]]]:
    """A sample counts for a part that one side has, if the other has it too or did not finish."""
    sides = [(_parts_of(baseline, pair), _parts_of(candidate, pair)) for pair in pairs]
    for whole in sorted({name for both in sides for side in both for name in side}, key=_order):
        group, _, name = whole.rpartition(": ")
        mine = [
            (pair, before.get(whole), after.get(whole))
            for pair, (before, after) in zip(pairs, sides, strict=True)
            if whole in before or whole in after
        ]
        yield group, name, [one for one in mine if _told(*one)]


def _parts_of(records: Mapping[str, Record], pair: Pair) -> Mapping[str, float]:
    record = records.get(pair.sample_id)
    return record.parts if record else {}


def _told(pair: Pair, before: float | None, after: float | None) -> bool:
    sides = ((before, pair.baseline_state), (after, pair.candidate_state))
    return all(value is not None or state is not State.SCORED for value, state in sides)


def _part(group: str, name: str, scores: Sequence[Scores], used: Collection[str]) -> Part | None:
    """The row of these samples, of which those are ``used`` that the verdict uses; None if there are none."""
    mine = [one for one in scores if one[0].sample_id in used]
    if not mine:
        return None
    clusters = [cluster_of(pair) for pair, *_ in mine]
    test = test_of(
        [right(before, pair.baseline_state) for pair, before, _ in mine],
        [candidate_score(pair, after) for pair, _, after in mine],
        clusters if len({cluster_of(pair) for pair, *_ in scores}) < len(scores) else None,
        graded=not {value for _, *both in mine for value in both if value is not None} <= {0.0, 1.0},
    )
    low, high = test.shown_interval(TAIL)
    baseline, score = float(test.baseline.mean()), float(test.candidate.mean())
    return Part(group, name, test.n, baseline, score, score - baseline, low, high)


def _order(whole: str) -> tuple[str, float, str]:
    """By group, then numbers by size, then names."""
    group, _, name = whole.rpartition(": ")
    return (group, float(name), "") if name.isdecimal() else (group, float("inf"), name)
