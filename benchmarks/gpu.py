"""What settings cost on one GPU: time to the first token, decode steps, memory, each beside the device's own limit.

Needs torch and transformers and nothing else: no network, no weights. A model in the shape of Llama-3.1-8B gets random weights on
the device, and the reference engine's own prefill, stores and decode are timed, each setting in alternation with the full cache.
A JSON record is written after every cell, so what was measured outlives a kill; a short table is printed last.

    python benchmarks/gpu.py                              # within 8 minutes, into results/published/gpu-<device>.json
    python benchmarks/gpu.py --profile 8192x8:kivi4       # where the steps of one cell spend their time
    python benchmarks/gpu.py --dry                        # the same code on a CPU, with a tiny shape

``step_s`` is a decode step of the whole batch, ``host_s`` the part of it in which Python hands out work: where the two are close
the device waits for launches. ``limit_s`` is what must move for what the setting stores, over the measured rates;
``dense_limit_s`` the same for the dense copy that this engine reads instead. Prompts of a batch are alike, which changes no time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

# kvgate is not installed where only torch and transformers are
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from harness import provenance
from harness.bench import roofline
from harness.engines.hf import device_memory, links
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import feed
from harness.engines.hf.joint import JointCache
from harness.engines.hf.kinds import shape_of
from harness.engines.hf.prefill import Prefilled, prefill
from harness.places import write_atomic
from strategies.base import KVShape
from strategies.evict.h2o import H2O
from strategies.evict.snapkv import SnapKV
from strategies.offload.host import Host
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.quant.turboquant import TurboQuant
from strategies.stack import Stack

ROOT = Path(__file__).resolve().parents[1]
FULL = Stack("full")
SETTINGS = {
    stack.name: stack
    for stack in (
        FULL,
        Stack("fp8", quant=FP8()),
        Stack("int8", quant=INT8()),
        Stack("kivi4", quant=KIVI(bits=4)),
        Stack("kivi2", quant=KIVI(bits=2)),
        Stack("turboquant4", quant=TurboQuant(preset="4bit_nc")),
        Stack("host", offload=Host()),
        Stack("snapkv", evict=SnapKV(keep=0.25)),
        Stack("snapkv+kivi4", evict=SnapKV(keep=0.25), quant=KIVI(bits=4)),
        Stack("h2o", evict=H2O(keep=0.25)),
    )
}
CHUNK = 1024  # of a prefill, as the engine's default
WARM, STEPS, FEWEST = 3, 12, 3  # decode steps that do not count, that do, and that do where time is up
ROOM = WARM + STEPS
REPEATS = 3  # pairs of the full cache and a setting
PREFILL_S = 20.0  # seconds after which a prefill is not timed again
RESERVE = 0.05  # share of the minutes in which nothing new begins
SPARE = 0.95  # share of the free memory that cells may fill
PINNED = 2  # times what is asked for: torch rounds page-locked memory up to a power of two
PASSING = 6  # float32 copies of one layer's keys or values that are there while a format packs them


OUT_OF_TIME = "out of time"
LEAST_BYTES = 20 * 2**30  # of the device: 16 for the weights


@dataclass(frozen=True)
class Scale:
    """A model's shape, and the grid, its most telling part first."""

    config: LlamaConfig
    contexts: tuple[int, ...]
    batches: tuple[int, ...]


LLAMA_8B = Scale(
    LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=False,
    ),
    contexts=(8192, 32768, 2048),
    batches=(8, 1, 32),
)
TINY = Scale(
    LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    ),
    contexts=(640, 256),
    batches=(3, 1),
)


class Clock:
    """How much time is left of the minutes given."""

    def __init__(self, minutes: float) -> None:
        self.began = time.perf_counter()
        self.seconds = 60 * minutes * (1 - RESERVE)

    @property
    def left_s(self) -> float:
        return self.began + self.seconds - time.perf_counter()


@dataclass(frozen=True)
class Asks:
    """What a setting wants to know of a prefill. Settings that ask alike share one."""

    queries: int
    needs: frozenset[str]

    @classmethod
    def of(cls, stack: Stack) -> Asks:
        width = max((policy.query_window for policy in stack.policies), default=0)
        return cls(width, frozenset().union(*(policy.needs for policy in stack.policies)))

    def __str__(self) -> str:
        return " + ".join([f"{self.queries} queries"] * bool(self.queries) + sorted(self.needs)) or "nothing"


