"""A load on a server, driven by GuideLLM: what it is asked to send, and what its raw times say of each request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any
from uuid import uuid4

import numpy as np

from harness.engines.base import Prompt, Traffic
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Request

CHILD = Path(__file__).with_name("guidellm_child.py")
LEAD_S = 2.0  # of a request that opens the connection, before the first that counts
LATE_S = 0.05  # by which so many of a hundred requests may be sent late, or by this share of their time to first token:
LATE_PERCENT, LATE_SHARE = 95, 0.1  # else the load generator was measured, and not the server
END_S = 10.0  # for a driver that is asked to end
GRACE_S = 120.0  # for a driver that is over its time
ALIKE = {"http2": False, "validate_backend": False, "extras": {"body": {"temperature": 0.0}}}
APART_S = 1e-6
UNSENT = ("request_start", "first_token_iteration", "last_token_iteration", "chunks", "tokens_in", "tokens_out")
SOON_S = 0.001  # no gap between turns that may be asked for is shorter

Text = Callable[[list[int]], str]


class Late(Exception):
    """Requests were sent later than they were due; the message says by how much."""


class Lost(Exception):
    """Requests were never heard of again; the message says how many. It is GuideLLM that lost them."""


class Driver:
    """A process that runs GuideLLM, from its first use on.

    Args:
        python: interpreter of the environment that has GuideLLM; None for this one.
    """

    def __init__(self, python: str | None) -> None:
        self.python = python or sys.executable
        self._process: subprocess.Popen[str] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        process.__exit__(kind, error, trace)

    def __enter__(self) -> Driver:
        return self

    def ask(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What was seen of each request of a scenario. Raises RuntimeError where it could not be run."""
        process = self._process or self._start()
        assert process.stdin and process.stdout
        line = ""
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(spec) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith("\n"):
            self.__exit__(None, None, None)
            raise RuntimeError("GuideLLM ended without an answer; its last words are above")
        said = json.loads(line)
        if "error" in said:
            raise RuntimeError(f"GuideLLM: {said['error']}")
        return list(said["requests"])

    def _start(self) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # the tokenizer is a folder
        self._process = subprocess.Popen([self.python, str(CHILD)], text=True, env=environment, **pipes)  # type: ignore[call-overload]
        return self._process


def fresh(traffic: Traffic) -> Traffic:
    """The same with a beginning that no server has seen: what it kept of earlier measurements is of no use to it.

    A few tokens in the place of as many, alike in all prompts, and far fewer than a block.
    """
    some = traffic.prompts[0].token_ids
    rng = np.random.default_rng(uuid4().int)
    stamp = [some[at] for at in rng.integers(len(some), size=min(4, len(some) - 1))]

    def stamped(prompt: Prompt) -> Prompt:
        return prompt if prompt.after else replace(prompt, token_ids=[*stamp, *prompt.token_ids[len(stamp) :]])

    return replace(traffic, prompts=[*map(stamped, traffic.prompts)], prime=[*map(stamped, traffic.prime)])


def serve(
    driver: Driver, backend: Mapping[str, Any], traffic: Traffic, tokenizer: PromptTokenizer
) -> tuple[Request, ...]:
    """Send ``traffic`` and say what was seen of each request. ``backend`` is GuideLLM's, of kind ``openai_http``.

    Raises Late, Lost, and RuntimeError where nothing could be sent.
    """
    if not traffic.prompts:
        return ()
    rows = {_name(traffic, turns[0], at): turns for at, turns in enumerate(conversations(traffic.prompts))}
    lines = [_row(name, turns, tokenizer.decode) for name, turns in rows.items()]
    if traffic.in_flight is None:  # a request that opens the connection
        lines.insert(0, _row(0.0, [Prompt("", traffic.prompts[0].token_ids[:8], 1)], tokenizer.decode))
    with TemporaryDirectory() as folder:
        data = Path(folder) / "requests.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        count = len(traffic.prompts) + len(lines) - len(rows)
        seen = driver.ask(_spec(backend, traffic, data, count, tokenizer.folder))
    by_turn = {(one["row"], one["turn"]): one for one in seen}
    places = {prompt.id: (name, turn) for name, turns in rows.items() for turn, prompt in enumerate(turns)}
    found = {name: by_turn[place] for name, place in places.items() if place in by_turn}
    for prompt in traffic.prompts:  # GuideLLM sends no turn after one that failed, and may not tell of it
        before = found.get(prompt.after)
        if prompt.id not in found and before and before["state"] != "successful":
            found[prompt.id] = {**before, **dict.fromkeys(UNSENT), "error": "the turn before it failed"}
    if lost := len(places) - len(found):
        raise Lost(f"GuideLLM tells nothing of {lost} of {len(places)} requests")
    requests = _requests(traffic, found)
    if traffic.in_flight is None:
        _check_late(requests)
    return requests


