"""The report of a run with every decision, hostile texts and secrets, rebuilt from its store; no model is needed."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pandas as pd
import pytest
import yaml

from harness import commands
from harness.report import model_index
from harness.types import BadInput
from tests import planted

OURS = ("run.json", "config.yaml")  # of the run, not of its report
ASKED = {"format": "text", "by": "task", "compare": [], "rescore": False, "privacy": None, "gate": {}}


class Made(NamedTuple):
    """A report: its folder, its files, and what the terminal and the CI were told."""

    folder: Path
    files: dict[str, bytes]
    terminal: str
    step: str
    verdict: dict[str, Any]

    @property
    def records(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "records.parquet")

    @property
    def cases(self) -> dict[tuple[str, str], ElementTree.Element]:
        tree = ElementTree.fromstring(self.files["junit.xml"])
        return {(case.get("classname", ""), case.get("name", "")): case for case in tree.iter("testcase")}


def make(results: Path, **asked: Any) -> Made:
    folder, step = results / "runs" / "planted", results / "step.md"
    step.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as terminal:
        patch.setenv("GITHUB_STEP_SUMMARY", str(step))
        commands.report({**ASKED, "run": "planted", "results_dir": str(results), **asked})
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in OURS)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    verdict = json.loads(files["verdict.json"])
    return Made(folder, files, terminal.getvalue(), step.read_text(), verdict)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Made:
    results = tmp_path_factory.mktemp("shown")
    planted.plant(results)
    return make(results)


@pytest.fixture(scope="module")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> Made:
    results = tmp_path_factory.mktemp("redacted")
    planted.plant(results)
    return make(results, privacy="redact")


def test_every_decision_and_state_is_there(shown: Made) -> None:
    found = {cell["decision"] for cell in shown.verdict["cells"]}
    assert found == {"GO", "NO-GO", "INCONCLUSIVE", "VOID", "MEASURED"}
    assert set(shown.records["state"]) == {"scored", "truncated", "failed", "not_run"}


def test_rebuilding_gives_the_same_bytes_and_leaves_nothing_of_another_choice(shown: Made, redacted: Made) -> None:
    assert len(shown.files) > 12
    results = shown.folder.parents[1]
    assert make(results, privacy="redact").files.keys() == shown.files.keys()
    assert make(results).files == shown.files  # of a run that asked for nothing: shown


# --- privacy ---


def test_secrets_are_in_a_report_and_in_no_file_of_a_redacted_one(shown: Made, redacted: Made) -> None:
    everything = b"".join(shown.files.values())
    everything += planted.packed_in(shown.files["report.html"])
    prompts = {"question"}  # in no file at all; of a context, what stands around the answer
    assert {name for name, secret in planted.SECRETS.items() if secret.encode() not in everything} == prompts
    told = {**redacted.files, "terminal": redacted.terminal.encode(), "step": redacted.step.encode()}
    told["samples"] = planted.packed_in(redacted.files["report.html"])
    assert re.search(rb'"excerpt": "#[0-9a-f]{16} ', told["samples"])
    told["rows"] = repr(redacted.records.to_numpy().tolist()).encode()  # as they are once unpacked
    for name, whole in told.items():
        content = re.sub(rb"#[0-9a-f]{16} ", b"", whole)  # a hash may have a token's digits by chance
        for secret in (*planted.SECRETS.values(), planted.LONG[:30], *map(str, planted.TOKENS), "prompt1"):
            assert secret.encode() not in content, (name, secret)


def test_a_redacted_text_is_a_hash_and_a_length_equal_where_texts_are(shown: Made, redacted: Made) -> None:
    plain, hidden = shown.records, redacted.records
    for before, after in zip(plain["answer"], hidden["answer"], strict=True):
        assert after == "" if before == "" else re.fullmatch(rf"#[0-9a-f]{{16}} \({len(before)} characters\)", after)
    assert ((plain["answer"] == plain["expected"]) == (hidden["answer"] == hidden["expected"])).all()
    assert list(hidden["sample_id"]) == list(plain["sample_id"]) and hidden["score"].equals(plain["score"])
    assert "a note that may be read" in redacted.verdict["notes"] and "strategy=good" in redacted.verdict["command"]
    told = [[{**cell, "command": ""} for cell in made.verdict["cells"]] for made in (redacted, shown)]
    assert told[0] == told[1]
    assert all(re.search("template=#[0-9a-f]+ .* name=alone", cell["command"]) for cell in redacted.verdict["cells"])


def test_hashes_of_two_runs_say_nothing_of_each_other(redacted: Made) -> None:
    from harness.privacy import Hiding

    one, other = (Hiding({"groups": [{"samples_set": name}]}) for name in ("one", "other"))
    assert one("4827193") == one("4827193") != other("4827193")
    assert set(redacted.records["sample_hash"]).isdisjoint(
        planted.hashes()
    )  # else the key, a hash of these, could be made again


def test_privacy_that_is_no_choice_is_refused(shown: Made) -> None:
    with pytest.raises(BadInput, match="privacy must be show or redact, got 'hide'"):
        make(shown.folder.parents[1], privacy="hide")


# --- records.parquet ---


def test_records_are_read_by_datasets_with_a_null_for_what_is_not_there(shown: Made, tmp_path: Path) -> None:
    from datasets import load_dataset

    rows = load_dataset(
        "parquet", data_files=str(shown.folder / "records.parquet"), cache_dir=str(tmp_path), split="train"
    )
    manifest = json.loads((shown.folder / "run.json").read_text())
    cells = [cell for group in manifest["groups"] for cell in group["cells"]]
    assert len(rows) == planted.N * len(cells) and set(rows["role"]) == {"baseline", "candidate", "control", "noise"}
    for row in rows:
        assert (row["score"] is None) == (row["state"] != "scored"), row["sample_id"]
        assert (row["token_ids"] is None) == (row["state"] in ("failed", "not_run"))
    (failed,) = (row for row in rows if row["state"] == "failed" and row["sample_id"].endswith("-1") and row["error"])
    assert failed["fault"] == "model" and failed["memory_stored_bytes"] is None
    (first,) = (row for row in rows if (row["strategy"], row["sample_id"]) == ("good", "needle_single-0"))
    assert json.loads(first["evidence"]) == [
        {"layer": "quant/fp8", "acted": True, "why": "packed", "facts": {"bits": 8.0}}
    ]
    assert (first["token_ids"], first["memory_kept_fraction"]) == ([*planted.TOKENS, 0], 1.0)


def test_records_of_nothing_are_a_file_with_all_columns(tmp_path: Path) -> None:
    from harness.report import records

    (tmp_path / "r.parquet").write_bytes(records.render(pd.DataFrame()))
    table = pd.read_parquet(tmp_path / "r.parquet")
    assert len(table) == 0 and list(table.columns) == records.SCHEMA.names


# --- junit.xml and the step summary ---


def test_junit_says_what_the_verdict_says(shown: Made) -> None:
    suites = ElementTree.fromstring(shown.files["junit.xml"])
    assert {suite.get("name") for suite in suites} == {one["name"] for one in shown.verdict["strategies"]}
    assert len(shown.cases) == len(shown.verdict["cells"])
    for cell in shown.verdict["cells"]:
        case = shown.cases[cell["strategy"], f"{cell['task']} [{cell['mode']}]"]
        told = {one.get("name"): one.get("value") for one in case.iter("property")}
        for name in ("n", "delta", "ci_low", "ci_high", "margin"):
            assert json.loads(told.get(name, "null")) == cell[name]
        outcome = {"GO": None, "NO-GO": "failure"}.get(cell["decision"], "skipped")
        assert [one.tag for one in case if one.tag != "properties"] == [outcome] * bool(outcome)
        said = "".join(f"{one.get('message')} {one.text or ''}" for one in case if one.tag == outcome)
        assert all(" ".join(reason.split()) in " ".join(said.split()) for reason in cell["reasons"] if outcome)
    decisions = [cell["decision"] for cell in shown.verdict["cells"]]
    assert suites.get("tests") == str(len(decisions)) and suites.get("failures") == str(decisions.count("NO-GO"))
    assert suites.get("skipped") == str(len(decisions) - decisions.count("GO") - decisions.count("NO-GO"))


def test_a_task_that_does_not_gate_fails_no_build(shown: Made) -> None:
    from harness.report import junit

    cells = [{**cell, "gating": False} for cell in shown.verdict["cells"]]
    tree = ElementTree.fromstring(junit.render({**shown.verdict, "cells": cells}))
    messages = [str(one.get("message")) for one in tree.iter("skipped")]
    assert tree.get("failures") == "0" and any(text.startswith("NO-GO, not gating: ") for text in messages)


def test_the_step_summary_is_appended_where_there_is_a_step(shown: Made, tmp_path: Path, monkeypatch: Any) -> None:
    report = shown.files["report.md"].decode()
    assert report.startswith(shown.step.rstrip("\n")) and "## Strategies by tasks" in shown.step
    step = tmp_path / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    commands._tell_ci(shown.verdict)
    assert step.read_text() == "before\n" + shown.step
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(BadInput, match="GITHUB_STEP_SUMMARY must name a file that can be written"):
        commands._tell_ci(shown.verdict)


def test_a_summary_too_long_for_github_is_its_first_sentence(shown: Made) -> None:
    from harness.report import SUMMARY_LIMIT, step_summary

    text = step_summary({**shown.verdict, "notes": ["x" * SUMMARY_LIMIT]}).decode()
    assert len(text) < 1000 and text in shown.step


# --- lm-eval, model card ---


def test_lm_eval_s_own_table_takes_the_result_files(shown: Made) -> None:
    utils = pytest.importorskip("lm_eval.utils")
    found = utils.get_results_filenames(list(shown.files))
    assert len(found) == len(shown.verdict["strategies"])
    assert {utils.get_file_datetime(name) for name in found} == {"2026-01-31T12-00-00.000000.json"}
    for name in found:
        results = json.loads(shown.files[name])
        strategy = results["config"]["model_args"]["strategy"]
        cells = {cell["task"]: cell for cell in shown.verdict["cells"] if cell["strategy"] == strategy}
        rows = [[part.strip() for part in line.split("|")[1:-1]] for line in utils.make_table(results).splitlines()]
        scores = {row[4]: row[6] for row in rows if row[0] in ("", "needle_single")}
        cell = cells["needle_single"]
        assert ("delta" in scores) == (cell["delta"] is not None)
        if cell["delta"] is not None:
            assert float(scores["delta"]) == pytest.approx(cell["delta"], abs=5e-5)
            assert results["results"]["needle_single"]["score,none"] == cell["score"]
        assert results["n-samples"]["needle_single"]["effective"] == cell["n"] and results["n-shot"] == dict.fromkeys(
            cells, 0
        )
        assert results["versions"]["needle_single"] == 2


def test_folders_of_lm_eval_files_are_lm_eval_s_and_never_shared(shown: Made) -> None:
    from harness.report.lmeval import folder
    from harness.report.outlook import Outlook

    utils = pytest.importorskip("lm_eval.utils")
    outlook = Outlook({"model": {"id": "org/model"}})
    assert folder(outlook, "snapkv@0.25+fp8") == utils.sanitize_model_name("org/model+snapkv@0.25+fp8")
    odd = ["a/b", "a:b", "a__b", "../x", "..", "\x00", "é" * 400, "é" * 401, "\ud800"]
    assert len({folder(outlook, name) for name in odd}) == len(odd)
    assert all(len(folder(outlook, name).encode()) < 255 and "/" not in folder(outlook, name) for name in odd)


def test_the_model_card_has_the_verdict_s_numbers_of_what_is_go(shown: Made) -> None:
    from huggingface_hub import ModelCard

    block = re.search(r"(?s)```yaml\n(.*?)\n```", shown.files["report.md"].decode())[1]
    card = ModelCard(f"---\n{block}\n---\n# A model\n")
    results = {(one.dataset_config, one.task_name, one.metric_type): one for one in card.data.eval_results}
    go = [cell for cell in shown.verdict["cells"] if cell["decision"] == "GO"]
    assert len(results) == 3 * len(go) == 3
    for cell in go:
        for name in ("score", "baseline", "delta"):
            assert results[cell["mode"], cell["task"], name].metric_value == cell[name]
        args = results[cell["mode"], cell["task"], "delta"].metric_args
        assert args == {name: cell[name] for name in model_index.ARGS}
    assert yaml.safe_load(block)["model-index"][0]["name"] == "org/model with good"


def test_nothing_that_is_go_is_no_metadata(shown: Made) -> None:
    cells = [cell for cell in shown.verdict["cells"] if cell["decision"] != "GO"]
    assert model_index.render({**shown.verdict, "cells": cells}) == ""


# --- hostile texts ---


def test_hostile_texts_are_shown_as_texts(shown: Made) -> None:
    for name, content in shown.files.items():
        if name.endswith((".png", ".parquet")):
            continue
        text = content.decode()  # UTF-8, all of it
        if name.endswith((".md", ".xml", ".csv")):
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\ufffe]", text), name
        if name.endswith(".json"):
            json.loads(text)
    page = shown.files["report.html"].decode()
    assert page.count("<script>") == 1 and page.count("<script") == 1 + page.count('<script type="text/plain"')
    assert "\x1b" not in shown.step + shown.terminal
    (row, *_) = (row for row in shown.records.to_dict("records") if row["sample_id"].endswith("-3"))
    assert "\\ud800" in row["answer"] and "\x1b[31m" in row["answer"]  # data stays data


def test_a_name_that_is_a_formula_stays_a_name(shown: Made) -> None:
    rows = list(csv.DictReader(io.StringIO(shown.files["summary.csv"].decode())))
    assert f"'{planted.BAD}" in [row["strategy"] for row in rows]
    assert any(strategy == planted.BAD for strategy, _ in shown.cases)
