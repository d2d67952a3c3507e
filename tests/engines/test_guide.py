"""Loads on servers: GuideLLM against a server whose times are known, and against servers that fail."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from harness.bench import metrics
from harness.engines.base import Prompt, Traffic
from harness.engines.endpoint import guide
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Request
from tests.servers import free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("guidellm") is None, reason="guidellm is not installed"),
]
GUIDELLM = (sys.executable, "-m", "guidellm")
TIMES = (
    "targeted_start",
    "request_start",
    "first_token_iteration",
    "last_token_iteration",
    "request_end",
    "resolve_end",
)
TTFT_S, ITL_S = 0.4, 0.06
PROMPTS = [Prompt(f"p{at}", [40 + at] * 30, 6 + at % 3) for at in range(6)]
TALK = [Prompt("a", [40] * 20, 4), Prompt("b", [50] * 8, 3, 0.5, "a"), Prompt("c", [60] * 20, 4)]


@contextmanager
def mock(*options: str) -> Iterator[str]:
    """GuideLLM's own mock server, which answers as slowly as it is told to."""
    (port,) = free_ports(1)
    command = [*GUIDELLM, "mock-server", "--host", "127.0.0.1", "--port", str(port), "--model", "mock", *options]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **silent) as process:  # type: ignore[call-overload]
        try:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def known() -> Iterator[str]:
    with mock("--ttft-ms", str(1000 * TTFT_S), "--itl-ms", str(1000 * ITL_S)) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[guide.Driver]:
    with guide.Driver(None) as driver:
        yield driver


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> PromptTokenizer:
    return PromptTokenizer(AutoTokenizer.from_pretrained(tiny), 4096, frozenset())


@pytest.fixture
def serve(driver: guide.Driver, tokenizer: PromptTokenizer) -> Any:
    def serve(url: str, traffic: Traffic, timeout_s: float = 30.0) -> tuple[Request, ...]:
        backend = {"target": url, "timeout": timeout_s, "model": "mock", "request_format": "/v1/completions"}
        return guide.serve(driver, backend, traffic, tokenizer)

    return serve


def at_best(tries: int, measure: Callable[[], bool]) -> bool:
    """Whether it comes out in one of so many tries: other work on the machine makes a server and its client late."""
    return any(measure() for _ in range(tries))


def test_a_server_of_known_times_is_measured_within_five_percent(serve: Any, known: str) -> None:
    def measured() -> bool:
        requests = serve(known, Traffic(PROMPTS, in_flight=2))
        ttft = np.median([metrics.ttft_s(one) for one in requests])
        tpot = np.median([metrics.tpot_s(one) for one in requests])
        return bool(abs(ttft / TTFT_S - 1) < 0.05 and abs(tpot / ITL_S - 1) < 0.05)

    assert at_best(4, measured)


def test_every_request_has_its_answer_and_its_times(serve: Any, known: str) -> None:
    requests = serve(known, Traffic(PROMPTS, in_flight=2))
    assert [request.id for request in requests] == [prompt.id for prompt in PROMPTS]
    assert [request.tokens_out for request in requests] == [prompt.output_tokens for prompt in PROMPTS]
    assert not any(request.error for request in requests) and all(request.token_s is None for request in requests)
    sent = sorted(request.sent_s for request in requests)
    assert sent[0] == 0.0 and sent[1] < sent[2], "the clock starts with the first, and two are there at a time"
    ended = sorted(request.end_s for request in requests)
    assert all(later >= earlier for later, earlier in zip(sent[2:], ended, strict=False))
    assert [request.queued_s for request in requests] == [0.0] * 6


def test_requests_are_sent_when_they_are_due(serve: Any, known: str) -> None:
    due = [0.0, 0.0, 0.35, 0.5, 1.2]
    prompts = [Prompt(f"p{at}", [40 + at] * 30, 4, when) for at, when in enumerate(due)]

    def measured() -> bool:
        try:
            requests = serve(known, Traffic(prompts, in_flight=None))
        except guide.Late:
            return False
        assert [request.queued_s for request in requests] == pytest.approx(due, abs=0.001)
        assert [request.tokens_out for request in requests] == [4] * 5
        return all(0 <= metrics.queue_s(request) < 0.1 for request in requests)  # type: ignore[operator]

    assert at_best(6, measured)


def test_turns_come_with_what_was_said_some_time_after_the_last(serve: Any, known: str) -> None:
    first, second, other = serve(known, Traffic(TALK, in_flight=2))
    assert second.sent_s >= first.end_s + 0.5 and second.tokens_in > first.tokens_in
    assert (second.queued_s, other.queued_s) == (None, 0.0) and not second.error


def test_what_guidellm_says_of_its_own_run_is_what_its_raw_times_give(known: str, tiny: Path, tmp_path: Path) -> None:
    """Its ITL is our TPOT; its names are in docs/bench.md."""
    out = tmp_path / "out.json"
    words = [
        "--backend",
        f"kind=openai_http,target={known},model=mock,request_format=/v1/completions,validate_backend=false",
    ]
    words += ["--tokenizer", f"kind=huggingface_auto,model={tiny}", "--profile", "kind=concurrent,streams=2"]
    words += ["--constraint", "kind=max_requests,count=6", "--disable-console"]
    words += ["--data", "kind=synthetic_text,prompt_tokens=30,output_tokens=8", "--output", f"kind=json,path={out}"]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    subprocess.run([*GUIDELLM, "run", *words], env=quiet, check=True, timeout=120, capture_output=True)
    (report,) = json.loads(out.read_text())["benchmarks"]
    ours = [_request(one) for one in report["requests"]["successful"]]

    def theirs(name: str) -> float:
        return float(report["metrics"][name]["successful"]["mean"])

    assert len(ours) == 6 and not any(request.error for request in ours)
    assert np.mean([metrics.ttft_s(one) for one in ours]) == pytest.approx(
        theirs("time_to_first_token_ms") / 1000, rel=0.02
    )
    assert np.mean([metrics.tpot_s(one) for one in ours]) == pytest.approx(
        theirs("inter_token_latency_ms") / 1000, rel=0.02
    )
    assert np.mean([metrics.e2e_s(one) for one in ours]) == pytest.approx(theirs("request_latency"), rel=0.02)
    assert np.mean([one.tokens_out for one in ours]) == theirs("output_token_count")


