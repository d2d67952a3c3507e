"""The verdict rule: from paired samples to GO, NO-GO, INCONCLUSIVE or VOID, with the reasons in words.

Pure functions of stored facts; docs/verdict.md explains the rule to operators. A cell is one strategy on one task. Its
pairs become independent units: the samples themselves, or the means of clusters of samples that share a context. The
deciding test looks at the units' differences and at nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np

from harness import stats
from harness.stats import Floats, Interval
from harness.types import Decision, Fault, Gate, Pair, State

MAX_LEFT_OUT = 0.02  # share of pairs that may be lost to infrastructure failures
SYSTEMATIC = 0.01  # two-sided p-value below which two rates that should be equal are called different
HEADROOM = 2  # margins the baseline has to be above chance


@dataclass(frozen=True)
class CellInput:
    """All that the verdict on one strategy and task depends on. Pairs are in the order of the sample ids.

    ``noise`` pairs the baseline with itself in another batch composition, ``control`` with a candidate that must hurt, ``kernel``
    with itself on the candidate's attention kernels where these are others.
    """

    strategy: str
    task: str
    mode: str
    pairs: tuple[Pair, ...]
    noise: tuple[Pair, ...]
    control: tuple[Pair, ...]
    planned_n: int  # samples promised before the run
    look: int  # this is the first, second, ... time that these pairs are judged
    chance: float  # score of a guess, in [0, 1]
    graded: bool  # scores other than 0 and 1 occur
    fidelity: bool  # teacher-forced: measured, never judged
    fidelity_measures: Mapping[str, float]
    kernel: tuple[Pair, ...] = ()

    @cached_property
    def noise_test(self) -> DecidingTest:
        """The same test on the baseline's own noise,"""
        return self._reference_test(self.noise)

    @cached_property
    def control_test(self) -> DecidingTest:
        """on the positive control,"""
        return self._reference_test(self.control)

    @cached_property
    def kernel_test(self) -> DecidingTest:
        """and on the baseline with other kernels."""
        return self._reference_test(self.kernel)

    def _reference_test(self, pairs: Sequence[Pair]) -> DecidingTest:
        return deciding_test(self, sort_pairs(pairs).used)


@dataclass(frozen=True)
class CellVerdict:
    """The decision on one cell and every number it rests on. What does not exist is None.

    Scores, differences, limits, margins and rates are fractions of 1. ``n``, ``gained``, ``lost`` and the two
    ``n_needed`` count units of the deciding test: clusters where samples share one, else samples.
    """

    strategy: str
    task: str
    mode: str
    decision: Decision
    gating: bool
    n: int
    clusters: int | None  # None: every sample stands alone
    samples: int  # pairs in the n units
    baseline: float | None  # mean over units; an unfinished answer counts as not right
    score: float | None
    delta: float | None  # score - baseline
    ci_low: float | None  # inverts the deciding test at two-sided 1 - 2 * alpha
    ci_high: float | None
    margin: float | None  # absolute, also when the gate's is relative
    alpha: float  # one-sided level of this look
    p_value: float | None  # of the deciding test against "worse by the margin or more"
    test: str | None
    gained: int
    lost: int
    lost_pairs: int  # samples only the candidate did not finish or broke in form, and the baseline had (partly) right
    flip_rate: float | None
    noise_flip_rate: float | None
    control_delta: float | None
    kernel_delta: float | None
    n_needed: int | None  # for the joint power if there is no true change
    n_needed_observed: int | None  # the same if the true change is the one observed; None: hopeless
    min_margin: float | None  # smallest margin that this n decides if there is no true change
    look: int
    looks: int
    left_out: int  # pairs lost to infrastructure failures
    not_acted: int  # samples whose prompt gave the layers nothing to do
    truncated: int  # candidate's answers that ran into the token limit
    degenerate: int  # candidate's answers that are empty, a loop, or hold another speaker's turn
    degenerate_baseline: int
    failed: int  # candidate's answers that the model failed to give
    reasons: tuple[str, ...]
    fidelity: Mapping[str, float] | None
    stopped_at: int | None = None  # units after which harm was shown, so that no more samples were asked
    saved: int = 0  # samples that were not asked because of that