def conversations(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Turns that follow each other, in order."""
    by_last: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_last[prompt.id] = [*by_last.pop(prompt.after, []), prompt]
    place = {prompt.id: at for at, prompt in enumerate(prompts)}
    return sorted(by_last.values(), key=lambda turns: place[turns[0].id])


def _name(traffic: Traffic, first: Prompt, at: int) -> float:
    """When a conversation is due, no two at the same time: what is told of a request says this, and not which one it was."""
    return float(at) if traffic.in_flight else LEAD_S + first.due_s + at * APART_S


def _row(name: float, turns: Sequence[Prompt], text: Text) -> dict[str, Any]:
    """A line of the data: the turns of one conversation, each with when it is due."""
    row: dict[str, Any] = {}
    for turn, prompt in enumerate(turns):
        row |= {
            f"prompt_{turn}": text(list(prompt.token_ids)),
            f"output_tokens_count_{turn}": prompt.output_tokens,
            f"relative_timestamp_{turn}": name,
        }
        if turn + 1 < len(turns):
            row[f"requeue_delay_{turn}"] = max(SOON_S, turns[turn + 1].due_s)
    return row


def _spec(backend: Mapping[str, Any], traffic: Traffic, data: Path, requests: int, tokenizer: str) -> dict[str, Any]:
    """A scenario of GuideLLM: a closed loop of so many streams, or each request at its time."""
    at_once = traffic.in_flight or requests
    pauses_s = sum(prompt.due_s for prompt in traffic.prompts if prompt.after)
    last_s = LEAD_S + max(prompt.due_s for prompt in traffic.prompts) + pauses_s
    longest_s = last_s + backend["timeout"] * -(-requests // at_once)
    open_loop = {"kind": "replay", "schedule_turn": "timestamp"}
    return {
        "backend": {"kind": "openai_http", **ALIKE, **backend},
        "profile": {"kind": "concurrent", "streams": [at_once]} if traffic.in_flight else open_loop,
        "constraints": [
            {"kind": "max_requests", "count": requests},
            {"kind": "max_duration", "seconds": longest_s + GRACE_S},
        ],
        "tokenizer": {"kind": "huggingface_auto", "model": tokenizer},
        "data": [{"kind": "json_file", "path": str(data)}],
        "metrics": {"kind": "generative", "sample_size": 0},
        "outputs": [],
    }


def _requests(traffic: Traffic, seen: Mapping[str, Mapping[str, Any]]) -> tuple[Request, ...]:
    """On a clock that starts with the load: when the first is due, or, in a closed loop, when the first is sent."""
    told = [(prompt, seen[prompt.id]) for prompt in traffic.prompts]
    if open_loop := traffic.in_flight is None:
        starts = [one["targeted_start"] - prompt.due_s for prompt, one in told if one["targeted_start"]]
    else:
        starts = [one["request_start"] for _, one in told if one["request_start"]]
    began = min(starts, default=0.0)
    return tuple(request(prompt, seen[prompt.id], began, open_loop=open_loop) for prompt in traffic.prompts)


def request(prompt: Prompt, one: Mapping[str, Any], began: float, *, open_loop: bool) -> Request:
    """What GuideLLM saw of one request, on a clock that began then."""

    def at(name: str) -> float | None:
        return None if one[name] is None else one[name] - began

    due_s = prompt.due_s if open_loop else None if prompt.after else 0.0
    return Request(
        id=prompt.id,
        tokens_in=one["tokens_in"] or len(prompt.token_ids),
        tokens_out=min(one["tokens_out"] or 0, one["chunks"] or 0) if one["error"] else one["tokens_out"] or 0,
        queued_s=due_s,
        sent_s=at("request_start"),
        first_token_s=at("first_token_iteration"),
        last_token_s=at("last_token_iteration"),
        end_s=at("resolve_end" if one["request_end"] is None else "request_end"),
        cached_tokens=one["cached_tokens"],
        error=_wrong(prompt, one),
    )


def _wrong(prompt: Prompt, one: Mapping[str, Any]) -> str:
    """Why what came is not what was asked for; empty if it is. A stream that broke off may well end as a success."""
    if one["state"] != "successful":
        return one["error"] or "it was not finished"
    if not one["tokens_in"] and one["chunks"] != prompt.output_tokens:
        return f"{one['chunks']} of {prompt.output_tokens} tokens came, and the server tells no usage"
    if one["tokens_out"] != prompt.output_tokens:
        return f"ended after {one['tokens_out']} of {prompt.output_tokens} tokens"
    return ""


def _check_late(requests: Sequence[Request]) -> None:
    """Raises Late where the load generator did not keep to its times."""
    sent = [one for one in requests if one.sent_s is not None and one.queued_s is not None]
    late = [one.sent_s - one.queued_s for one in sent]  # type: ignore[operator]
    first = [one.first_token_s - one.sent_s for one in sent if one.first_token_s is not None]  # type: ignore[operator]
    allowed = max(LATE_S, LATE_SHARE * float(np.median(first)) if first else 0.0)
    if late and (seen := float(np.percentile(late, LATE_PERCENT))) > allowed:
        raise Late(
            f"the load generator sent {100 - LATE_PERCENT} % of the requests over {seen:.3f} s late, and {allowed:.3f} s "
            "are allowed: it needs cores of its own, or another machine"
        )
