"""Runs that sample, think or have a chat template of their own: what they store, and what verdict and report say of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from harness import samples as sample_files
from harness.types import Record
from tests.cli import Kvgate

SAMPLED = ("strategy=fp8", "gen.temperature=0.8")


def verdict(kvgate: Kvgate) -> dict[str, Any]:
    return dict(json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text()))


def records(kvgate: Kvgate, role: str) -> dict[str, Record]:
    """By sample id, those of the run's one cell with this role."""
    run = json.loads((kvgate.results / "runs" / "r" / "run.json").read_text())
    (address,) = (cell["address"] for cell in run["groups"][0]["cells"] if cell["role"] == role)
    lines = [line for file in (kvgate.results / "cells" / address).glob("part-*") for line in file.open()]
    found = [Record.from_json(json.loads(line)["record"]) for line in lines]
    return {record.sample_id: record for record in found}


def asked(kvgate: Kvgate) -> list[Any]:
    return [json.loads(path.read_text())["generation"] for path in kvgate.results.glob("cells/*/ask.json")]


def test_draws_of_an_item_are_a_cluster_and_more_of_them_a_top_up(kvgate: Kvgate) -> None:
    assert kvgate.run(*SAMPLED, "gen.k=2", "n=4").code == 0
    assert asked(kvgate) == [{"temperature": 0.8}] * 4
    (cell,) = verdict(kvgate)["cells"]
    assert (cell["n"], cell["clusters"], cell["samples"], cell["look"]) == (2, 2, 4, 1)
    first = records(kvgate, "baseline")
    assert [id[-2:] for id in sorted(first)] == ["~1", "~2", "~1", "~2"]
    assert len({record.response.text for record in first.values() if record.response}) == 4
    alone = records(kvgate, "noise")
    assert {id: one.response for id, one in alone.items()} == {id: one.response for id, one in first.items()}

    assert kvgate.run(*SAMPLED, "gen.k=3", "n=6", "dry_run=true").out.count("4 of 6 in the store") == 4
    assert kvgate.run(*SAMPLED, "gen.k=3", "n=6").code == 0
    (cell,) = verdict(kvgate)["cells"]
    assert (cell["clusters"], cell["samples"], cell["look"]) == (2, 6, 2)
    assert records(kvgate, "baseline").items() >= first.items()


def test_a_run_that_samples_says_so_and_shows_pass_at_k(kvgate: Kvgate) -> None:
    said = kvgate.run(*SAMPLED, "gen.k=3", "n=5")
    assert said.code == 0 and "temperature 0.8, 3 draws an item" in said.out
    assert verdict(kvgate)["gen"]["k"] == 3
    for row, strategy in zip(verdict(kvgate)["pass_at_k"], ("full", "fp8"), strict=True):
        assert row == {
            "strategy": strategy,
            "task": "needle_single",
            "mode": "prompt",
            "items": 1,
            "left_out": 1,
            "pass_at": [0.0, 0.0, 0.0],
        }
    page = (kvgate.results / "runs" / "r" / "report.md").read_text()
    assert "| full | 1 | 1 | 0.000 | 0.000 | 0.000 |" in page and "pass@2 | pass@3" in page
    assert "on both sides: temperature 0.8, 3 draws an item" in page and "| temperature | 0.8 |" in page


def test_a_run_without_settings_is_asked_and_told_as_ever(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    assert asked(kvgate) == ["greedy"] * 4
    folder = kvgate.results / "runs" / "r"
    page = (folder / "report.md").read_text()
    assert not any(word in page for word in ("greedy", "pass@", "Generation", "thinking cut"))
    manifest = json.loads((folder / "run.json").read_text())
    del manifest["gen"]  # as runs of before there was a choice
    (folder / "run.json").write_text(json.dumps(manifest))
    assert kvgate("report", str(folder)).code == 0
    assert (folder / "report.md").read_text() == page


def test_thinking_counts_as_output_and_its_cuts_are_told(kvgate: Kvgate) -> None:
    said = kvgate.run("strategy=fp8", "gen.think_tokens=7", r"gen.think_close=\n</t>", r'gen.stop=[END,"\n"]')
    assert said.code == 0, said.err
    thought = [record.response for record in records(kvgate, "candidate").values()]
    assert all(one and one.thinking_tokens == 7 and one.thinking_cut for one in thought)
    (cell,) = verdict(kvgate)["cells"]
    assert cell["thinking_cut"] == cell["thinking_cut_baseline"] == 1.0
    assert cell["output_tokens"] == sum(7 + len(one.token_ids) for one in thought if one) / len(thought)
    folder = kvgate.results / "runs" / "r"
    assert "100 % → 100 %" in (folder / "report.md").read_text()
    (row,) = csv.DictReader((folder / "summary.csv").open())
    assert row["thinking_cut"] == "1.0"
    (file,) = kvgate.results.glob("samples/*.parquet")
    for sample in sample_files.load(file):
        assert sample.think is not None and sample.think.close == "\n</t>"
        assert sample.stop[-2:] in (("END", "\n"), ("\n", "END"))


def test_a_room_must_hold_the_thinking_too(kvgate: Kvgate) -> None:
    fits = ("strategy=static", "strategy.paging.tokens=430", "dry_run=true")
    assert kvgate.run(*fits).code == 0
    said = kvgate.run(*fits, "gen.think_tokens=60")
    assert said.code == 2 and "with its answer" in said.err, said


def test_thinking_must_fit_beside_prompt_and_answer(kvgate: Kvgate) -> None:
    """Up to the last token that the model reads, and not one more."""
    room = 4096 - 2048 - len("<t>") - len("</t>")
    words = ("strategy=fp8", "task.lengths=[2048]", "gen.think_open=<t>", "gen.think_close=</t>", "dry_run=true", "n=1")
    assert kvgate.run(*words, f"gen.think_tokens={room}").code == 0
    said = kvgate.run(*words, f"gen.think_tokens={room + 1}")
    assert said.code == 2 and "task.lengths must be at most 2047" in said.err, said


TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[answer] "


def test_a_chat_template_of_one_s_own_takes_the_place_of_the_model_s(kvgate: Kvgate, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(TEMPLATE)
    assert kvgate.run("strategy=fp8", f"model.chat_template={own}").code == 0
    with_own = {record.prompt_hash for record in records(kvgate, "baseline").values()}
    moved = own.rename(tmp_path / "moved.jinja")
    said = kvgate.run("strategy=fp8", f"model.chat_template={moved}", "dry_run=true")
    assert said.out.count("3 of 3 in the store") == 4  # it is the text that counts, not where it lies
    moved.write_text(TEMPLATE.replace("answer", "reply"))
    said = kvgate.run("strategy=fp8", f"model.chat_template={moved}", "dry_run=true")
    assert said.out.count("0 of 3 in the store") == 4
    assert kvgate.run("strategy=fp8").code == 0
    assert with_own.isdisjoint(record.prompt_hash for record in records(kvgate, "baseline").values())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{% for m in messages %}{{ m['content'] }}", "Unexpected end of template"),
        ("{{ messages[0]['content'] | upper_case }}", "No filter named 'upper_case'"),
        ("{{ raise_exception('not for you') }}", "not for you"),
        ("hello", "does not carry the user's text verbatim"),
        (" ", "(empty)"),
    ],
)
def test_a_chat_template_that_is_none_is_refused(kvgate: Kvgate, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(text)
    said = kvgate.run("strategy=fp8", f"model.chat_template={file}", "n=0")
    assert said.code == 2 and "Traceback" not in said.err
    assert "model.chat_template must be a" in said.err and says in said.err and "n must be 1" in said.err, said.err