@dataclass(frozen=True)
class StrategyVerdict:
    """The decision on a strategy over its gating tasks. ``p_value`` is the largest of them and exists for GO only."""

    name: str
    decision: Decision
    reasons: tuple[str, ...]
    p_value: float | None


# --- One cell ---


def judge_cell(cell: CellInput, gate: Gate, gating_tasks: Collection[str]) -> CellVerdict:
    """Apply the verdict rule to one cell.

    Args:
        cell: The pairs and what is known about the task.
        gate: What was promised before the run.
        gating_tasks: Names of all gating tasks of the run, resolved: never "empty means all".
    """
    sorted_pairs = sort_pairs(cell.pairs)
    test = deciding_test(cell, sorted_pairs.used)
    facts = _describe(cell, gate, gating_tasks, sorted_pairs, test)
    if cell.fidelity:
        shown = "Fidelity is measured and shown; it is never a ground for GO or NO-GO."
        return replace(facts, n=facts.samples, reasons=(shown,))

    power = stats.power_per_task(gate.power, len(gating_tasks) if facts.gating else 1)
    if sorted_pairs.num_finished < cell.planned_n:
        units = harm_shown(cell.pairs, gate)
        if units is None:
            return _incomplete(facts, test, power, sorted_pairs.num_finished, cell.planned_n)
        return _stopped(cell, gate, facts, sorted_pairs, units)
    if void := _void_reasons(cell, gate, facts, sorted_pairs):
        return replace(facts, decision=Decision.VOID, reasons=tuple(void))
    return _decide(_with_test(facts, test, power), test, power, _remarks(cell, facts))


@dataclass(frozen=True)
class SortedPairs:
    """The pairs of a comparison by their fate."""

    num_finished: int  # samples that both sides ran
    num_acted: int  # finished samples on which every layer acted
    mismatched: int  # finished samples whose prompts differ
    not_acted: int  # left out: the prompt gave a layer nothing to do
    baseline_lost: int  # left out: infrastructure failures of the baseline alone,
    candidate_lost: int  # of the candidate alone,
    both_lost: int  # and of both
    used: tuple[Pair, ...]

    @property
    def left_out(self) -> int:
        return self.baseline_lost + self.candidate_lost + self.both_lost


def sort_pairs(pairs: Iterable[Pair]) -> SortedPairs:
    finished = [p for p in pairs if State.NOT_RUN not in (p.baseline_state, p.candidate_state)]
    acting = [p for p in finished if p.acted or not p.acts_by_prompt]
    lost = [
        (
            _is_infrastructure(p.baseline_state, p.baseline_fault),
            _is_infrastructure(p.candidate_state, p.candidate_fault),
        )
        for p in acting
    ]
    return SortedPairs(
        num_finished=len(finished),
        num_acted=sum(p.acted for p in finished),
        mismatched=sum(not p.prompts_agree for p in finished),
        not_acted=len(finished) - len(acting),
        baseline_lost=lost.count((True, False)),
        candidate_lost=lost.count((False, True)),
        both_lost=lost.count((True, True)),
        used=tuple(p for p, sides in zip(acting, lost, strict=True) if not any(sides)),
    )


def _is_infrastructure(state: State, fault: Fault | None) -> bool:
    """Only a fault that is known to be the model's is held against it."""
    return state is State.FAILED and fault != "model"


def right(score: float | None, state: State) -> float:
    """Score for the deciding test. An answer that was never finished is not right, on either side."""
    if state is not State.SCORED:
        return 0.0
    return _known(score)


# --- The two deciding tests ---


