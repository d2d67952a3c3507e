"""The next line of code: the name it takes up stands far above, and nowhere nearer."""

from __future__ import annotations

import re

import pytest

from harness.types import Response
from tasks import corpus
from tests.tasks.task_doubles import Pieces, load


def shown(context: str) -> list[str]:
    return context.split("```python\n")[1].removesuffix("\n```").splitlines()


@pytest.mark.parametrize("length", [600, 2000])
def test_the_name_stands_far_above_and_nowhere_nearer(length: int) -> None:
    for sample in load("next_line", lengths=[length]).samples(Pieces(), 20, seed=1):
        name = sample.meta["name"]
        assert re.search(rf"\b{name}\b", sample.answers[0])
        above = "\n".join(shown(sample.context))
        *_, last = re.finditer(rf"\b{name}\b", above)
        assert len(above) - last.start() > length * 0.55
        assert sample.meta["lines_above"] > 8
        assert name not in sample.question
        assert not re.search(rf"\b{name}\b", sample.answer_prefix)
        assert sample.answers[0][:8] not in sample.answer_prefix.splitlines()[-1]
        begun = [line for line in sample.answer_prefix.splitlines()[1:] if line.strip()]
        assert begun == [line for line in shown(sample.context) if line.strip()][-2:]


def test_the_answer_is_the_line_that_follows_in_the_file() -> None:
    lines = [line.rstrip() for line in corpus.code().lines]
    for sample in load("next_line").samples(Pieces(), 10, seed=2):
        end = [line.rstrip() for line in shown(sample.context) if line.strip()][-4:]
        follows = [lines[at + 4].strip() for at in range(len(lines) - 4) if lines[at : at + 4] == end]
        assert sample.answers[0] in follows
        assert corpus.code().files.count(sample.cluster) > 0


def test_files_take_turns() -> None:
    samples = load("next_line").samples(Pieces(), 40, seed=0)
    assert len({sample.cluster for sample in samples}) == 40


def test_the_first_line_of_code_is_compared() -> None:
    task = load("next_line")
    (sample,) = task.samples(Pieces(), 1, seed=0)
    line = sample.answers[0]

    def judged(text: str) -> tuple[float | None, float]:
        score = task.score(sample, Response(text, (), "stop"))
        return score.value, score.parts["exact"]

    assert judged(f"        {line}\n") == judged(f"# next\n{line}\nother = 1") == (1.0, 1.0)
    near, exact = judged(line[:-3])
    assert near is not None and 0.8 < near < 1.0 and exact == 0.0
    far, exact = judged("zzz")
    assert far is not None and far < 0.3 and exact == 0.0


@pytest.mark.parametrize("least", [0, 10**6])
def test_what_cannot_be_is_named(least: int) -> None:
    (problem,) = load("next_line", least=least).problems(Pieces())
    assert problem.startswith("task.least must") and problem.endswith(f"got {least}")