@dataclass
class Decoded:
    """One setting served once: seconds, and bytes of all rows."""

    pack_s: float  # one prompt, from exact keys and values to the store
    out_s: float | None  # of an offload, all rows to the host
    first_step_s: float  # of an offload, with the way back
    step_s: float
    host_s: float
    stored_bytes: int
    working_bytes: int
    peak_bytes: int | None
    kept_tokens: float  # of the prompt, mean over layers and heads


@dataclass
class Bench:
    """A model on its device, what is known of both, and how long a prefill was last seen to take."""

    model: PreTrainedModel
    shape: KVShape
    size: roofline.Size
    peaks: dict[str, Any]
    clock: Clock
    free_bytes: int  # beside the weights
    took: dict[Asks, dict[int, float]] = field(default_factory=dict)  # seconds by tokens

    def limit_s(self, work: roofline.Work) -> float:
        return roofline.limit(work, self.peaks["memory_bytes_s"], self.peaks["matmul_flop_s"]).seconds

    def needed_bytes(self, stack: Stack, context: int, rows: int) -> int:
        """Estimate beside the weights: one exact prompt, each row's dense copy and store, and what passes while one is packed."""
        held = self.shape.layers * self.shape.exact_bytes(1)
        most = stack.most_held(context, self.shape) + ROOM
        stored = stack.formula_bytes(context, self.shape) if stack.packs else 0
        passing = PASSING * self.shape.at(4).exact_bytes(most) // 2
        return held * context + rows * (held * most + stored + passing)

    def unfit(self, stack: Stack, context: int, rows: int) -> str | None:
        """Why a cell cannot be in memory, if it cannot."""
        needed, room = self.needed_bytes(stack, context, rows), SPARE * self.free_bytes
        if needed > room:
            return f"needs about {gib(needed)}, {gib(room)} are free"
        locked, host = rows * PINNED * stack.formula_bytes(context, self.shape), host_bytes()
        if stack.offload and locked > host / 2:
            return f"locks up to {gib(locked)} of the host's memory, half of its {gib(host)} may be"
        return None

    def expected_s(self, asks: Asks, context: int) -> float:
        """What a prefill may take at the most, after others: attention, which grows fastest, grows with the square."""
        known = self.took[asks].items()
        return min(seconds * max(1.0, context / tokens) ** 2 for tokens, seconds in known)

    def prefill(self, asks: Asks, context: int) -> tuple[Prefilled, float]:
        """A prompt of random tokens, and the seconds it took."""
        chance = torch.Generator().manual_seed(context)
        ids = torch.randint(self.model.config.vocab_size, (context,), generator=chance).tolist()
        began = now()
        prompt = prefill(self.model, ids, query_window=asks.queries, chunk=CHUNK, seed=0, needs=asks.needs)
        seconds = now() - began
        self.took.setdefault(asks, {})[context] = seconds
        return prompt, seconds

    @torch.inference_mode()
    def decode(self, prompt: Prefilled, stack: Stack, rows: int) -> Decoded:
        """Pack a prompt for so many rows and take decode steps on them."""
        release()
        told = device_memory.forget_load_peak(self.model.device)
        began = now()
        cache = build(prompt, [stack], ROOM)
        pack_s = now() - began
        if rows > 1:
            del cache  # or it would be in the peak
            cache = build(prompt, [stack] * rows, ROOM)
        stored, working = sum(cache.stored_bytes(rows)), sum(cache.working_bytes(rows))
        counts = [held for layer in cache.counts[0] for held in layer]
        out_s = send_away(cache) if stack.offload else None
        steps = []
        for step_s, host_s in taken(self.model, cache, prompt.tokens, rows):
            steps.append((step_s, host_s))
            if self.clock.left_s < 0 and len(steps) >= WARM + FEWEST:
                break
        return Decoded(
            pack_s,
            out_s,
            steps[0][0],
            *(statistics.median(one) for one in zip(*steps[WARM:], strict=True)),
            stored,
            working,
            device_memory.load_peak_bytes(self.model.device) if told else None,
            statistics.mean(counts),
        )


