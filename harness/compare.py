"""Candidate against candidate: which of two strategies is better on a task, or that neither matters within the margin.

Pure functions of stored facts, with the units and the tests of ``verdict``; docs/verdict.md explains the rule to
operators. In every comparison ``b`` stands where the baseline stands, so a difference is ``a - b``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from harness import stats
from harness.stats import Interval
from harness.types import Gate
from harness.verdict import (
    HEADROOM,
    CellInput,
    DecidingTest,
    SortedPairs,
    check_control,
    check_left_out,
    check_noise,
    check_prompts,
    deciding_test,
    is_clustered,
    points,
    sort_pairs,
)

BASELINE = "full"
WIDEST = 0.999  # margin; at 1 there is nothing left to test


class Finding(StrEnum):
    A_BETTER = "a better"
    B_BETTER = "b better"
    EQUIVALENT = "equivalent within the margin"
    NONE = "no difference shown"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class ComparisonInput:
    """Two strategies on one task.

    ``cell`` is the cell of ``a`` with ``b`` in the baseline's place: in its pairs the candidate is ``a`` and the
    baseline is ``b``. Its noise and its control are those of the task, with the full cache on the baseline's side.
    """

    b: str
    cell: CellInput
    gate: Gate

    @property
    def a(self) -> str:
        return self.cell.strategy


@dataclass(frozen=True)
class Comparison:
    """The finding on one pair of strategies and one task, and every number it rests on. What does not exist is None.

    Scores, differences, limits, margins and rates are fractions of 1. ``n``, ``a_alone``, ``b_alone`` and the two
    ``n_needed`` count units of the test: clusters where samples share one, else samples.
    """

    a: str
    b: str
    task: str
    mode: str
    finding: Finding
    within_margin: bool | None  # a difference of the margin or more is ruled out, in both directions
    n: int
    clusters: int | None  # None: every sample stands alone
    samples: int
    a_score: float | None
    b_score: float | None
    delta: float | None  # a - b
    ci_low: float | None  # holds the differences that the one-sided tests at alpha do not reject
    ci_high: float | None
    margin: float | None  # absolute, also when the gate's is relative
    alpha: float  # of this look
    p_value: float | None  # two-sided, against "no difference"
    p_holm: float | None  # the same after Holm over all comparisons of the run
    p_equivalence: float | None  # against "different by the margin or more": the larger of both directions
    test: str | None  # that the interval and p_equivalence come from
    a_alone: int  # units on which a is better
    b_alone: int
    flip_rate: float | None
    n_needed: int | None  # to show equivalence if there is no true difference
    n_needed_observed: int | None  # the same if the true difference is the one observed; None: hopeless
    look: int
    looks: int
    left_out: int  # pairs lost to infrastructure failures
    not_acted: int  # samples whose prompt gave a layer of either side nothing to do
    reasons: tuple[str, ...]


def problems(names: Sequence[str], known: Collection[str]) -> list[str]:
    """What is wrong with a list of strategies to compare, given the candidates of the run."""
    if not names:
        return []
    found = [
        f"compare must name strategies of this run ({', '.join(known)}), got {name!r}"
        for name in names
        if name not in known and name != BASELINE
    ]
    if BASELINE in names:
        found.append(f"compare must name candidates, got {BASELINE!r}: every candidate is compared with it anyway")
    found += [f"compare must name each strategy once, got {name!r} {k} times" for name, k in _repeated(names)]
    if len(names) < 2:
        found.append(f"compare must name two strategies or more, got {', '.join(names)}")
    return found


def _repeated(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, count) for name, count in Counter(names).items() if count > 1]


def compare(inputs: Sequence[ComparisonInput]) -> list[Comparison]:
    """Compare every pair; all comparisons of a run together, because Holm's correction is over them."""
    measured = [_measure(one) for one in inputs]
    p_values = [facts.p_value for facts in measured if facts.p_value is not None]
    adjusted = iter(stats.holm(p_values))
    return [
        facts if facts.p_value is None else _conclude(replace(facts, p_holm=next(adjusted)), one)
        for facts, one in zip(measured, inputs, strict=True)
    ]


# --- Facts and tests of one comparison ---


