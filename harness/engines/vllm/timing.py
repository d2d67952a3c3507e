"""When each token of a load came out of vLLM's engine, seen from outside, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm import SamplingParams

from harness.engines.base import Prompt
from harness.types import Request


@dataclass
class _Sent:
    """A request on its way."""

    prompt: Prompt
    sent_s: float
    token_s: list[float] = field(default_factory=list)

    def ended(self, now: float, output: Any) -> Request:
        finish, wanted = output.outputs[0].finish_reason, self.prompt.output_tokens
        whole = finish == "length" and len(self.token_s) == wanted
        return Request(
            id=self.prompt.id,
            tokens_in=len(self.prompt.token_ids),
            tokens_out=len(self.token_s),
            queued_s=0.0,
            sent_s=self.sent_s,
            first_token_s=self.token_s[0] if self.token_s else None,
            last_token_s=self.token_s[-1] if self.token_s else None,
            end_s=now,
            token_s=tuple(self.token_s),
            cached_tokens=int(output.num_cached_tokens or 0),
            error="" if whole else f"ended with {finish} after {len(self.token_s)} of {wanted} tokens",
        )


def timed(
    engine: Any, send: Callable[[list[int], SamplingParams], str], prompts: Sequence[Prompt], in_flight: int
) -> tuple[Request, ...]:
    """Serve ``prompts``, at most ``in_flight`` at a time; tokens that one step brings came at the same time.

    ``send`` adds a request to the engine and returns its name there.
    """
    began = time.perf_counter()
    due, sent, done = list(reversed(prompts)), dict[str, _Sent](), dict[str, Request]()
    while due or sent:
        while due and len(sent) < in_flight:
            request = _Sent(due.pop(), time.perf_counter() - began)
            sent[send(list(request.prompt.token_ids), _parameters(request.prompt))] = request
        outputs = engine.step()
        now = time.perf_counter() - began
        for output in outputs:
            if (request := sent.get(output.request_id)) is None:
                continue
            new = len(output.outputs[0].token_ids) - len(request.token_s)
            request.token_s += [now] * new
            if output.finished:
                done[request.prompt.id] = sent.pop(output.request_id).ended(now, output)
    return tuple(done[prompt.id] for prompt in prompts)


def _parameters(prompt: Prompt) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=prompt.output_tokens, ignore_eos=True, detokenize=False)
