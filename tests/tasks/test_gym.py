"""Problems of reasoning-gym: which generators can be used, and that samples depend on nothing but seed and place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from harness.types import Response, Sample, State
from tasks.reasoning.gym import EVALUATING, REFUSED, UNSTEADY, ReasoningGym
from tests.tasks.task_doubles import ROOT, Pieces, load

WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
USED = sorted(set(DATASETS) - REFUSED.keys() - WITHOUT_ANSWER)
SOME = (
    *("ab", "advanced_geometry", "arc_1d", "base_conversion", "basic_arithmetic", "chain_sum", "family_relationships"),
    *(
        "game_of_life",
        "gcd",
        "gsm_symbolic",
        "knights_knaves",
        "leg_counting",
        "letter_counting",
        "maze",
        "mini_sudoku",
    ),
    *("number_sorting", "pool_matrix", "rotate_matrix", "shortest_path", "sokoban", "syllogism", "time_intervals"),
)
PRINT_PROBLEMS = """
import sys
sys.path.insert(0, {root!r})
import reasoning_gym
from harness.types import digest
from tests.tasks.task_doubles import Pieces, load
for sample in load("reasoning_gym", shots=1).samples(Pieces(10**6), 3, seed=7):
    print(sample.id, sample.hash)
for name in {names!r}:
    made = (reasoning_gym.create_dataset(name, size=1, seed=seed)[0] for seed in range({count}))
    print(name, digest([[one["question"], str(one["answer"])] for one in made]))
"""


def of(dataset: str = "chain_sum", **options: Any) -> ReasoningGym:
    return ReasoningGym(name="reasoning_gym", dataset=dataset, **options)


def samples(task: ReasoningGym, n: int, seed: int = 0) -> list[Sample]:
    return task.samples(Pieces(10**6), n, seed)


def said(text: str) -> Response:
    return Response(text, (), "stop")


def holds(dataset: str) -> None:
    """What every generator that is not refused must promise."""
    task = of(dataset, shots=1)
    assert task.problems(Pieces()) == []
    few, many, others = samples(task, 2), samples(task, 4), samples(task, 4, seed=1)
    assert many[:2] == few and {one.id for one in many}.isdisjoint(one.id for one in others)
    assert {one.hash for one in many}.isdisjoint(one.hash for one in others)
    for sample in many:
        right = task.score(sample, said(f" {sample.answers[0]}"))
        assert (right.state, right.value) == (State.SCORED, 1.0), (sample.answers, right)
        for text in ("", "no idea", "12", "(1, 2", sample.question):
            judged = task.score(sample, said(text))
            assert judged.value is not None and 0 <= judged.value <= judged.parts["flexible"] <= 1
        assert sample.context.endswith(f"\nAnswer: {gym_answer(task, sample)}")


def gym_answer(task: ReasoningGym, sample: Sample) -> str:
    """The last worked example's answer, as it stands in the text."""
    return sample.context.rpartition("\nAnswer: ")[2]


@pytest.mark.parametrize("dataset", SOME)
def test_a_generator_can_be_used(dataset: str) -> None:
    holds(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [name for name in USED if name not in SOME])
def test_any_other_generator_can_be_used(dataset: str) -> None:
    holds(dataset)


def steady(names: Iterable[str], count: int = 4) -> bool:
    """Whether processes with other hash seeds make the same first problems of these generators."""
    code = PRINT_PROBLEMS.format(root=str(ROOT), names=tuple(names), count=count)
    command = [sys.executable, "-W", "ignore", "-c", code]
    runs = (
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        for seed in ("0", "1", "2")
    )
    return len({run.stdout for run in runs}) == 1


def test_samples_are_the_same_in_every_process() -> None:
    assert steady(SOME)


@pytest.mark.slow
def test_samples_of_all_others_are_the_same_in_every_process() -> None:
    assert steady(name for name in USED if name not in SOME)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [name for name in UNSTEADY.split() if name != "codeio"])  # where it is rare
def test_what_is_refused_for_it_differs_between_processes(dataset: str) -> None:
    assert not steady([dataset], count=8)


