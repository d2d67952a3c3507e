"""Figures that the field repeats, each beside a formula or measurement of this project; the outcome is computed, never stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from harness.bench.metrics import SLO
from harness.sizing import capacity, disaggregated, paging, placement, reuse, transfer
from harness.sizing.section import Section
from harness.sizing.shapes import CacheLayer, ModelShape, shape_of
from harness.sizing.traces import Recorded, lognormal

TimesSmaller = Callable[[Mapping[str, Any], ModelShape, int], float]  # layers by slot, on a model, of so many tokens
TOKENS = 4096  # of the requests whose bytes are compared


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    FITTED = "fitted"
    UNCHECKED = "not checkable here"


@dataclass(frozen=True)
class Claim:
    """A published figure and ours. What is ``fitted`` agrees because a number in it was chosen so."""

    claim: str
    source: str
    published: float | None
    ours: float | None  # None: nothing here computes or measures it
    check: str  # the formula or measurement, or what stands in its way
    relation: str = "="  # "<": published is an upper limit, ">": a lower one
    tolerance: float = 0.02  # relative, of "="
    fitted: bool = False

    @property
    def outcome(self) -> Outcome:
        if self.published is None or self.ours is None:
            return Outcome.UNCHECKED
        if not self._agrees():
            return Outcome.CONTRADICTED
        return Outcome.FITTED if self.fitted else Outcome.REPRODUCED

    def _agrees(self) -> bool:
        assert self.published is not None and self.ours is not None
        if math.isnan(self.published) or math.isnan(self.ours):
            return math.isnan(self.published) and math.isnan(self.ours)
        if self.relation == "<":
            return self.ours < self.published
        if self.relation == ">":
            return self.ours > self.published
        return abs(self.ours - self.published) <= self.tolerance * abs(self.published)


def section(times_smaller: TimesSmaller, overflow: float, trace: Recorded | None = None) -> Section:
    """All claims. ``overflow`` is what the installed PyTorch makes of 10,000 in FP8 without a clamp. Raises BadInput.

    On ``trace``, if it is one of those that a paper has counted, its figures are counted again.
    """
    found = [*_bytes(), *_room(), *_formats(times_smaller), *_links(), *_disaggregated(), *_traces(trace)]
    found += [_cast(overflow), *_unchecked()]
    rows = tuple(
        {
            "claim": one.claim,
            "published": _text(one.published, one.relation),
            "ours": _text(one.ours),
            "outcome": one.outcome.value,
            "source": one.source,
            "check": one.check,
        }
        for one in found
    )
    counts = {outcome: sum(one.outcome is outcome for one in found) for outcome in Outcome}
    said = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    advice = f"Of {len(found)} figures: {said}."
    return Section("Published figures, and what this project makes of them", rows, advice, _unknown(trace))


def _text(value: float | None, relation: str = "=") -> str | None:
    if value is None:
        return None
    return ("" if relation == "=" else f"{relation} ") + (
        "NaN" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    )


def _gqa(name: str, layers: int, heads: int, kv_heads: int, width: int = 128) -> ModelShape:
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
    }
    return shape_of(name, sizes, 2)


def _latent(name: str, layers: int, index_width: int = 0) -> ModelShape:
    return ModelShape(name, (CacheLayer(1, 512, 64, 128, index_width=index_width),) * layers, 2, None)


def _compressed(name: str, sparse: int, heavy: int) -> ModelShape:
    """DeepSeek V4: so many layers with an entry for 4 tokens and an indexer, and so many with one for 128."""
    layers = (CacheLayer(1, 512, 0, 128, 128, 4, 128),) * sparse + (CacheLayer(1, 512, 0, 128, 128, 128),) * heavy
    return ModelShape(name, layers, 2, None)


LLAMA2_7B = _gqa("Llama-2-7B", 32, 32, 32)
LLAMA31_8B = _gqa("Llama-3.1-8B", 32, 32, 8)
QWEN3_4B = _gqa("Qwen3-4B", 36, 32, 8)
DEEPSEEK_67B = _gqa("DeepSeek-67B", 95, 64, 8)
H100 = disaggregated.Speeds(  # for Llama-3.1-8B
    prefill_tokens_s=45_000,
    step_s=4.5e-3,
    step_request_s=1e-6,
    step_token_s=4e-8,
    kv_bytes_per_token=131_072,
    layers=32,
)
LONGEST = 32_768  # tokens of a simulated request
SIMULATED = "simulated: Llama-3.1-8B, 4 GPUs, 300 requests of 8,000 tokens"
MOONCAKE = {  # by requests, and prompt tokens in the mean
    (12_031, 12_035): ("conversation", 40.0),
    (23_608, 8_596): ("tool and agent", 59.0),
    (3_993, 15_325): ("synthetic", 66.0),
}
DEEPSEEK_V2, DEEPSEEK_V32, DEEPSEEK_V4 = _latent("V2", 60), _latent("V3.2", 61, 128), _compressed("V4-Pro", 30, 31)


def _bytes() -> list[Claim]:
    v32, v4 = (model.exact_bytes(100_000) / 1e9 for model in (DEEPSEEK_V32, DEEPSEEK_V4))
    saved = 1 - DEEPSEEK_V2.exact_bytes(1) / DEEPSEEK_67B.exact_bytes(1)
    return [
        Claim(
            "DeepSeek V3.2 holds 9 GB for 100k tokens",
            "content-distribution talks",
            9.0,
            v32,
            "layers x (512 + 64 + 128) x 2 B x 100,000",
            tolerance=0.05,
        ),
        Claim(
            "DeepSeek V4-Pro holds 1 GB for 100k tokens",
            "content-distribution talks",
            1.0,
            v4,
            "30 layers at 1/4 and 31 at 1/128: a split chosen to give 9.62 GiB at 1,048,576 tokens",
            fitted=True,
        ),
        Claim(
            "DeepSeek V4-Pro holds 9.62 GiB at 1,048,576 tokens",
            "vLLM blog",
            9.62,
            DEEPSEEK_V4.exact_bytes(2**20) / 2**30,
            "the same split",
            tolerance=0.001,
            fitted=True,
        ),
        Claim(
            "DeepSeek V3.2 holds 83.9 GiB at 1,048,576 tokens",
            "vLLM blog",
            83.9,
            DEEPSEEK_V32.exact_bytes(2**20) / 2**30,
            "layers x (512 + 64 + 128) x 2 B",
            tolerance=0.001,
        ),
        Claim(
            "MLA cuts the cache by 93.3 %",
            "arXiv 2405.04434",
            93.3,
            100 * saved,
            "elements of V2 against DeepSeek-67B, both in 16 bits",
            tolerance=0.005,
        ),
        Claim(
            "MLA stored in 6 bits cuts it by 93.3 %",
            "arXiv 2405.04434",
            93.3,
            100 * (1 - (1 - saved) * 6 / 16),
            "the same in 6 bits, which the paper's abstract does not say",
            tolerance=0.005,
            fitted=True,
        ),
        Claim(
            "TransMLA cuts the cache of LLaMA-2-7B by 93 %",
            "arXiv 2502.07864",
            93.0,
            100 * (1 - 576 / LLAMA2_7B.layers[0].width),
            "1 - 576 / 8,192 elements a token and layer",
            tolerance=0.005,
        ),
    ]


@cache
def _room() -> list[Claim]:
    """Waste, by the allocator, of lengths as ShareGPT's are quoted: 161 tokens of prompt and 338 of answer (arXiv 2309.06180)."""
    asked = list(lognormal(2000, prompt_tokens=161, output_tokens=338, longest=2048))
    found = paging.waste(asked, capacity.BLOCK_TOKENS)
    lengths = f"{len(asked):,} lognormal requests of {found.mean_tokens:.0f} tokens in the mean, {found.longest_tokens:,} at most"
    return [
        Claim(
            "Paging wastes under 4 %",
            "vLLM blog, June 2023",
            4.0,
            100 * found.paged,
            f"{lengths}, in blocks of 16; by the formula a mean above 180 tokens is enough",
            relation="<",
        ),
        Claim(
            "Static room wastes 60 to 80 %",
            "vLLM blog, June 2023",
            70.0,
            100 * found.reserved,
            f"{lengths}, each with room for the longest",
            tolerance=1 / 7,
        ),
    ]