def taken(
    model: PreTrainedModel, cache: JointCache, position: int, rows: int
) -> Generator[tuple[float, float], None, None]:
    """Decode steps of all rows, the likeliest token after each: seconds, and those until Python had nothing more to hand out."""
    tokens = torch.ones(rows, 1, dtype=torch.long, device=model.device)
    with attention(model, DECODE):
        for ahead in range(ROOM):
            began = now()
            tokens = feed(model, cache, tokens, position + ahead).argmax(dim=-1, keepdim=True)
            handed_out = time.perf_counter()
            yield now() - began, handed_out - began


def send_away(cache: JointCache) -> float:
    """Every layer's tokens to page-locked host memory, from where the first step brings them back; the seconds that takes.

    The engine itself packs and checks what it moves besides, which needs more than torch.
    """
    began = now()
    for layer in cache.joint:
        for bucket in layer.buckets:
            there = [on_host(tensor) for tensor in bucket.leave()]
            layer.arrivals[int(bucket.rows[0])] = partial(bucket.come_back, iter(there))
    return now() - began


def on_host(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


def now() -> float:
    """Seconds, when the device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def gib(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"


# --- the model and the machine ------------------------------------------------------------------------------------------


def made(scale: Scale) -> tuple[PreTrainedModel, roofline.Size, KVShape]:
    """A model with random weights, born on its device, and its size."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(scale.config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    apart = ("embed_tokens", "lm_head")
    body = sum(x.numel() for name, x in model.named_parameters() if not any(one in name for one in apart))
    shape = shape_of(scale.config, model.dtype)
    size = roofline.size_of(shape, (body, scale.config.vocab_size * scale.config.hidden_size))
    assert size is not None
    return model, size, shape


def host_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes() -> int:
    """What may still be allocated on the device; of a CPU's memory half, since others live there too."""
    if not torch.cuda.is_available():
        return host_bytes() // 2
    release()
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def attention_backends(shape: KVShape, rows: int = 8, tokens: int = 2048) -> dict[str, float | str]:
    """Seconds of one layer's decode attention by torch's backend, median over lengths that grow as in decoding.

    One that plans anew for every length is slow here, and fast in a benchmark of one length.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    query, keys = (
        torch.randn(rows, shape.kv_heads, count, shape.head_dim, dtype=torch.bfloat16, device=device)
        for count in (shape.query_heads // shape.kv_heads, tokens + ROOM)
    )
    chosen = {"default": None, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    found: dict[str, float | str] = {}
    for name, backend in {**chosen, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}.items():
        times = []
        try:
            for length in range(tokens, tokens + ROOM):
                began = now()
                with sdpa_kernel(backend) if backend else nullcontext():
                    scaled_dot_product_attention(query, keys[:, :, :length], keys[:, :, :length])
                times.append(now() - began)
        except RuntimeError as error:
            found[name] = f"not served: {first_line(error)}"
        else:
            found[name] = statistics.median(times[WARM:])
    return found


def machine() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"name": "cpu", "cpu": provenance.cpu(), "driver": None}
    about = torch.cuda.get_device_properties(0)
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        said = ""  # no such program here
    return {
        "name": about.name,
        "memory_bytes": about.total_memory,
        "capability": f"{about.major}.{about.minor}",
        "cpu": provenance.cpu(),
        "driver": next(iter(said.split()), None),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


# --- the grid -----------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """The JSON that is written after every step; a cell that was not come to says so."""

    path: Path
    facts: dict[str, Any]
    prefills: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[tuple[int, int, str], dict[str, Any]] = field(default_factory=dict)

    def expect(self, contexts: Sequence[int], batches: Sequence[int]) -> None:
        for context in contexts:
            for rows in batches:
                for name in SETTINGS:
                    self.cells[context, rows, name] = {"state": "not_run", "reason": "the run ended before it"}

    def save(self) -> None:
        keys = ("context", "batch", "setting")
        cells = [dict(zip(keys, key, strict=True)) | cell for key, cell in self.cells.items()]
        write_atomic(self.path, json.dumps({**self.facts, "prefills": self.prefills, "cells": cells}, indent=1) + "\n")


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` measured, or in which state it ended. None of them is a number."""
    try:
        return {"state": "measured", **work()}
    except torch.OutOfMemoryError as error:
        return {"state": "out_of_memory", "reason": first_line(error)}
    except Exception as error:
        return {"state": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"}


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def run(bench: Bench, record: Record, contexts: Sequence[int], batches: Sequence[int]) -> None:
    """All cells that time and memory allow."""
    by_asks: dict[Asks, list[Stack]] = {}
    for stack in SETTINGS.values():
        by_asks.setdefault(Asks.of(stack), []).append(stack)
    for asks in by_asks:
        for _ in range(2):  # the first loads kernels
            bench.prefill(asks, min(CHUNK, *contexts))
    for context in contexts:
        exact_s: float | None = None
        for asks, stacks in by_asks.items():
            cells = [(context, rows, stack.name) for rows in batches for stack in stacks]
            release()
            filled = prefilled(bench, record, asks, context)
            if isinstance(filled, str):
                record.cells |= {cell: {"state": "not_run", "reason": filled} for cell in cells}
                record.save()
                continue
            prompt, prefill_s = filled
            exact_s = exact_s or prefill_s
            for rows in batches:
                for stack in stacks:
                    record.cells[context, rows, stack.name] = cell(bench, prompt, stack, rows, prefill_s, exact_s)
                    record.save()
            del prompt, filled


def prefilled(bench: Bench, record: Record, asks: Asks, context: int) -> tuple[Prefilled, float] | str:
    """A prompt, and the median seconds of its prefill in alternation with one that is asked nothing; or why there is none."""
    plain = Asks(0, frozenset())
    if reason := bench.unfit(FULL, context, 1):
        return f"its prompt {reason}"
    expected, left = bench.expected_s(asks, context) + bench.expected_s(plain, context), bench.clock.left_s
    if left < 0:
        return OUT_OF_TIME
    if expected > left:
        return f"its prefill may take {expected:.1f} s, {left:.1f} s were left"
    times: list[tuple[float, float]] = []
    prompt: Prefilled | None = None

    def measure() -> dict[str, Any]:
        nonlocal prompt
        while not times or (
            len(times) < REPEATS and sum(map(sum, times)) < PREFILL_S and bench.clock.left_s > expected
        ):
            prompt = None  # one at a time
            plain_s = bench.prefill(plain, context)[1]
            prompt, seconds = bench.prefill(asks, context)
            times.append((plain_s, seconds))
        prefill_s = statistics.median(seconds for _, seconds in times)
        limit_s = bench.limit_s(roofline.prefill(bench.size, context, FULL.formula_bytes(context, bench.shape)))
        return {
            "prefill_s": prefill_s,
            "ratio": statistics.median(seconds / plain_s for plain_s, seconds in times),
            "limit_s": limit_s,
            "gap": prefill_s / limit_s,
            "repeats": len(times),
        }

    found = attempt(measure)
    record.prefills.append({"context": context, "asks": str(asks), **found})
    record.save()
    return (prompt, found["prefill_s"]) if prompt and "prefill_s" in found else f"its prefill: {found['reason']}"


def cell(bench: Bench, prompt: Prefilled, stack: Stack, rows: int, prefill_s: float, exact_s: float) -> dict[str, Any]:
    """One setting, in alternation with the full cache where that fits."""
    if reason := bench.unfit(stack, prompt.tokens, rows):
        return {"state": "not_run", "reason": reason}
    if bench.clock.left_s < 0:
        return {"state": "not_run", "reason": OUT_OF_TIME}
    without = bench.unfit(FULL, prompt.tokens, rows)
    found = attempt(lambda: measured(bench, prompt, stack, rows, prefill_s, exact_s, alone=without is not None))
    release()
    return found | ({"no_ratio": f"the full cache {without}"} if without else {})


def measured(
    bench: Bench, prompt: Prefilled, stack: Stack, rows: int, prefill_s: float, exact_s: float, *, alone: bool
) -> dict[str, Any]:
    base: list[Decoded] = []
    mine: list[Decoded] = []
    while not mine or (len(mine) < REPEATS and bench.clock.left_s > 0):
        if not alone:
            base.append(bench.decode(prompt, FULL, rows))
        mine.append(bench.decode(prompt, stack, rows))

    def middle(name: str, of: Sequence[Decoded] = mine) -> float:
        return statistics.median(getattr(one, name) for one in of)

    last, kept = mine[-1], mine[-1].kept_tokens
    stored = last.stored_bytes / rows  # of one row
    dense = kept * bench.shape.layers * bench.shape.exact_bytes(1)
    step_s, ttft_s = middle("step_s"), prefill_s + middle("pack_s")
    limit_s = bench.limit_s(roofline.decode(bench.size, rows, kept, stored))
    ratios = [one.step_s / other.step_s for one, other in zip(mine, base, strict=False)]
    peaks = [one.peak_bytes for one in mine if one.peak_bytes is not None]
    return {
        "repeats": len(mine),
        "ttft_s": ttft_s,
        "ttft_ratio": ttft_s / (exact_s + middle("pack_s", base)) if base else None,
        "pack_s": middle("pack_s"),
        "step_s": step_s,
        "step_ratio": statistics.median(ratios) if ratios else None,
        "step_ratios": ratios,
        "host_s": middle("host_s"),
        "limit_s": limit_s,
        "gap": step_s / limit_s,
        "dense_limit_s": bench.limit_s(roofline.decode(bench.size, rows, kept, dense)),
        "stored_bytes": last.stored_bytes,
        "stored_share": stored / FULL.formula_bytes(prompt.tokens, bench.shape),
        "working_bytes": last.working_bytes,
        "peak_bytes": max(peaks) if peaks else None,
    } | (moved(bench, mine) if stack.offload else {})


def moved(bench: Bench, served: Sequence[Decoded]) -> dict[str, Any]:
    """What an offload costs beside its decode steps: the way out, and the way back within the first step; the links' limits."""
    found: dict[str, Any] = {}
    for way, name in (("from_device", "out_s"), ("to_device", "first_step_s")):
        rate = bench.peaks.get(f"{way}_large_bytes_s")  # none where there is but one memory
        found[name] = statistics.median(getattr(one, name) for one in served)
        found[f"{way}_limit_s"] = served[-1].stored_bytes / rate if rate else None
    return found


# --- what is told -------------------------------------------------------------------------------------------------------


def table(record: Record) -> str:
    """A line a measured cell, and why the others were not."""
    head = f"{'context x batch':>15} {'setting':<13} {'TTFT s':>8} {'step ms':>8} {'/ full':>7} {'host ms':>8}"
    lines = [f"{head} {'limit ms':>8} {'gap':>6} {'stored':>7} {'peak GiB':>8}"]
    others: dict[str, int] = {}
    for (context, rows, name), cell in record.cells.items():
        if cell["state"] != "measured":
            why = f"{cell['state']}: {cell['reason']}"
            others[why] = others.get(why, 0) + 1
            continue
        ratio = "-" if cell["step_ratio"] is None else f"{cell['step_ratio']:.2f}"
        peak = "-" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 2**30:.1f}"
        lines.append(
            f"{f'{context} x {rows}':>15} {name:<13} {cell['ttft_s']:>8.3f} {1e3 * cell['step_s']:>8.2f} {ratio:>7} "
            f"{1e3 * cell['host_s']:>8.2f} {1e3 * cell['limit_s']:>8.3f} {cell['gap']:>6.1f} "
            f"{100 * cell['stored_share']:>5.1f} % {peak:>8}"
            + (f"  out {cell['out_s']:.3f} s, first step {cell['first_step_s']:.3f} s" if "out_s" in cell else "")
        )
    return "\n".join([*lines, *(f"{count} cells {why[:150]}" for why, count in others.items())])


def profile(bench: Bench, context: int, rows: int, stack: Stack) -> str:
    """Where a few decode steps spend their time: the fifteen operations that take most."""
    prompt, _ = bench.prefill(Asks.of(stack), context)
    cache = build(prompt, [stack] * rows, ROOM)
    steps = taken(bench.model, cache, context, rows)
    for _ in range(WARM):
        next(steps)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] * torch.cuda.is_available()
    with torch.profiler.profile(activities=kinds) as seen:
        for _ in range(FEWEST):
            next(steps)
    steps.close()
    key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    return str(seen.key_averages().table(sort_by=key, row_limit=15, max_name_column_width=60))


