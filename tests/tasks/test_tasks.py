"""What every task promises, whichever it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.types import Response, State
from tasks.fidelity import Fidelity
from tests.tasks.task_doubles import (
    FOLLOWING,
    NAMES,
    ROOT,
    UNIT,
    WORKED_OUT,
    Pieces,
    lengths,
    load,
    made_by_task,
    short,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PRINT_HASHES = """
import sys
sys.path.insert(0, {root!r})
from tests.tasks.task_doubles import NAMES, Pieces, short
for name in NAMES:
    print(name, *(sample.id + "=" + sample.hash for sample in short(name).samples(Pieces(), 3, 7)))
"""


def response(text: str, fidelity: dict[str, float] | None = None) -> Response:
    return Response(text, tuple(range(len(text.split()))), "stop", fidelity)


@pytest.mark.parametrize("name", NAMES)
def test_sample_i_does_not_depend_on_n(name: str) -> None:
    few, many = (short(name).samples(Pieces(), n, seed=1) for n in (3, 12))
    assert many[:3] == few
    assert [sample.hash for sample in many[:3]] == [sample.hash for sample in few]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_unique_over_seeds_and_options(name: str) -> None:
    drawn = [
        *short(name).samples(Pieces(), 8, seed=1),
        *short(name).samples(Pieces(), 8, seed=2),
        *replace(short(name), lengths=lengths(name, 600)).samples(Pieces(), 8, seed=1),  # type: ignore[call-arg]
    ]
    assert len({sample.id for sample in drawn}) == len(drawn)
    assert len({sample.hash for sample in drawn}) == len(drawn)


def test_samples_are_the_same_in_every_process() -> None:
    code = PRINT_HASHES.format(root=str(ROOT))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 4 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_filled_and_never_exceeded(name: str) -> None:
    tokenizer = Pieces()
    wanted = lengths(name, 640, 1024, 2048)
    for index, sample in enumerate(load(name, lengths=wanted).samples(tokenizer, 30, seed=3)):
        turns, turn = sample.meta.get("turns", 1), sample.meta.get("turn", 1)
        length = wanted[index // turns % 3]  # of a conversation, whose last turn is the longest
        used = tokenizer.prompt_tokens(sample) + sample.max_new_tokens
        assert sample.meta["length"] == length
        assert sample.meta["prompt_tokens"] == tokenizer.prompt_tokens(sample)
        assert used <= length
        assert turn < turns or used >= length - max(0.02 * length, UNIT.get(name, 40))


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(load(name), "depths")])
def test_the_depth_map_fills_evenly(name: str) -> None:
    samples = load(name, lengths=lengths(name, 640, 700), depths=5).samples(Pieces(), 20, seed=0)
    cells = [(sample.meta["length"], sample.meta["depth"]) for sample in samples]
    assert len(set(cells)) == 10
    assert all(cells.count(cell) == 2 for cell in cells)
    assert {depth for _, depth in cells} == {0.0, 0.25, 0.5, 0.75, 1.0}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WORKED_OUT])
def test_every_answer_is_in_the_context(name: str) -> None:
    for sample in load(name, lengths=lengths(name, 640)).samples(Pieces(), 12, seed=5):
        assert len(set(sample.answers)) == len(sample.answers)
        assert all(answer in sample.context for answer in sample.answers)
        assert not any(answer in sample.question + sample.answer_prefix for answer in sample.answers)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FOLLOWING])
def test_every_answer_fits_the_budget(name: str) -> None:
    tokenizer = Pieces()
    for sample in load(name, lengths=lengths(name, 640)).samples(tokenizer, 12, seed=5):
        assert sample.max_new_tokens > len(tokenizer.encode(" " + ", ".join(sample.answers) + "."))


@pytest.mark.parametrize("name", NAMES)
def test_two_seeds_share_no_text(name: str) -> None:
    drawn = [short(name).samples(Pieces(), 12, seed) for seed in (1, 2)]
    one, other = ({sample.context for sample in samples} for samples in drawn)
    for texts in (one, other):  # prose is drawn from one book: once in a while a passage comes twice
        assert len(texts) >= 12 // drawn[0][0].meta.get("turns", 1) - (name in FOLLOWING)
    assert one.isdisjoint(other)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FOLLOWING])
def test_an_empty_text_is_a_scored_zero(name: str) -> None:
    task = short(name)
    score = task.score(task.samples(Pieces(), 1, seed=0)[0], response(""))
    assert (score.state, score.value, score.answer) == (State.SCORED, 0.0, "")


@pytest.mark.parametrize("name", NAMES)
def test_samples_match_the_golden_file(name: str) -> None:
    """A difference means: raise the task's version. Then KVGATE_UPDATE_GOLDEN=1 writes the file anew."""
    path = GOLDEN / f"{name}.json"
    task = short(name)
    made = {"spec": task.spec(), "samples": [made_by_task(sample) for sample in task.samples(Pieces(), 2, seed=0)]}
    if os.environ.get("KVGATE_UPDATE_GOLDEN"):
        path.write_text(json.dumps(made, indent=1) + "\n")
    golden = json.loads(path.read_text())
    if golden["spec"]["sources"] != made["spec"]["sources"]:
        pytest.skip(f"made from the texts of Python {golden['spec']['sources']['python']}")
    assert json.loads(json.dumps(made)) == golden


@pytest.mark.parametrize("name", NAMES)
def test_defaults_have_no_problems(name: str) -> None:
    assert load(name).problems(Pieces()) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([], ["lengths must name at least one length, got none"]),
        ([0], ["lengths must be a whole number of 1 or more, got 0"]),
        (["1k", -5], ["lengths must be a whole number of 1 or more, got '1k'", "1 or more, got -5"]),
        ([40, 9000], [r"lengths must leave room .* \(\d+ tokens\), got 40", "must be at most 8192, .* got 9000"]),
    ],
)
def test_lengths_that_cannot_be_are_named_all_at_once(name: str, lengths: list[int], says: list[str]) -> None:
    task = load(name, lengths=lengths)
    found = task.problems(Pieces())
    assert len(found) == len(says)
    for problem, pattern in zip(found, says, strict=True):
        assert problem.startswith("task.lengths ")
        assert re.search(pattern, problem)
    with pytest.raises(ValueError, match=re.escape(found[0])):
        task.samples(Pieces(), 1, seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_spec_is_plain_data_and_tells_options_apart(name: str) -> None:
    one, other = short(name).spec(), load(name, lengths=[999]).spec()
    assert json.loads(json.dumps(one))["sources"]["python"]
    assert one != other


@pytest.mark.parametrize("name", NAMES)
def test_a_task_belongs_to_the_family_of_its_folder(name: str) -> None:
    task = load(name)
    assert task.family == type(task).__module__.split(".")[1]


def test_a_task_from_elsewhere_is_the_user_s_own() -> None:
    assert type("Mine", (Fidelity,), {"__module__": "mine.retrieval"})(name="mine").family == "own"
