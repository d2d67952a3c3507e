"""The task that measures distance instead of answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.make import make
from harness.types import BadInput, Response, State
from tasks import corpus
from tasks.base import Task
from tasks.fidelity import FidelityOfAnswers
from tests.tasks.task_doubles import NAMES, Pieces, load, short
from tests.test_conf import job


def test_samples_follow_and_the_agreement_is_the_score() -> None:
    task = load("fidelity", tokens=16)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    measured = {"kl_mean": 0.1, "kl_p99": 0.9, "top1_agreement": 0.75, "nll_delta": 0.02}
    judged = task.score(sample, Response("text", (1,), "followed", measured))
    assert task.fidelity and sample.follow and sample.max_new_tokens == 16 and sample.answers == ()
    assert (judged.state, judged.value, judged.parts) == (State.SCORED, 0.75, {})


def test_a_response_without_fidelity_has_failed() -> None:
    task = load("fidelity")
    judged = task.score(task.samples(Pieces(), 1, seed=0)[0], Response("text", (1,), "length"))
    assert (judged.state, judged.value) == (State.FAILED, None)


def test_every_broken_option_is_named() -> None:
    assert load("fidelity", tokens=0, text="verse").problems(Pieces()) == [
        "task.tokens must be a whole number of 1 or more, got 0",
        "task.text must be one of prose, code, got 'verse'",
    ]


def test_prose_is_what_it_was_before_there_was_a_choice() -> None:
    """Neither the spec, which is part of every address, nor the ids of the samples tell that there is one."""
    assert set(load("fidelity").spec()["options"]) == {"name", "lengths", "tokens"}
    assert load("fidelity", text="code").spec() != load("fidelity").spec()


def test_code_stops_after_a_line_of_the_library() -> None:
    samples = short("fidelity_code").samples(Pieces(), 6, seed=0)
    code = corpus.code()
    for sample in samples:
        lines = sample.context.splitlines(keepends=True)
        starts = {code.lines[place].split("\n")[0] for place in code.places}
        assert lines[0].rstrip("\n") in starts and sample.context in "".join(code.lines) * 2
        assert sample.follow and sample.question == "Continue this code where it stops."
    assert len({sample.context for sample in samples}) > 1


@pytest.mark.parametrize("name", [name for name in NAMES if not load(name).fidelity])
def test_the_answers_of_any_task_can_be_followed(name: str) -> None:
    inner = short(name)
    task = FidelityOfAnswers(name="f", of=inner)
    samples = task.samples(Pieces(), 3, seed=1)
    assert samples == [replace(sample, follow=True) for sample in inner.samples(Pieces(), 3, seed=1)]
    assert task.fidelity and task.problems(Pieces()) == [] and task.sources() == inner.sources()
    judged = task.score(samples[0], Response("text", (1,), "followed", {"kl_mean": 0.1, "top1_agreement": 0.5}))
    assert (judged.state, judged.value) == (State.SCORED, 0.5)


def test_a_change_of_the_task_within_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    task = FidelityOfAnswers(name="f", of=short("needle_single"))
    before = task.spec()
    monkeypatch.setattr(type(task.of), "version", 99)
    assert task.spec() != before
    assert replace(task, of=load("needle_single", lengths=[999])).spec() != task.spec()


def test_any_task_can_be_named_on_the_command_line() -> None:
    words = ["task=fidelity_answers", "task@task.of=code_lookup", "task.of.lengths=[640]"]
    made = make(job(*words).config["task"], "task")
    assert made == FidelityOfAnswers(name="fidelity_answers", of=load("code_lookup", lengths=[640]))
    assert make(job("task=fidelity_answers").config["task"], "task").of == load("needle_single")


def test_what_cannot_be_followed_is_named() -> None:
    def problems(of: Task) -> list[str]:
        return FidelityOfAnswers(name="f", of=of).problems(Pieces())

    assert problems(load("fidelity")) == [
        "task.of must be a task that asks questions, got fidelity, which measures fidelity itself"
    ]
    assert problems(load("chain", lengths=[0])) == ["task.of.lengths must be a whole number of 1 or more, got 0"]
    for wrong in (
        {"_target_": "tasks.fidelity.FidelityOfAnswers", "name": "f", "of": of} for of in ({"a": 1}, None, "chain")
    ):
        with pytest.raises(BadInput, match=r"task\.of"):
            make(wrong, "task")
