"""One server, asked: many requests at once where they do not disturb each other, and answers as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from harness.engines import serving, thinned
from harness.engines.base import (
    CONTROL,
    Answer,
    Ask,
    Compress,
    ModelFacts,
    Prefill,
    Row,
    Session,
    Start,
    Traffic,
    chance,
)
from harness.engines.endpoint import guide, metrics, prompts, proof
from harness.engines.endpoint.client import Client, Completion, Failed
from harness.engines.endpoint.prompts import PROBE, Prompt
from harness.engines.endpoint.server import Server
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.engines.vllm.counters import Counters
from harness.types import BadInput, Evidence, LoadMemory, Memory, Response, Sample, Served, digest, until
from harness.types import Request as TimedRequest
from strategies.stack import Stack


@dataclass(frozen=True)
class _Request:
    """One row of one sample, ready to be sent."""

    row: Row
    sample: Sample
    prompt: Prompt
    whole: int  # tokens of the prompt, before the control thinned it
    prompt_hash: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class _Reply:
    completion: Completion | None
    error: str = ""
    counted: Counters | None = None  # by the server meanwhile, where nothing else was asked
    seconds: float = 0.0


class EndpointSession(Session):
    """A server that serves one setting.

    Args:
        api: ``completions`` or ``chat``.
        claimed: Whether the user's word stands for what nothing shows.
        together: Requests in flight.
        driver: Sends the requests of a load.
    """

    def __init__(
        self,
        facts: ModelFacts,
        client: Client,
        server: Server,
        api: str,
        claimed: bool,
        together: int,
        driver: guide.Driver,
    ) -> None:
        assert isinstance(facts.tokenizer, PromptTokenizer)
        self.about, self.client, self.server, self.claimed = facts, client, server, claimed
        self.driver = driver
        self.tokenizer = facts.tokenizer
        self.together = together
        self._salt = uuid4().hex  # keeps apart what a server's cache holds from other runs
        self._kinds = 0  # of samples, so far
        self.way, self.fingerprint = self._probed(api)

    def _probed(self, api: str) -> tuple[str, str | None]:
        """How to ask, once it is shown that the server reads as many tokens in a text as we do. Raises BadInput."""
        way = "chat" if api == "chat" else "text"
        try:
            tokens, said = self._probe(way)
        except Failed as error:
            raise BadInput(f"engine: the server at {self.client.root} takes no prompt: {error}") from error
        if said.prompt_tokens != tokens:
            raise BadInput(
                f"model: the server at {self.client.root} reads {said.prompt_tokens} tokens in a prompt that has "
                f"{tokens} by the tokenizer of {self.about.display}; both must be of the same checkpoint"
            )
        if way == "text":
            with suppress(Failed):  # not every server takes token ids
                self._probe("ids")
                way = "ids"
        return way, said.fingerprint

    def _probe(self, way: str) -> tuple[int, Completion]:
        prompt = prompts.MADE[way](self.tokenizer, PROBE, None)
        body = {"model": self.server.model, "temperature": 0.0, "max_tokens": 1, **prompt.fields}
        return prompt.tokens, self.client.complete(prompts.PATHS[way], body)

    def facts(self) -> Mapping[str, Any]:
        return {**self.server.facts(), "prompts": self.way, "fingerprint": self.fingerprint}

    def forget(self) -> None:
        self._kinds += 1

    def run(
        self,
        asks: Sequence[Ask],
        *,
        compress: Compress,
        prefill: Prefill = "chunked",
        start: Start = "cold",
        seed: int,
    ) -> Iterator[Answer]:
        together, one_by_one = serving.parted(asks, start)
        yield from self._at_once([self._request(*asked, seed) for asked in together])
        for asked in one_by_one:
            request = self._request(*asked, seed)
            yield self._answer(request, self._reply(request, primed=start == "warm", alone=True))

    def serve(self, stack: Stack, traffic: Traffic, *, seed: int) -> Served:
        try:
            return self._served(stack, traffic)
        except guide.Lost:  # seen once in some hundred measurements
            return self._served(stack, traffic)

    def _served(self, stack: Stack, traffic: Traffic) -> Served:
        path, anew = prompts.PATHS["chat" if self.way == "chat" else "text"], guide.fresh(traffic)
        backend = {**self.client.backend(), "model": self.server.model, "request_format": f"/v1{path}"}
        guide.serve(self.driver, backend, Traffic(anew.prime, in_flight=1), self.tokenizer)
        before = self._counters()
        requests = guide.serve(self.driver, backend, anew, self.tokenizer)
        after = self._counters()
        if all(request.error for request in requests):
            raise RuntimeError(f"no request came through, the first: {requests[0].error}")
        done = [request for request in requests if not request.error]
        tells = all(request.cached_tokens is not None for request in done)
        cached = sum(request.cached_tokens or 0 for request in done) if tells else None
        counted = after - before if before and after else None
        seen = proof.Seen(sum(request.tokens_in for request in done), cached, counted)
        facts = {
            "prompt_tokens": float(seen.prompt_tokens),
            **({} if cached is None else {"hit_tokens": float(cached)}),
        }
        return Served(
            requests, proof.evidence(stack, self.server, seen, self.claimed, facts), self._load_memory(stack, requests)
        )

    def _load_memory(self, stack: Stack, requests: Sequence[TimedRequest]) -> LoadMemory:
        """By formula, but for a token's bytes where the server tells what it has allocated."""
        held, shape = self._held(stack), self.about.shape
        formula = sum(held.formula_bytes(request.tokens_in, shape) for request in requests)
        whole = sum(held.formula_bytes(request.tokens_in + request.tokens_out, shape) for request in requests)
        tokens = sum(request.tokens_in + request.tokens_out for request in requests)
        return LoadMemory(formula, formula, self.server.kv_bytes_per_token or whole / tokens, None)

    def _at_once(self, requests: Iterable[_Request]) -> Iterator[Answer]:
        pool = ThreadPoolExecutor(self.together)
        try:
            waiting = {pool.submit(self._reply, request): request for request in requests}
            for reply in as_completed(waiting):
                yield self._answer(waiting[reply], reply.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever stops listening waits for nobody

    def _request(self, row: Row, sample: Sample, seed: int) -> _Request:
        if self.way == "chat" and not self.server.is_vllm:
            prompts.needs_vllm(sample)
        tokens = self.tokenizer.prompt(sample)
        whole = len(tokens.context) + len(tokens.rest)
        budget = None
        if row.stack.name == CONTROL and row.stack.evict:
            budget = prompts.budget(sample, row.stack.evict.budget(whole), seed)
        prompt = prompts.MADE[self.way](self.tokenizer, sample, budget)
        return _Request(row, sample, prompt, whole, tokens.hash, self._body(row.stack, sample, prompt, seed))

    def _body(self, stack: Stack, sample: Sample, prompt: Prompt, seed: int) -> dict[str, Any]:
        plain = {
            "model": self.server.model,
            "max_tokens": sample.max_new_tokens,
            **_sampling(sample, seed),
            **({"stop": list(sample.stop)} if sample.stop else {}),
            **prompt.fields,
        }
        if not self.server.is_vllm:
            return plain
        shared = stack.prefix or stack.offload  # then what came before is there to be reused
        return {
            **plain,
            "repetition_penalty": 1.0,  # not the checkpoint's own choice
            **({"top_k": -1, "min_p": 0.0} if sample.temperature else {}),
            "stop_token_ids": sorted(self.tokenizer.stop_ids),
            "ignore_eos": True,  # the stop tokens above are all there are, and the same on every engine
            "return_token_ids": True,
            "cache_salt": f"{self._salt}-{self._kinds}" if shared else uuid4().hex,
        }

    def _reply(self, request: _Request, *, primed: bool = False, alone: bool = False) -> _Reply:
        """Send a request. Runs in a thread of its own, so it touches nothing but the client."""
        path, began = prompts.PATHS[self.way], time.perf_counter()
        counts = alone and request.row.stack.offload is not None
        try:
            if primed:
                self.client.complete(path, {**request.body, "max_tokens": 1})
            before = self._counters() if counts else None
            said = self.client.complete(path, dict(request.body))
            after = self._counters() if counts else None
        except Failed as error:
            return _Reply(None, str(error), seconds=time.perf_counter() - began)
        counted = after - before if before and after else None
        return _Reply(said, counted=counted, seconds=time.perf_counter() - began)

    def _counters(self) -> Counters | None:
        with suppress(Failed):
            return metrics.counters(self.client.get("/metrics"))
        return None

    def _answer(self, request: _Request, reply: _Reply) -> Answer:
        said, error = reply.completion, reply.error
        if said and said.fingerprint != self.fingerprint:
            error = f"another server, or another setting, answered: its system_fingerprint is {said.fingerprint}, "
            error += f"and was {self.fingerprint}"
        common = {"cell": request.row.cell, "sample_id": request.sample.id, "seconds": reply.seconds}
        if said is None or error:
            return Answer(**common, prompt_hash=request.prompt_hash, response=None, error=error, fault="infrastructure")
        thinned_text = request.row.stack.name == CONTROL  # in which tokens that were apart may merge
        as_counted = thinned_text or said.prompt_tokens == request.prompt.tokens
        return Answer(
            **common,
            prompt_hash=request.prompt_hash if as_counted else digest([request.prompt_hash, said.prompt_tokens]),
            response=self._response(request.sample, said),
            evidence=self._evidence(request, said, reply.counted),
            memory=self._memory(request, said),
        )

    def _response(self, sample: Sample, said: Completion) -> Response:
        ids = list(said.token_ids) if said.token_ids is not None else self.tokenizer.encode(said.text)
        if ids and ids[-1] in self.tokenizer.stop_ids:
            ids.pop()
        text = until(said.text, sample.stop)
        return Response(text, tuple(ids), said.finish if text == said.text else "stop")  # type: ignore[arg-type]

    def _evidence(self, request: _Request, said: Completion, counted: Counters | None) -> tuple[Evidence, ...]:
        stack, held = request.row.stack, self._held(request.row.stack)
        facts = {
            "stored_bytes": float(held.formula_bytes(said.prompt_tokens, self.about.shape)),
            "exact_bytes": float(Stack("full").formula_bytes(said.prompt_tokens, self.about.shape)),
            "prompt_tokens": float(said.prompt_tokens),
            **({} if said.cached_tokens is None else {"hit_tokens": float(said.cached_tokens)}),
        }
        if stack.name == CONTROL:
            return thinned.evidence(stack, said.prompt_tokens, request.whole, facts)
        seen = proof.Seen(said.prompt_tokens, said.cached_tokens, counted)
        return proof.evidence(stack, self.server, seen, self.claimed, facts)

    def _memory(self, request: _Request, said: Completion) -> Memory:
        """By formula: how many bytes another machine holds cannot be measured from here."""
        held, shape, given = self._held(request.row.stack), self.about.shape, said.prompt_tokens
        return serving.memory(
            held,
            shape,
            request.whole,
            given,
            stored=held.formula_bytes(given, shape),
            stored_end=held.formula_bytes(given + said.answer_tokens, shape),
            peak_bytes=0,
        )

    def _held(self, stack: Stack) -> Stack:
        """The layers that decide how many bytes a token takes. The control's eviction took its tokens before they were sent."""
        evict = None if stack.name == CONTROL else stack.evict
        return replace(stack, evict=evict, paging=None, prefix=None, offload=None)


def _sampling(sample: Sample, seed: int) -> dict[str, Any]:
    """How the answer is drawn: from the whole distribution, with one seed for both sides of a pair."""
    if not sample.temperature:
        return {"temperature": 0.0, "seed": seed}
    return {"temperature": sample.temperature, "top_p": 1.0, "seed": chance(seed, sample, 31)}