@dataclass(frozen=True)
class _Units:
    """Independent units of a comparison in their fixed order: scores of both sides in [0, 1]."""

    baseline: Floats
    candidate: Floats

    @property
    def d(self) -> Floats:
        return self.candidate - self.baseline

    @property
    def mirrored(self) -> Self:
        """The same units with the sides changed over."""
        return type(self)(self.candidate, self.baseline)

    @property
    def n(self) -> int:
        return len(self.baseline)

    @property
    def gained(self) -> int:
        return int(np.sum(self.d > 0))

    @property
    def lost(self) -> int:
        return int(np.sum(self.d < 0))

    @property
    def delta(self) -> float | None:
        return float(self.d.mean()) if self.n else None

    @property
    def flip_rate(self) -> float | None:
        return (self.gained + self.lost) / self.n if self.n else None


class _FlipTest(_Units):
    """Right/wrong samples that stand alone: the exact unconditional test, Tango's for many."""

    @property
    def name(self) -> str:
        return "exact unconditional" if self.n <= stats.EXACT_UP_TO else "Tango score"

    def p_value(self, margin: float) -> float:
        return stats.ni_p_value(self.gained, self.lost, self.n, margin)

    def harm_p_value(self) -> float:
        """Against H0: no worse than the baseline."""
        return stats.mcnemar_harm_p_value(self.gained, self.lost)

    def interval(self, alpha: float, margin: float) -> Interval:
        return stats.ni_interval(self.gained, self.lost, self.n, alpha, margin)

    def shown_interval(self, alpha: float) -> Interval:
        """Of changes that nothing is decided on, of which there may be thousands: Tango's limits at any n."""
        return stats.tango_interval(self.gained, self.lost, self.n, alpha)

    def n_needed(self, margin: float, alpha: float, power: float, mean: float) -> int | None:
        return stats.ni_sample_size(margin, alpha, power, self.flip_rate or 0.0, mean)

    def min_margin(self, alpha: float, power: float) -> float | None:
        return _min_flip_margin(self.n, alpha, power, self.flip_rate or 0.0)


class _BettingTest(_Units):
    """Graded scores, or clusters of samples: betting on the mean difference of each unit."""

    name = "betting"

    def p_value(self, margin: float) -> float:
        return stats.betting_p_value(self.d, margin)

    def harm_p_value(self) -> float:
        """Against H0: no worse than the baseline."""
        return stats.betting_harm_p_value(self.d, 0.0)

    def interval(self, alpha: float, margin: float) -> Interval:
        return stats.betting_interval(self.d, alpha, margin)

    def shown_interval(self, alpha: float) -> Interval:
        """Of changes that nothing is decided on."""
        return stats.betting_interval(self.d, alpha, 0.0)

    def n_needed(self, margin: float, alpha: float, power: float, mean: float) -> int | None:
        return stats.betting_sample_size(self.d, margin, alpha, power, mean)

    def min_margin(self, alpha: float, power: float) -> float | None:
        def decides(margin: float) -> bool:
            needed = self.n_needed(margin, alpha, power, 0.0)
            return needed is not None and needed <= self.n

        return stats.smallest_margin(decides)


@lru_cache(maxsize=4096)
def _min_flip_margin(n: int, alpha: float, power: float, flip_rate: float) -> float | None:
    return stats.smallest_margin(lambda margin: n > 0 and stats.ni_power(n, margin, alpha, flip_rate) >= power)


DecidingTest = _FlipTest | _BettingTest


def deciding_test(cell: CellInput, used: Sequence[Pair]) -> DecidingTest:
    """The units of ``used`` pairs, with the test that fits the cell: its scores and whether its samples share clusters.

    Raises:
        ValueError: A task that is not graded gave a score other than 0 or 1.
    """
    used = () if cell.fidelity else used  # teacher-forced samples have no score
    baseline, candidate = _sides(used)
    clusters = [cluster_of(pair) for pair in used] if is_clustered(cell) else None
    if clusters is None and not cell.graded and (odd := {*baseline, *candidate} - {0.0, 1.0}):
        raise ValueError(f"task {cell.task} is not graded, so its scores must be 0 or 1, got {sorted(odd)}")
    return test_of(baseline, candidate, clusters, graded=cell.graded)


