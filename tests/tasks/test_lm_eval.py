"""Tasks of lm-eval: its prompts and its judgement, for samples of ours. Own tasks over local data; nothing is fetched."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.types import Response, Sample
from tasks.lm_eval import LmEval
from tests.tasks.task_doubles import Pieces

SUMS = {
    "task": "own_sums",
    "dataset_path": "json",
    "output_type": "generate_until",
    "test_split": "test",
    "fewshot_split": "train",
    "num_fewshot": 2,
    "description": "Add up.\n\n",
    "doc_to_text": "{{a}} + {{b}} =",
    "doc_to_target": "{{a + b}}",
    "generation_kwargs": {"until": ["\n", "+"], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "filter_list": [
        {
            "name": name,
            "filter": [
                {"function": "regex", "regex_pattern": pattern, "group_select": -1},
                {"function": "take_first"},
            ],
        }
        for name, pattern in (("strict", r"^ ?(\d+)$"), ("loose", r"(\d+)"))
    ],
    "metadata": {"version": 1.0},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two tasks over one file of sums."""
    pytest.importorskip("lm_eval")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for split, start in (("test", 0), ("train", 100)):
        rows = [{"a": start + at, "b": at * at} for at in range(12)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"data_files": {split: str(tmp_path / f"{split}.jsonl") for split in ("test", "train")}}
    likely = {
        **{key: SUMS[key] for key in ("dataset_path", "test_split", "doc_to_text")},
        "task": "own_choices",
        "output_type": "multiple_choice",
        "doc_to_choice": ["1", "2"],
        "doc_to_target": 0,
    }
    drawn = {**SUMS, "task": "own_drawn", "generation_kwargs": {"do_sample": True, "temperature": 0.7}}
    metrics = [{"metric": name, "aggregation": name, "higher_is_better": name == "bleu"} for name in ("bleu", "ter")]
    worse = {**SUMS, "task": "own_worse", "metric_list": metrics}
    (tmp_path / "yaml").mkdir()
    for task in (SUMS, likely, drawn, worse):
        path = tmp_path / "yaml" / f"{task['task']}.yaml"
        path.write_text(yaml.safe_dump({**task, "dataset_kwargs": data}))
    return tmp_path / "yaml"


def sums(folder: Path, **options: Any) -> LmEval:
    return LmEval(**{"name": "own_sums", "include_path": str(folder), **options})


def by_id(task: LmEval, n: int = 12, seed: int = 0) -> dict[str, Sample]:
    return {sample.id: sample for sample in task.samples(Pieces(), n, seed)}


def test_documents_become_samples(folder: Path) -> None:
    task = sums(folder)
    assert task.problems(Pieces()) == []
    sample = by_id(task)["3"]
    assert (sample.question, sample.answers, sample.max_new_tokens) == ("", ("12",), 12)
    assert sample.stop == ("\n", "+") and sample.meta["doc"] == 3
    assert sample.context.startswith("Add up.\n\n1") and sample.context.endswith("\n\n3 + 9 =")
    assert sample.context.count("=") == 3
    bare = by_id(sums(folder, num_fewshot=0, max_new_tokens=5))["3"]
    assert bare.context == "Add up.\n\n3 + 9 =" and bare.max_new_tokens == 5


def test_prompts_are_lm_evals_own(folder: Path) -> None:
    from lm_eval.tasks import TaskManager

    theirs = TaskManager(include_path=str(folder), include_defaults=False).load("own_sums")["tasks"]["own_sums"]
    ours = by_id(sums(folder, num_fewshot=0))
    for at, doc in enumerate(theirs.test_docs()):
        assert ours[str(at)].context == theirs.fewshot_context(doc, num_fewshot=0)
        assert ours[str(at)].answers == (theirs.doc_to_target(doc),)


def test_a_seed_draws_an_order_and_examples_do_not_depend_on_it(folder: Path) -> None:
    few, many, other = (by_id(sums(folder), n, seed) for n, seed in ((4, 0), (12, 0), (12, 1)))
    assert list(many)[:4] == list(few) and list(many) != list(other)
    assert all(few[key] == many[key] == other[key] for key in few)


