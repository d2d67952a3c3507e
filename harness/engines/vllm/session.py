"""A loaded vLLM: requests go in as token ids, answers come out as they finish, with what the engine says of each."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm import SamplingParams

from harness.engines import serving, thinned
from harness.engines.base import Answer, Ask, Compress, ModelFacts, Prefill, Row, Session, Start, Traffic, chance
from harness.engines.hf import device_memory
from harness.engines.hf.tokenizer import PromptTokenizer, PromptTokens
from harness.engines.vllm.counters import Counters
from harness.engines.vllm.loading import load
from harness.engines.vllm.prefiller import Prefiller
from harness.engines.vllm.serving import HANDOFF
from harness.engines.vllm.timing import timed
from harness.types import Evidence, LoadMemory, Memory, Response, Sample, Served, Thinking, digest, until
from harness.types import Request as TimedRequest
from strategies.base import Moved
from strategies.stack import Stack

FINISHED = ("stop", "length")  # reasons to end that are the model's or the request's own
REUSING = ("prefix", "offload")  # slots whose layers act where a prompt comes back to something
BY_TENSOR = ("fp8", "fp8_e4m3", "fp8_e5m2")  # formats with one scale a tensor, which only a checkpoint can bring


@dataclass
class _Request:
    """One row of one sample, on its way: it thinks if it may, and then answers."""

    row: Row
    sample: Sample
    tokens: PromptTokens
    fed: list[int]
    chance: int  # the seed of every draw
    thought: list[int] | None = None  # what it has thought; None while it does
    told: list[int] = field(default_factory=list)  # what ends its thinking and begins its answer
    cut: bool = False  # its thinking used its budget up
    hits: int = 0  # prompt tokens that were not computed
    began: float = field(default_factory=time.perf_counter)

    @property
    def thinking(self) -> Thinking | None:
        """How it thinks, as long as it does."""
        return self.sample.think if self.thought is None else None


class VLLMSession(Session):
    """vLLM's engine in this process."""

    def __init__(
        self, facts: ModelFacts, arguments: Mapping[str, Any], together: int, elsewhere: Mapping[str, Any] | None = None
    ) -> None:
        """``elsewhere`` are the arguments of a second engine that prefills for this one."""
        self.about = facts
        self.together = together
        assert isinstance(facts.tokenizer, PromptTokenizer)
        self.tokenizer = facts.tokenizer
        self.prefiller = Prefiller(elsewhere) if elsewhere else None
        self.engine = load(arguments)
        config = self.engine.vllm_config
        self.cache = config.cache_config
        self.read_back = self._read_back(config)
        self._requests = 0

    def _read_back(self, config: Any) -> dict[str, Any]:
        """What was really made, of all workers together."""
        workers: list[dict[str, Any]] = self.engine.collective_rpc("kvgate_facts")
        per_block = sum(worker["kv_bytes"] for worker in workers) / self.cache.num_gpu_blocks
        scales = sorted({scale for worker in workers for scale in worker["scales"]})
        by_tensor = str(self.cache.cache_dtype) in BY_TENSOR
        transfer = config.kv_transfer_config
        return {
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "kv_dtype": str(self.cache.cache_dtype),
            "kv_tensors": sorted({dtype for worker in workers for dtype in worker["kv_dtypes"]}),
            "kv_bytes_per_token": per_block / self.cache.block_size,
            "attention": "+".join(sorted({name for worker in workers for name in worker["attention"]})),
            "block": self.cache.block_size,
            "prefix_caching": bool(self.cache.enable_prefix_caching),
            "connector": transfer.kv_connector if transfer else None,
            "workers": len(workers),
            "risks": ["scales of the format are 1: the checkpoint brings none"]
            if by_tensor and scales == [1.0]
            else [],
        }

    @property
    def capacity_tokens(self) -> int:
        return int(self.cache.kv_cache_size_tokens)

    def close(self) -> None:
        if self.prefiller:
            self.prefiller.close()
        self.engine.engine_core.shutdown()
        del self.engine
        gc.collect()

    def facts(self) -> Mapping[str, Any]:
        return self.read_back

    def forget(self) -> None:
        self.engine.reset_prefix_cache(reset_connector=True)  # but a tier on a disk, which it cannot empty

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
        yield from self._answered([self._request(*asked, seed) for asked in together], start)
        for asked in one_by_one:
            yield from self._answered([self._request(*asked, seed)], start)

    def serve(self, stack: Stack, traffic: Traffic, *, seed: int) -> Served:
        self.forget()
        prefill = self.prefiller.prefill if self.prefiller else None
        timed(self.engine, self._send, Traffic(traffic.prime, in_flight=1), prefill)
        told, before = device_memory.forget_load_peak(_device()), Counters.of(self.engine)
        requests = timed(self.engine, self._send, traffic, prefill)
        counted, lengths = Counters.of(self.engine) - before, [request.tokens_in for request in requests]
        held = Stack(stack.name, quant=stack.quant)
        memory = LoadMemory(
            stored_bytes=sum(map(self._stored_bytes, lengths)),
            formula_bytes=sum(held.formula_bytes(self._whole_blocks(tokens), self.about.shape) for tokens in lengths),
            kv_bytes_per_token=self.read_back["kv_bytes_per_token"],
            peak_bytes=device_memory.load_peak_bytes(_device()) if told else None,
        )
        return Served(requests, self._evidence_of(stack, requests, counted), memory)

    def _evidence_of(self, stack: Stack, requests: Sequence[TimedRequest], counted: Counters) -> tuple[Evidence, ...]:
        """Of each layer, on the request that shows the least of it; of one that reuses, on the one that shows the most: the first
        that has a beginning finds nothing to reuse."""
        by_request = [self._layers(stack, request, counted) for request in requests]
        by_layer = zip(stack.layers(), zip(*by_request, strict=True), strict=True)
        return tuple(
            (max if layer.slot in REUSING and layer.name != HANDOFF else min)(found, key=lambda one: one.acted)
            for layer, found in by_layer
        )

    def _layers(self, stack: Stack, timed: TimedRequest, counted: Counters) -> tuple[Evidence, ...]:
        ids, sample = [0] * timed.tokens_in, Sample(timed.id, "", "", (), timed.tokens_out)
        request = _Request(Row("", stack), sample, PromptTokens(ids, []), ids, 0)
        return self._evidence(request, timed.cached_tokens or 0, timed.tokens_out, counted)

    def _request(self, row: Row, sample: Sample, seed: int) -> _Request:
        tokens = self.tokenizer.prompt(sample)
        fed = tokens.context + tokens.rest
        if row.stack.evict:
            fed = thinned.thinned(fed, row.stack.evict.budget(len(fed)), digest([seed, sample.id]))
        return _Request(row, sample, tokens, fed, chance(seed, sample, 31))

    def _answered(self, requests: Sequence[_Request], start: Start) -> Iterator[Answer]:
        """Send the requests all at once, and answer them as they finish. One that has thought is sent on to answer."""
        waiting: dict[str, _Request] = {}
        for request in requests:
            self._prime(request, start)
            waiting[self._send(request.fed, self._parameters(request))] = request
        before = Counters.of(self.engine)
        while waiting:
            for output in self.engine.step():
                if not output.finished or output.request_id not in waiting:
                    continue
                request = waiting.pop(output.request_id)
                if request.thinking and output.outputs[0].finish_reason in FINISHED:
                    begun = self._thought(request, output)
                    waiting[self._send(request.fed + begun, self._parameters(request))] = request
                else:
                    yield self._answer(request, output, Counters.of(self.engine) - before)

    def _thought(self, request: _Request, output: Any) -> list[int]:
        """Note what was thought; returns what follows the prompt: the thinking, what ends it and what begins the answer."""
        think = request.sample.think
        assert think is not None
        request.thought = self._said(output.outputs[0])
        request.cut = output.outputs[0].finish_reason == "length"
        request.hits = int(output.num_cached_tokens or 0)
        _, closed, more = self.tokenizer.verbatim(request.thought).rpartition(think.mark)
        sample = request.sample
        # with the mark it has ended its thinking itself
        request.told = self.tokenizer.resuming(sample, more) if closed else self.tokenizer.closing(sample)
        return request.thought + request.told

    def _prime(self, request: _Request, start: Start) -> None:
        """Bring the prompt's tokens to where the request is to find them: on the device, or only in the tier."""
        if self.prefiller:
            self.prefiller.prefill(request.fed)
        elif start in ("warm", "reloaded"):
            self._send(request.fed, SamplingParams(max_tokens=1, temperature=0.0))
            while self.engine.has_unfinished_requests():
                self.engine.step()
        if start in ("reloaded", "restarted"):
            self.engine.reset_prefix_cache(reset_connector=False)

    def _send(self, tokens: list[int], parameters: SamplingParams) -> str:
        self._requests += 1
        name = str(self._requests)
        self.engine.add_request(name, {"prompt_token_ids": tokens}, parameters)
        return name

    def _parameters(self, request: _Request) -> SamplingParams:
        sample, think = request.sample, request.thinking
        chance = request.chance + (request.thought is not None)  # fresh noise to answer with
        return SamplingParams(
            temperature=sample.temperature,
            seed=chance if sample.temperature else None,
            max_tokens=think.tokens if think else sample.max_new_tokens,
            stop=[think.mark] if think else list(sample.stop),
            include_stop_str_in_output=bool(think),
            skip_special_tokens=not think,  # the mark may be one
            stop_token_ids=sorted(self.tokenizer.stop_ids),
            ignore_eos=True,  # the stop tokens above are all there are, and the same on every engine
        )

    def _answer(self, request: _Request, output: Any, counted: Counters) -> Answer:
        answer = output.outputs[0]
        response = self._response(request, answer)
        hits = request.hits if request.sample.think else int(output.num_cached_tokens or 0)
        answered = len(request.thought or ()) + len(request.told) + len(answer.token_ids)
        return Answer(
            cell=request.row.cell,
            sample_id=request.sample.id,
            prompt_hash=request.tokens.hash,
            response=response,
            evidence=self._evidence(request, hits, answered, counted),
            memory=self._memory(request, answered),
            error="" if response else f"vLLM ended the request with {answer.finish_reason}",
            fault=None if response else "infrastructure",
            seconds=time.perf_counter() - request.began,
        )

    def _response(self, request: _Request, answer: Any) -> Response | None:
        if answer.finish_reason not in FINISHED:
            return None
        ids = self._said(answer)
        whole = self.tokenizer.decode(ids)
        text = until(whole, request.sample.stop)
        finish = answer.finish_reason if text == whole else "stop"
        return Response(text, tuple(ids), finish, None, len(request.thought or ()), request.cut)

    def _said(self, answer: Any) -> list[int]:
        """The tokens of an answer, without the one that ended it."""
        ids = list(answer.token_ids)
        return ids[:-1] if ids and ids[-1] in self.tokenizer.stop_ids else ids

    def _evidence(self, request: _Request, hits: int, answered: int, counted: Counters) -> tuple[Evidence, ...]:
        stack, tokens, shape = request.row.stack, len(request.fed), self.about.shape
        stored, exact = self._stored_bytes(tokens), Stack("full").formula_bytes(tokens, shape)
        facts = {
            "stored_bytes": float(stored),
            "exact_bytes": float(exact),
            "prompt_tokens": float(tokens),
            "hit_tokens": float(hits),
            "capacity_tokens": float(self.capacity_tokens),
            "preemptions": counted.preemptions,
        }
        if stack.evict:
            whole = len(request.tokens.context + request.tokens.rest)
            return thinned.evidence(stack, tokens, whole, facts)
        told: dict[str, tuple[bool, str, dict[str, float]]] = {}
        if stack.paging:
            held = [tokens + answered]
            told["paging"] = (*stack.paging.acted(held), dict(stack.paging.facts(held)))
        if stack.prefix:
            told["prefix"] = (*stack.prefix.acted(hits, tokens), {})
        if stack.quant:
            told["quant"] = (*self._packed(), {})
        if stack.offload:
            moved = self._moved(stack.offload.name, counted)
            told["offload"] = (*stack.offload.acted(moved), {**moved.facts(), **counted.facts()})
        return tuple(
            Evidence(f"{layer.slot}/{layer.name}", acted, why, {**facts, **own})
            for layer in stack.layers()
            for acted, why, own in (told[layer.slot],)
        )

    def _moved(self, tier: str, counted: Counters) -> Moved:
        """What left for the tier as far as vLLM counts it, and what of a prompt came back."""
        came = round(counted.external_tokens * self.read_back["kv_bytes_per_token"])
        went = round(counted.moved.get("out", 0.0))
        return Moved({tier: went} if went else {}, {tier: came} if came else {}, 0.0, 0.0, 0.0)

    def _packed(self) -> tuple[bool, str]:
        """Whether the cache takes fewer bytes than an exact one, as it was allocated."""
        exact, each = Stack("full").formula_bytes(1, self.about.shape), self.read_back["kv_bytes_per_token"]
        kinds = ", ".join(self.read_back["kv_tensors"])
        why = f"{each:,.0f} bytes a token ({self.read_back['kv_dtype']} in {kinds}), {exact:,} when exact"
        return each < exact, why

    def _stored_bytes(self, tokens: int) -> int:
        """Bytes of the blocks that a request of ``tokens`` occupies."""
        return round(self._whole_blocks(tokens) * self.read_back["kv_bytes_per_token"])

    def _whole_blocks(self, tokens: int) -> int:
        """Tokens that there is room for in the blocks that ``tokens`` occupy."""
        block = int(self.cache.block_size)
        return -(-tokens // block) * block

    def _memory(self, request: _Request, answered: int) -> Memory:
        stack, tokens = request.row.stack, len(request.fed)
        return serving.memory(
            Stack(stack.name, quant=stack.quant),
            self.about.shape,
            len(request.tokens.context + request.tokens.rest),
            tokens,
            stored=self._stored_bytes(tokens),
            stored_end=self._stored_bytes(tokens + answered),
            peak_bytes=device_memory.peak_bytes(_device()),
        )


def _device() -> torch.device:
    """What the engine runs on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