def test_of(
    baseline: Sequence[float], candidate: Sequence[float], clusters: Sequence[Hashable] | None, graded: bool
) -> DecidingTest:
    """The test of scores in [0, 1], two for each sample, and of the cluster that each is in; None: they stand alone."""
    if clusters is not None:
        return _BettingTest(stats.cluster_means(baseline, clusters), stats.cluster_means(candidate, clusters))
    return (_BettingTest if graded else _FlipTest)(np.array(baseline), np.array(candidate))


def _sides(used: Iterable[Pair]) -> tuple[list[float], list[float]]:
    """Scores of baseline and candidate as they are tested."""
    used = tuple(used)
    return [right(p.baseline, p.baseline_state) for p in used], [candidate_score(p, p.candidate) for p in used]


def candidate_score(pair: Pair, score: float | None) -> float:
    """A score of the candidate as it is tested: an answer whose form it alone broke is not right."""
    return 0.0 if _breaks(pair) else right(score, pair.candidate_state)


def is_clustered(cell: CellInput) -> bool:
    return len({cluster_of(p) for p in cell.pairs}) < len(cell.pairs)


def cluster_of(pair: Pair) -> tuple[str, str]:
    """The cluster's name, or the sample's own where it stands alone."""
    return ("cluster", pair.cluster) if pair.cluster else ("sample", pair.sample_id)


# --- Early stop ---


def harm_shown(pairs: Sequence[Pair], gate: Gate) -> int | None:
    """Units, in their fixed order, after which betting had shown a loss beyond the margin; None if it has not, or the gate
    does not stop early.

    Betting is valid at any time, so this may be asked after every sample. Only whole units count, up to the first that is not:
    which samples have finished may depend on what they say. A relative margin is the share of the baseline's score that each
    unit may lose, so it needs no mean that is known at the end only.
    """
    if not gate.early_stop:
        return None
    units = _whole_units(pairs)
    if gate.margin_kind == "relative":
        return stats.betting_stop((1 - gate.margin) * units.baseline - units.candidate, 0.0, harm_level(gate))
    return stats.betting_stop(-units.d, -gate.margin, harm_level(gate))


def harm_level(gate: Gate) -> float:
    """Of each of the two tests for harm, at one look."""
    return gate.alpha / gate.looks / 2


def _whole_units(pairs: Sequence[Pair]) -> _Units:
    """The units before the first, in order, with a sample that has not finished on both sides."""
    unfinished = {cluster_of(pair) for pair in pairs if State.NOT_RUN in (pair.baseline_state, pair.candidate_state)}
    whole: set[tuple[str, str]] = set()
    for pair in pairs:
        if cluster_of(pair) in unfinished:
            break
        whole.add(cluster_of(pair))
    used = sort_pairs(pair for pair in pairs if cluster_of(pair) in whole).used
    clusters = [cluster_of(pair) for pair in used]
    baseline, candidate = (stats.cluster_means(side, clusters) for side in _sides(used))
    return _Units(baseline, candidate)


def _stopped(cell: CellInput, gate: Gate, facts: CellVerdict, sorted_pairs: SortedPairs, units: int) -> CellVerdict:
    """NO-GO before the promised samples are in, unless the comparison is faulty. That the task sees harm is shown by itself."""
    facts = replace(facts, stopped_at=units, saved=cell.planned_n - sorted_pairs.num_finished)
    if void := _fault_reasons(cell, facts, sorted_pairs):
        return replace(facts, decision=Decision.VOID, reasons=tuple(void))
    kind = "samples" if facts.clusters is None else "clusters"
    reason = (
        f"Stopped early: after {units} {kind} a loss larger than the {points(facts.margin)} allowed is shown (betting, "
        f"level {harm_level(gate):.2g}); the observed change is {points(facts.delta)} over {facts.n}. {facts.saved} of "
        f"{cell.planned_n} samples were not asked."
    )
    low, high = stats.betting_interval(_whole_units(cell.pairs).d, facts.alpha, _known(facts.margin))
    return replace(
        facts,
        decision=Decision.NO_GO,
        test="betting, stopped early",
        ci_low=low,
        ci_high=high,
        reasons=(reason, *_remarks(cell, facts)),
    )


