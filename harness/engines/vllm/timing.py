"""When each token of a load came out of vLLM's engine, seen from outside, step by step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from vllm import SamplingParams

from harness.engines.base import Prompt, Traffic
from harness.types import Request

Send = Callable[[list[int], SamplingParams], str]
Prefill = Callable[[list[int]], None]
FINISHED = "length"  # nothing else ends an answer


@dataclass
class _Sent:
    """A request on its way."""

    prompt: Prompt
    token_ids: list[int]  # of the whole prompt, earlier turns with it
    due_s: float
    sent_s: float
    token_s: list[float] = field(default_factory=list)

    def ended(self, now: float, output: Any) -> Request:
        finish, wanted = output.outputs[0].finish_reason, self.prompt.output_tokens
        whole = finish == FINISHED and len(self.token_s) == wanted
        return Request(
            id=self.prompt.id,
            tokens_in=len(self.token_ids),
            tokens_out=len(self.token_s),
            queued_s=self.due_s,
            sent_s=self.sent_s,
            first_token_s=self.token_s[0] if self.token_s else None,
            last_token_s=self.token_s[-1] if self.token_s else None,
            end_s=now,
            token_s=tuple(self.token_s),
            cached_tokens=int(output.num_cached_tokens or 0),
            error="" if whole else f"ended with {finish} after {len(self.token_s)} of {wanted} tokens",
        )


class _Timed:
    """One measurement in the making. Tokens that one step brings came at the same time.

    Where another engine prefills it does so beside this one, one prompt after the other, and a request goes into this one when
    its prompt is there.
    """

    def __init__(self, engine: Any, send: Send, traffic: Traffic, prefill: Prefill | None, pool: Executor) -> None:
        self.engine, self.send, self.traffic = engine, send, traffic
        self.prefill, self.pool = prefill, pool
        self.prefilling = deque[tuple[Future[None], _Sent]]()
        # due, in order, with the tokens before it
        self.due = [(one.due_s, at, one, list[int]()) for at, one in enumerate(traffic.prompts) if not one.after]
        heapify(self.due)
        self.later = {one.after: (at, one) for at, one in enumerate(traffic.prompts) if one.after}
        self.sent: dict[str, _Sent] = {}
        self.done: dict[str, Request] = {}

    def run(self) -> None:
        self.began = time.perf_counter()
        while self.due or self.sent or self.prefilling:
            self._send_due()
            self._take_prefilled()
            if self.sent:
                self._step()
            elif self.due or self.prefilling:
                self._wait()

    def _now(self) -> float:
        return time.perf_counter() - self.began

    def _wait(self) -> None:
        """Until the next request is due or its prompt is there."""
        due_s = max(0.0, self.due[0][0] - self._now()) if self.due and self._room() else None
        if self.prefilling:
            wait([self.prefilling[0][0]], timeout=due_s)
        else:
            time.sleep(due_s or 0.0)

    def _room(self) -> bool:
        limit = self.traffic.in_flight
        return limit is None or len(self.sent) + len(self.prefilling) < limit

    def _send_due(self) -> None:
        """Send what is due. Where everything is sent when it is due, what waits for a step to end waits in the engine's own
        queue, as it would in a server's."""
        while self.due and self.due[0][0] <= self._now() and self._room():
            due_s, _, prompt, before = heappop(self.due)
            tokens = [*before, *prompt.token_ids]
            request = _Sent(prompt, tokens, due_s, due_s if self.traffic.in_flight is None else self._now())
            if self.prefill is None:
                self._decode(request)
            else:
                self.prefilling.append((self.pool.submit(self.prefill, tokens), request))

    def _take_prefilled(self) -> None:
        while self.prefilling and self.prefilling[0][0].done():
            done, request = self.prefilling.popleft()
            done.result()  # raises what went wrong there
            self._decode(request)

    def _decode(self, request: _Sent) -> None:
        self.sent[self.send(request.token_ids, _parameters(request.prompt))] = request

    def _step(self) -> None:
        outputs = self.engine.step()
        now = self._now()
        for output in outputs:
            if (request := self.sent.get(output.request_id)) is None:
                continue
            answer = list(output.outputs[0].token_ids)
            request.token_s += [now] * (len(answer) - len(request.token_s))
            if output.finished:
                del self.sent[output.request_id]
                self.done[request.prompt.id] = request.ended(now, output)
                self._follow(request.prompt.id, now, request.token_ids + answer)

    def _follow(self, ended: str, now: float, before: list[int]) -> None:
        """The turn after this one is due some time from now; where this one failed, so do all that follow."""
        if ended not in self.later:
            return
        at, prompt = self.later.pop(ended)
        if not self.done[ended].error:
            heappush(self.due, (now + prompt.due_s, at, prompt, before))
            return
        tokens = len(before) + len(prompt.token_ids)
        self.done[prompt.id] = Request(prompt.id, tokens, 0, end_s=now, error="the turn before it failed")
        self._follow(prompt.id, now, before)


def timed(engine: Any, send: Send, traffic: Traffic, prefill: Prefill | None = None) -> tuple[Request, ...]:
    """Serve ``traffic`` and say when each token came.

    Args:
        send: adds a request to the engine and returns its name there.
        prefill: where another engine prefills, has it compute a prompt and returns when that is there.
    """
    with ThreadPoolExecutor(1) as pool:
        measured = _Timed(engine, send, traffic, prefill, pool)
        try:
            measured.run()
        finally:
            engine.abort_request(list(measured.sent))  # what is left after an error
    return tuple(measured.done[prompt.id] for prompt in traffic.prompts)


def _parameters(prompt: Prompt) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=prompt.output_tokens, ignore_eos=True, detokenize=False)