def _formats(times_smaller: TimesSmaller) -> list[Claim]:
    minicache = {"structure": {"_target_": "strategies.structure.minicache.MiniCache"}}
    flexgen = {"quant": {"_target_": "strategies.quant.flexgen.FlexGen4"}}
    kivi = {"quant": {"_target_": "strategies.quant.kivi.KIVI", "bits": 2, "group": 32, "residual": 128}}
    turbo = "strategies.quant.turboquant.TurboQuant"
    plain, ends = ({"quant": {"_target_": turbo, "preset": "4bit_nc", "skip": exact}} for exact in (0, 2))
    fp8 = {"quant": {"_target_": "strategies.quant.fp8.FP8", "scale": "tensor", "scale_from": "one"}}
    return [
        Claim(
            "MiniCache makes the cache 5.02 times smaller",
            "arXiv 2405.14366",
            5.02,
            times_smaller(minicache, LLAMA2_7B, TOKENS),
            "bytes of the layer here, merging alone: 4-bit numbers are the rest",
        ),
        Claim(
            "MiniCache without quantization gains at most 1.33",
            "arithmetic",
            4 / 3,
            times_smaller(minicache, LLAMA2_7B, TOKENS),
            "half of the layers merged in pairs leave 3/4; bytes of the layer here",
            relation="<",
        ),
        Claim(
            "MiniCache with 4 bits makes it 5.02 times smaller",
            "arXiv 2405.14366",
            5.02,
            times_smaller({**minicache, **flexgen}, LLAMA2_7B, TOKENS),
            "bytes of both layers here: groups of 64, lengths of vectors in 16 bits, 5 % of the tokens exact",
            tolerance=0.1,
        ),
        Claim(
            "KIVI, 2 bits, at 4,096 tokens: 4.995 times smaller",
            "byte count of its code",
            4.995,
            times_smaller(kivi, LLAMA31_8B, TOKENS),
            "bytes of the layer here, G = 32, R = 128",
            tolerance=0.001,
        ),
        Claim(
            "TurboQuant 4bit_nc makes it 3.8 times smaller",
            "vLLM's presets",
            3.8,
            times_smaller(ends, QWEN3_4B, TOKENS),
            "bytes of the layer here on 36 layers, of which vLLM leaves 4 exact",
        ),
        Claim(
            "TurboQuant 4bit_nc, every layer: 3.8 times",
            "vLLM's presets",
            3.8,
            times_smaller(plain, QWEN3_4B, TOKENS),
            "bytes of the layer here, none exact",
        ),
        Claim(
            "FP8 doubles the tokens of a pool",
            "vLLM docs, Qwen3-4B on an L4",
            166_992 / 83_488,
            times_smaller(fp8, QWEN3_4B, TOKENS),
            "bytes of the layer here, one scale a tensor",
            tolerance=0.001,
        ),
        Claim(
            "83,488 tokens in 11.47 GiB",
            "vLLM docs, Qwen3-4B on an L4",
            83_488,
            capacity.pool_tokens(11.47 * 2**30, QWEN3_4B.exact_bytes(1)),
            "bytes / bytes a token; whole blocks and a rounded GiB are the rest",
            tolerance=0.0005,
        ),
        Claim(
            "Quest's bounds cost 12.5 % of the key bytes",
            "arXiv 2406.10774",
            12.5,
            100 * 2 / 16,
            "a least and a most of each channel for a page of 16 keys",
        ),
    ]


