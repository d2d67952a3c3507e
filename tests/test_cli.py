"""The command line: what it refuses, in which words, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness.store import ResultStore
from tests import schema
from tests.cli import Kvgate, Own

REFUSED = {
    "unknown layer": (["strategy/evict=snapvk"], "snapvk", "snapkv"),
    "unknown preset": (["strategy=fp9"], "fp9", "fp8"),
    "unknown task": (["task=needles", "strategy=fp8"], "needles", "needle_single"),
    "keep of 0": (["strategy=window", "strategy.evict.keep=0"], "strategy.evict.keep must be in (0, 1], got 0"),
    "keep over 1": (["strategy=window", "strategy.evict.keep=1.2"], "strategy.evict.keep must be in (0, 1], got 1.2"),
    "two budgets": (["strategy=window", "strategy.evict.keep_tokens=9"], "exactly one of keep and keep_tokens"),
    "unknown option": (["strategy=window", "+strategy.evict.keeps=1"], "strategy.evict", "keeps"),
    "budget no prompt exceeds": (
        ["strategy=window", "strategy.evict.keep=null", "strategy.evict.keep_tokens=5000"],
        "keeps",
        "must be below the longest prompt of task needle_single",
    ),
    "keep of 1": (["strategy=window", "strategy.evict.keep=1.0"], "must be below the longest prompt"),
    "group that does not fit": (
        ["strategy=kivi2", "strategy.quant.group=48"],
        "strategy.quant.group must divide",
        "48",
    ),
    "length beyond the model": (["strategy=fp8", "task.lengths=[9999]"], "lengths", "9999", "4096"),
    "n of 0": (["strategy=fp8", "n=0"], "n must be 1 or more, got 0"),
    "n that is no number": (["strategy=fp8", "n=many"], "many", "n"),
    "margin of 0": (["strategy=fp8", "gate.margin=0"], "gate.margin must be in (0, 1], got 0"),
    "margin over 1": (["strategy=fp8", "gate.margin=1.5"], "gate.margin must be in (0, 1], got 1.5"),
    "alpha": (["strategy=fp8", "gate.alpha=0.9"], "gate.alpha must be in (0, 0.5), got 0.9"),
    "looks": (["strategy=fp8", "gate.looks=0"], "gate.looks must be a whole number of 1 or more, got 0"),
    "compress": (["strategy=fp8", "compress=both"], "compress must be prompt, context or other, got 'both'"),
    "no other question": (["strategy=fp8", "compress=other"], "compress=other needs samples", "needle_single"),
    "start": (["strategy=paged", "start=hot"], "start must be one of cold, warm, reloaded, restarted, got 'hot'"),
    "nothing to warm": (
        ["strategy=fp8", "start=warm"],
        "start=warm needs a strategy with a layer in slot prefix",
        "fp8",
    ),
    "nothing to find": (
        ["strategy=paged", "start=restarted"],
        "needs a strategy with a layer in slot offload",
        "paged",
    ),
    "no place to go to": (["strategy=fp8", "strategy/offload=disk"], "strategy.offload.path must be a folder", "null"),
    "a place that is no folder": (
        ["strategy=fp8", "strategy/offload=disk", "strategy.offload.path=/proc/kv"],
        "strategy.offload.path must be a folder that can be written to, got /proc/kv",
    ),
    "paging what is packed together": (
        ["strategy=kivi2", "strategy/paging=paged"],
        "strategy.paging: paging/paged lays tokens out one by one",
        "quant/kivi packs several together",
    ),
    "reusing what must be counted": (
        ["strategy=h2o", "strategy/prefix=reuse"],
        "strategy.prefix: evict/h2o asks for the mass of all queries",
    ),
    "gating task of another run": (
        ["strategy=fp8", "gate.tasks=[ruler]"],
        "gate.tasks must name tasks of this run",
        "ruler",
    ),
    "model path": (["strategy=fp8", "model.path=/no/such/folder"], "model.path", "/no/such/folder"),
    "dtype": (["strategy=fp8", "model.dtype=int3"], "model.dtype must be", "int3"),
    "typed key": (["strategy=fp8", "gate.magin=0.1"], "magin"),
    "only the baseline": (["strategy=full"], "strategy must name", "full"),
    "an option of a group with a dot": (
        ["strategy=full", "strategy.quant=int8"],
        "strategy.quant must be a node",
        "slash",
    ),
    "keep that is no number": (
        ["strategy=window", "strategy.evict.keep=abc"],
        "strategy.evict.keep",
        "number",
        "'abc'",
    ),
    "half a token": (["strategy=snapkv", "strategy.evict.window=1.5"], "strategy.evict.window", "integer", "1.5"),
    "half a chunk": (["strategy=fp8", "engine.prefill_chunk=1.5"], "engine.prefill_chunk", "1.5"),
    "no control": (["strategy=fp8", "gate.control=null"], "gate.control", "None"),
    "control that drops nothing": (["strategy=fp8", "gate.control.evict.keep=1.0"], "gate.control.evict", "below"),
    "a name that leads elsewhere": (["strategy=fp8", "name=.."], "name must be", "'..'"),
    "fidelity as a gate": (["strategy=fp8", "task=fidelity", "gate.tasks=[fidelity]"], "never grants GO"),
    "comparing a stranger": (
        ["strategy=fp8,int8", "compare=fp8,int9"],
        "compare must name strategies of this run (fp8, int8), got 'int9'",
    ),
    "comparing one": (["strategy=fp8", "compare=fp8"], "compare must name two strategies or more, got fp8"),
    "comparing twice the same": (["strategy=fp8", "compare=fp8,fp8"], "each strategy once, got 'fp8' 2 times"),
    "comparing with full": (["strategy=full,fp8", "compare=fp8,full"], "got 'full'", "compared with it anyway"),
    "temperature": (["strategy=fp8", "gen.temperature=-1"], "gen.temperature must be 0 (greedy) or more", "got -1.0"),
    "greedy twice": (["strategy=fp8", "gen.k=2"], "gen.k must be 1 while gen.temperature is 0", "got 2"),
    "two temperatures": (["strategy=fp8", "gen.temperature=0,1"], "gen: one run compares strategies on one gen"),
    "all thought and no answer": (
        ["strategy=fp8", "gen.think_tokens=3900"],
        "task.lengths must be at most 177",
        "got 420 (task needle_single, beside 3919 tokens for thinking)",
    ),
    "thinking beyond the model": (
        ["strategy=fp8", "gen.think_tokens=5000"],
        "gen.think_tokens must, with the marks, be below the 4096 tokens that the model reads, got 5019",
    ),
    "privacy": (["strategy=fp8", "privacy=hide"], "privacy must be show or redact, got 'hide'"),
    "two privacies": (["strategy=fp8", "privacy=show,redact"], "privacy: one run compares strategies on one privacy"),
    "no temperature": (
        ["strategy=fp8", "gen.temperature=nan"],
        "gen.temperature must be 0 (greedy) or more",
        "got nan",
    ),
    "thinking about other's words": (
        ["strategy=fp8", "task=fidelity", "gen.think_tokens=9"],
        "gen.think_tokens must be 0 for task fidelity",
        "got 9",
    ),
    "no such template": (
        ["strategy=fp8", "model.chat_template=/no/such.jinja"],
        "model.chat_template must be a UTF-8 file with a Jinja template, got /no/such.jinja (No such file",
    ),
    "control": (["strategy=fp8", "gate.control.evict.keep=3"], "gate.control.evict.keep must be in (0, 1], got 3"),
}


RESTARTED = "start=restarted"


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_bad_input_is_refused_with_field_rule_and_value(kvgate: Kvgate, words: tuple[list[str], str]) -> None:
    overrides, *expected = words
    said = kvgate.run("-m", *overrides)
    assert said.code == 2, said
    for word in expected:
        assert word in said.err, said.err
    assert "Traceback" not in said.err
    assert not (kvgate.results / "runs").exists()


def test_all_problems_are_told_at_once(kvgate: Kvgate) -> None:
    wrong = [
        "strategy.evict.keep=2",
        "strategy.evict.sinks=-1",
        "n=0",
        "gate.margin=7",
        "task.lengths=[9999]",
        "gen.k=0",
    ]
    said = kvgate.run("strategy=window", *wrong)
    assert said.code == 2
    for word in ("evict.keep", "evict.sinks", "n must be", "gate.margin", "9999", "gen.k must be"):
        assert word in said.err


@pytest.mark.parametrize("where", ["/proc/kvgate", "FILE"])
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_a_results_folder_that_cannot_be_written_is_named(
    kvgate: Kvgate, tmp_path: Path, where: str, sweep: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    place = where.replace("FILE", str(tmp_path / "file" / "results"))
    said = kvgate.run(*sweep, "strategy=fp8", f"results_dir={place}")
    assert said.code == 2 and place in said.err and "Traceback" not in said.err


def test_the_first_word_must_be_a_command(kvgate: Kvgate) -> None:
    said = kvgate("-m", "strategy=fp8")
    assert said.code == 2 and "run, bench, plan, report, watch, doctor" in said.err
    assert kvgate("--help").code == 0


@pytest.mark.parametrize("command", ["run", "report", "doctor"])
def test_help_teaches(kvgate: Kvgate, command: str) -> None:
    said = kvgate(command, "--help")
    assert said.code == 0 and f"kvgate {command}" in said.out and "== Values" in said.out


def test_a_grid_is_one_run_with_one_comparison(kvgate: Kvgate) -> None:
    said = kvgate.run("-m", "strategy=fp8,window", "task=needle_single,fidelity", "gate.margin=0.3")
    assert said.code == 0, said.err
    folder = kvgate.results / "runs" / "r"
    for name in ("config.yaml", "run.json", "verdict.json", "report.md", "report.html", "summary.csv"):
        assert (folder / name).stat().st_size > 0, name
    for plot in ("task_strategy", "needle_length_depth", "quality_bytes", "fidelity"):
        assert (folder / "plots" / f"{plot}.png").exists()
    verdict = json.loads((folder / "verdict.json").read_text())
    schema.check(verdict)
    assert [s["name"] for s in verdict["strategies"]] == ["fp8", "window"]
    assert {"name", "decision", "reasons"} <= verdict["strategies"][0].keys()
    cells = {(cell["strategy"], cell["task"]): cell for cell in verdict["cells"]}
    assert len(cells) == 4
    wanted = "strategy task mode decision n baseline score delta ci_low ci_high margin alpha gained lost flip_rate"
    for cell in cells.values():
        assert set(f"{wanted} noise_flip_rate n_needed reasons memory".split()) <= cell.keys()
        sizes = "formula_bytes_per_token stored_bytes_per_token peak_bytes kept_fraction"
        assert set(sizes.split()) <= cell["memory"].keys()
        assert cell["memory"]["stored_bytes_per_token"] == cell["memory"]["formula_bytes_per_token"]
    # a random model cannot do the task: nothing was tested, and the report says so
    assert cells["fp8", "needle_single"]["decision"] == "VOID"
    assert "chance" in " ".join(cells["fp8", "needle_single"]["reasons"])
    assert cells["fp8", "fidelity"]["decision"] == "MEASURED"
    assert cells["window", "fidelity"]["fidelity"]["kl_mean"] > cells["fp8", "fidelity"]["fidelity"]["kl_mean"] > 0
    assert len(pd.read_csv(folder / "summary.csv")) == 4
    # one prefill served every row: one record a sample for 2 candidates, baseline, baseline apart and control
    store = ResultStore(kvgate.results)
    planned = [cell for group in json.loads((folder / "run.json").read_text())["groups"] for cell in group["cells"]]
    assert sorted(c["role"] for c in planned) == ["baseline"] * 2 + ["candidate"] * 4 + ["control"] + ["noise"] * 2
    assert all(len(store.cell(cell["address"]).read()[0]) == 3 for cell in planned)
    said = kvgate.run("-m", "strategy=fp8,window,int8", "task=needle_single", "dry_run=true")
    assert said.code == 0
    assert said.out.count("3 of 3 in the store") == 5 and said.out.count("0 of 3 in the store") == 1
    assert "decides margins down to" in said.out


def test_candidates_are_compared_with_each_other(kvgate: Kvgate) -> None:
    said = kvgate.run("-m", "strategy=window,keydiff,fp8", "compare=window,keydiff", "task=needle_single,fidelity")
    assert said.code == 0, said.err
    assert "Candidate against candidate\nneedle_single: No difference between window and keydiff" in said.out
    folder = kvgate.results / "runs" / "r"
    manifest, verdict = (json.loads((folder / f"{name}.json").read_text()) for name in ("run", "verdict"))
    assert manifest["compare"] == ["window", "keydiff"]
    assert 'compare=["window","keydiff"]' in manifest["command"]  # as it can be typed again
    schema.check(verdict)
    (found,) = verdict["comparisons"]
    assert (found["a"], found["b"], found["task"], found["n"]) == ("window", "keydiff", "needle_single", 3)
    assert (found["finding"], found["delta"], found["p_value"]) == ("no difference shown", 0, 1)
    assert "above chance" in found["reasons"][0]  # a random model is right nowhere: that is not equivalence
    assert len(pd.read_csv(folder / "comparisons.csv")) == 1
    before, where = (folder / "report.html").read_bytes(), f"results_dir={kvgate.results}"
    assert kvgate("report", "r", where).code == 0 and (folder / "report.html").read_bytes() == before
    again = json.loads(kvgate("report", "r", where, "compare=fp8,window,keydiff", "format=json").out)
    pairs = [(one["a"], one["b"]) for one in again["comparisons"]]
    assert pairs == [("fp8", "window"), ("fp8", "keydiff"), ("window", "keydiff")]
    assert any("compare was chosen after the run: fp8, window, keydiff" in note for note in again["notes"])
    said = kvgate("report", "r", where, "compare=fp8,int8")
    assert said.code == 2 and "strategies of this run (window, keydiff, fp8), got 'int8'" in said.err
    assert "compare: not on fidelity (prompt), which measures fidelity and is not judged" in verdict["notes"]
    judged, measured = manifest["groups"]
    fewer = {**judged, "cells": [cell for cell in judged["cells"] if cell["strategy"] != "keydiff"]}
    (folder / "run.json").write_text(json.dumps({**manifest, "groups": [fewer, measured]}))
    alone = json.loads(kvgate("report", "r", where, "format=json").out)
    why = "compare: keydiff is compared with no other on needle_single (prompt), where it was not run"
    assert not alone["comparisons"] and why in alone["notes"]


def test_a_difference_is_that_of_the_first_name_from_the_second(
    kvgate: Kvgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.types import Response, Sample, Score, State
    from tasks.retrieval.needle import Needle

    assert kvgate.run("-m", "strategy=window,keydiff", "compare=keydiff,window").code == 0
    cells = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["cells"]
    texts = {cell["strategy"]: _texts(kvgate, cell["address"]) for cell in cells}
    assert not texts["window"] & texts["keydiff"]

    def partial(self: Needle, sample: Sample, response: Response) -> Score:
        return Score(State.SCORED, float(response.text in texts["window"]), response.text)

    monkeypatch.setattr(Needle, "score", partial)
    monkeypatch.setattr("harness.pairs.degenerate", lambda response: "")  # a tiny model's loops count as text here
    where = f"results_dir={kvgate.results}"
    (found,) = json.loads(kvgate("report", "r", where, "format=json", "rescore=true").out)["comparisons"]
    assert (found["a"], found["b"], found["delta"], found["b_score"]) == ("keydiff", "window", -1, 1)
    assert (found["a_alone"], found["b_alone"], found["p_value"]) == (0, 3, 0.25)


def _texts(kvgate: Kvgate, address: str) -> set[str]:
    return {record.response.text for record in ResultStore(kvgate.results).cell(address).read()[0].values()}


def test_names_made_of_what_a_stack_is_can_be_compared(kvgate: Kvgate) -> None:
    grid = ["strategy=snapkv", "strategy.evict.keep=0.5,0.25", "strategy/quant=none,fp8"]
    names = "snapkv@0.5, snapkv@0.25+fp8"
    assert kvgate.run("-m", *grid, f"compare={names}", "dry_run=true").code == 0
    lists = "compare=[snapkv@0.5,snapkv@0.25],[snapkv@0.25,snapkv@0.9]"  # a sweep of lists: the jobs share all names
    said = kvgate.run("-m", *grid, lists, "dry_run=true")
    assert said.code == 2 and "snapkv@0.25+fp8), got 'snapkv@0.9'" in said.err
    lists = lists.replace("@0.9", "@0.5+fp8").replace("snapkv@0.5+fp8", "'snapkv@0.5+fp8'")
    assert kvgate.run("-m", *grid, lists, "dry_run=true").code == 0


def test_stacks_are_named_by_what_they_are_when_the_command_line_changes_them(kvgate: Kvgate) -> None:
    said = kvgate.run(
        "-m", "strategy=snapkv", "strategy.evict.keep=0.5,0.25", "strategy/quant=none,fp8", "dry_run=true"
    )
    assert said.code == 0, said.err
    for name in ("snapkv@0.5 ", "snapkv@0.25 ", "snapkv@0.5+fp8", "snapkv@0.25+fp8"):
        assert name in said.out


def test_more_samples_reuse_the_first_ones_and_count_as_another_look(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8", "n=2").code == 0
    said = kvgate.run("strategy=fp8", "n=3", "dry_run=true")
    assert said.out.count("2 of 3 in the store") == 4
    for n, look in (("3", 2), ("3", 2), ("4", 3)):
        assert kvgate.run("strategy=fp8", f"n={n}").code == 0
        verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
        assert verdict["cells"][0]["look"] == look


def test_a_damaged_record_is_reported_moved_aside_and_run_again(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    before = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    part = sorted(kvgate.results.glob("cells/*/part-*.jsonl"))[0]
    part.write_bytes(part.read_bytes().replace(b'"state":"scored"', b'"state":"sc0red"', 1))
    said = kvgate("report", "r", f"results_dir={kvgate.results}")
    assert said.code == 0
    assert "damaged record" in (kvgate.results / "runs" / "r" / "report.md").read_text()
    said = kvgate.run("strategy=fp8")
    assert said.code == 0 and "damaged record" in said.out and str(part) in said.out
    assert (part.parent / "damaged" / part.name).exists()
    after = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    assert [c["score"] for c in after["cells"]] == [c["score"] for c in before["cells"]]
    assert not any("damaged" in note for note in after["notes"])


def test_report_rebuilds_with_another_margin_and_says_so(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    folder = kvgate.results / "runs" / "r"
    before = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert kvgate("report", str(folder)).code == 0
    assert (folder / "report.html").read_text() == before
    said = kvgate("report", "r", f"results_dir={kvgate.results}", "gate.margin=0.4", "format=json")
    assert said.code == 0
    verdict = json.loads(said.out)
    assert verdict["gate"]["margin"] == 0.4 and verdict["cells"][0]["look"] == 1
    assert any("promised 0.02" in note for note in verdict["notes"])
    assert kvgate("report", "r", f"results_dir={kvgate.results}", "gate.strict=true").code == 3  # VOID
    for words in (["nowhere"], ["r", "gate.margin=2"], ["r", "gate.tasks=[x]"], ["r", "format=xml"]):
        said = kvgate("report", *words, f"results_dir={kvgate.results}")
        assert said.code == 2 and "Traceback" not in said.err, said


def test_files_that_are_gone_or_damaged_are_named_and_made_again(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    (samples,) = kvgate.results.glob("samples/*.parquet")
    manifest = kvgate.results / "runs" / "r" / "run.json"
    where = f"results_dir={kvgate.results}"
    for file, content in ((samples, samples.read_bytes()[:200]), (samples, None), (manifest, b"{")):
        file.unlink() if content is None else file.write_bytes(content)
        said = kvgate("report", "r", where)
        assert said.code == 2 and str(file) in said.err and "again" in said.err and "Traceback" not in said.err, said
        assert kvgate.run("strategy=fp8").code == 0
        assert kvgate("report", "r", where).code == 0


def test_report_rescores_stored_responses(kvgate: Kvgate, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.types import Response, Sample, Score, State
    from tasks.retrieval.needle import Needle

    assert kvgate.run("strategy=fp8").code == 0

    def generous(self: Needle, sample: Sample, response: Response) -> Score:
        return Score(State.SCORED, 1.0, response.text)

    monkeypatch.setattr(Needle, "score", generous)
    where = f"results_dir={kvgate.results}"
    assert json.loads(kvgate("report", "r", where, "format=json").out)["cells"][0]["score"] == 0.0
    again = json.loads(kvgate("report", "r", where, "format=json", "rescore=true").out)
    assert again["cells"][0]["score"] == 1.0 and any("scored again" in note for note in again["notes"])


def test_ladders_of_one_policy_stand_beside_each_other(kvgate: Kvgate) -> None:
    said = kvgate.run("-m", "strategy=snapkv_fp8,snapkv_kivi4", "strategy.evict.keep=0.5,0.25", "gate.margin=0.3")
    assert said.code == 0, said.err
    ladders = [
        s["ladder"] for s in json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["strategies"]
    ]
    assert len({ladder["policy"] for ladder in ladders}) == 2 and [x["value"] for x in ladders] == [0.5, 0.25] * 2


def test_the_promise_before_the_first_look_is_held(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8", "gate.looks=1").code == 0
    assert kvgate.run("strategy=fp8", "gate.looks=5", "gate.margin=0.3", "n=4").code == 0
    verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    (cell,) = verdict["cells"]
    assert (cell["look"], cell["looks"], cell["alpha"]) == (2, 1, 0.05)
    assert any("gate.looks stays 1" in note for note in verdict["notes"])
    assert any("gate.margin differs from the first look's" in note for note in verdict["notes"])


def test_a_scorer_that_fails_stops_the_run_in_one_sentence(kvgate: Kvgate, own: Own) -> None:
    own(
        "odd",
        "from dataclasses import dataclass\nfrom tasks.retrieval.needle import Needle\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Odd(Needle):\n"
        "    def score(self, sample, response):\n        raise KeyError('gone')\n",
    )
    said = kvgate.run("strategy=fp8", "task._target_=odd.Odd")
    assert said.code == 2 and "its scorer failed on the answer to sample" in said.err and "'gone'" in said.err


def test_a_run_on_another_deployment_dtype_reuses_cells_and_quotes_other_ratios(kvgate: Kvgate) -> None:
    shares = []
    for dtype in ("bfloat16", "float32"):
        assert kvgate.run("strategy=fp8", f"model.deploy_dtype={dtype}").code == 0
        memory = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["cells"][0]["memory"]
        shares.append(memory["deploy_bytes_per_token"] / memory["deploy_full_bytes_per_token"])
    assert shares == pytest.approx([(32 + 4) / 64, (32 + 4) / 128])
    assert len(list(kvgate.results.glob("cells/*"))) == 4


def test_a_run_that_is_redacted_stays_so_until_asked_otherwise(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=window", "privacy=redact").code == 0
    folder, where = kvgate.results / "runs" / "r", f"results_dir={kvgate.results}"
    schema.check(json.loads((folder / "verdict.json").read_text()))
    texts = pd.read_parquet(folder / "records.parquet")["text"]
    assert len(texts) == 12 and texts.str.fullmatch(r"#[0-9a-f]{16} \(\d+ characters\)").all()
    before = (folder / "report.html").read_bytes()
    assert kvgate("report", "r", where).code == 0 and (folder / "report.html").read_bytes() == before
    assert kvgate("report", "r", where, "privacy=show").code == 0
    shown = pd.read_parquet(folder / "records.parquet")
    assert _texts(kvgate, shown["cell"][0]) <= set(shown["text"])


def test_strict_tells_the_decision_by_exit_code(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8", "gate.strict=true").code == 3
    assert kvgate.run("strategy=fp8", "task=fidelity", "gate.strict=true").code == 3  # nothing was judged


def test_doctor_prints_the_legality_table(kvgate: Kvgate) -> None:
    facts = json.loads(kvgate("doctor", "format=json").out)
    assert facts["versions"]["torch"] and facts["devices"] and facts["cache"]["folder"]
    assert facts["legality"]["evict/snapkv"]["hf"]["yes"] is True
    said = kvgate("doctor")
    assert "quant/kivi2" in said.out and "transformers" in said.out
    assert kvgate("doctor", "format=yaml").code == 2


def test_a_user_s_own_layer_and_task_are_a_target_in_their_yaml(kvgate: Kvgate, own: Own, tmp_path: Path) -> None:
    (tmp_path / "conf" / "strategy" / "evict").mkdir(parents=True)
    own(
        "mine",
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom strategies.base import Evict\n"
        "@dataclass(frozen=True, kw_only=True)\nclass First(Evict):\n    '''Keeps the first tokens.'''\n"
        "    name: ClassVar[str] = 'first'\n"
        "    def scores(self, prompt):\n        return -prompt.keys.new_ones(prompt.keys.shape[:2]).cumsum(-1)\n",
    )
    (tmp_path / "conf" / "strategy" / "evict" / "first.yaml").write_text("_target_: mine.First\nkeep: 0.5\n")
    said = kvgate.run("--config-dir", str(tmp_path / "conf"), "strategy/evict=first")
    assert said.code == 0, said.err
    verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    assert verdict["strategies"][0]["stack"] == "evict/first keep=0.5"


def test_completion_finds_the_sub_command() -> None:
    environment = {**os.environ, "COMP_LINE": "kvgate run strategy=sn", "COMP_POINT": "22"}
    command = [sys.executable, "-m", "harness.cli", "-sc", "query=bash"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0 and "strategy=snapkv" in done.stdout, done.stderr


def test_the_control_may_be_a_candidate_too(kvgate: Kvgate) -> None:
    said = kvgate.run("strategy=random", "strategy.evict.keep=0.1")
    assert said.code == 0, said.err
    (cell,) = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["cells"]
    assert not any("was not run" in reason for reason in cell["reasons"])
    assert cell["control_delta"] == cell["delta"]


def test_a_layer_that_raises_is_a_failed_record_with_its_words(kvgate: Kvgate, own: Own) -> None:
    own(
        "broken",
        "from dataclasses import dataclass\nfrom strategies.quant.fp8 import FP8\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Broken(FP8):\n"
        "    def store(self, keys, values):\n        raise KeyError('no such thing')\n",
    )
    said = kvgate.run("-m", "strategy=fp8", "strategy.quant._target_=broken.Broken,strategies.quant.int8.INT8")
    assert said.code == 0, said.err
    cell, spared = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["cells"]
    assert cell["decision"] == "VOID" and cell["left_out"] == 3
    assert spared["left_out"] == 0 and spared["n"] == 3
    records = ResultStore(kvgate.results).cell(cell["address"]).read()[0].values()
    assert {record.error for record in records} == {"KeyError: 'no such thing'"}


def test_a_prompt_that_was_asked_before_is_reused_but_for_its_end(kvgate: Kvgate) -> None:
    """Cold, samples share the words that all of them begin with, and the first has nothing to share."""
    shares = {}
    for start, mode in (("cold", "prompt"), ("warm", "prompt warm")):
        said = kvgate.run("strategy=prefix_reuse", f"start={start}", "gate.margin=0.3", f"name={start}")
        assert said.code == 0, said.err
        (cell,) = json.loads((kvgate.results / "runs" / start / "verdict.json").read_text())["cells"]
        (one,) = cell["evidence"]
        assert cell["mode"] == mode and one["layer"] == "prefix/reuse"
        shares[start] = one["facts"]["hit_tokens"] / one["facts"]["prompt_tokens"]
        assert one["acted"] == (start == "warm")
        assert cell["gained"] == cell["lost"] == 0
    assert 0 < shares["cold"] < 0.5 < 0.9 < shares["warm"] < 1


def test_what_one_run_has_stored_the_next_one_finds_wherever_the_folder_lies(kvgate: Kvgate, tmp_path: Path) -> None:
    """Two commands, so two processes of workers; the folder moves in between, and the cells of the first run stay its own."""
    words = ["strategy=fp8", "strategy/offload=disk", "strategy.offload.persist=true", "gate.margin=0.3", "n=2"]
    first = kvgate.run(*words, f"strategy.offload.path={tmp_path / 'kv'}", "name=first")
    assert first.code == 0, first.err
    (tmp_path / "kv").rename(tmp_path / "moved")
    again = kvgate.run(*words, f"strategy.offload.path={tmp_path / 'moved'}", "start=restarted", "name=again")
    assert again.code == 0, again.err
    (one, two) = (json.loads((kvgate.results / "runs" / name / "run.json").read_text()) for name in ("first", "again"))
    addresses = [{c["role"]: c["address"] for c in run["groups"][0]["cells"]} for run in (one, two)]
    assert addresses[0]["baseline"] == addresses[1]["baseline"]  # nothing of it was computed twice
    assert addresses[0]["candidate"] != addresses[1]["candidate"]
    verdict = json.loads((kvgate.results / "runs" / "again" / "verdict.json").read_text())
    found = next(e for e in verdict["cells"][0]["evidence"] if e["layer"] == "offload/disk")
    assert found["acted"] and found["facts"]["bytes_in"] > 0 == found["facts"]["bytes_out"]


def test_a_folder_is_no_part_of_a_cell(kvgate: Kvgate, tmp_path: Path) -> None:
    words = ["strategy=fp8", "strategy/offload=disk", "gate.margin=0.3", "n=2"]
    for name in ("one", "two"):
        said = kvgate.run(*words, f"strategy.offload.path={tmp_path / name}", f"name={name}")
        assert said.code == 0, said.err
    cells = [json.loads((kvgate.results / "runs" / name / "run.json").read_text())["groups"] for name in ("one", "two")]
    assert [c["address"] for c in cells[0][0]["cells"]] == [c["address"] for c in cells[1][0]["cells"]]
    assert not (tmp_path / "two").exists() or not list(
        (tmp_path / "two").rglob("*.kv")
    )  # the second run had all it needed


def test_a_room_that_the_longest_request_does_not_fit_into_is_refused_before_the_run(kvgate: Kvgate) -> None:
    said = kvgate.run("strategy=static", "strategy.paging.tokens=100")
    assert said.code == 2 and "strategy.paging.tokens is too small" in said.err and "with its answer" in said.err


def test_a_restart_that_looked_in_the_wrong_place_is_not_the_last_word(kvgate: Kvgate, tmp_path: Path) -> None:
    words = ["strategy=fp8", "strategy/offload=disk", "strategy.offload.persist=true", "gate.margin=0.3"]
    right, wrong = (f"strategy.offload.path={tmp_path / name}" for name in ("kv", "elsewhere"))
    came_back = []
    for place, *more in (
        (right, "n=3"),
        (wrong, "n=3", RESTARTED),
        (right, "n=3", RESTARTED),
        (right, "n=4", RESTARTED),
    ):
        said = kvgate.run(*words, place, *more, "name=r")
        assert said.code == 0, said.err
        verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
        facts = next(e for e in verdict["cells"][0]["evidence"] if e["layer"] == "offload/disk")["facts"]
        came_back.append((facts["bytes_in"], facts["recomputed_layers"]))
    first, lost, found, added = came_back
    assert first[0] == found[0] > 0 == lost[0]
    assert first[1] == found[1] == 0 < lost[1]
    assert 0 < added[0] < found[0] and added[1] > 0  # the fourth sample was never stored
