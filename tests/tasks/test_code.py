"""Constants planted in real code."""

from __future__ import annotations

import re

import pytest

from harness.types import Response, State
from tasks import corpus
from tasks.code.lookup import CodeLookup, free_names
from tests.tasks.task_doubles import Pieces, load


def test_planted_names_are_not_the_librarys() -> None:
    used = set(re.findall(r"\w+", "".join(corpus.code().lines)))
    assert len(free_names()) > 400
    assert used.isdisjoint(free_names())


def test_constants_stand_at_module_level_and_the_asked_one_at_its_depth() -> None:
    for sample in load("code_lookup", lengths=[1500], depths=5).samples(Pieces(), 10, seed=0):
        lines = sample.context.split("```")[1].splitlines()[1:]
        planted = [at for at, line in enumerate(lines) if re.fullmatch(r"[A-Z]+_[A-Z]+_[A-Z]+ = \d{7}", line)]
        assert len(planted) == 4
        asked = next(at for at in planted if sample.answers[0] in lines[at])
        assert asked / len(lines) == pytest.approx(sample.meta["depth"], abs=0.2)  # the nearest natural place
        for at in planted:
            after = next((line for line in lines[at + 1 :] if line.strip()), "def")
            assert re.match(r"def|class|async|@|[A-Z]+_", after), after


@pytest.mark.parametrize(
    ("text", "right"),
    [(" 4827193", 1.0), (" 4_827_193\n", 1.0), (" 48271930", 0.0), (" 1 + 4827193", 0.0), (" None", 0.0)],
)
def test_the_first_number_counts(text: str, right: float) -> None:
    task = load("code_lookup")
    sample = task.samples(Pieces(), 1, seed=0)[0]
    text = text.replace("4827193", sample.answers[0]).replace("4_827_193", f"{int(sample.answers[0]):_}")
    judged = task.score(sample, Response(text, (), "stop"))
    assert (judged.state, judged.value) == (State.SCORED, right)


def test_samples_from_one_file_are_one_cluster() -> None:
    for sample in load("code_lookup").samples(Pieces(), 5, seed=0):
        assert sample.cluster == sample.meta["file"]
        assert sample.cluster.endswith(".py")


def test_every_broken_option_is_named() -> None:
    assert CodeLookup(name="demo", constants=0, depths=0).problems(Pieces()) == [
        "task.constants must be a whole number of 1 or more, got 0",
        "task.depths must be a whole number of 1 or more, got 0",
    ]
    assert "task.constants must be at most" in CodeLookup(name="demo", constants=9999).problems(Pieces())[0]