def _links() -> list[Claim]:
    four = transfer.gbit_s(100, 4) / 1e9
    layers = LLAMA31_8B.layers
    fetches = 2048 * 61
    short = 1e3 * transfer.transfer_s(LLAMA31_8B.exact_bytes(4096), transfer.gbit_s(100))
    return [
        Claim(
            "Four 100 Gbit/s links saturate before 200 GB/s of drives",
            "quoted of Scality ADI; source not found",
            200.0,
            four,
            "4 x 100e9 / 8: what the links carry is below it",
            relation="<",
        ),
        Claim(
            "They carry a quarter of what four GPUs were quoted to take",
            "quoted of Scality ADI; source not found",
            0.25,
            four / 200,
            "50 GB/s of 200 GB/s",
        ),
        Claim(
            "A 4k prefix of an 8B model from objects adds 56 ms or more",
            "ObjectCache, arXiv 2605.22850",
            56.0,
            short,
            "131,072 B x 4,096 over 12.5 GB/s: the link's part of it, without the store's own time",
            relation="<",
        ),
        Claim(
            "A 64k prefix, layer by layer, adds 5.6 % to TTFT",
            "ObjectCache, arXiv 2605.22850",
            5.6,
            _added_percent(65536),
            "0.69 s at 12.5 GB/s behind as much computing at 989 TFLOP/s: the link's part of it",
            relation="<",
        ),
        Claim(
            "Sparse fetches one by one cost 0.37 s a token over RDMA",
            "SAC, arXiv 2606.19746 (argument)",
            0.37,
            transfer.transfer_s(fetches * 1152, 50e9, fetches, 3e-6),
            "2,048 x 61 operations of 3 us and their bytes at 50 GB/s",
            tolerance=0.03,
        ),
        Claim(
            "Near-storage attention moves the same bytes at any length",
            "INF2 / HILOS, arXiv 2502.09921",
            655_360,
            placement.vectors_bytes(layers, 2),
            "queries, new keys and values and outputs of Llama-3.1-8B, a token and step",
            tolerance=0.0,
        ),
        Claim(
            "Keeping hidden states (X-cache) halves the bytes",
            "INF2 / HILOS, arXiv 2502.09921",
            0.5,
            _x_cache(LLAMA31_8B, 4096),
            "4,096 elements against 2,048 of Llama-3.1-8B (GQA)",
        ),
        Claim(
            "It halves them for multi-head attention",
            "INF2 / HILOS, arXiv 2502.09921",
            0.5,
            _x_cache(LLAMA2_7B, 4096),
            "4,096 elements against 8,192 of Llama-2-7B",
        ),
    ]