def _measure(one: ComparisonInput) -> Comparison:
    """Everything that is known of a pair; the tests only where the pair can be compared at all."""
    sorted_pairs = sort_pairs(one.cell.pairs)
    test = deciding_test(one.cell, sorted_pairs.used)
    facts = _describe(one, sorted_pairs, test)
    if faults := _faults(one, sorted_pairs):
        return replace(facts, reasons=tuple(faults))
    return _with_tests(facts, test)


def _describe(one: ComparisonInput, sorted_pairs: SortedPairs, test: DecidingTest) -> Comparison:
    a_score = float(test.candidate.mean()) if test.n else None
    b_score = float(test.baseline.mean()) if test.n else None
    return Comparison(
        a=one.a,
        b=one.b,
        task=one.cell.task,
        mode=one.cell.mode,
        finding=Finding.NOT_COMPARED,
        within_margin=None,
        n=test.n,
        clusters=test.n if is_clustered(one.cell) else None,
        samples=len(sorted_pairs.used),
        a_score=a_score,
        b_score=b_score,
        delta=test.delta,
        ci_low=None,
        ci_high=None,
        margin=_margin(one.gate, a_score, b_score),
        alpha=one.gate.alpha / one.gate.looks,
        p_value=None,
        p_holm=None,
        p_equivalence=None,
        test=None,
        a_alone=test.gained,
        b_alone=test.lost,
        flip_rate=test.flip_rate,
        n_needed=None,
        n_needed_observed=None,
        look=one.cell.look,
        looks=one.gate.looks,
        left_out=sorted_pairs.left_out,
        not_acted=sorted_pairs.not_acted,
        reasons=(),
    )


def _margin(gate: Gate, a_score: float | None, b_score: float | None) -> float | None:
    """A relative margin is a share of the better score: what may be lost by taking the other of the two."""
    if gate.margin_kind == "absolute":
        return gate.margin
    return None if a_score is None or b_score is None else gate.margin * max(a_score, b_score)


def _faults(one: ComparisonInput, sorted_pairs: SortedPairs) -> list[str]:
    """Why this pair cannot be compared, one sentence each."""
    if sorted_pairs.num_finished < one.cell.planned_n:
        finished = f"{sorted_pairs.num_finished} of {one.cell.planned_n} samples finished on both sides"
        return [f"{finished}; run again to complete. No test was made."]
    checks = (
        check_prompts(sorted_pairs),
        _check_acted(sorted_pairs),
        check_left_out(sorted_pairs, one.b, one.a),
        check_noise(one.cell.noise_test),
    )
    return [reason for reason in checks if reason]


def _check_acted(sorted_pairs: SortedPairs) -> str | None:
    if sorted_pairs.num_acted:
        return None
    return f"On none of {sorted_pairs.num_finished} samples did both strategies act, so there is nothing to compare."


def _with_tests(facts: Comparison, test: DecidingTest) -> Comparison:
    margin = min(_known(facts.margin), WIDEST)
    low, high = _interval(test, facts.alpha, margin)
    return replace(
        facts,
        test=test.name,
        ci_low=low,
        ci_high=high,
        p_value=min(1.0, 2 * min(test.harm_p_value(), test.mirrored.harm_p_value())),
        p_equivalence=max(test.p_value(margin), test.mirrored.p_value(margin)),
    )


def _interval(test: DecidingTest, alpha: float, margin: float) -> Interval:
    """Lies within (-margin, margin) exactly when both one-sided tests reject a difference of the margin."""
    return Interval(test.interval(alpha, margin).low, -test.mirrored.interval(alpha, margin).low)


# --- The finding ---


def _conclude(facts: Comparison, one: ComparisonInput) -> Comparison:
    """The finding of a pair whose tests were made, with a sentence for it."""
    if facts.look > facts.looks:
        return replace(facts, finding=Finding.NONE, within_margin=False, reasons=(_looks_sentence(facts),))
    blind = _check_sight(facts, one)
    facts = replace(facts, within_margin=blind is None and _known(facts.p_equivalence) <= facts.alpha)
    if _known(facts.p_holm) <= facts.alpha:
        finding = Finding.A_BETTER if _known(facts.delta) > 0 else Finding.B_BETTER
        return replace(facts, finding=finding, reasons=(_better_sentence(facts),))
    if facts.within_margin:
        return replace(facts, finding=Finding.EQUIVALENT, reasons=(_equivalent_sentence(facts),))
    facts = replace(facts, finding=Finding.NONE)
    if blind:
        return replace(facts, reasons=(f"{_nothing_shown(facts)}; equivalence cannot be shown: {blind}",))
    facts = _with_n_needed(facts, one)
    return replace(facts, reasons=(_open_sentence(facts),))


