"""A loaded model of the reference engine: one prefill, many stores, one joint decode."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
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
from harness.engines.hf import device_memory
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.company import Company, Seat, failed
from harness.engines.hf.decode import Batch, feed
from harness.engines.hf.joint import JointCache
from harness.engines.hf.journey import Depot, Journey
from harness.engines.hf.prefill import Prefilled, prefill, reread
from harness.engines.hf.reuse import PrefixCache
from harness.engines.hf.row import RowState
from harness.engines.hf.rows import FollowingRows, FreeRows, Reference, Rows
from harness.engines.hf.sampling import Sampler
from harness.engines.hf.timing import Timing
from harness.engines.hf.tokenizer import PromptTokenizer, PromptTokens
from harness.engines.hf.work import Source, Work, source_of
from harness.types import Evidence, Memory, Sample, Served, digest
from strategies.base import UNMOVED, Calibration, Format, Moved, Offload
from strategies.stack import Stack

CALIBRATION_PIECE = 1024  # tokens of a calibration text that are prefilled together
REREAD = (  # what asks for the prompt once more (KVzip): its first chunk, and a later one that starts with given tokens
    "\n\nRepeat the previous context exactly.\n",
    "\n\nRepeat the part of the previous context exactly, starting with\n",
)
LAYOUT = 1  # of what goes to a tier; raised when the same key would lead to other bytes
CHANCE_BITS = 48  # of a sample's seed
CALIBRATION_QUERIES = 64  # last queries of each piece that calibrating layers may measure attention with
SHARE = 0.5  # of the free memory that one more sample may be expected to take to decode beside others


class HFSession(Session):
    """A loaded transformers model."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, engine: Mapping[str, Any], rows: int) -> None:
        self.model = model
        self.together = rows  # and so many rows decode together, if several samples share a batch
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
        company = Company(self.model, self._seat, self._answers)
        try:
            for ask in asks:
                while len(company) and not self._has_room(company, ask):
                    yield from company.advance()
                work = yield from self._prefilled(ask, compress, prefill, start, seed)
                if work:
                    yield from company.take_in(work)
            while len(company):
                yield from company.advance()
        finally:
            company.leave()

    def _has_room(self, company: Company, ask: Ask) -> bool:
        """Whether a sample can decode beside those that do, by rows and by memory.

        Each of its prompts takes what the full cache does, and a row at most as much again, to compute on, beside its store.
        """
        rows = [row.stack for row in ask.batches[0]]
        if len(company) + len(rows) > self.together:
            return False
        prompts = {source_of(row.stack) for batch in ask.batches for row in batch}
        tokens = self.tokenizer.prompt_tokens(ask.sample) + self.tokenizer.new_tokens(ask.sample)
        stored = [stack.formula_bytes(tokens, self.about.shape) for stack in (Stack("full"), *rows)]
        needed = (len(prompts) + len(rows)) * stored[0] + sum(stored[1:])
        return needed <= SHARE * device_memory.free_bytes(self.model.device)

    def serve(self, stack: Stack, traffic: Traffic, *, seed: int) -> Served:
        def compute(prompt: Prompt) -> Prefilled:
            ids, sample = list(prompt.token_ids), Sample(prompt.id, "", "", (), prompt.output_tokens)
            return self._prefill(PromptTokens(ids, []), ids, [stack], sample, seed)

        in_flight = traffic.in_flight or len(traffic.prompts)
        return Timing(self.model, self.about, stack, compute).serve(traffic.prompts, in_flight)

    def _prefilled(
        self, ask: Ask, compress: Compress, prefill: Prefill, start: Start, seed: int
    ) -> Generator[Answer, None, Work | None]:
        """One sample, prefilled once for all rows; yields the answers of those for which that fails."""
        began, sample = time.perf_counter(), ask.sample
        tokens = self.tokenizer.prompt(sample)
        asking = _other(sample) if compress == "other" else sample
        asked = self.tokenizer.prompt(asking) if compress == "other" else tokens
        exact = asked.context if compress == "context" else asked.context + asked.rest
        everyone = [row for rows in ask.batches for row in rows]
        prompts: dict[Source, Prefilled] = {}
        # the baseline's source comes first: computed as a whole
        for source in dict.fromkeys(source_of(row.stack) for row in everyone):
            mine = [row for row in everyone if source_of(row.stack) == source]
            try:
                cache = self._prefix_cache(source)
                if cache and start == "warm":
                    cache.learn(prompts[None], exact)
                prompts[source] = self._prefill(asked, exact, [row.stack for row in mine], asking, seed, cache)
            except Exception as error:
                lost = mine if prompts else everyone
                yield from (failed(row, sample, tokens, error, time.perf_counter() - began) for row in lost)
                if not prompts:
                    return None
        batches = [[row for row in rows if source_of(row.stack) in prompts] for rows in ask.batches]
        if compress == "other":
            prompts = {source: prompt.beginning(len(tokens.context)) for source, prompt in prompts.items()}
        return Work(
            sample=sample,
            batches=[rows for rows in batches if rows],
            tokens=tokens,
            prompts=prompts,
            compress=compress,
            prefill=prefill,
            stored=start == "restarted",
            seed=seed,
            most=self.tokenizer.new_tokens(sample),
            reference=Reference(leader=everyone[0]),
            began=began,
        )

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
        full = Row("", Stack("full"))
        batches, prompts, reference = [[full]], {None: prompt}, Reference(full)
        work = Work(ahead, batches, tokens, prompts, "prompt", "exact", False, seed, most, reference, 0.0)
        cache, logits = self._filled(work, [full.stack], watch=0)
        watches = [layer.watches.get(0) for layer in cache.joint]
        batch = Batch(self.model)
        batch.join(self._said(work, [full]), cache, self._asked(work, cache, logits))
        batch.advance()
        masses = [watch.mass[:, : prompt.tokens] if watch else None for watch in watches]
        return replace(prompt, futures={**prompt.futures, steps: masses})

    def _seat(self, work: Work, rows: Sequence[Row]) -> tuple[Seat, JointCache, Tensor]:
        """The rows after their prompt and question, with their cache and their logits ``[R, V]``."""
        said = self._said(work, rows)
        costs = work.reference.leader in rows and any(row.stack.evict for row in rows)
        watch = rows.index(work.reference.leader) if costs else None
        cache, logits = self._filled(work, [row.stack for row in rows], watch=watch)
        stored, kept = cache.stored_bytes(len(rows)), cache.counts
        seat = Seat(work, rows, said, stored, kept, self._sent(work, cache, rows))
        try:
            return seat, cache, self._asked(work, cache, logits)
        except Exception:
            seat.forget()
            raise

    def _answers(self, seat: Seat) -> list[Answer]:
        work, seconds = seat.work, time.perf_counter() - seat.work.began
        measured = seat.said.fidelity()
        answers = []
        for at, (row, state) in enumerate(zip(seat.rows, seat.said.states, strict=True)):
            moved = seat.journeys[at].moved() if at in seat.journeys else UNMOVED
            lost = "; ".join(moved.lost) if row.stack.offload and row.stack.offload.on_loss == "fail" else ""
            response = None if lost else state.response(measured[at])
            counts, size = seat.kept[at], seat.stored[at]
            answers.append(
                Answer(
                    cell=row.cell,
                    sample_id=work.sample.id,
                    prompt_hash=work.tokens.hash,
                    response=response,
                    evidence=self._evidence(row.stack, work, counts, state, size, moved),
                    memory=self._memory(row.stack, work.prompt, counts, size, state, seat.peak_bytes),
                    error=lost or state.error,
                    fault="infrastructure" if lost else None if response else "model",
                    seconds=seconds,
                )
            )
        return answers

    def _sent(self, work: Work, cache: JointCache, rows: Sequence[Row]) -> dict[int, Journey]:
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

    def _alone(self, work: Work, stack: Stack) -> JointCache:
        return self._filled(work, [stack], watch=None)[0]

    def _address(self, work: Work, stack: Stack) -> str:
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

    def _filled(self, work: Work, stacks: Sequence[Stack], *, watch: int | None) -> tuple[JointCache, Tensor]:
        """The rows' cache after the prompt, and their logits ``[B, V]`` after its last token.

        ``watch`` is the baseline's row, if what it goes on to look at is to be noted.
        """
        new_tokens = len(work.question) + work.most
        logits = torch.stack([work.prompts[source_of(stack)].logits for stack in stacks])
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

    def _alike(self, work: Work, stacks: Sequence[Stack]) -> dict[tuple[Source, bool], list[int]]:
        """Rows that are filled in the same way: from the same prompt, or chunk by chunk. The baseline's come first."""
        alike: dict[tuple[Source, bool], list[int]] = {}
        for row, stack in enumerate(stacks):
            alike.setdefault((source_of(stack), work.prefill == "chunked" and stack.packs), []).append(row)
        return alike

    def _fed(self, work: Work, stacks: Sequence[Stack], capacity: int) -> tuple[JointCache, Tensor]:
        """The cache of rows that read their prompt chunk by chunk through what they have stored, and their logits."""
        prompt = work.prompt
        cache = build(prompt.empty(), stacks, capacity)
        ids = torch.tensor([work.prompt_ids] * len(stacks), device=prompt.logits.device)
        with attention(self.model, DECODE):
            for at in range(0, prompt.tokens, self.chunk):
                logits = feed(self.model, cache, ids[:, at : at + self.chunk], at)
        cache.counts = [stack.kept(prompt.tokens, self.about.shape) for stack in stacks]
        return cache, logits

    def _asked(self, work: Work, cache: JointCache, logits: Tensor) -> Tensor:
        """The rows' logits after the question, if they still had to read it."""
        if not work.question:
            return logits
        question = torch.tensor([work.question] * len(logits), device=logits.device)
        with attention(self.model, DECODE):
            return feed(self.model, cache, question, work.prompt.tokens)

    def _said(self, work: Work, rows: Sequence[Row]) -> Rows:
        """What the rows are about to say."""
        sampler = Sampler.of(work.sample, work.seed)
        position = work.prompt.tokens + len(work.question)
        if work.sample.follow:
            lead = work.reference.leader in rows
            exact_start = not work.question and work.prefill == "exact"
            return FollowingRows(
                len(rows),
                position,
                work.sample,
                self.tokenizer,
                sampler,
                work.reference,
                lead=lead,
                exact_start=exact_start,
            )
        return FreeRows(len(rows), position, work.sample, self.tokenizer, sampler, work.most)

    def _evidence(
        self, stack: Stack, work: Work, counts: Sequence[tuple[int, ...]], state: RowState, stored: int, moved: Moved
    ) -> tuple[Evidence, ...]:
        shape, tokens = self.about.shape, work.prompt.tokens
        exact = Stack("full").formula_bytes(tokens, shape)
        hits = work.prompts[source_of(stack)].reused
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


def _other(sample: Sample) -> Sample:
    """The sample with the question for which its context was compressed before."""
    return replace(sample, question=sample.other, answer_prefix="", other="")