def started(scale: Scale, clock: Clock) -> Bench:
    model, size, shape = made(scale)
    peaks: dict[str, Any] = {**links.memory(model.dtype), **links.rates(model.dtype)}
    gc.collect()
    gc.freeze()  # modules and model stay: looking through them at every release would take longer than the steps
    return Bench(model, shape, size, peaks, clock, free_bytes())


def facts(bench: Bench, scale: Scale, dry: bool) -> dict[str, Any]:
    parts = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
    shape = {name: getattr(scale.config, name) for name in (*parts, "intermediate_size", "vocab_size")}
    return {
        "benchmark": "gpu",
        "dry": dry,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "kvgate": provenance.git_commit(),
        },
        "model": {**shape, "dtype": "bfloat16", "weights": "random", "weight_bytes": bench.size.weight_bytes},
        "settings": {name: stack.describe() for name, stack in SETTINGS.items()},
        "peaks": bench.peaks,
    }


def asked(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with every problem found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, with a tiny shape")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which it has ended")
    parser.add_argument("--out", type=Path, help="the JSON; if not given, results/published/gpu-<device>.json")
    parser.add_argument("--contexts", help="prompt tokens, such as 8192,32768")
    parser.add_argument("--batches", help="requests that decode together, such as 8,1")
    parser.add_argument("--profile", metavar="CELL", help="only profile one cell, such as 8192x8:kivi4")
    options = parser.parse_args(words)
    scale, problems = TINY if options.dry else LLAMA_8B, []
    for name in ("contexts", "batches"):
        text = getattr(options, name)
        numbers = re.fullmatch(r"\d+(,\d+)*", text) if text is not None else None
        chosen = tuple(map(int, text.split(","))) if numbers else ()
        if text is not None and (not chosen or min(chosen) < 1):
            problems.append(f"--{name} must be whole numbers of 1 or more with commas between them, got {text!r}")
        setattr(options, name, chosen or getattr(scale, name))
    longest = scale.config.max_position_embeddings - ROOM
    if max(options.contexts) > longest:
        problems.append(f"--contexts must be {longest} or less for this model, got {max(options.contexts)}")
    if options.out is not None and (options.out.is_dir() or not os.access(options.out.absolute().parent, os.W_OK)):
        problems.append(f"--out must be a file in a folder that can be written to, got {options.out}")
    if not options.minutes > 0:
        problems.append(f"--minutes must be above 0, got {options.minutes}")
    if options.profile is not None:
        cell = re.fullmatch(r"(\d+)x(\d+):(.+)", options.profile)
        if not cell or cell[3] not in SETTINGS or not 0 < int(cell[1]) <= longest or int(cell[2]) < 1:
            known = ", ".join(SETTINGS)
            problems.append(f"--profile must be CONTEXTxBATCH:SETTING with one of {known}, got {options.profile!r}")
        else:
            options.profile = int(cell[1]), int(cell[2]), SETTINGS[cell[3]]
    if not options.dry and not torch.cuda.is_available():
        problems.append("a CUDA device is needed and torch finds none; --dry runs the same code on the CPU")
    elif not options.dry and torch.cuda.mem_get_info()[0] < LEAST_BYTES:
        free = gib(torch.cuda.mem_get_info()[0])
        problems.append(f"the device must have {gib(LEAST_BYTES)} free for the model and a prompt, got {free}")
    if problems:
        parser.error("\n".join(problems))
    return options


def main() -> None:
    options = asked()
    if options.dry and torch.cuda.is_available():  # torch has looked already, so begin anew where it finds none
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    clock, scale = Clock(options.minutes), TINY if options.dry else LLAMA_8B
    bench = started(scale, clock)
    if options.profile:
        print(profile(bench, *options.profile))
        return
    told = facts(bench, scale, options.dry)
    name = re.sub(r"[^a-z0-9]+", "-", told["device"]["name"].lower()).strip("-")
    usual = "gpu-dry.json" if options.dry else f"published/gpu-{name}.json"
    record = Record(options.out or ROOT / "results" / usual, told)
    record.expect(options.contexts, options.batches)
    bench.peaks["attention_s"] = attention_backends(bench.shape)
    record.save()
    run(bench, record, options.contexts, options.batches)
    told["seconds"] = time.perf_counter() - clock.began
    record.save()
    print(table(record))


if __name__ == "__main__":
    main()