@pytest.mark.parametrize(
    ("filter", "text", "right", "answer"),
    [
        (None, " 12", 1.0, "12"),
        (None, " 12\nthen 9", 1.0, "12"),  # what follows a stop is not read
        (None, "it is 12", 0.0, "[invalid]"),
        ("loose", "it is 12", 1.0, "12"),
        ("loose", "it is 12 or 9", 0.0, "9"),
        ("loose", "", 0.0, "[invalid]"),
    ],
)
def test_the_task_s_own_filters_and_metric_judge(
    folder: Path, filter: str | None, text: str, right: float, answer: str
) -> None:
    task = sums(folder, filter=filter)
    score = task.score(by_id(task)["3"], Response(text, (), "stop"))
    assert (score.value, score.answer) == (right, answer)
    assert not task.graded


def test_lm_evals_own_evaluation_agrees(folder: Path) -> None:
    """Their whole evaluation with a model that answers some right, against our samples and scores."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Sometimes(LM):  # type: ignore[misc]
        def generate_until(self, requests: list[Any], *_: Any, **__: Any) -> list[str]:
            return [self.answer(request.args[0]) for request in requests]

        def answer(self, prompt: str) -> str:
            a, b = (int(word) for word in prompt.rsplit("\n", 1)[-1].replace("=", "").split("+"))
            return f" {a + b}" if a % 3 else f" {a} plus {b} is {a + b}" if a % 2 else " none"

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    theirs = simple_evaluate(
        Sometimes(), tasks=["own_sums"], task_manager=manager, num_fewshot=0, bootstrap_iters=0, log_samples=True
    )
    for filter in ("strict", "loose"):
        task = sums(folder, num_fewshot=0, filter=filter)
        ours = by_id(task)
        rows = [row for row in theirs["samples"]["own_sums"] if row["filter"] == filter]
        assert len(rows) == 12
        for row in rows:
            response = Response(row["resps"][0][0], (), "stop")
            assert task.score(ours[str(row["doc_id"])], response).value == row["exact_match"]


def test_what_cannot_be_served_is_refused_with_the_reason(folder: Path) -> None:
    def problem(**options: Any) -> str:
        (found,) = sums(folder, **options).problems(Pieces())
        return found

    assert "own_choices is multiple_choice: it compares likelihoods" in problem(name="own_choices")
    assert "never reads the cache" in problem(name="own_choices")
    assert problem(name="own_drawn") == "task.name: own_drawn samples its answers, and here decoding is greedy"
    assert problem(filter="exact") == "task.filter must be one of strict, loose, got 'exact'"
    assert problem(metric="f1") == "task.metric must be one of exact_match, got 'f1'"
    assert "must give numbers in [0, 1]" in problem(name="own_worse", metric="bleu")
    assert problem(name="own_worse", metric="ter") == "task.metric must be higher for better answers, got 'ter'"
    assert problem(num_fewshot=-1) == "task.num_fewshot must be a whole number of 0 or more, got -1"
    with pytest.raises(ValueError, match=r"prompt \(\d+ tokens\) and answer \(9000\) must fit into the model's 8192"):
        sums(folder, max_new_tokens=9000).samples(Pieces(), 1, seed=0)


@pytest.mark.slow
def test_an_unknown_name_is_told_with_its_neighbours(folder: Path) -> None:
    (found,) = sums(folder, name="own_sum").problems(Pieces())
    assert found.startswith("task.name must be a single task of lm-eval") and "own_sums" in found


def test_other_documents_are_another_task(folder: Path) -> None:
    before = sums(folder).spec()
    assert json.loads(json.dumps(before)) == sums(folder).spec()
    path = folder.parent / "test.jsonl"
    path.write_text(path.read_text().replace('"a": 3', '"a": 4'))
    assert sums(folder).sources()["docs"] != before["sources"]["docs"]


def test_without_the_package_there_is_one_clear_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "lm_eval":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    for module in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, module)
    assert LmEval(name="gsm8k").problems(Pieces()) == ["task: lm-eval is not installed (pip install 'kvgate[lmeval]')"]
