"""The task that measures distance instead of answers."""

from __future__ import annotations

from harness.types import Response, State
from tests.tasks.task_doubles import Pieces, load


def test_samples_follow_and_the_agreement_is_the_score() -> None:
    task = load("fidelity", tokens=16)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    measured = {"kl_mean": 0.1, "kl_p99": 0.9, "top1_agreement": 0.75, "nll_delta": 0.02}
    judged = task.score(sample, Response("text", (1,), "followed", measured))
    assert task.fidelity and sample.follow and sample.max_new_tokens == 16 and sample.answers == ()
    assert (judged.state, judged.value, judged.detail) == (State.SCORED, 0.75, measured)


def test_a_response_without_fidelity_has_failed() -> None:
    task = load("fidelity")
    judged = task.score(task.samples(Pieces(), 1, seed=0)[0], Response("text", (1,), "length"))
    assert (judged.state, judged.value) == (State.FAILED, None)


def test_every_broken_option_is_named() -> None:
    assert load("fidelity", tokens=0).problems(Pieces()) == ["task.tokens must be a whole number of 1 or more, got 0"]
