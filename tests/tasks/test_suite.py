"""Several tasks as one: what its samples are, who judges them, and what the mean is of."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.make import make
from harness.types import BadInput, Response, State
from tasks.base import Task
from tasks.retrieval.ruler_needle import RulerNeedle
from tasks.suite import Suite
from tests.tasks.task_doubles import Pieces, load, short
from tests.test_conf import composed, job
from tests.test_history import talk

MEMBERS = ("needle_single", "needle_multiquery", "next_line")


def suite(*names: str, **options: Any) -> Suite:
    return Suite(name="mine", of={name: short(name) for name in names or MEMBERS}, **options)


@settings(max_examples=20)
@given(n=st.integers(1, 8), more=st.integers(0, 6))
def test_samples_are_the_members_in_turn_and_do_not_depend_on_n(n: int, more: int) -> None:
    task = suite()
    samples = task.samples(Pieces(), n, seed=3)
    assert len(samples) == n and task.samples(Pieces(), n + more, seed=3)[:n] == samples
    alone = {name: member.samples(Pieces(), n, seed=3) for name, member in task.of.items()}
    for at, sample in enumerate(samples):
        name = MEMBERS[at % 3]
        own = alone[name][at // 3]
        cluster = f"{name}-{own.cluster}" if own.cluster else ""
        assert sample == replace(own, id=sample.id, cluster=cluster, meta={**own.meta, "task": name})


def test_ids_are_unique_even_where_a_task_comes_twice() -> None:
    twice = Suite(name="s", of={"a": short("chain"), "b": short("chain")}).samples(Pieces(), 8, seed=0)
    assert len({sample.id for sample in twice}) == 8 and len({sample.context for sample in twice}) == 4


def test_each_member_judges_its_own() -> None:
    task = suite()
    for sample in task.samples(Pieces(), 9, seed=0):
        member = task.of[sample.meta["task"]]
        for text in (" ".join(sample.answers), sample.answers[0], ""):
            said = Response(text, (), "stop")
            assert task.score(sample, said) == member.score(sample, said)
            assert task.score(sample, said).state is State.SCORED


def test_the_score_is_the_mean_of_the_members_where_n_is_a_multiple_of_their_number() -> None:
    task = suite()
    scores: dict[str, list[float]] = {}
    for sample in task.samples(Pieces(), 12, seed=0):
        value = task.score(sample, Response(sample.answers[0], (), "stop")).value
        assert value is not None
        scores.setdefault(sample.meta["task"], []).append(value)
    assert fmean(fmean(mine) for mine in scores.values()) == pytest.approx(fmean(chain.from_iterable(scores.values())))
    assert len({len(mine) for mine in scores.values()}) == 1


def test_chance_is_the_mean_and_one_graded_member_makes_all_graded() -> None:
    assert suite().graded and not suite("needle_single", "chain").graded
    assert suite().chance == pytest.approx(0.1)  # next_line alone has 0.3
    assert not suite().fidelity


def test_a_member_that_has_fewer_samples_leaves_its_turns_out() -> None:
    class Few(RulerNeedle):
        def samples(self, tokenizer: Any, n: int, seed: int) -> Any:
            return super().samples(tokenizer, min(n, 2), seed)

    few = Few(name="few", lengths=(320,))
    task = Suite(name="s", of={"few": few, "chain": short("chain")})
    whole = task.samples(Pieces(), 9, seed=0)
    assert [sample.meta["task"] for sample in whole] == ["few", "chain", "few", "chain", "chain", "chain"]
    assert all(task.samples(Pieces(), n, seed=0) == whole[: min(n, 4) + max(n - 4, 0) // 2] for n in range(1, 9))


def test_a_change_of_a_member_is_a_change_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    task, turned = suite(), suite(*reversed(MEMBERS))
    before = task.spec()
    assert before != turned.spec()  # other samples for most n
    assert set(task.sources()) >= {"needle_single.python", "next_line.code"}
    monkeypatch.setattr(type(task.of["next_line"]), "version", 99)
    assert task.spec() != before


def test_one_length_reaches_all_that_have_lengths() -> None:
    task = suite(lengths=[800, 900])
    assert {member.lengths for member in task.of.values()} == {(800, 900)}  # type: ignore[attr-defined]
    assert task.spec() == Suite(name="mine", of=task.of).spec()
    given = {"_target_": "tasks.jsonl.Jsonl", "name": "given", "path": "/nowhere"}
    with_file = Suite(name="s", of={"given": make(given, "task"), "chain": short("chain")}, lengths=(800,))
    assert with_file.of["given"] == make(given, "task")


def test_ruler_is_its_thirteen_tasks() -> None:
    task = make(job("task=ruler").config["task"], "task")
    names = [f"ruler_{name}" for name in task.of]
    swept = composed("run", "experiment=ruler")  # the same tasks, each judged alone
    assert swept["n"] and len(names) == 13
    assert all(member == load(name) for name, member in zip(names, task.of.values(), strict=True))
    longer = make(job("task=ruler", "task.lengths=[1500,2000]", "task.of.vt.hops=2").config["task"], "task")
    assert all(member.lengths == (1500, 2000) for member in longer.of.values()) and longer.of["vt"].hops == 2
    samples = longer.samples(Pieces(), 26, seed=0)
    assert [sample.meta["task"] for sample in samples[:13]] == list(task.of)
    assert {sample.meta["length"] for sample in samples[:13]} == {1500}
    assert {sample.meta["length"] for sample in samples[13:]} == {2000}


def test_problems_name_the_member() -> None:
    members: dict[str, Task] = {"a": load("needle_single", lengths=[0]), "b": load("ledger", steps=0)}
    assert Suite(name="s", of=members).problems(Pieces()) == [
        "task.of.a.lengths must be a whole number of 1 or more, got 0",
        "task.of.b.steps must be a whole number of 1 or more, got 0",
    ]
    assert suite(lengths=(0,)).problems(Pieces()) == ["task.lengths must be a whole number of 1 or more, got 0"]
    assert Suite(name="s", of={}).problems(Pieces()) == ["task.of must name at least one task, got none"]
    assert Suite(name="s", of={"f": load("fidelity"), "s": suite()}).problems(Pieces()) == [
        "task.of.f must be a single task that is judged, got Fidelity",
        "task.of.s must be a single task that is judged, got Suite",
    ]
    with pytest.raises(ValueError, match=r"task\.of\.a\.lengths"):
        Suite(name="s", of=members).samples(Pieces(), 1, seed=0)


@pytest.mark.parametrize(
    "of", [None, "chain", ["chain"], {"a": None}, {"a": {"x": 1}}, {"a": {"_target_": "tasks.no.No"}}]
)
def test_what_holds_no_tasks_is_refused(of: Any) -> None:
    with pytest.raises(BadInput, match=r"task\.of"):
        make({"_target_": "tasks.suite.Suite", "name": "s", "of": of}, "task")


def test_conversations_stay_conversations() -> None:
    from harness.history import link

    class Talks(RulerNeedle):
        def samples(self, tokenizer: Any, n: int, seed: int) -> Any:
            return talk("x", "abcdef")[:n]

    samples = Suite(name="s", of={"talks": Talks(name="t"), "chain": short("chain")}).samples(Pieces(), 8, seed=0)
    before = link("own", samples)
    assert [len(before[sample.id]) for sample in samples] == [0, 0, 1, 0, 2, 0, 3, 0]
