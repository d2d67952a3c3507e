"""A loaded model of the reference engine: one prefill, many stores, one joint decode."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.base import (
    Answer,
    Ask,
    Compress,
    ModelFacts,
    Prefill,
    Prompt,
    Row,
    Session,
    Start,
    Traffic,
    chance,
)
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import Reference, decode, feed, follow
from harness.engines.hf.joint import JointCache
from harness.engines.hf.journey import Depot, Journey
from harness.engines.hf.prefill import Prefilled, prefill, reread
from harness.engines.hf.reuse import PrefixCache
from harness.engines.hf.row import RowState
from harness.engines.hf.sampling import Sampler
from harness.engines.hf.timing import Timing
from harness.engines.hf.tokenizer import PromptTokenizer, PromptTokens
from harness.types import Evidence, Memory, Sample, Served, digest
from strategies.base import UNMOVED, Calibration, Format, Moved, Offload, Prefix
from strategies.stack import Stack

CALIBRATION_PIECE = 1024  # tokens of a calibration text that are prefilled together
REREAD = (  # what asks for the prompt once more (KVzip): its first chunk, and a later one that starts with given tokens
    "\n\nRepeat the previous context exactly.\n",
    "\n\nRepeat the part of the previous context exactly, starting with\n",
)
LAYOUT = 1  # of what goes to a tier; raised when the same key would lead to other bytes
CHANCE_BITS = 48  # of a sample's seed
CALIBRATION_QUERIES = 64  # last queries of each piece that calibrating layers may measure attention with


# Where a prompt comes from: computed as a whole, or put together by a prefix layer for policies that vote with so many queries,
# which are computed. What a strategy reuses must not depend on those beside it.
Source = tuple[Prefix, int] | None


@dataclass(frozen=True)
class _Work:
    """One sample after its prefill."""

    sample: Sample
    tokens: PromptTokens
    prompts: Mapping[Source, Prefilled]
    compress: Compress
    prefill: Prefill
    stored: bool  # whether an earlier process has stored what goes to a tier
    seed: int
    most: int  # tokens that a row may say
    reference: Reference
    began: float  # perf_counter, before the prefill

    @property
    def prompt(self) -> Prefilled:
        """Any of the prompts, where only what they have in common matters."""
        return next(iter(self.prompts.values()))

    @property
    def prompt_ids(self) -> list[int]:
        """What is in the cache when it is compressed."""
        return (self.tokens.context + self.tokens.rest)[: self.prompt.tokens]

    @property
    def question(self) -> list[int]:
        """What the exact prefill has not seen and every row still has to read."""
        return (self.tokens.context + self.tokens.rest)[self.prompt.tokens :]


class HFSession(Session):
    """A loaded transformers model."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, engine: Mapping[str, Any]) -> None:
        self.model = model
        self.about = facts
        self.engine = engine  # its spec
        self.chunk: int = engine["prefill_chunk"]
        assert isinstance(facts.tokenizer, PromptTokenizer)
        self.tokenizer = facts.tokenizer
        self._calibrations: dict[tuple[str, int], tuple[Prefilled, ...]] = {}
        self._fitted: dict[tuple[object, ...], tuple[Format | None, ...]] = {}
        self._prefixes: dict[Source, PrefixCache] = {}
        self._depots: dict[Offload, Depot] = {}

    def forget(self) -> None:
        self._prefixes.clear()

    def close(self) -> None:
        for depot in self._depots.values():
            depot.close()

    def facts(self) -> Mapping[str, Any]:
        devices = sorted({str(parameter.device) for parameter in self.model.parameters()})
        return {"dtype": str(self.model.dtype).removeprefix("torch."), "devices": devices, "attention": "sdpa"}

    def fit(self, stack: Stack, text: str, tokens: int) -> Stack:
        # stacks that share their packing layers share one object a layer, and so decode as one group
        lesson = digest([text, tokens])
        key = (lesson, stack.structure, stack.quant, stack.paging)
        if key not in self._fitted:
            shown = self._calibration(text, tokens, unrotated=stack.unrotated)
            fitted = stack.fit(self.about.shape.layers, shown).fitted
            assert fitted is not None
            self._fitted[key] = fitted
        return replace(stack, fitted=self._fitted[key], lesson=lesson)

    def _calibration(self, text: str, tokens: int, *, unrotated: bool) -> Calibration:
        key = (digest(text), tokens)
        if key not in self._calibrations:
            ids = self.tokenizer.encode(text)[:tokens]
            pieces = [ids[at : at + CALIBRATION_PIECE] for at in range(0, len(ids), CALIBRATION_PIECE)]
            self._calibrations[key] = tuple(
                prefill(self.model, piece, query_window=CALIBRATION_QUERIES, chunk=self.chunk, seed=0)
                for piece in pieces
            )
        return tuple(piece.unrotated() if unrotated else piece.layers for piece in self._calibrations[key])

    def run(
        self,
        asks: Sequence[Ask],
        *,
        compress: Compress,
        prefill: Prefill = "exact",
        start: Start = "cold",
        seed: int,
    ) -> Iterator[Answer]:
        for ask in asks:
            yield from self._answer(ask.sample, ask.batches, compress, prefill, start, seed)

    def serve(self, stack: Stack, traffic: Traffic, *, seed: int) -> Served:
        def compute(prompt: Prompt) -> Prefilled:
            ids, sample = list(prompt.token_ids), Sample(prompt.id, "", "", (), prompt.output_tokens)
            return self._prefill(PromptTokens(ids, []), ids, [stack], sample, seed)

        in_flight = traffic.in_flight or len(traffic.prompts)
        return Timing(self.model, self.about, stack, compute).serve(traffic.prompts, in_flight)

    def _answer(
        self,
        sample: Sample,
        batches: Sequence[Sequence[Row]],
        compress: Compress,
        prefill: Prefill,
        start: Start,
        seed: int,
    ) -> Iterator[Answer]:
        """One sample, prefilled once."""
        began = time.perf_counter()
        tokens = self.tokenizer.prompt(sample)
        asking = _other(sample) if compress == "other" else sample
        asked = self.tokenizer.prompt(asking) if compress == "other" else tokens
        exact = asked.context if compress == "context" else asked.context + asked.rest
        everyone = [row for rows in batches for row in rows]
        prompts: dict[Source, Prefilled] = {}
        # the baseline's source comes first: computed as a whole
        for source in dict.fromkeys(_source(row.stack) for row in everyone):
            mine = [row for row in everyone if _source(row.stack) == source]
            try:
                cache = self._prefix_cache(source)
                if cache and start == "warm":
                    cache.learn(prompts[None], exact)
                prompts[source] = self._prefill(asked, exact, [row.stack for row in mine], asking, seed, cache)
            except Exception as error:
                lost = mine if prompts else everyone
                yield from (_failed(row, sample, tokens, error, time.perf_counter() - began) for row in lost)
                if not prompts:
                    return
        batches = [[row for row in rows if _source(row.stack) in prompts] for rows in batches]
        if compress == "other":
            prompts = {source: prompt.beginning(len(tokens.context)) for source, prompt in prompts.items()}
        reference = Reference(leader=everyone[0])
        most, stored = self.tokenizer.new_tokens(sample), start == "restarted"
        work = _Work(sample, tokens, prompts, compress, prefill, stored, seed, most, reference, began)
        for rows in filter(None, batches):
            yield from self._isolated(work, rows)

    def _isolated(self, work: _Work, rows: Sequence[Row]) -> Iterator[Answer]:
        """Answer the rows together; if that raises (out of memory, a broken layer), one by one, so others are spared."""
        try:
            answers = list(self._batch(work, rows))
        except Exception as error:
            if work.reference.leader in rows:  # what a broken batch has led to is not followed
                work.reference.tokens.clear()
                work.reference.log_probs.clear()
            if len(rows) == 1:
                traceback.print_exc()
                answers = [_failed(rows[0], work.sample, work.tokens, error, time.perf_counter() - work.began)]
            else:
                answers = [answer for row in rows for answer in self._isolated(work, [row])]
        yield from answers

    def _prefix_cache(self, source: Source) -> PrefixCache | None:
        """What is kept of earlier prompts, if the prompt is to be put together from that."""
        if source is None:
            return None
        if source not in self._prefixes:
            self._prefixes[source] = PrefixCache(source[0])
        return self._prefixes[source]

    def _prefill(
        self,
        tokens: PromptTokens,
        exact: list[int],
        stacks: Sequence[Stack],
        sample: Sample,
        seed: int,
        cache: PrefixCache | None = None,
    ) -> Prefilled:
        """The exact prefill, as far as ``cache`` lacks it, with everything that any policy of ``stacks`` wants to know."""
        policies = [policy for stack in stacks for policy in stack.policies]
        width = max((policy.query_window for policy in policies), default=0)
        needs = frozenset().union(*(policy.needs for policy in policies))
        compute = cache.prefill if cache else prefill
        drawn = chance(seed, sample, CHANCE_BITS)
        prompt = compute(self.model, exact, query_window=width, chunk=self.chunk, seed=drawn, needs=needs)
        if sample.instructions and policies:
            spans = torch.tensor(self.tokenizer.spans(sample)[: len(exact)], device=prompt.logits.device)
            prompt = prompt.knowing(spans=[spans] * len(prompt.layers))
        if "reread" in needs:
            prompt = reread(self.model, prompt, exact, [self.tokenizer.encode(words) for words in REREAD])
        if "future" in needs:
            for steps in sorted({policy.future_steps for policy in policies if "future" in policy.needs}):
                prompt = self._foresee(prompt, tokens, sample, seed, steps)
        return prompt

    def _foresee(self, prompt: Prefilled, tokens: PromptTokens, sample: Sample, seed: int, steps: int) -> Prefilled:
        """What the full cache's own later queries look at, over the question and at most ``steps`` tokens that it says."""
        # the last token said is not fed, so one more is said than looks; who follows does not stop at words
        most, stop = min(steps + 1, self.tokenizer.new_tokens(sample)), () if sample.follow else sample.stop
        ahead = replace(sample, stop=stop, follow=False)
        full = Stack("full")
        reference = Reference(Row("", full))
        work = _Work(ahead, tokens, {None: prompt}, "prompt", "exact", False, seed, most, reference, 0.0)
        cache, logits = self._filled(work, [full], watch=0)
        self._decode(work, cache, logits, [])
        masses = [layer.watch.mass[:, : prompt.tokens] if layer.watch else None for layer in cache.joint]
        return replace(prompt, futures={**prompt.futures, steps: masses})

    def _batch(self, work: _Work, rows: Sequence[Row]) -> Iterator[Answer]:
        _reset_peak(self.model)
        costs = work.reference.leader in rows and any(row.stack.evict for row in rows)
        watch = rows.index(work.reference.leader) if costs else None
        cache, logits = self._filled(work, [row.stack for row in rows], watch=watch)
        stored, kept = cache.stored_bytes(len(rows)), cache.counts
        journeys = self._sent(work, cache, rows)
        try:
            states = self._decode(work, cache, logits, rows)
        finally:
            for at, journey in journeys.items():
                if not rows[at].stack.offload.persist:  # type: ignore[union-attr]
                    journey.forget()
        peak, seconds = _peak_bytes(self.model), time.perf_counter() - work.began
        for at, (row, size, counts, (state, fidelity)) in enumerate(zip(rows, stored, kept, states, strict=True)):
            moved = journeys[at].moved() if at in journeys else UNMOVED
            lost = "; ".join(moved.lost) if row.stack.offload and row.stack.offload.on_loss == "fail" else ""
            response = None if lost else state.response(fidelity)
            yield Answer(
                cell=row.cell,
                sample_id=work.sample.id,
                prompt_hash=work.tokens.hash,
                response=response,
                evidence=self._evidence(row.stack, work, counts, state, size, moved),
                memory=self._memory(row.stack, work.prompt, counts, size, state, peak),
                error=lost or state.error,
                fault="infrastructure" if lost else None if response else "model",
                seconds=seconds,
            )

    def _sent(self, work: _Work, cache: JointCache, rows: Sequence[Row]) -> dict[int, Journey]:
        """The rows whose tokens go to a tier, on their way."""
        journeys = {}
        for at, stack in enumerate(row.stack for row in rows):
            if stack.offload:
                if stack.offload not in self._depots:
                    self._depots[stack.offload] = Depot(stack.offload)
                journeys[at] = Journey(
                    self._depots[stack.offload],
                    # what does not persist is found by nobody else, and its end is nobody else's loss
                    self._address(work, stack) if stack.offload.persist or work.stored else uuid4().hex,
                    cache,
                    at,
                    stored=work.stored,
                    afresh=partial(self._alone, work, stack),
                )
        return journeys

    def _alone(self, work: _Work, stack: Stack) -> JointCache:
        return self._filled(work, [stack], watch=None)[0]

    def _address(self, work: _Work, stack: Stack) -> str:
        """The key under which what ``stack`` stores of a prompt goes to a tier: a digest of all that decides a bit of it."""
        return digest(
            {
                "layout": LAYOUT,
                "model": self.about.identity,
                "engine": self.engine,
                "stack": {slot: spec for slot, spec in stack.spec().items() if slot != "offload"},
                "lesson": stack.lesson,
                "prefill": work.prefill if stack.packs else "exact",
                "compress": work.compress,
                "sample": work.sample.hash,  # what policies had in view: questions, instructions, what was answered
                "prompt": work.prompt_ids,
                "chance": chance(work.seed, work.sample, CHANCE_BITS),
            },
            32,
        )

    def _filled(self, work: _Work, stacks: Sequence[Stack], *, watch: int | None) -> tuple[JointCache, Tensor]:
        """The rows' cache after the prompt, and their logits ``[B, V]`` after its last token.

        ``watch`` is the baseline's row, if what it goes on to look at is to be noted.
        """
        new_tokens = len(work.question) + work.most
        logits = torch.stack([work.prompts[_source(stack)].logits for stack in stacks])
        cache, there = None, []
        for (source, chunked), rows in self._alike(work, stacks).items():
            prompt, mine = work.prompts[source], [stacks[row] for row in rows]
            if chunked:
                part, logits[rows] = self._fed(work, mine, prompt.tokens + new_tokens)
            else:
                watched = rows.index(watch) if cache is None and watch is not None else None
                part = build(prompt, mine, new_tokens, watch=watched, beside=cache)
            everyone = sorted([*there, *rows])
            if cache is None:
                cache = part
            else:
                cache.join(part, *([everyone.index(row) for row in some] for some in (there, rows)))
            there = everyone
        assert cache is not None
        return cache, logits

    def _alike(self, work: _Work, stacks: Sequence[Stack]) -> dict[tuple[Source, bool], list[int]]:
        """Rows that are filled in the same way: from the same prompt, or chunk by chunk. The baseline's come first."""
        alike: dict[tuple[Source, bool], list[int]] = {}
        for row, stack in enumerate(stacks):
            alike.setdefault((_source(stack), work.prefill == "chunked" and stack.packs), []).append(row)
        return alike

    def _fed(self, work: _Work, stacks: Sequence[Stack], capacity: int) -> tuple[JointCache, Tensor]:
        """The cache of rows that read their prompt chunk by chunk through what they have stored, and their logits."""
        prompt = work.prompt
        cache = build(prompt.empty(), stacks, capacity)
        ids = torch.tensor([work.prompt_ids] * len(stacks), device=prompt.logits.device)
        with attention(self.model, DECODE):
            for at in range(0, prompt.tokens, self.chunk):
                logits = feed(self.model, cache, ids[:, at : at + self.chunk], at)
        cache.counts = [stack.kept(prompt.tokens, self.about.shape) for stack in stacks]
        return cache, logits

    def _decode(
        self, work: _Work, cache: JointCache, logits: Tensor, rows: Sequence[Row]
    ) -> Sequence[tuple[RowState, dict[str, float] | None]]:
        position = work.prompt.tokens
        if work.question:
            asked = torch.tensor([work.question] * len(logits), device=logits.device)
            with attention(self.model, DECODE):
                logits = feed(self.model, cache, asked, position)
            position += len(work.question)
        sampler = Sampler.of(work.sample, work.seed)
        if work.sample.follow:
            lead = work.reference.leader in rows
            exact_start = not work.question and work.prefill == "exact"
            return follow(
                self.model,
                cache,
                logits,
                position,
                work.sample,
                self.tokenizer,
                sampler,
                work.reference,
                lead=lead,
                exact_start=exact_start,
            )
        states = decode(self.model, cache, logits, position, work.sample, self.tokenizer, sampler, work.most)
        return [(state, None) for state in states]

    def _evidence(
        self, stack: Stack, work: _Work, counts: Sequence[tuple[int, ...]], state: RowState, stored: int, moved: Moved
    ) -> tuple[Evidence, ...]:
        shape, tokens = self.about.shape, work.prompt.tokens
        exact = Stack("full").formula_bytes(tokens, shape)
        hits = work.prompts[_source(stack)].reused
        facts = {
            "stored_bytes": float(stored),
            "exact_bytes": float(exact),
            "bytes_freed": float(exact - stored),
            "tokens_kept": sum(map(sum, counts)) / (shape.layers * shape.kv_heads),
            "prompt_tokens": float(tokens),
            **state.facts,
        }
        if work.prompt.state_bytes:
            facts["state_bytes"] = float(work.prompt.state_bytes)  # of linear layers, left as they are
        own = {"prefix": {"hit_tokens": float(hits)}, "offload": moved.facts()}
        if stack.paging:
            own["paging"] = stack.paging.facts([held for heads in counts for held in heads])
            if stack.paging.pool_gib and state.stored_bytes_end:
                request = state.stored_bytes_end + work.prompt.state_bytes
                own["paging"]["admitted_requests"] = float(stack.paging.pool_gib * 2**30 // request)
        answered = max(0, state.seen - tokens)
        acted = stack.acted(tokens, shape, counts, answered, hits, moved)
        return tuple(
            Evidence(layer, yes, why, {**facts, **own.get(layer.split("/")[0], {})})
            for layer, (yes, why) in acted.items()
        )

    def _memory(
        self,
        stack: Stack,
        prompt: Prefilled,
        counts: Sequence[tuple[int, ...]],
        stored: int,
        state: RowState,
        peak: int,
    ) -> Memory:
        shape = self.about.shape
        formula, bytes_each = stack.formula_bytes(prompt.tokens, shape, counts), shape.element_bytes
        wider = stack.formula_bytes(prompt.tokens, shape.at(2 * bytes_each), counts)
        return Memory(
            prompt_tokens=prompt.tokens,
            stored_bytes=stored,
            stored_bytes_end=state.stored_bytes_end or 0,
            formula_bytes=formula,
            working_bytes=state.working_bytes,
            peak_bytes=peak,
            kept_fraction=sum(map(sum, counts)) / (shape.layers * shape.kv_heads * prompt.tokens),
            unpacked_elements=(wider - formula) // bytes_each,
            full_elements=Stack("full").formula_bytes(prompt.tokens, shape) // bytes_each,
        )


def _source(stack: Stack) -> Source:
    if stack.prefix is None:
        return None
    return stack.prefix, max((policy.query_window for policy in stack.policies), default=0)


def _other(sample: Sample) -> Sample:
    """The sample with the question for which its context was compressed before."""
    return replace(sample, question=sample.other, answer_prefix="", other="")


def _failed(row: Row, sample: Sample, tokens: PromptTokens, error: Exception, seconds: float) -> Answer:
    text = f"{type(error).__name__}: {error}"
    return Answer(row.cell, sample.id, tokens.hash, None, error=text, fault="infrastructure", seconds=seconds)


def _reset_peak(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(model: PreTrainedModel) -> int:
    """Allocator peak since the batch began, over all GPUs; on a CPU the process's peak so far, which never falls."""
    if model.device.type == "cuda":
        return sum(int(torch.cuda.max_memory_allocated(device)) for device in range(torch.cuda.device_count()))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
