"""The reference engine: one prefill, many stores, one joint decode."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from harness.engines.base import Answer, Compress, Engine, ModelFacts, Prefill, Row, Session, Start, Support
from harness.engines.hf import fetch
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import Reference, RowState, decode, feed, follow
from harness.engines.hf.joint import JointCache
from harness.engines.hf.journey import Depot, Journey
from harness.engines.hf.kinds import shape_of
from harness.engines.hf.prefill import Prefilled, prefill, reread
from harness.engines.hf.reuse import PrefixCache
from harness.engines.hf.tokenizer import PromptTokenizer, PromptTokens
from harness.types import BadInput, Evidence, Memory, Sample, digest
from strategies.base import UNMOVED, Calibration, Format, KVShape, Layer, Moved, Offload, Prefix, Stack

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CALIBRATION_PIECE = 1024  # tokens of a calibration text that are prefilled together
REREAD = (  # what asks for the prompt once more (KVzip): its first chunk, and a later one that starts with given tokens
    "\n\nRepeat the previous context exactly.\n",
    "\n\nRepeat the part of the previous context exactly, starting with\n",
)
LAYOUT = 1  # of what goes to a tier; raised when the same key would lead to other bytes
ACTS = {  # what this engine does with the layers of a slot
    "paging": "sets room aside in the stores that tokens are packed into",
    "prefix": "computes only the tokens that no earlier prompt began with",
    "structure": "acts on the real cache; memory is freed",
    "evict": "acts on the real cache; memory is freed",
    "quant": "acts on the real cache; memory is freed",
    "offload": "sends stored tokens to the tier and fetches them layer by layer",
}
CALIBRATION_QUERIES = 64  # last queries of each piece that calibrating layers may measure attention with


@dataclass(frozen=True)
class _Work:
    """One sample after its prefill."""

    sample: Sample
    tokens: PromptTokens
    prompts: Mapping[Prefix | None, Prefilled]  # as each prefix layer gives it; None: computed as a whole
    prefill: Prefill
    stored: bool  # whether an earlier process has stored what goes to a tier
    seed: int
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
        self._prefixes: dict[tuple[Prefix, Compress], PrefixCache] = {}
        self._depots: dict[Offload, Depot] = {}

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
        sample: Sample,
        batches: Sequence[Sequence[Row]],
        *,
        compress: Compress,
        prefill: Prefill = "exact",
        start: Start = "cold",
        seed: int,
    ) -> Iterator[Answer]:
        began = time.perf_counter()
        tokens = self.tokenizer.prompt(sample)
        asking = _other(sample) if compress == "other" else sample
        asked = self.tokenizer.prompt(asking)
        exact = asked.context if compress == "context" else asked.context + asked.rest
        everyone = [row for rows in batches for row in rows]
        prompts: dict[Prefix | None, Prefilled] = {}
        try:
            for prefix in dict.fromkeys(
                row.stack.prefix for row in everyone
            ):  # the baseline's first, computed as a whole
                stacks = [row.stack for row in everyone if row.stack.prefix == prefix]
                cache = self._prefix_cache(prefix, compress)
                if cache and start == "warm":
                    cache.learn(prompts[None], exact)
                prompts[prefix] = self._prefill(asked, exact, stacks, asking, seed, cache)
            if compress == "other":
                prompts = {prefix: prompt.beginning(len(tokens.context)) for prefix, prompt in prompts.items()}
        except Exception as error:
            yield from (_failed(row, tokens, error, time.perf_counter() - began) for row in everyone)
            return
        reference = Reference(leader=everyone[0])
        work = _Work(sample, tokens, prompts, prefill, start == "restarted", seed, reference, began)
        for rows in batches:
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
                answers = [_failed(rows[0], work.tokens, error, time.perf_counter() - work.began)]
            else:
                answers = [answer for row in rows for answer in self._isolated(work, [row])]
        yield from answers

    def _prefix_cache(self, prefix: Prefix | None, compress: Compress) -> PrefixCache | None:
        """What ``prefix`` keeps of earlier prompts of this kind."""
        if prefix is None:
            return None
        if (prefix, compress) not in self._prefixes:
            self._prefixes[prefix, compress] = PrefixCache(prefix)
        return self._prefixes[prefix, compress]

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
        policies = [policy for stack in stacks if stack.evict for policy in stack.evict.phases() if policy]
        width = max((policy.query_window for policy in policies), default=0)
        needs = frozenset().union(*(policy.needs for policy in policies))
        compute = cache.prefill if cache else prefill
        chance = _chance(seed, sample)
        prompt = compute(self.model, exact, query_window=width, chunk=self.chunk, seed=chance, needs=needs)
        if sample.instructions and policies:
            spans = torch.tensor(self.tokenizer.spans(sample)[: len(exact)], device=prompt.logits.device)
            prompt = prompt.knowing(spans=[spans] * len(prompt.layers))
        if "reread" in needs:
            prompt = reread(self.model, prompt, exact, [self.tokenizer.encode(words) for words in REREAD])
        if "future" in needs:
            for steps in sorted({policy.future_steps for policy in policies if "future" in policy.needs}):
                prompt = self._foresee(prompt, tokens, sample, steps)
        return prompt

    def _foresee(self, prompt: Prefilled, tokens: PromptTokens, sample: Sample, steps: int) -> Prefilled:
        """What the full cache's own later queries look at, over the question and at most ``steps`` answer tokens."""
        # the last token said is not fed, so one more is said than looks; who follows does not stop at words
        count, stop = min(steps + 1, sample.max_new_tokens), () if sample.follow else sample.stop
        ahead = replace(sample, max_new_tokens=count, stop=stop, follow=False)
        full = Stack("full")
        work = _Work(ahead, tokens, {None: prompt}, "exact", False, 0, Reference(Row("", full)), 0.0)
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
                    self._address(work, stack),
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
                "prompt": work.prompt_ids,
                "chance": _chance(work.seed, work.sample),
            },
            32,
        )

    def _filled(self, work: _Work, stacks: Sequence[Stack], *, watch: int | None) -> tuple[JointCache, Tensor]:
        """The rows' cache after the prompt, and their logits ``[B, V]`` after its last token.

        ``watch`` is the baseline's row, if what it goes on to look at is to be noted.
        """
        new_tokens = len(work.question) + work.sample.max_new_tokens
        logits = torch.stack([work.prompts[stack.prefix].logits for stack in stacks])
        cache, there = None, []
        for (prefix, chunked), rows in self._alike(work, stacks).items():
            prompt, mine = work.prompts[prefix], [stacks[row] for row in rows]
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

    def _alike(self, work: _Work, stacks: Sequence[Stack]) -> dict[tuple[Prefix | None, bool], list[int]]:
        """Rows that are filled in the same way: from the same prompt, or chunk by chunk. The baseline's come first."""
        alike: dict[tuple[Prefix | None, bool], list[int]] = {}
        for row, stack in enumerate(stacks):
            alike.setdefault((stack.prefix, work.prefill == "chunked" and stack.packs), []).append(row)
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
                work.reference,
                lead=lead,
                exact_start=exact_start,
            )
        return [(state, None) for state in decode(self.model, cache, logits, position, work.sample, self.tokenizer)]

    def _evidence(
        self, stack: Stack, work: _Work, counts: Sequence[tuple[int, ...]], state: RowState, stored: int, moved: Moved
    ) -> tuple[Evidence, ...]:
        shape, tokens = self.about.shape, work.prompt.tokens
        exact = Stack("full").formula_bytes(tokens, shape)
        hits = work.prompts[stack.prefix].reused
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
        if stack.paging:
            facts |= stack.paging.facts([held for heads in counts for held in heads])
            if stack.paging.pool_gib and state.stored_bytes_end:
                facts["admitted_requests"] = float(stack.paging.pool_gib * 2**30 // state.stored_bytes_end)
        if stack.prefix:
            facts["hit_tokens"] = float(hits)
        if stack.offload:
            facts |= moved.facts()
        answered = max(0, state.seen - tokens)
        acted = stack.acted(tokens, shape, counts, answered, hits, moved)
        return tuple(Evidence(layer, yes, why, facts) for layer, (yes, why) in acted.items())

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


@dataclass(frozen=True, kw_only=True)
class HFEngine(Engine):
    """The reference engine on transformers: shows what a method does to quality and to bytes, on any device.

    Args:
        prefill_chunk: tokens fed at once; bounds the memory of long prompts. With an exact prefill it changes no result beyond
            rounding; with a chunked one it is the chunk that reads the stored past.
        threads: CPU threads; 0 leaves torch's own choice.
    """

    name: ClassVar[str] = "hf"
    version: ClassVar[int] = 3

    prefill_chunk: int = 1024
    threads: int = 0

    def __post_init__(self) -> None:
        if self.prefill_chunk < 1:
            raise ValueError(f"engine.prefill_chunk must be 1 or more, got {self.prefill_chunk}")
        if self.threads < 0:
            raise ValueError(f"engine.threads must be 0 or more, got {self.threads}")

    def supports(self, layer: Layer) -> Support:
        speed = "; simulated: its numbers are the hardware's, no speed is" if layer.simulated else ""
        return Support(True, f"{ACTS[layer.slot]}{speed}")

    def prefills(self, stack: Stack, prefill: Prefill, shape: KVShape) -> Support:
        if prefill == "exact" or not stack.packs:
            return Support(True, "the prompt is computed exactly, then compressed")
        if stack.prefix:
            return Support(
                False, f"prefix/{stack.prefix.name} keeps exact blocks, and a chunked prefill reads packed ones"
            )
        if stack.evict:
            return Support(False, "an eviction ranks exact keys, and a chunked prefill of a packed cache has none")
        if stack.structure and not stack.structure.by_chunk:
            return Support(False, f"structure/{stack.structure.name} works on a whole prompt")
        if any(shape.windows):
            return Support(False, "a packed layer with a sliding window cannot drop the tokens that leave it")
        return Support(True, "each chunk is packed, and read back by the next")

    def load_key(self, stack: Stack) -> str:
        return "hf"  # every stack shares one load and one prefill

    def spec(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "prefill_chunk": self.prefill_chunk,
            "attention": "sdpa",
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "device": device_kind(),
        }

    def describe(self, model: Mapping[str, Any]) -> ModelFacts:
        folder = fetch.locate(model)
        trust = bool(model.get("trust_remote_code", False))
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        except (OSError, ValueError) as error:
            raise BadInput(f"model.path: {folder} does not load: {error}") from error
        dtype = resolved_dtype(model)
        shape = shape_of(config.get_text_config(), dtype)
        max_tokens = int(config.get_text_config().max_position_embeddings)
        prompts = PromptTokenizer(tokenizer, max_tokens, _stop_ids(folder, config, tokenizer))
        name = str(model["name"])
        path = model.get("path")
        hub_id = path if path and not Path(str(path)).expanduser().is_dir() else None
        identity = {
            "id": hub_id or ("local" if path else name),
            "revision": model.get("revision"),
            "config": _config_digest(config),
            "stop_ids": sorted(prompts.stop_ids),
            "weights": fetch.weights_sha(folder),
            "tokenizer": fetch.tokenizer_sha(folder),
            "chat_template": prompts.template_hash,
            "dtype": str(dtype).removeprefix("torch."),
        }
        deploy = model.get("deploy_dtype", "bfloat16")
        if deploy not in DTYPES:
            raise BadInput(f"model.deploy_dtype must be one of {', '.join(DTYPES)}, got {deploy!r}")
        display = str(hub_id or (folder.name if path else name))
        return ModelFacts(shape, DTYPES[deploy].itemsize, deploy, max_tokens, display, identity, prompts)

    @contextmanager
    def open(self, model: Mapping[str, Any]) -> Iterator[HFSession]:
        if self.threads:
            torch.set_num_threads(self.threads)
        facts = self.describe(model)
        loaded = AutoModelForCausalLM.from_pretrained(
            fetch.locate(model),
            dtype=resolved_dtype(model),
            device_map=model.get("device_map", "auto") if device_kind() != "cpu" else None,
            attn_implementation="sdpa",
            trust_remote_code=bool(model.get("trust_remote_code", False)),
        ).eval()
        session = HFSession(loaded, facts, self.spec())
        try:
            yield session
        finally:
            session.close()
            del loaded, session
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def device_kind() -> str:
    """The kind of device that results are valid for: ``cpu``, or the accelerator's name."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def resolved_dtype(model: Mapping[str, Any]) -> torch.dtype:
    """``model.dtype``; ``auto`` is float32 on a CPU, where bfloat16 is many times slower, and bfloat16 on a GPU."""
    name = model.get("dtype", "auto")
    if name == "auto":
        name = "float32" if device_kind() == "cpu" else "bfloat16"
    if name not in DTYPES:
        raise BadInput(f"model.dtype must be auto, {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _config_digest(config: Any) -> str:
    """All of a model's configuration that decides results: not where it came from, nor which library wrote it."""
    facts = json.loads(config.to_json_string(use_diff=False))
    return digest({key: value for key, value in facts.items() if key not in ("_name_or_path", "transformers_version")})


def _stop_ids(folder: Path, config: Any, tokenizer: Any) -> frozenset[int]:
    ids = config.eos_token_id
    if (folder / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(folder).eos_token_id or ids
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def _other(sample: Sample) -> Sample:
    """The sample with the question for which its context was compressed before."""
    return replace(sample, question=sample.other, answer_prefix="", other="")


def _chance(seed: int, sample: Sample) -> int:
    """The seed of every random draw on a sample."""
    return int(digest([seed, sample.id]), 16) % 2**48


def _failed(row: Row, tokens: PromptTokens, error: Exception, seconds: float) -> Answer:
    text = f"{type(error).__name__}: {error}"
    return Answer(row.cell, tokens.hash, None, error=text, fault="infrastructure", seconds=seconds)


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
