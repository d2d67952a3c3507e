"""Candidate against candidate: one test for each sentence of its rule, and the levels it promises, by simulation."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from harness.compare import Comparison, ComparisonInput, Finding, compare, problems
from harness.types import Gate, Pair, State
from tests.test_verdict import change, flip_pairs, make_cell, make_pairs

GATE = Gate(looks=1)
WIDE = Gate(margin=0.1, looks=1)


def pair_up(pairs: tuple[Pair, ...], gate: Gate = GATE, **changes: object) -> ComparisonInput:
    """fp8 against int8: a gained pair is one that only fp8 has right."""
    return ComparisonInput("int8", make_cell(pairs, strategy="fp8", **changes), gate)


def compare_one(pairs: tuple[Pair, ...], gate: Gate = GATE, **changes: object) -> Comparison:
    (found,) = compare([pair_up(pairs, gate, **changes)])
    return found


# --- The findings ---


@pytest.mark.parametrize("n", [300, 900])
def test_better(n: int) -> None:
    found = compare_one(flip_pairs(n, gained=30, lost=4))
    assert found.finding is Finding.A_BETTER and found.within_margin is False
    assert (found.n, found.a_alone, found.b_alone) == (n, 30, 4)
    assert found.delta == pytest.approx(26 / n) == pytest.approx(found.a_score - found.b_score)
    assert "fp8 is better than int8" in found.reasons[0] and "30 are better with fp8, 4 with int8" in found.reasons[0]
    assert found.p_value == pytest.approx(mcnemar([[0, 4], [30, 0]], exact=True).pvalue)


def test_the_order_of_names_does_not_matter() -> None:
    there, back = compare_one(flip_pairs(300, 20, 3)), compare_one(flip_pairs(300, 3, 20))
    assert (there.finding, back.finding) == (Finding.A_BETTER, Finding.B_BETTER)
    assert (there.p_value, there.p_equivalence) == (back.p_value, back.p_equivalence)
    assert (there.ci_low, there.ci_high) == pytest.approx((-back.ci_high, -back.ci_low))
    assert "int8 is better than fp8" in back.reasons[0]


def test_equivalent() -> None:
    found = compare_one(flip_pairs(400, gained=1, lost=1))
    assert found.finding is Finding.EQUIVALENT and found.within_margin
    assert "ruled out in both directions" in found.reasons[0] and found.n_needed is None


def test_better_but_within_the_margin() -> None:
    found = compare_one(flip_pairs(2000, gained=12))
    assert found.finding is Finding.A_BETTER and found.within_margin
    assert "but within the margin of 2.00 points" in found.reasons[0]


def test_no_difference_shown_tells_the_n_that_would_show_equivalence() -> None:
    found = compare_one(flip_pairs(200, gained=2, lost=2))
    assert found.finding is Finding.NONE and not found.within_margin
    assert found.n_needed is not None and found.n_needed == found.n_needed_observed
    assert str(found.n_needed) in found.reasons[0]
    flips = round(found.n_needed * 0.01)
    assert compare_one(flip_pairs(found.n_needed, flips, flips)).finding is Finding.EQUIVALENT
    hopeless = compare_one(flip_pairs(100, gained=4, lost=1))
    assert hopeless.n_needed_observed is None and "no number is enough" in hopeless.reasons[0]


@pytest.mark.parametrize("flips", [0, 1])
def test_n_needed_has_the_power_asked_for(flips: int) -> None:
    gate = Gate(margin=0.2, looks=1)
    n = compare_one(flip_pairs(10, flips, flips), gate).n_needed
    assert n is not None and n > 10
    found = simulate(flips / 10, flips / 10, 100, seed=7, n=n, gate=gate)
    assert sum(bool(run[0].within_margin) for run in found) / 100 >= 0.8 - 2 * math.sqrt(0.16 / 100)


def test_a_relative_margin_is_a_share_of_the_better_score() -> None:
    pairs = make_pairs([1.0] * 100 + [0.0] * 100, [1.0] * 120 + [0.0] * 80)
    assert compare_one(pairs, Gate(margin_kind="relative", looks=1)).margin == pytest.approx(0.02 * 0.6)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(30, 400), gained=st.integers(0, 8), lost=st.integers(0, 8), graded=st.booleans())
def test_within_the_margin_is_the_same_as_the_interval_within_it(n: int, gained: int, lost: int, graded: bool) -> None:
    found = compare_one(flip_pairs(n, gained, lost), WIDE, graded=graded)
    assert found.within_margin == (found.ci_low > -0.1 and found.ci_high < 0.1) == (found.p_equivalence <= found.alpha)


def test_graded_scores_and_clusters_are_bets() -> None:
    rng = np.random.default_rng(6)
    scores = (0.6 + 0.4 * rng.random(300)).tolist()
    graded = compare_one(make_pairs(scores, [0.8 * score for score in scores]), graded=True)
    assert (graded.finding, graded.test, graded.clusters) == (Finding.B_BETTER, "betting", None)
    clusters = [f"doc{i // 5}" for i in range(1000)]
    clustered = compare_one(make_pairs([1.0] * 1000, [0.0] * 200 + [1.0] * 800, clusters))
    assert (clustered.finding, clustered.n, clustered.samples) == (Finding.B_BETTER, 200, 1000)
    assert "over 200 clusters" in clustered.reasons[0]
    one_bad_context = compare_one(make_pairs([1.0] * 1000, [0.0] * 5 + [1.0] * 995, clusters))
    assert one_bad_context.finding is Finding.NONE and one_bad_context.b_alone == 1


# --- Levels, by simulation ---


def simulate(
    gain: float,
    loss: float,
    runs: int,
    seed: int,
    *,
    n: int = 40,
    family: int = 1,
    gate: Gate = WIDE,
    **changes: object,
) -> list[list[Comparison]]:
    """Runs of ``family`` comparisons each, with these true rates of samples that only a, or only b, has right."""
    counts = np.random.default_rng(seed).multinomial(n, [gain, loss, 1 - gain - loss], size=(runs, family))
    made = {
        (g, lost): pair_up(flip_pairs(n, g, lost), gate, **changes) for g, lost, _ in counts.reshape(-1, 3).tolist()
    }
    return [compare([made[g, lost] for g, lost, _ in run]) for run in counts.tolist()]


def share(runs: list[list[Comparison]], *findings: Finding) -> float:
    """Of the runs, those with such a finding on any of their comparisons."""
    return sum(any(one.finding in findings for one in run) for run in runs) / len(runs)


def most(level: float, runs: int) -> float:
    return level + 2 * math.sqrt(level * (1 - level) / runs)


@pytest.mark.parametrize(("flips", "family"), [(0.3, 1), (0.3, 3)])
def test_null_pairs_are_called_better_at_most_at_the_level(flips: float, family: int) -> None:
    runs = simulate(flips / 2, flips / 2, 300, seed=1, family=family, control=())  # quicker: no equivalence
    assert share(runs, Finding.A_BETTER, Finding.B_BETTER) <= most(0.05, 300)


def test_power_grows_with_the_difference_and_with_n() -> None:
    powers = [share(simulate(0.02 + d, 0.02, 60, seed=2, control=()), Finding.A_BETTER) for d in (0, 0.1, 0.2, 0.4)]
    assert powers == sorted(powers) and powers[0] <= 0.05 and powers[-1] > 0.9
    sizes = [share(simulate(0.2, 0.02, 60, seed=3, n=n, control=()), Finding.A_BETTER) for n in (20, 40, 80)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


@pytest.mark.parametrize("gain", [0.0, 0.03])
@pytest.mark.parametrize("side", [1, -1])
def test_a_difference_of_the_margin_is_within_it_at_most_at_the_level(gain: float, side: int) -> None:
    rates = (gain + 0.1, gain)[::side]
    runs = simulate(*rates, 300, seed=4)
    assert sum(bool(run[0].within_margin) for run in runs) / 300 <= most(0.05, 300)


def test_null_clusters_are_called_better_at_most_at_the_level() -> None:
    rng = np.random.default_rng(5)
    names = [f"doc{i // 4}" for i in range(120)]
    runs = []
    for _ in range(150):
        a, b = np.repeat(rng.random((2, 30)) < 0.8, 4, axis=1).astype(float)  # a context is all right or all wrong
        runs.append([compare_one(make_pairs(b.tolist(), a.tolist(), names), WIDE)])
    assert share(runs, Finding.A_BETTER, Finding.B_BETTER) <= most(0.05, 150)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4))
@settings(max_examples=5, deadline=None)
def test_holm_is_over_all_comparisons_that_were_made(counts: list[tuple[int, int]]) -> None:
    faulty = pair_up(change(flip_pairs(60), 1, prompts_agree=False))
    first, *found = compare([faulty, *(pair_up(flip_pairs(60, *flips), WIDE) for flips in counts)])
    assert first.finding is Finding.NOT_COMPARED and first.p_holm is None
    rejected, adjusted, *_ = multipletests([one.p_value for one in found], alpha=0.05, method="holm")
    assert [one.p_holm for one in found] == pytest.approx(adjusted.tolist())
    assert [one.finding in (Finding.A_BETTER, Finding.B_BETTER) for one in found] == rejected.tolist()


# --- What is not compared, and what is not claimed ---


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (change(flip_pairs(100), 1, prompts_agree=False), "1 of 100 samples had different prompts"),
        (change(flip_pairs(100), 100, acted=False), "On none of 100 samples did both strategies act"),
        (change(flip_pairs(100), 2, candidate_state=State.NOT_RUN), "98 of 100 samples finished on both sides"),
        (
            change(flip_pairs(100), 3, baseline=None, baseline_state=State.FAILED, baseline_fault="infrastructure"),
            "Infrastructure failures took 3 of 100 pairs",
        ),
        (
            change(flip_pairs(600), 8, candidate=None, candidate_state=State.FAILED, candidate_fault="infrastructure"),
            "one-sided (0 of int8, 8 of fp8)",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(pairs: tuple[Pair, ...], reason: str) -> None:
    found = compare_one(pairs)
    assert found.finding is Finding.NOT_COMPARED and reason in found.reasons[0]
    assert found.p_value is found.p_holm is found.ci_low is found.within_margin is found.test is None


def test_a_baseline_that_differs_from_itself_voids_its_task_for_candidates_too() -> None:
    found = compare_one(flip_pairs(400), noise=flip_pairs(400, lost=8))
    assert found.finding is Finding.NOT_COMPARED and "another batch composition" in found.reasons[0]


def test_samples_that_do_not_pair_are_left_out_and_counted() -> None:
    broken = {"baseline": None, "baseline_state": State.FAILED, "baseline_fault": "infrastructure"}
    found = compare_one(change(flip_pairs(400), 7, **broken))
    assert (found.n, found.left_out) == (393, 7)
    idle = compare_one(change(flip_pairs(400), 100, acted=False))
    assert (idle.n, idle.not_acted) == (300, 100)


def test_an_unfinished_answer_is_not_right_on_either_side() -> None:
    right = make_pairs([1.0] * 200, [1.0] * 200)
    cut = {"baseline": None, "baseline_state": State.TRUNCATED}
    assert compare_one(change(right, 30, **cut)).finding is Finding.A_BETTER
    failed = {"candidate": None, "candidate_state": State.FAILED, "candidate_fault": "model"}
    assert compare_one(change(right, 30, **failed)).finding is Finding.B_BETTER


def test_equal_scores_on_a_task_that_sees_nothing_are_not_equivalence() -> None:
    floor = compare_one(make_pairs([0.0] * 400, [0.0] * 400))
    assert floor.finding is Finding.NONE and not floor.within_margin and "above chance" in floor.reasons[0]
    blind = compare_one(flip_pairs(400), control=flip_pairs(50))
    assert blind.finding is Finding.NONE and "does no detectable harm" in blind.reasons[0]
    assert compare_one(flip_pairs(400, gained=20), control=flip_pairs(50)).finding is Finding.A_BETTER


@pytest.mark.parametrize("margin", [1.0, 0.6])
def test_a_margin_that_nothing_can_exceed_claims_nothing(margin: float) -> None:
    found = compare_one(flip_pairs(60, gained=1), Gate(margin=margin, looks=1))
    assert found.finding is Finding.NONE and not found.within_margin


def test_each_look_tests_at_its_share_and_spent_looks_show_nothing() -> None:
    six = flip_pairs(300, gained=6)  # p = 1 / 32
    assert compare_one(six).finding is Finding.A_BETTER
    two_looks = compare_one(six, Gate(looks=2))
    assert two_looks.alpha == 0.025 and two_looks.finding is Finding.NONE
    spent = compare_one(flip_pairs(300, gained=40), look=2)
    assert spent.finding is Finding.NONE and "another seed" in spent.reasons[0]


def test_nothing_to_compare_is_nothing() -> None:
    assert compare([]) == []
    empty = compare_one((), planned_n=10, noise=(), control=())
    assert empty.finding is Finding.NOT_COMPARED and empty.delta is None
    text = json.dumps([asdict(empty), asdict(compare_one(flip_pairs(50, 1)))], allow_nan=False)
    assert json.loads(text)[0]["finding"] == "not compared"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["fp8", "fp9"], ("compare must name strategies of this run (fp8, int8, snapkv@0.25+fp8)", "'fp9'")),
        (["fp8"], ("compare must name two strategies or more, got fp8",)),
        (["fp8", "fp8"], ("compare must name each strategy once, got 'fp8' 2 times",)),
        (["fp8", "full"], ("compare must name candidates, got 'full'", "compared with it anyway")),
    ],
)
def test_a_list_that_cannot_be_compared_is_refused(names: list[str], words: tuple[str, ...]) -> None:
    (problem,) = problems(names, ["fp8", "int8", "snapkv@0.25+fp8"])
    assert all(word in problem for word in words)
    assert problems([], ["fp8"]) == problems(["fp8", "snapkv@0.25+fp8"], ["fp8", "snapkv@0.25+fp8"]) == []