# --- Facts, validity, decision ---


def _describe(
    cell: CellInput, gate: Gate, gating_tasks: Collection[str], sorted_pairs: SortedPairs, test: DecidingTest
) -> CellVerdict:
    """Everything that is known before any test is made; the decision is still MEASURED."""
    used = sorted_pairs.used
    baseline = float(test.baseline.mean()) if test.n else None
    return CellVerdict(
        strategy=cell.strategy,
        task=cell.task,
        mode=cell.mode,
        decision=Decision.MEASURED,
        gating=cell.task in gating_tasks and not cell.fidelity,
        n=test.n,
        clusters=test.n if is_clustered(cell) else None,
        samples=len(used),
        baseline=baseline,
        score=float(test.candidate.mean()) if test.n else None,
        delta=test.delta,
        ci_low=None,
        ci_high=None,
        margin=_absolute_margin(gate, baseline),
        alpha=gate.alpha / gate.looks,
        p_value=None,
        test=None,
        gained=test.gained,
        lost=test.lost,
        lost_pairs=sum(_is_lost(p) for p in used),
        flip_rate=test.flip_rate,
        noise_flip_rate=cell.noise_test.flip_rate,
        control_delta=cell.control_test.delta,
        kernel_delta=cell.kernel_test.delta,
        n_needed=None,
        n_needed_observed=None,
        min_margin=None,
        look=cell.look,
        looks=gate.looks,
        left_out=sorted_pairs.left_out,
        not_acted=sorted_pairs.not_acted,
        truncated=sum(p.candidate_state is State.TRUNCATED for p in used),
        degenerate=sum(p.candidate_degenerate for p in used),
        degenerate_baseline=sum(p.baseline_degenerate for p in used),
        failed=sum(p.candidate_state is State.FAILED for p in used),
        reasons=(),
        fidelity=dict(cell.fidelity_measures) if cell.fidelity else None,
    )


def _absolute_margin(gate: Gate, baseline: float | None) -> float | None:
    if gate.margin_kind == "absolute":
        return gate.margin
    return None if baseline is None else gate.margin * baseline


def _is_lost(pair: Pair) -> bool:
    """The candidate alone did not finish, or broke in form, an answer that earned the baseline something."""
    return (pair.candidate_state is not State.SCORED or _breaks(pair)) and (pair.baseline or 0.0) > 0


def _breaks(pair: Pair) -> bool:
    """The candidate's answer alone is degenerate: whatever it happens to contain, it is not right."""
    return pair.candidate_degenerate and not pair.baseline_degenerate