def _x_cache(model: ModelShape, hidden: int) -> float:
    mine, theirs = placement.x_cache_elements(hidden, model.layers[0])
    return mine / theirs


def _added_percent(tokens: int) -> float:
    """What loading an 8B model's cache layer by layer adds to computing as many tokens anew (weights alone, dense bfloat16)."""
    layers = len(LLAMA31_8B.layers)
    load = transfer.transfer_s(LLAMA31_8B.exact_bytes(tokens), transfer.gbit_s(100)) / layers
    compute = 2 * 8.03e9 * tokens / 989e12 / layers
    return 100 * (transfer.overlapped_s([load] * layers, [compute] * layers) / (layers * compute) - 1)


def _disaggregated() -> list[Claim]:
    """By simulation: Llama-3.1-8B on four devices about as fast as the roofline of an H100."""
    missing = disaggregated.missing()
    return [
        Claim(
            "Disaggregation raises throughput",
            "folklore; vLLM's documentation denies it",
            1.0,
            None if missing else _throughput_gain(),
            missing or f"{SIMULATED}, all there at once: tokens/s of the best ratio over those of the best chunk",
            relation=">",
        ),
        Claim(
            "DistServe serves 7.4 times the requests within limits",
            "arXiv 2401.09670",
            7.4,
            None,
            missing or f"{_goodput_gains()}; its own models and GPUs are needed",
        ),
    ]


@cache
def _served(rate_s: float) -> tuple[disaggregated.Outcome, ...]:
    asked = list(lognormal(300, prompt_tokens=8000, output_tokens=200, longest=LONGEST, rate_s=rate_s))
    limits = SLO(ttft_s=2.0, itl_s=0.05)
    return disaggregated.compare(asked, H100, 4, transfer.gbit_s(400) / 1e9, limits, (256, 512, 1024, 2048, LONGEST))


def _throughput_gain() -> float:
    together, apart = ([one for one in _served(math.inf) if bool(one.prefill_gpus) is split] for split in (False, True))
    return max(one.output_tokens_s for one in apart) / max(one.output_tokens_s for one in together)


def _goodput_gains() -> str:
    found = _served(rate_s=12.0)
    tuned, apart = disaggregated.best(found)
    (whole,) = (one for one in found if one.chunk_tokens == LONGEST)
    assert apart.goodput_requests_s and tuned.goodput_requests_s and whole.goodput_requests_s
    return (
        f"{SIMULATED}, 12 a second, within 2 s to the first token and 50 ms between tokens: "
        f"{apart.goodput_requests_s / whole.goodput_requests_s:.1f} times replicas that read prompts whole, "
        f"{apart.goodput_requests_s / tuned.goodput_requests_s:.2f} times those in chunks of {tuned.chunk_tokens:,}"
    )