def _request(told: dict[str, Any]) -> Request:
    """A request of GuideLLM's own report, read as the driver reads it."""
    timings = told["info"]["timings"]
    seen = {
        **{name: timings[name] for name in TIMES},
        **{"state": "successful", "error": "", "chunks": timings["token_iterations"], "cached_tokens": None},
        **{"tokens_in": told["prompt_tokens"], "tokens_out": told["output_tokens"]},
    }
    return guide.request(Prompt("x", (), 8), seen, 0.0, open_loop=False)


def test_a_failing_server_costs_the_requests_that_failed(serve: Any) -> None:
    with mock("--ttft-ms", "50", "--itl-ms", "5", "--fail-after-requests", "3") as url:
        requests = serve(url, Traffic(PROMPTS, in_flight=1))
    failed = [request for request in requests if request.error]
    assert len(failed) == 3 and all("500" in request.error for request in failed)
    assert metrics.output_tokens_s(requests) < metrics.output_tokens_s([r for r in requests if not r.error])
    assert metrics.attainment(requests, metrics.SLO(ttft_s=10)) == 0.5


def test_a_half_open_server_fails_in_time(serve: Any) -> None:
    """It takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen(16)
        began = time.monotonic()
        requests = serve(
            f"http://127.0.0.1:{listener.getsockname()[1]}", Traffic(PROMPTS[:2], in_flight=2), timeout_s=2.0
        )
    assert all(request.error for request in requests) and time.monotonic() - began < 60
    assert metrics.output_tokens_s(requests) is None


def test_a_slow_server_is_slow_and_no_failure(serve: Any) -> None:
    with mock("--ttft-ms", "1500", "--itl-ms", "5") as url:
        (request,) = serve(url, Traffic(PROMPTS[:1], in_flight=1))
    assert not request.error and 1.4 < metrics.ttft_s(request) < 20  # type: ignore[operator]


def test_a_stream_that_is_cut_is_no_success(serve: Any) -> None:
    """It ends well after two tokens and tells no usage: GuideLLM counts what was asked for."""
    with _cutting() as url:
        requests = serve(url, Traffic(PROMPTS[:2], in_flight=1))
    assert ["of 6 tokens" in requests[0].error, "of 7 tokens" in requests[1].error] == [True, True]


@contextmanager
def _cutting() -> Iterator[str]:
    """A server that streams two tokens of any answer and ends."""
    chunk = json.dumps({"choices": [{"text": "x ", "index": 0}]})
    body = "".join(f"data: {chunk}\n\n" for _ in range(2)) + "data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"

    def answer(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall((head + body).encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_what_guidellm_cannot_do_is_told(driver: guide.Driver, serve: Any, known: str) -> None:
    with pytest.raises(RuntimeError, match="GuideLLM: "):
        driver.ask({"profile": {"kind": "none"}})
    assert len(serve(known, Traffic(PROMPTS[:1], in_flight=1))) == 1, "and it goes on"


def test_turns_after_one_that_failed_have_failed(serve: Any) -> None:
    with mock("--ttft-ms", "50", "--itl-ms", "5", "--fail-after-requests", "0") as url:
        first, second, other = serve(url, Traffic(TALK, in_flight=2))
    assert "500" in first.error and second.error == "the turn before it failed" and "500" in other.error
    assert second.sent_s is None and second.tokens_out == 0 and second.end_s == first.end_s


@pytest.mark.parametrize("command", ["exec <&-; exit 1", "read line; exit 1", "read line; printf '{'"])
def test_a_driver_that_ends_without_an_answer_is_told_and_started_anew(tmp_path: Path, command: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o755)
    with guide.Driver(str(python)) as driver:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ended without an answer"):
                driver.ask({"long": "x" * (1 << 20)})
            assert driver._process is None


def test_nothing_that_sends_requests_outlives_the_one_that_asked(tiny: Path, tmp_path: Path) -> None:
    """A worker that is killed while GuideLLM waits for an answer."""
    with mock("--ttft-ms", "2000000", "--itl-ms", "5") as url:
        program = (
            "from transformers import AutoTokenizer; from harness.engines.base import Prompt, Traffic\n"
            "from harness.engines.endpoint import guide; from harness.engines.hf.tokenizer import PromptTokenizer\n"
            f"tokens = PromptTokenizer(AutoTokenizer.from_pretrained({str(tiny)!r}), 4096, frozenset())\n"
            f"backend = dict(target={url!r}, timeout=4000.0, model='mock', request_format='/v1/completions')\n"
            "guide.serve(guide.Driver(None), backend, Traffic([Prompt('a', [40] * 9, 4)], 1), tokens)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as worker:
            try:
                _until(lambda: len(_members(worker.pid)) >= 4)  # itself, GuideLLM, what it forks from, and who sends
                time.sleep(5)
            finally:
                worker.kill()
        _until(lambda: not _members(worker.pid))


def _members(session: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its = stat.read_text().rpartition(")")[2].split()[:4]
            found += [int(stat.parent.name)] if int(its) == session and state != "Z" else []
    return found


def _until(true: Any, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)
