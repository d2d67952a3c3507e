"""Conversations: what a turn shares with the others, and what it must not tell."""

from __future__ import annotations

import pytest

from harness.types import Response, State
from tests.tasks.task_doubles import Pieces, load


def test_turns_of_a_conversation_share_their_text_and_nothing_else() -> None:
    samples = load("needle_turns", lengths=[640], turns=3).samples(Pieces(), 9, seed=1)
    for talk in (samples[:3], samples[3:6], samples[6:]):
        assert len({sample.context for sample in talk}) == len({sample.cluster for sample in talk}) == 1
        assert len({sample.question for sample in talk}) == len({sample.answers for sample in talk}) == 3
        assert [sample.meta["turn"] for sample in talk] == [1, 2, 3]
    assert len({sample.cluster for sample in samples}) == 3


def test_history_is_what_was_asked_before_with_its_answers() -> None:
    talk = load("needle_turns", lengths=[640], turns=4).samples(Pieces(), 4, seed=2)
    for at, sample in enumerate(talk):
        assert len(sample.turns) == at
        for (question, answer), before in zip(sample.turns, talk, strict=False):
            assert question == before.question and answer == f"{before.answer_prefix} {before.answers[0]}."
            assert answer in sample.context  # the reference answer is the fact itself
        assert not any(sample.answers[0] in text for turn in sample.turns for text in turn)
        assert sample.other not in (sample.question, *(question for question, _ in sample.turns))


def test_a_run_may_end_in_the_middle_of_a_conversation() -> None:
    task = load("needle_turns", lengths=[640])
    assert task.samples(Pieces(), 10, seed=0)[:6] == task.samples(Pieces(), 6, seed=0)


def test_the_first_number_is_the_answer() -> None:
    task = load("needle_turns", lengths=[640])
    (sample,) = task.samples(Pieces(), 1, seed=0)

    def value(text: str) -> float | None:
        return task.score(sample, Response(text, (1,), "stop")).value

    right = sample.answers[0]
    assert value(f" {right}.") == 1.0 and value(f" not {right[:-1]}, {right}") == 0.0 and value("") == 0.0
    assert task.score(sample, Response("", (), "length")).state is State.SCORED


@pytest.mark.parametrize("field, value", [("turns", 0), ("distractors", 0), ("haystack", "needle")])
def test_what_cannot_be_is_named(field: str, value: object) -> None:
    (problem,) = load("needle_turns", **{field: value}).problems(Pieces())
    assert problem.startswith(f"task.{field} must be") and str(value) in problem
