"""Needles: how many there are, what is asked, and what counts as found."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from harness.types import Response, State
from tasks.retrieval.needle import Needle
from tasks.retrieval.needles import Needles
from tests.tasks.task_doubles import Pieces, load


def said(text: str) -> Response:
    return Response(text, (), "length")


@pytest.mark.parametrize("haystack", ["noise", "prose", "needle"])
@pytest.mark.parametrize(("keys", "values", "queries"), [(1, 1, 1), (4, 1, 1), (1, 4, 1), (4, 1, 4), (3, 2, 2)])
def test_all_needles_are_there_and_only_the_asked_are_answers(
    haystack: str, keys: int, values: int, queries: int
) -> None:
    task = Needles(name="demo", lengths=(900,), keys=keys, values=values, queries=queries, haystack=haystack)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    needles = re.findall(r"secret numbers? of (\S+) is (\d{7})\.", sample.context)
    asked = {key for key, value in needles if value in sample.answers}
    assert len(needles) == keys * values if haystack != "needle" else len(needles) > keys * values
    assert len(sample.answers) == queries * values
    assert len(asked) == queries
    assert all(key in sample.question for key in asked)
    assert any(key in sample.answer_prefix for key in asked)


@pytest.mark.parametrize("kind", ["words", "numbers", "uuids"])
def test_kinds_and_their_budgets(kind: str) -> None:
    tokenizer = Pieces()
    sample = Needle(name="demo", keys=3, key_kind=kind, value_kind=kind).samples(tokenizer, 1, seed=0)[0]
    answer = sample.answers[0]
    if kind == "uuids":
        assert UUID(answer).version == 4
    else:
        assert re.fullmatch(r"\d{7}" if kind == "numbers" else r"[a-z]+-[a-z]+", answer)
    spare = sample.max_new_tokens - len(tokenizer.encode(answer))
    assert 8 <= spare <= 80


def test_the_first_needle_stands_at_its_depth() -> None:
    for sample in Needle(name="demo", lengths=(2048,), keys=4, depths=5).samples(Pieces(), 10, seed=0):
        haystack = sample.context.split("\n\n", 1)[1]
        at = haystack.index(sample.answers[0]) / len(haystack)
        assert at == pytest.approx(sample.meta["depth"], abs=0.06)


def test_one_value_is_right_or_wrong() -> None:
    task = load("needle_single")
    sample = task.samples(Pieces(), 1, seed=0)[0]
    (value,) = sample.answers
    assert not task.graded
    for text, score in [(f" {value}.", 1.0), (f" {value}7", 0.0), (" I do not know", 0.0), (value[:-1], 0.0)]:
        judged = task.score(sample, said(text))
        assert (judged.state, judged.value, judged.answer) == (State.SCORED, score, text.strip())


def test_several_values_are_graded_or_all_or_nothing_by_class() -> None:
    graded = load("needle_multivalue")
    sample = graded.samples(Pieces(), 1, seed=0)[0]
    half = said(", ".join(sample.answers[:2]))
    assert graded.graded
    assert graded.score(sample, half).value == 0.5
    assert graded.score(sample, half).parts == {f"position: {at}": float(at <= 2) for at in (1, 2, 3, 4)}
    assert graded.score(sample, said(" and ".join(sample.answers))).value == 1.0
    assert Needle(name="demo", values=4).score(sample, half).value == 0.0


def test_every_broken_option_is_named() -> None:
    task = Needle(name="demo", keys=0, depths=-1, key_kind="emoji", value_kind="dates", haystack="wiki")
    assert task.problems(Pieces()) == [
        "task.keys must be a whole number of 1 or more, got 0",
        "task.depths must be a whole number of 1 or more, got -1",
        "task.key_kind must be one of numbers, words, uuids, got 'emoji'",
        "task.value_kind must be one of numbers, words, uuids, got 'dates'",
        "task.haystack must be one of noise, prose, needle, got 'wiki'",
    ]
    assert Needle(name="demo", keys=2, queries=3).problems(Pieces()) == [
        "task.keys must be at least queries (3), got 2"
    ]
