"""The verdict rule: one test for each sentence of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import stats
from harness.types import Decision, Gate, Pair, State
from harness.verdict import CellInput, CellVerdict, judge_cell, judge_ladder, judge_ladders, judge_strategy

GATE = Gate(looks=1)
TASKS = ("recall",)


def make_pairs(baseline: Sequence[float], candidate: Sequence[float], clusters: Sequence[str] = ()) -> tuple[Pair, ...]:
    names = clusters or [""] * len(baseline)
    return tuple(
        Pair(f"s{i:04}", name, b, c, State.SCORED, State.SCORED)
        for i, (b, c, name) in enumerate(zip(baseline, candidate, names, strict=True))
    )


def flip_pairs(n: int, gained: int = 0, lost: int = 0, seed: int = 0) -> tuple[Pair, ...]:
    """``n`` right/wrong pairs in random order with so many flips; half of the rest is right on both sides."""
    same = n - gained - lost
    outcomes = [(0, 1)] * gained + [(1, 0)] * lost + [(1, 1)] * (same - same // 2) + [(0, 0)] * (same // 2)
    order = np.random.default_rng(seed).permutation(n)
    return make_pairs([outcomes[i][0] for i in order], [outcomes[i][1] for i in order])


def make_cell(pairs: tuple[Pair, ...], **changes: object) -> CellInput:
    """A valid cell around ``pairs``: quiet baseline, a control that hurts."""
    cell = CellInput(
        strategy="snapkv",
        task="recall",
        mode="aware",
        pairs=pairs,
        noise=flip_pairs(50),
        control=flip_pairs(50, lost=20),
        planned_n=len(pairs),
        look=1,
        chance=0.0,
        graded=False,
        fidelity=False,
        fidelity_measures={},
    )
    return replace(cell, **changes)  # type: ignore[arg-type]


def judge(pairs: tuple[Pair, ...], gate: Gate = GATE, tasks: Sequence[str] = TASKS, **changes: object) -> CellVerdict:
    return judge_cell(make_cell(pairs, **changes), gate, tasks)


def change(pairs: tuple[Pair, ...], count: int, **changes: object) -> tuple[Pair, ...]:
    """The same pairs, the first ``count`` of them changed."""
    return tuple(replace(p, **changes) if i < count else p for i, p in enumerate(pairs))  # type: ignore[arg-type]


def void_reason(verdict: CellVerdict) -> str:
    """The one reason of a VOID cell; no test was made on it."""
    assert verdict.decision is Decision.VOID
    assert verdict.p_value is verdict.ci_low is verdict.test is None
    (reason,) = verdict.reasons
    return reason


# --- The three answers ---


def test_go() -> None:
    verdict = judge(flip_pairs(400, gained=2, lost=2))
    assert verdict.decision is Decision.GO
    assert (verdict.n, verdict.gained, verdict.lost, verdict.clusters) == (400, 2, 2, None)
    assert verdict.test == "exact unconditional"
    assert verdict.p_value is not None and verdict.p_value <= 0.05
    assert verdict.ci_low is not None and verdict.ci_low > -0.02
    assert verdict.delta == 0.0
    assert verdict.flip_rate == 0.01
    assert "ruled out" in verdict.reasons[0]


def test_go_by_tango_above_600() -> None:
    assert judge(flip_pairs(1000, gained=5, lost=5)).test == "Tango score"


@pytest.mark.parametrize("n", [300, 900])
def test_planted_harm_is_no_go(n: int) -> None:
    verdict = judge(flip_pairs(n, lost=n // 10))
    assert verdict.decision is Decision.NO_GO
    assert len(verdict.reasons) == 2  # worse than the baseline, and by more than the margin
    assert verdict.n_needed is None


def test_the_two_halves_of_no_go_share_alpha() -> None:
    five_losses = judge(flip_pairs(150, lost=5))  # p = 1/32, between alpha / 2 and alpha
    assert five_losses.decision is Decision.INCONCLUSIVE
    assert judge(flip_pairs(150, lost=6)).decision is Decision.NO_GO  # p = 1/64


def test_worse_but_within_the_margin_is_not_no_go() -> None:
    verdict = judge(flip_pairs(3000, lost=30))
    assert verdict.decision is Decision.GO
    assert stats.mcnemar_harm_p_value(0, 30) < 0.025
    assert judge(flip_pairs(400, lost=7)).decision is Decision.INCONCLUSIVE  # surely worse, by 1.75 of 2 points


def test_too_few_samples_is_inconclusive_with_the_n_that_decides() -> None:
    verdict = judge(flip_pairs(100, gained=1, lost=1))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.n_needed is not None and verdict.n_needed > 100
    assert verdict.n_needed_observed == verdict.n_needed  # the observed change is zero
    assert str(verdict.n_needed) in verdict.reasons[0]
    assert verdict.min_margin is not None and verdict.min_margin > 0.02
    flips = round(verdict.n_needed * 0.02 / 2)
    assert judge(flip_pairs(verdict.n_needed, gained=flips, lost=flips)).decision is Decision.GO


def test_min_margin_is_a_margin_this_n_decides() -> None:
    margin = judge(flip_pairs(100, gained=1, lost=1)).min_margin
    assert margin is not None
    assert judge(flip_pairs(100, gained=1, lost=1), Gate(margin=margin, looks=1)).decision is Decision.GO


def test_joint_power_over_the_gating_tasks_costs_samples() -> None:
    alone = judge(flip_pairs(100, gained=2, lost=2)).n_needed
    seven = judge(flip_pairs(100, gained=2, lost=2), tasks=["recall", *"abcdef"]).n_needed
    assert alone is not None and seven is not None
    assert 1.6 < seven / alone < 2.2


def test_hopeless_at_the_observed_change() -> None:
    verdict = judge(flip_pairs(100, lost=3))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.n_needed_observed is None
    assert "no number is enough" in verdict.reasons[0]


def test_relative_margin() -> None:
    pairs = make_pairs([1.0] * 200 + [0.0] * 200, [1.0] * 200 + [0.0] * 200)
    verdict = judge(pairs, Gate(margin_kind="relative", looks=1))
    assert verdict.margin == pytest.approx(0.01)
    assert verdict.decision is Decision.GO


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 800),
    gained=st.integers(0, 12),
    lost=st.integers(0, 12),
    looks=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_go_is_the_same_as_ci_low_above_the_margin(n: int, gained: int, lost: int, looks: int, seed: int) -> None:
    verdict = judge(flip_pairs(n + gained + lost, gained, lost, seed), Gate(looks=looks))
    if verdict.decision is Decision.VOID:
        return  # no headroom in a tiny sample
    assert verdict.ci_low is not None and verdict.p_value is not None
    assert (verdict.decision is Decision.GO) == (verdict.ci_low > -0.02) == (verdict.p_value <= verdict.alpha)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 300), seed=st.integers(0, 999), spread=st.sampled_from([0.0, 0.02, 0.3]))
def test_graded_go_is_the_same_as_ci_low_above_the_margin(n: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    baseline = rng.random(n) / 2 + 0.25
    candidate = np.clip(baseline + rng.normal(0, spread, n), 0, 1)
    verdict = judge(make_pairs(baseline.tolist(), candidate.tolist()), graded=True)
    assert verdict.ci_low is not None
    assert (verdict.decision is Decision.GO) == (verdict.ci_low > -0.02)


# --- Type I ---


def decisions(n: int, gain: float, loss: float, runs: int, seed: int) -> list[Decision]:
    rng = np.random.default_rng(seed)
    found = []
    for gained, lost, order in zip(
        rng.binomial(n, gain, runs), rng.binomial(n, loss, runs), rng.integers(1 << 30, size=runs), strict=True
    ):
        found.append(judge(flip_pairs(n, int(gained), int(lost), int(order)), Gate(margin=0.1, looks=1)).decision)
    return found


def test_baseline_against_itself_is_no_go_at_most_at_the_level() -> None:
    found = decisions(100, 0.1, 0.1, runs=80, seed=1)
    assert found.count(Decision.NO_GO) <= 0.05 * 80


def test_harm_at_the_margin_is_go_at_most_at_the_level() -> None:
    found = decisions(100, 0.02, 0.12, runs=120, seed=2)
    assert found.count(Decision.GO) <= 0.05 * 120 + 2 * math.sqrt(0.05 * 0.95 * 120)


def test_planted_harm_is_found() -> None:
    found = decisions(100, 0.02, 0.3, runs=50, seed=3)
    assert found.count(Decision.NO_GO) >= 45
    assert found.count(Decision.GO) == 0


@pytest.mark.slow
def test_levels_with_many_runs() -> None:
    assert decisions(150, 0.05, 0.05, runs=300, seed=4).count(Decision.NO_GO) <= 0.05 * 300
    assert decisions(150, 0.01, 0.11, runs=300, seed=5).count(Decision.GO) <= 0.05 * 300 + 8


# --- Clusters and grades ---


def test_clusters_are_the_units() -> None:
    clusters = [f"doc{i // 5}" for i in range(1000)]
    verdict = judge(make_pairs([1.0] * 1000, [1.0] * 1000, clusters), control=flip_pairs(100, lost=40))
    assert (verdict.n, verdict.clusters, verdict.samples) == (200, 200, 1000)
    assert verdict.test == "betting"
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.n_needed == 296
    assert "clusters" in verdict.reasons[0]
    more = [f"doc{i // 5}" for i in range(5 * 296)]
    assert judge(make_pairs([1.0] * 1480, [1.0] * 1480, more)).decision is Decision.GO


def test_a_bad_context_counts_once() -> None:
    clusters = [f"doc{i // 5}" for i in range(200)]
    candidate = [0.0 if i < 5 else 1.0 for i in range(200)]
    verdict = judge(make_pairs([1.0] * 200, candidate, clusters))
    assert (verdict.lost, verdict.n) == (1, 40)
    assert verdict.decision is not Decision.NO_GO


def test_graded_harm_is_no_go() -> None:
    rng = np.random.default_rng(6)
    baseline = (0.6 + 0.4 * rng.random(300)).tolist()
    verdict = judge(make_pairs(baseline, [0.8 * b for b in baseline]), graded=True)
    assert verdict.decision is Decision.NO_GO
    assert verdict.clusters is None
    assert verdict.delta == pytest.approx(-0.2 * np.mean(baseline))


def test_ungraded_task_with_a_graded_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="recall is not graded"):
        judge(make_pairs([1.0, 0.5], [1.0, 0.5]))


# --- VOID ---


def test_void_when_prompts_do_not_pair() -> None:
    pairs = change(flip_pairs(400), 1, prompts_agree=False)
    assert void_reason(judge(pairs)).startswith("1 of 400 samples had different prompts")


@pytest.mark.parametrize("by_prompt", [True, False])
def test_void_when_the_strategy_never_acted(by_prompt: bool) -> None:
    verdict = judge(change(flip_pairs(400), 400, acted=False, acts_by_prompt=by_prompt))
    assert "acted on none of 400 samples" in void_reason(verdict)
    assert verdict.not_acted == (400 if by_prompt else 0)


def test_samples_whose_prompt_gave_nothing_to_do_are_left_out() -> None:
    verdict = judge(change(flip_pairs(400), 100, acted=False))
    assert (verdict.n, verdict.not_acted) == (300, 100)
    assert any("100 samples are not counted" in reason for reason in verdict.reasons)
    verdict = judge(change(flip_pairs(400), 100, acted=False, acts_by_prompt=False))
    assert (verdict.n, verdict.not_acted) == (400, 0)


def test_void_without_headroom() -> None:
    assert "nothing to lose" in void_reason(judge(flip_pairs(400), chance=0.47))
    assert judge(flip_pairs(400), chance=0.45).decision is Decision.GO


def test_void_when_the_baseline_never_scores() -> None:
    for gate in (GATE, Gate(margin_kind="relative")):
        assert "nothing to lose" in void_reason(judge(make_pairs([0.0] * 300, [0.0] * 300), gate))


def test_baseline_at_ceiling_is_fine() -> None:
    assert judge(make_pairs([1.0] * 300, [1.0] * 300)).decision is Decision.GO


@pytest.mark.parametrize("control", [(), flip_pairs(50), flip_pairs(50, gained=4, lost=6)])
def test_void_when_the_control_does_no_harm(control: tuple[Pair, ...]) -> None:
    assert "positive control" in void_reason(judge(flip_pairs(400), control=control))


def test_void_when_a_graded_control_does_no_harm() -> None:
    pairs = make_pairs([0.7] * 400, [0.7] * 400)
    verdict = judge(pairs, graded=True, control=make_pairs([0.7] * 100, [0.69] * 100))
    assert "positive control" in void_reason(verdict)
    assert verdict.control_delta == pytest.approx(-0.01)
    assert judge(pairs, graded=True, control=make_pairs([0.7] * 100, [0.4] * 100)).decision is Decision.GO


def test_void_when_the_baseline_differs_from_itself_systematically() -> None:
    verdict = judge(flip_pairs(400), noise=flip_pairs(400, lost=8))
    assert "another batch composition" in void_reason(verdict)
    symmetric = judge(flip_pairs(400), noise=flip_pairs(400, gained=10, lost=10))
    assert symmetric.decision is Decision.GO
    assert symmetric.noise_flip_rate == 0.05


def test_void_when_too_many_pairs_are_lost_to_infrastructure() -> None:
    broken = {"baseline": None, "baseline_state": State.FAILED, "baseline_fault": "infrastructure"}
    verdict = judge(change(flip_pairs(400), 9, **broken))
    assert "took 9 of 400 pairs" in void_reason(verdict)
    few = judge(change(flip_pairs(400), 7, **broken))
    assert few.decision is Decision.GO
    assert (few.n, few.left_out) == (393, 7)


def test_void_when_infrastructure_failures_are_one_sided() -> None:
    broken = {"candidate": None, "candidate_state": State.FAILED, "candidate_fault": "infrastructure"}
    assert "one-sided" in void_reason(judge(change(flip_pairs(600), 8, **broken)))


def test_all_void_reasons_are_told_at_once() -> None:
    assert len(judge(flip_pairs(400), control=(), chance=0.49).reasons) == 2


# --- Lost pairs, incomplete runs, looks ---


@pytest.mark.parametrize(
    ("state", "fault"), [(State.TRUNCATED, None), (State.FAILED, "model")], ids=["truncated", "failed"]
)
def test_unfinished_answers_of_the_candidate_alone_are_lost(state: State, fault: str | None) -> None:
    right = make_pairs([1.0] * 300, [1.0] * 300)
    verdict = judge(change(right, 40, candidate=None, candidate_state=state, candidate_fault=fault))
    assert verdict.decision is Decision.NO_GO
    assert (verdict.n, verdict.lost, verdict.lost_pairs) == (300, 40, 40)
    assert verdict.truncated + verdict.failed == 40
    assert (verdict.truncated == 40) == (state is State.TRUNCATED)
    assert "40 lost pairs" in verdict.reasons[-1]


def test_unfinished_where_the_baseline_was_wrong_or_unfinished_is_no_loss() -> None:
    wrong = change(make_pairs([0.0] * 50 + [1.0] * 350, [0.0] * 50 + [1.0] * 350), 50, candidate_state=State.TRUNCATED)
    wrong = change(wrong, 50, candidate=None)
    both = change(wrong, 50, baseline=None, baseline_state=State.TRUNCATED)
    for pairs in (wrong, both):
        verdict = judge(pairs)
        assert (verdict.lost, verdict.lost_pairs, verdict.truncated) == (0, 0, 50)
        assert verdict.decision is Decision.GO


def test_incomplete_run_is_not_tested() -> None:
    unfinished = change(flip_pairs(400), 10, candidate=None, candidate_state=State.NOT_RUN)
    verdict = judge(unfinished)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.p_value is verdict.ci_low is verdict.test is None
    assert verdict.reasons[0].startswith("390 of 400 samples finished; run again to complete")
    assert verdict.n_needed is not None
    assert judge(flip_pairs(390), planned_n=400).decision is Decision.INCONCLUSIVE


@pytest.mark.parametrize("gate", [GATE, Gate(margin_kind="relative")])
def test_nothing_has_run(gate: Gate) -> None:
    verdict = judge((), gate, planned_n=400, noise=(), control=())
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.n == 0
    assert verdict.baseline is verdict.score is verdict.delta is verdict.flip_rate is None
    assert (verdict.n_needed is None) == (gate.margin_kind == "relative")


def test_nothing_was_planned() -> None:
    assert judge(()).decision is Decision.VOID


@pytest.mark.parametrize(("baseline", "candidate"), [(1.0, 1.0), (1.0, 0.0)])
def test_one_sample_decides_nothing(baseline: float, candidate: float) -> None:
    verdict = judge(make_pairs([baseline], [candidate]))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.ci_low is not None and verdict.ci_high is not None


def test_all_lost_is_no_go() -> None:
    assert judge(make_pairs([1.0] * 50, [0.0] * 50)).decision is Decision.NO_GO


def test_each_look_tests_at_its_share_of_alpha() -> None:
    pairs = flip_pairs(160)  # enough for 5 %, too few for 2.5 %
    assert judge(pairs, Gate(looks=1)).decision is Decision.GO
    two = judge(pairs, Gate(looks=2))
    assert two.decision is Decision.INCONCLUSIVE
    assert two.alpha == 0.025


def test_spent_looks_never_give_go() -> None:
    verdict = judge(flip_pairs(400), look=2)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "another seed" in verdict.reasons[0]
    assert judge(flip_pairs(400, lost=60), look=2).decision is Decision.NO_GO


# --- What is not judged, and what is shown ---


def test_fidelity_is_measured() -> None:
    pairs = change(flip_pairs(50, lost=40), 50, baseline=None, candidate=None)
    verdict = judge(pairs, fidelity=True, fidelity_measures={"kl_mean": 0.01})
    assert verdict.decision is Decision.MEASURED
    assert not verdict.gating
    assert verdict.fidelity == {"kl_mean": 0.01}
    assert verdict.n == verdict.samples == 50
    assert verdict.baseline is verdict.delta is None


def test_missing_noise_run_is_told() -> None:
    verdict = judge(flip_pairs(400), noise=())
    assert verdict.noise_flip_rate is None
    assert "noise floor is unknown" in verdict.reasons[-1]


@pytest.mark.parametrize(
    "pairs", [flip_pairs(400), flip_pairs(30, gained=1), flip_pairs(100, lost=50), make_pairs([0.0], [0.0]), ()]
)
def test_verdicts_are_json_without_nan(pairs: tuple[Pair, ...]) -> None:
    text = json.dumps(asdict(judge(pairs)), allow_nan=False)
    assert json.loads(text)["task"] == "recall"


# --- Strategies and ladders ---


def cell_verdict(task: str, decision: Decision, p_value: float | None = 0.01, gating: bool = True) -> CellVerdict:
    facts = judge(flip_pairs(20))
    return replace(facts, task=task, decision=decision, p_value=p_value, gating=gating, reasons=(f"Because {task}.",))


@pytest.mark.parametrize(
    ("decisions_of_cells", "expected"),
    [
        (["GO", "GO"], "GO"),
        (["GO", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["INCONCLUSIVE", "VOID", "GO"], "VOID"),
        (["VOID", "NO-GO", "INCONCLUSIVE"], "NO-GO"),
    ],
)
def test_strategy_gets_the_worst_decision(decisions_of_cells: list[str], expected: str) -> None:
    cells = [cell_verdict(f"task{i}", Decision(d)) for i, d in enumerate(decisions_of_cells)]
    verdict = judge_strategy(cells)
    assert (verdict.name, verdict.decision) == ("snapkv", Decision(expected))
    assert all(reason.startswith("task") for reason in verdict.reasons)


def test_strategy_p_value_is_the_largest() -> None:
    cells = [cell_verdict("a", Decision.GO, 0.01), cell_verdict("b", Decision.GO, 0.03)]
    assert judge_strategy(cells).p_value == 0.03
    assert judge_strategy([*cells, cell_verdict("c", Decision.INCONCLUSIVE, 0.2)]).p_value is None


def test_cells_that_do_not_gate_do_not_count() -> None:
    other = cell_verdict("b", Decision.NO_GO, gating=False)
    assert judge_strategy([cell_verdict("a", Decision.GO), other]).decision is Decision.GO
    assert judge_strategy([other]).decision is Decision.MEASURED


@pytest.mark.parametrize(
    ("rungs", "certified"),
    [
        ("GO GO INCONCLUSIVE GO", 0.25),
        ("GO GO GO GO", 0.0625),
        ("NO-GO GO GO GO", None),
        ("VOID GO GO GO", None),
        ("", None),
    ],
)
def test_ladder_stops_at_the_first_rung_that_fails(rungs: str, certified: float | None) -> None:
    keeps = (0.5, 0.25, 0.125, 0.0625)
    assert judge_ladder([(keep, Decision(d)) for keep, d in zip(keeps, rungs.split(), strict=False)]) == certified


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=6))
def test_ladders_of_one_rung_are_holm(p_values: list[float]) -> None:
    certified = judge_ladders({str(i): [(0.5, p)] for i, p in enumerate(p_values)}, alpha=0.05)
    expected = [adjusted <= 0.05 for adjusted in stats.holm(p_values)]
    assert [certified[str(i)] == 0.5 for i in range(len(p_values))] == expected


def test_a_finished_ladder_hands_its_share_on() -> None:
    hard = [(0.5, 0.02), (0.25, 0.04), (0.1, None)]
    assert judge_ladders({"a": [(0.5, 0.01), (0.25, 0.02)], "b": hard}, alpha=0.05) == {"a": 0.25, "b": 0.25}
    assert judge_ladders({"a": [(0.5, 0.01), (0.25, 0.03)], "b": hard}, alpha=0.05) == {"a": 0.5, "b": 0.5}
    assert judge_ladders({"a": [], "b": hard}, alpha=0.05) == {"a": None, "b": 0.25}