def _traces(trace: Recorded | None) -> list[Claim]:
    """Counted again on the trace that was given, if it is one of these."""
    found = _found(trace) if trace else None
    return [
        Claim(
            f"Mooncake's {name} trace reuses {share:g} % of its prompts",
            "Mooncake, FAST 2025, table 2",
            share,
            100 * found.points[0].token_hit_rate if found and _size(found) == size else None,
            f"hit tokens of all prompt tokens, a cache without end, blocks of 512; {found.points[0].request_hit_rate:.1%} in the "
            "mean over requests"
            if found and _size(found) == size
            else "kvgate plan claims trace=FILE, of kvcache-ai/Mooncake, FAST25-release/traces",
        )
        for size, (name, share) in MOONCAKE.items()
    ]


def _unknown(trace: Recorded | None) -> tuple[str, ...]:
    """What to say of a trace that no claim is about."""
    if trace is None or _size(_found(trace)) in MOONCAKE:
        return ()
    requests, tokens = _size(_found(trace))
    return (f"no claim is about {trace.path.name}, {requests:,} requests of {tokens:,} prompt tokens in the mean",)


@cache
def _found(trace: Recorded) -> reuse.Curve:
    return reuse.curve(trace.requests(512), 512, [math.inf])


def _size(found: reuse.Curve) -> tuple[int, int]:
    return found.requests, round(found.prompt_tokens / found.requests)


def _cast(overflow: float) -> Claim:
    return Claim(
        "FP8 without a clamp makes NaN of outliers",
        "folklore",
        math.nan,
        overflow,
        "10,000 cast to e4m3 by the installed PyTorch; from 2.12 on it saturates, silently",
    )


def _unchecked() -> list[Claim]:
    """What neither arithmetic nor this project's engines can tell, and why."""
    return [
        Claim(
            "FP8 loses less than 1 %",
            "vendors",
            1.0,
            None,
            "depends on model, task, length and kernel (91 % to 13 % at 128k on Hopper once): kvgate run strategy=fp8",
        ),
        Claim(
            "TransMLA keeps perplexity without training",
            "arXiv 2502.07864",
            None,
            None,
            "its own readme says otherwise (5.47 to 41.6 on Llama-2-7B); needs the converted weights",
        ),
        Claim(
            "vLLM is 24 times faster",
            "vLLM blog, June 2023",
            24.0,
            None,
            "against Transformers without batching, the paper has 2 to 4, both on one GPU; on a CPU: benchmarks/batching.py",
        ),
        Claim(
            "INF2 gains 3.5 times",
            "arXiv 2502.09921 v1",
            3.5,
            None,
            "version 2 (HILOS) has up to 7.86; needs drives that compute",
        ),
        Claim(
            "Quest: 7.03 times attention, 2.23 end to end",
            "arXiv 2406.10774",
            7.03,
            None,
            "swapped in its abstract; needs its kernel on a GPU",
        ),
        Claim(
            "KVpop keeps 98 % at a quarter of the cache",
            "arXiv 2607.05061",
            98.0,
            None,
            "Qwen3-4B on AIME and HMMT only, with a trained scorer; no code found",
        ),
        Claim(
            "FP8 and prefix reuse: 800 to 1,900 tokens/s",
            "source not found",
            1900 / 800,
            None,
            "neither model nor hardware is known; benchmarks/batching.py has the comparison on a CPU",
        ),
        Claim(
            "ICMS: 5 times the tokens a second",
            "NVIDIA blog, 2026",
            5.0,
            None,
            "needs the flash tier; kvgate plan tiers has its arithmetic",
        ),
        Claim(
            "8 TB a GPU are enough",
            "quoted of Scality ADI; source not found",
            8.0,
            None,
            "depends on what is kept: kvgate plan tiers kept_requests=N",
        ),
        Claim(
            "FP8 and INT8 differ on long retrieval",
            "source not found",
            None,
            None,
            "kvgate run -m strategy=fp8,int8 compare=fp8,int8 task=needle_multikey task.lengths=[...]",
        ),
    ]
