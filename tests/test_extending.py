"""The examples of docs/extending.md, taken out of the page and run as a reader would."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Kvgate, Own

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
FILES = {body.splitlines()[0].removeprefix("# "): body for kind, body in BLOCKS if kind in ("python", "yaml")}
COMMANDS = [line for kind, body in BLOCKS if not kind for line in body.splitlines() if line.startswith("kvgate run")]


@pytest.fixture
def written(tmp_path: Path, own: Own) -> Path:
    """A folder with every file that the page shows."""
    for name, body in FILES.items():
        if name.endswith(".py"):
            own(name.removesuffix(".py"), body)
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(body)
    return tmp_path


def verdict(kvgate: Kvgate, folder: Path, command: str) -> dict[str, Any]:
    """verdict.json of a command of the page, on the tests' model with short prompts."""
    words = [str(folder) if word == "." else word for word in shlex.split(command)[1:]]
    short = [] if "task=after" in command else ["task.lengths=[420]"]
    where = [f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "model=hf", "n=3", "name=r"]
    said = kvgate(*words, *short, *where)
    assert said.code == 0, said.err
    return dict(json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text()))


def test_the_page_has_a_layer_a_task_and_an_engine() -> None:
    names = ["my_layer.py", "strategy/evict/edges.yaml", "my_task.py", "task/after.yaml", "my_engine.py"]
    assert list(FILES) == [*names, "engine/shortened.yaml"] and len(COMMANDS) == 4


def test_the_layer_keeps_the_ends_and_stacks_with_a_format(kvgate: Kvgate, written: Path) -> None:
    alone, stacked = (verdict(kvgate, written, command)["cells"][0] for command in COMMANDS[:2])
    assert "lean=0.8" in COMMANDS[0] and [one["acted"] for one in alone["evidence"]] == [True]
    assert alone["memory"]["kept_fraction"] == pytest.approx(0.5, abs=0.01)
    assert [one["layer"] for one in stacked["evidence"]] == ["evict/edges", "quant/fp8"]
    assert stacked["memory"]["stored_bytes_per_token"] < alone["memory"]["stored_bytes_per_token"] / 2


def test_the_layer_scores_what_it_says(written: Path) -> None:
    import torch
    from my_layer import Edges

    from strategies.base import KVShape, LayerView

    keys = torch.zeros(2, 11, 4)
    view = LayerView(keys, keys, None, 1.0, 0, 0)
    for lean, kept in ((0.5, [0, 1, 9, 10]), (1.0, [7, 8, 9, 10]), (0.0, [0, 1, 2, 3])):
        edges = Edges(keep_tokens=4, lean=lean)
        assert [head.tolist() for head in edges.chosen(edges.scores(view), 4)] == [kept] * 2
    shape = KVShape(layers=1, kv_heads=2, query_heads=2, head_dim=4, element_bytes=2)
    assert Edges(keep=0.5, lean=2).problems(shape) == ["strategy.evict.lean must be in [0, 1], got 2"]


def test_the_task_asks_and_judges(kvgate: Kvgate, written: Path) -> None:
    (cell,) = verdict(kvgate, written, COMMANDS[2])["cells"]
    assert (cell["task"], cell["n"], cell["family"]) == ("after", 3, "own")
    from my_task import After

    from harness.types import Response

    first, *_ = samples = After(numbers=80).samples(None, 5, 0)  # it needs no tokenizer
    assert samples[:2] == After(numbers=80).samples(None, 2, 0)
    numbers = re.findall(r"\d+", first.context)
    asked = re.findall(r"\d+", first.question)[0]
    right = numbers[numbers.index(asked) + 1]
    said = {f" {right}.": 1.0, f" {asked}": 0.0, "nothing": 0.0}
    for text, value in said.items():
        assert After().score(first, Response(text, (1,), "stop")).value == value


def test_the_engine_answers_as_its_library_does(kvgate: Kvgate, written: Path, tiny: Path) -> None:
    import torch
    from my_engine import Shortened
    from transformers import AutoModelForCausalLM

    from harness import samples as sample_files
    from harness.store import ResultStore

    found = verdict(kvgate, written, COMMANDS[3])
    (cell,) = found["cells"]
    assert found["engine"]["name"] == "shortened" and [one["acted"] for one in cell["evidence"]] == [True]
    memory = cell["memory"]
    assert memory["stored_bytes_per_token"] == memory["formula_bytes_per_token"]
    assert memory["kept_fraction"] == pytest.approx(0.5, abs=0.01)
    (group,) = json.loads((kvgate.results / "runs" / "r" / "run.json").read_text())["groups"]
    full = next(one["address"] for one in group["cells"] if one["role"] == "baseline")
    records = ResultStore(kvgate.results).cell(full).read()[0]
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    about = Shortened().describe({"name": "hf", "path": str(tiny)})
    for sample in sample_files.load(kvgate.results / "samples" / group["samples_file"]):
        prompt = about.tokenizer.prompt(sample)
        ids = prompt.context + prompt.rest
        out = model.generate(torch.tensor([ids]), max_new_tokens=sample.max_new_tokens, do_sample=False)[0, len(ids) :]
        response = records[sample.id].response
        assert response is not None and response.token_ids
        assert list(response.token_ids) == [token for token in out.tolist() if token not in about.tokenizer.stop_ids]
