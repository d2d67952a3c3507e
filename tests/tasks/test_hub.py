"""Data sets by name: known layouts, columns of the user's, and what cannot be had. No test needs a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from harness.types import Response, Sample
from tasks.hub import DATASETS, Hub
from tasks.scorers import SCORERS
from tests.cli import Kvgate
from tests.tasks.task_doubles import Pieces

CHOICES = {"choice_A": "red", "choice_B": "blue", "choice_C": "green", "choice_D": "grey"}
# one row as each data set has it, an answer that is right, and the scorer
ROWS: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "Xnhyacinth/LongBench": (
        {"input": "Who?", "context": "Ada.", "answers": ["Ada"], "dataset": "qasper", "all_classes": None, "_id": "1"},
        "Ada",
        "f1",
    ),
    "THUDM/LongBench-v2": (
        {"_id": "1", "domain": "d", "question": "Which?", "context": "It is blue.", "answer": "B", **CHOICES},
        "The correct answer is (B).",
        "choice",
    ),
    "RMT-team/babilong": (
        {"input": "Ada went home.", "question": "Where is Ada?", "target": "home"},
        "At home.",
        "contains",
    ),
    "RMT-team/babilong-1k-samples": ({"input": "c", "question": "q", "target": "home"}, "home", "contains"),
    "simonjegou/ruler": (
        {
            "context": "7 and 8.",
            "question": "Which?",
            "answer": ["7", "8"],
            "answer_prefix": "They are",
            "max_new_tokens": 128,
            "task": "niah_multivalue",
        },
        " 8 and 7",
        "all",
    ),
    "openai/gsm8k": ({"question": "6 * 12?", "answer": "6 * 12 = <<6*12=72>>72\n#### 72"}, "So it is 72.", "number"),
    "HuggingFaceH4/MATH-500": (
        {"problem": "Half of 1?", "answer": r"\frac{1}{2}", "subject": "s", "unique_id": "t/1.json", "solution": "..."},
        r"$\boxed{\dfrac{1}{2}}$",
        "math",
    ),
}


def saved(folder: Path, rows: list[dict[str, Any]], split: str = "test") -> str:
    """A folder as the hub has it: one parquet file a split."""
    folder.mkdir(exist_ok=True)
    Dataset.from_list(rows).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return str(folder)


def only(task: Hub) -> Sample:
    assert task.problems(Pieces()) == []
    (sample,) = task.samples(Pieces(), 1, seed=0)
    return sample


def test_every_known_layout_is_tried() -> None:
    assert ROWS.keys() == DATASETS.keys()
    assert {
        name for layout in DATASETS.values() for name in (layout.scorer, *layout.scorers.values())
    } <= SCORERS.keys()


@pytest.mark.parametrize("name", DATASETS)
def test_a_known_layout_becomes_a_sample(tmp_path: Path, name: str) -> None:
    row, right, scorer = ROWS[name]
    task = Hub(name="hub", path=saved(tmp_path / "data", [row]), layout=name)
    sample = only(task)
    assert sample.meta["scorer"] == scorer
    assert task.score(sample, Response(right, (), "stop")).value == 1.0
    assert task.score(sample, Response("no idea", (), "stop")).value == 0.0
    assert "{" not in sample.question.replace(r"\boxed{}", "")
    assert json.loads(json.dumps(task.spec()))


def test_choices_stand_in_the_question_and_chance_is_known(tmp_path: Path) -> None:
    task = Hub(name="hub", path=saved(tmp_path / "d", [ROWS["THUDM/LongBench-v2"][0]]), layout="THUDM/LongBench-v2")
    assert "Which?\n\n(A) red\n(B) blue\n" in only(task).question
    assert task.chance == 0.25 and not task.graded


def test_rows_of_one_data_set_may_be_judged_differently(tmp_path: Path) -> None:
    row = {**ROWS["simonjegou/ruler"][0], "task": "qa_1"}
    task = Hub(name="hub", path=saved(tmp_path / "d", [row]), layout="simonjegou/ruler")
    sample = only(task)
    assert (sample.meta["scorer"], sample.max_new_tokens, sample.answer_prefix) == ("any", 128, "They are")
    assert task.graded
    assert only(Hub(name="hub", path=task.path, layout=task.layout, scorer="f1")).meta["scorer"] == "f1"


def test_columns_of_the_user_s(tmp_path: Path) -> None:
    path = saved(tmp_path / "d", [{"story": "It rained.", "q": "Rain?", "hint": "yes/no", "a": 7}], split="train")
    columns = {"context": "story", "question": "{q} ({hint})", "answers": "a"}
    sample = only(Hub(name="hub", path=path, split="train", columns=columns))
    assert (sample.context, sample.question, sample.answers) == ("It rained.", "Rain? (yes/no)", ("7",))
    assert sample.max_new_tokens == 1 + 32 and sample.meta["scorer"] == "contains"


def test_rows_of_our_own_schema_need_no_columns(tmp_path: Path) -> None:
    sample = only(Hub(name="hub", path=saved(tmp_path / "d", [{"context": "c", "question": "q", "answers": ["a"]}])))
    assert (sample.context, sample.question, sample.answers) == ("c", "q", ("a",))


@pytest.mark.parametrize("splits", [True, False])
def test_a_folder_that_datasets_has_saved(tmp_path: Path, splits: bool) -> None:
    data = Dataset.from_list([{"context": "c", "question": "q", "answers": ["a"]}])
    (DatasetDict(test=data) if splits else data).save_to_disk(tmp_path / "d")
    assert only(Hub(name="hub", path=str(tmp_path / "d"))).question == "q"


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path / "d", [{"q": "q", "a": "a"}, {"q": "", "a": "a"}])

    def problems(**options: Any) -> list[str]:
        return Hub(name="hub", **{"path": path, **options}).problems(Pieces())

    assert problems(columns={"question": "q", "answers": "a"}) == [
        "row 2: context or question must hold text, got none in both"
    ]
    (found,) = problems(columns={"question": "{ask}", "answers": "b"})
    assert found == "task.columns must name columns of the data (a, q), got ask, b"
    (found,) = problems(columns={"query": "q"})
    assert found.startswith("a field in task.columns must be one of id, context, question, answers")
    (found,) = problems(layout="gsm8k")
    assert found.startswith("task.layout must be one of") and found.endswith("got 'gsm8k'")
    (found,) = problems(split="dev", columns={"question": "q", "answers": "a"})
    assert "cannot be loaded (ValueError: Unknown split" in found


def test_a_data_set_that_cannot_be_had_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (found,) = Hub(name="hub", path="nobody/nothing").problems(Pieces())
    assert found.startswith(
        "task.path: nobody/nothing is not on this machine, and the hub cannot be reached; fetch it once"
    )


def test_the_same_rows_are_the_same_task_and_others_are_not(tmp_path: Path) -> None:
    row = {"context": "c", "question": "q", "answers": ["a"]}
    one, same, other = (
        Hub(name="hub", path=saved(tmp_path / name, [{**row, "question": q}])).spec()
        for name, q in (("one", "q"), ("same", "q"), ("other", "p"))
    )
    assert one == same != other


def test_columns_on_the_command_line(kvgate: Kvgate, tmp_path: Path) -> None:
    path = saved(tmp_path / "d", [{"story": "It rained. " * 9, "q": f"Day {at}?", "a": "rain"} for at in range(3)])
    columns = 'task.columns={context: story, question: "{q} (one word)", answers: a}'
    words = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "dry_run=true"]
    said = kvgate("run", "strategy=fp8", *words, "task=hub", f"task.path={path}", columns, "n=3")
    assert said.code == 0 and "3 samples, prompts of" in said.out, said.err