@pytest.mark.parametrize("dataset", EVALUATING.split())
def test_what_is_refused_for_it_runs_the_answer(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a model's words could do anything here; and no scorer that is not refused does so."""
    assert runs_answers(dataset, monkeypatch), dataset


@pytest.mark.parametrize("dataset", SOME)
def test_no_other_runs_the_answer(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not runs_answers(dataset, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [name for name in USED if name not in SOME])
def test_none_of_the_others_runs_the_answer(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not runs_answers(dataset, monkeypatch)


def runs_answers(dataset: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether an answer is evaluated when it is scored: one that is a call leaves a mark."""
    from reasoning_gym import create_dataset

    generator = create_dataset(dataset, size=1, seed=0)
    entry = generator[0]
    monkeypatch.setattr(sys, "ran_by_a_scorer", False, raising=False)
    call = 'setattr(__import__("sys"), "ran_by_a_scorer", True)'
    for answer in (call, f"[{call}]", f"[[{call}]]", f"{{{call}}}", f"{call} + 1"):
        with suppress(Exception):
            generator.score_answer(answer, entry)
    return bool(sys.ran_by_a_scorer)  # type: ignore[attr-defined]


def test_examples_fill_a_length() -> None:
    task = of(lengths=(400, 700), shots=2)
    tokenizer = Pieces()
    made = task.samples(tokenizer, 6, seed=0)
    assert task.samples(tokenizer, 3, seed=0) == made[:3]
    for sample, length in zip(made, (400, 700) * 3, strict=True):
        used = tokenizer.prompt_tokens(sample) + sample.max_new_tokens
        assert sample.meta["length"] == length and length - 80 < used <= length
        assert sample.context.count("Problem: ") == sample.meta["examples"] >= 2
        assert sample.question.split("Problem: ")[1] not in sample.context


def test_without_shots_the_problem_stands_alone() -> None:
    (sample,) = samples(of(), 1)
    assert sample.context == "" and sample.meta["examples"] == 0 and sample.meta["prompt_tokens"] > 0
    (shown,) = samples(of(shots=3), 1)
    assert shown.context.count("\nAnswer: ") == 3 and shown.question == sample.question


def test_the_first_line_counts_or_as_many_as_the_answer_has() -> None:
    (line,), (matrix,) = samples(of("gcd"), 1), samples(of("rotate_matrix"), 1)
    right = line.answers[0]
    for text, strict, flexible in (
        (f" {right}\n\nBecause it divides both.", 1.0, 1.0),
        (f"I think so.\n{right}", 0.0, None),
        ("", 0.0, 0.0),
    ):
        judged = of("gcd").score(line, said(text))
        assert judged.value == judged.parts["strict"] == strict
        assert flexible is None or judged.parts["flexible"] == flexible
    assert "\n" in matrix.answers[0]
    assert of("rotate_matrix").score(matrix, said(f"\n{matrix.answers[0]}\n\nThat is it.")).value == 1.0


def test_the_room_for_an_answer_is_that_of_the_right_one() -> None:
    (sample,) = samples(of(), 1)
    assert sample.max_new_tokens == len(Pieces().encode(f" {sample.answers[0]}")) + 16
    assert samples(of(max_new_tokens=200), 1)[0].max_new_tokens == 200


def test_options_reach_the_generator_and_are_part_of_the_task() -> None:
    hard, easy = of(options={"min_terms": 6, "max_terms": 6}), of(options={"min_terms": 2, "max_terms": 2})
    for task, terms in ((hard, 6), (easy, 2)):
        for sample in samples(task, 3):
            assert sample.question.count(" + ") + sample.question.count(" - ") == terms - 1
    assert hard.spec() != easy.spec() and {"reasoning_gym", "sympy", "python"} <= hard.sources().keys()
    assert not {one.id for one in samples(hard, 3)} & {one.id for one in samples(easy, 3)}


@pytest.mark.parametrize(
    "wrong, says",
    [
        (
            {"dataset": "gsm_symbolik"},
            "task.dataset must be a generator of reasoning-gym, got 'gsm_symbolik'; there are gsm_symbolic",
        ),
        ({"dataset": ""}, "task.dataset must be a generator of reasoning-gym, got ''"),
        ({"dataset": "word_ladder"}, "got word_ladder: its problems or answers are not the same in every process"),
        ({"dataset": "n_queens"}, "got n_queens: its scorer evaluates the model's answer as Python"),
        ({"dataset": "composite"}, "got composite: it mixes generators"),
        ({"dataset": "boxnet"}, "task.dataset must be a generator that knows an answer to its problems, got boxnet"),
        ({"options": {"terms": 3}}, "task.options must be options of chain_sum (min_terms, max_terms, "),
        ({"options": {"seed": 3}}, "got seed"),
        (
            {"options": {"min_terms": -1}},
            'task.options: chain_sum cannot be made with {"min_terms":-1} (AssertionError: ',
        ),
        (
            {"options": {"min_terms": "x"}},
            'task.options: chain_sum cannot be made with {"min_terms":"x"} (TypeError: ',
        ),
        ({"shots": -1}, "task.shots must be a whole number of 0 or more, got -1"),
        ({"max_new_tokens": 0}, "task.max_new_tokens must be a whole number of 1 or more, got 0"),
        ({"chance": 1.0}, "task.chance must be in [0, 1), got 1.0"),
        ({"lengths": [9999]}, "task.lengths must be at most 8192"),
        ({"lengths": [20]}, "task.lengths must leave room"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(wrong: dict[str, Any], says: str) -> None:
    task = load("reasoning_gym", **{"dataset": "chain_sum", **wrong})
    (problem,) = task.problems(Pieces())
    assert says in problem and len(problem.splitlines()) == 1
    with pytest.raises(ValueError):
        task.samples(Pieces(), 1, seed=0)


@pytest.mark.parametrize("dataset", sorted(WITHOUT_ANSWER))
def test_a_generator_without_an_answer_is_refused(dataset: str) -> None:
    (problem,) = of(dataset).problems(Pieces())
    assert problem == f"task.dataset must be a generator that knows an answer to its problems, got {dataset}"


def test_a_generator_with_one_problem_has_no_worked_examples() -> None:
    one = {"min_n": 5, "max_n": 5}
    assert of("count_bits", options=one).problems(Pieces()) == []
    (problem,) = of("count_bits", options=one, shots=1).problems(Pieces())
    assert problem == "task.options must leave count_bits different problems for worked examples"


def test_a_prompt_beyond_the_model_is_told_before_the_run() -> None:
    with pytest.raises(ValueError, match="must fit into the model's 60 tokens"):
        replace(of(shots=5)).samples(Pieces(60), 2, seed=0)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    assert of().problems(Pieces()) == ["task: reasoning-gym is not installed (pip install 'kvgate[gym]')"]