def _check_sight(facts: Comparison, one: ComparisonInput) -> str | None:
    """Why equal scores would say nothing here: a task that cannot tell good from bad makes everything equivalent."""
    best, margin = max(_known(facts.a_score), _known(facts.b_score)), _known(facts.margin)
    if best <= one.cell.chance + HEADROOM * margin:
        return (
            f"the better of the two scores {best:.3f}, not more than {HEADROOM} margins of {margin:.3f} above chance "
            f"({one.cell.chance:.3f})."
        )
    blind = check_control(one.cell.control_test, one.gate.alpha)
    return blind and blind[0].lower() + blind[1:]


def _with_n_needed(facts: Comparison, one: ComparisonInput) -> Comparison:
    test = deciding_test(one.cell, sort_pairs(one.cell.pairs).used)
    return replace(
        facts,
        n_needed=_n_needed(test, facts, one.gate.power, 0.0),
        n_needed_observed=_n_needed(test, facts, one.gate.power, _known(facts.delta)),
    )


def _n_needed(test: DecidingTest, facts: Comparison, power: float, delta: float) -> int | None:
    """Units after which both one-sided tests reject with probability ``power``, if the true difference is ``delta``.

    Each may fail half as often as both together; as a rule they do not fail at once, so this is nearly exact at 0.
    """
    each, margin = (1 + power) / 2, _known(facts.margin)
    needed = [side.n_needed(margin, facts.alpha, each, d) for side, d in ((test, delta), (test.mirrored, -delta))]
    return max(n for n in needed if n is not None) if None not in needed else None


def _better_sentence(facts: Comparison) -> str:
    sides = [(facts.a, facts.a_alone), (facts.b, facts.b_alone)]
    (winner, won), (loser, lost) = sides if _known(facts.delta) > 0 else sides[::-1]
    within = f", but within the margin of {points(facts.margin)}" if facts.within_margin else ""
    return (
        f"{winner} is better than {loser} by {points(abs(_known(facts.delta)))} over {_units(facts)}{within}: "
        f"{won} are better with {winner}, {lost} with {loser} (two-sided p = {facts.p_holm:.2g} after Holm, level "
        f"{facts.alpha:.2g})."
    )


def _equivalent_sentence(facts: Comparison) -> str:
    return (
        f"{facts.a} and {facts.b} are equivalent within the margin: a difference of {points(facts.margin)} or more is "
        f"ruled out in both directions (p = {facts.p_equivalence:.2g}, level {facts.alpha:.2g}); {facts.a} - {facts.b} "
        f"is {points(facts.delta)} over {_units(facts)}, {_limits(facts)}."
    )


def _open_sentence(facts: Comparison) -> str:
    if facts.n_needed_observed is None:
        observed = "if the true difference is the observed one, no number is enough"
    else:
        observed = f"{facts.n_needed_observed} if the true difference is the observed one"
    needed = "takes more than can be told" if facts.n_needed is None else f"takes about {facts.n_needed} {_unit(facts)}"
    return (
        f"{_nothing_shown(facts)}; equivalence within {points(facts.margin)} is not shown either, and {needed} if there "
        f"is no true difference, {observed}."
    )


def _nothing_shown(facts: Comparison) -> str:
    return (
        f"No difference between {facts.a} and {facts.b} is shown (two-sided p = {facts.p_holm:.2g} after Holm, level "
        f"{facts.alpha:.2g}): {facts.a} - {facts.b} is {points(facts.delta)} over {_units(facts)}, {_limits(facts)}"
    )


def _looks_sentence(facts: Comparison) -> str:
    return (
        f"This is look {facts.look} and {facts.looks} were promised, so these samples can show nothing more about "
        f"{facts.a} and {facts.b}. Fresh samples are needed: run with another seed."
    )


def _limits(facts: Comparison) -> str:
    return f"and may lie between {points(facts.ci_low)} and {points(facts.ci_high)}"


def _units(facts: Comparison) -> str:
    return f"{facts.n} {_unit(facts)}"


def _unit(facts: Comparison) -> str:
    return "samples" if facts.clusters is None else "clusters"


def _known(value: float | None) -> float:
    assert value is not None, "pairs that are tested have scores, a margin and p-values"
    return value