def even(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Pairs of two sides neither of which is on trial: the first is not right either where it alone is degenerate."""
    return tuple(
        replace(pair, baseline=0.0)
        if pair.baseline_degenerate and not pair.candidate_degenerate and pair.baseline is not None
        else pair
        for pair in pairs
    )


def _void_reasons(cell: CellInput, gate: Gate, facts: CellVerdict, sorted_pairs: SortedPairs) -> list[str]:
    """Every reason why no conclusion can be drawn from this comparison, as one sentence each."""
    unseen = check_control(cell.control_test, gate.alpha)
    return [*_fault_reasons(cell, facts, sorted_pairs), *([unseen] if unseen else [])]


def _fault_reasons(cell: CellInput, facts: CellVerdict, sorted_pairs: SortedPairs) -> list[str]:
    """Every reason why this comparison is faulty, whether or not the task can see harm."""
    checks = (
        check_prompts(sorted_pairs),
        _check_acted(sorted_pairs),
        check_left_out(sorted_pairs),
        _check_headroom(facts, cell.chance),
        check_noise(cell.noise_test),
    )
    return [reason for reason in checks if reason]


def check_prompts(sorted_pairs: SortedPairs) -> str | None:
    if not sorted_pairs.mismatched:
        return None
    return (
        f"{sorted_pairs.mismatched} of {sorted_pairs.num_finished} samples had different prompts on the two sides, so "
        "they do not pair."
    )


def _check_acted(sorted_pairs: SortedPairs) -> str | None:
    if sorted_pairs.num_acted:
        return None
    return f"The strategy acted on none of {sorted_pairs.num_finished} samples, so its effect was not tested."


def check_left_out(
    sorted_pairs: SortedPairs, baseline_name: str = "the baseline", candidate_name: str = "the candidate"
) -> str | None:
    """Too many lost, or so many more on one side that the loss itself may be an effect of the strategy."""
    left_out, total = sorted_pairs.left_out, sorted_pairs.left_out + len(sorted_pairs.used)
    if left_out > MAX_LEFT_OUT * total:
        return (
            f"Infrastructure failures took {left_out} of {total} pairs; at most {MAX_LEFT_OUT:.0%} may be missing. "
            "Run again to retry them."
        )
    baseline, candidate = sorted_pairs.baseline_lost, sorted_pairs.candidate_lost
    if stats.mcnemar_p_value(baseline, candidate) < SYSTEMATIC:
        return (
            f"Infrastructure failures are one-sided ({baseline} of {baseline_name}, {candidate} of {candidate_name}), so "
            "the pairs that are left are not a fair sample. Run again to retry them."
        )
    return None


def _check_headroom(facts: CellVerdict, chance: float) -> str | None:
    if facts.baseline is None or facts.margin is None or facts.baseline > chance + HEADROOM * facts.margin:
        return None
    return (
        f"The baseline scores {facts.baseline:.3f}, not more than {HEADROOM} margins of {facts.margin:.3f} above "
        f"chance ({chance:.3f}): there is nothing to lose here. Take an easier task or a stronger model."
    )


def check_noise(noise: DecidingTest) -> str | None:
    p_value = stats.mcnemar_p_value(noise.gained, noise.lost)
    if p_value >= SYSTEMATIC:
        return None
    return (
        f"The baseline differs from itself in another batch composition, and in one direction: {noise.gained} gained, "
        f"{noise.lost} lost of {noise.n} (McNemar p = {p_value:.2g}). The setup is at fault, not the strategy."
    )


def check_control(control: DecidingTest, alpha: float) -> str | None:
    if not control.n:
        return "The positive control was not run, so it is unknown whether this task can see damage to the KV cache."
    p_value = control.harm_p_value()
    if p_value <= alpha:
        return None
    return (
        f"The positive control, which must hurt, does no detectable harm: {points(control.delta)} over {control.n} "
        f"(p = {p_value:.2g}, needs {alpha:.2g}). This task cannot see damage to the KV cache."
    )


def _incomplete(facts: CellVerdict, test: DecidingTest, power: float, num_finished: int, planned_n: int) -> CellVerdict:
    """No test before the promised samples are in: stopping when it looks good is not allowed."""
    return replace(
        _with_n_needed(facts, test, power),
        decision=Decision.INCONCLUSIVE,
        reasons=(f"{num_finished} of {planned_n} samples finished; run again to complete. No test was made.",),
    )


def _with_test(facts: CellVerdict, test: DecidingTest, power: float) -> CellVerdict:
    """Add what the deciding test says; for valid cells only."""
    margin = _known(facts.margin)
    low, high = test.interval(facts.alpha, margin)
    return replace(
        facts,
        test=test.name,
        p_value=test.p_value(margin),
        ci_low=low,
        ci_high=high,
        min_margin=test.min_margin(facts.alpha, power),
    )


def _with_n_needed(facts: CellVerdict, test: DecidingTest, power: float) -> CellVerdict:
    if not facts.margin:
        return facts
    return replace(
        facts,
        n_needed=test.n_needed(facts.margin, facts.alpha, power, 0.0),
        n_needed_observed=None if facts.delta is None else test.n_needed(facts.margin, facts.alpha, power, facts.delta),
    )


def _decide(facts: CellVerdict, test: DecidingTest, power: float, remarks: tuple[str, ...]) -> CellVerdict:
    """GO, NO-GO or INCONCLUSIVE for a valid cell whose test was made."""
    looks_spent = facts.look > facts.looks
    passed = _known(facts.p_value) <= facts.alpha
    if passed and not looks_spent:
        return replace(facts, decision=Decision.GO, reasons=(_go_reason(facts), *remarks))
    if harm := _harm_reasons(facts, test):
        return replace(facts, decision=Decision.NO_GO, reasons=(*harm, *remarks))
    facts = _with_n_needed(facts, test, power)
    reason = _looks_reason(facts) if looks_spent else _undecided_reason(facts)
    return replace(facts, decision=Decision.INCONCLUSIVE, reasons=(reason, *remarks))


def _harm_reasons(facts: CellVerdict, test: DecidingTest) -> list[str]:
    """Why this is NO-GO, if it is: two tests that share alpha."""
    margin, delta, level = _known(facts.margin), _known(facts.delta), facts.alpha / 2
    reasons = []
    worse = test.harm_p_value()
    if worse <= level and delta < -margin:
        reasons.append(
            f"The candidate is worse than the baseline (p = {worse:.2g}, level {level:.2g}), by {points(-delta)} "
            f"where {points(margin)} are allowed: {facts.lost} lost, {facts.gained} gained of {facts.n}."
        )
    beyond = stats.betting_harm_p_value(test.d, margin)
    if beyond <= level:
        reasons.append(
            f"The loss is larger than the {points(margin)} allowed (p = {beyond:.2g}, level {level:.2g}): the "
            f"observed change is {points(delta)} over {facts.n}."
        )
    return reasons


def _go_reason(facts: CellVerdict) -> str:
    return (
        f"A loss of {points(facts.margin)} or more is ruled out (p = {facts.p_value:.2g}, level {facts.alpha:.2g}): "
        f"the observed change is {points(facts.delta)} over {facts.n}, and at worst {points(facts.ci_low)}."
    )


def _undecided_reason(facts: CellVerdict) -> str:
    return (
        f"The change is {points(facts.delta)} over {facts.n} and may be as bad as {points(facts.ci_low)}; the margin "
        f"is {points(facts.margin)}. {_n_needed_sentence(facts)}"
    )


def _looks_reason(facts: CellVerdict) -> str:
    return (
        f"This is look {facts.look} and {facts.looks} were promised, so these samples can no longer give GO. Fresh "
        "samples are needed: run with another seed."
    )


def _n_needed_sentence(facts: CellVerdict) -> str:
    unit = "samples" if facts.clusters is None else "clusters"
    if facts.n_needed_observed is None:
        observed = "if the true change is the observed one, no number is enough"
    else:
        observed = f"{facts.n_needed_observed} if the true change is the observed one"
    smallest = "" if facts.min_margin is None else f" This n decides margins from {points(facts.min_margin)} upwards."
    return f"About {facts.n_needed} {unit} are needed if nothing truly changed, {observed}.{smallest}"


def _remarks(cell: CellInput, facts: CellVerdict) -> tuple[str, ...]:
    """What an operator should know whatever the decision."""
    remarks = []
    if facts.noise_flip_rate is None:
        remarks.append("The baseline was not run against itself, so the noise floor is unknown.")
    if facts.kernel_delta is not None:
        remarks.append(
            f"The engine computes attention otherwise here; the full cache does so at {points(facts.kernel_delta)}."
        )
    if facts.lost_pairs:
        remarks.append(
            f"{facts.lost_pairs} lost pairs are answers that only the candidate did not finish, or that are degenerate."
        )
    if facts.not_acted:
        remarks.append(f"{facts.not_acted} samples are not counted: their prompts gave the strategy nothing to do.")
    if facts.left_out:
        remarks.append(f"{facts.left_out} pairs are left out: infrastructure failures.")
    return tuple(remarks)


def points(value: float | None) -> str:
    """A difference in percentage points."""
    return f"{100 * _known(value):.2f} points"


def _known(value: float | None) -> float:
    assert value is not None, "scored samples have a score; valid cells have a margin and a test"
    return value


# --- Strategies and budget ladders ---

_WORST_FIRST = (Decision.NO_GO, Decision.VOID, Decision.INCONCLUSIVE, Decision.GO)


def judge_strategy(cells: Sequence[CellVerdict]) -> StrategyVerdict:
    """The worst decision over the gating cells of one strategy; MEASURED if none of its cells gates.

    "GO on every task" needs no correction for the number of tasks (Berger 1982, Technometrics 24:295): all of them have
    to pass. Pass a cell for every gating task, also for those that did not run.

    Args:
        cells: At least one verdict, all of the same strategy.
    """
    gating = [cell for cell in cells if cell.gating]
    decision = next((d for d in _WORST_FIRST if any(cell.decision is d for cell in gating)), Decision.MEASURED)
    reasons = tuple(
        f"{cell.task} ({cell.mode}): {reason}"
        for cell in gating
        if cell.decision is decision
        for reason in cell.reasons
    )
    p_value = max(_known(cell.p_value) for cell in gating) if decision is Decision.GO else None
    return StrategyVerdict(cells[0].strategy, decision, reasons or ("No gating task was judged.",), p_value)


def judge_ladder(rungs: Sequence[tuple[float, Decision]]) -> float | None:
    """The smallest certified budget of one ladder: the last GO before the first rung that is not GO.

    Fixed sequence: each rung is tested at full alpha, but only if all milder ones passed, so a GO further down does not
    count. None if the mildest rung already fails.

    Args:
        rungs: (keep, decision of the strategy with that budget), from mild to harsh.
    """
    return _last_passed([(keep, decision is Decision.GO) for keep, decision in rungs])


def judge_ladders(ladders: Mapping[str, Sequence[tuple[float, float | None]]], alpha: float) -> dict[str, float | None]:
    """The smallest certified budget of each of several ladders, where any of them may be picked afterwards.

    Holm's procedure over ladders, fixed sequence within each: every ladder gets an equal share of alpha, and a ladder
    that passes down to its last rung hands its share to the others. With one rung each this is Holm's test. Bretz et
    al. 2009, Stat. Med. 28:586.

    Args:
        ladders: By name, (keep, p-value of the strategy with that budget) from mild to harsh; a p-value of None (not
            GO by itself) never passes.
        alpha: Level of one look, gate.alpha / gate.looks, over all ladders together.
    """
    waiting = {name: rungs for name, rungs in ladders.items() if rungs}
    certified: dict[str, float | None] = dict.fromkeys(ladders)
    while waiting:
        share = alpha / len(waiting)
        passed = {name: [(keep, p is not None and p <= share) for keep, p in r] for name, r in waiting.items()}
        certified |= {name: _last_passed(rungs) for name, rungs in passed.items()}
        unfinished = {name: waiting[name] for name, rungs in passed.items() if not all(ok for _, ok in rungs)}
        if len(unfinished) == len(waiting):
            break
        waiting = unfinished
    return certified


def _last_passed(rungs: Sequence[tuple[float, bool]]) -> float | None:
    last = None
    for keep, passed in rungs:
        if not passed:
            break
        last = keep
    return last
