"""How fast a model can prefill and decode at best on a device, and what a token costs. Pure.

The limits of ``harness.bench.roofline``, by layer: a window is looked at and no more, an expert is read when it is met.
"""

from __future__ import annotations

from harness.bench.roofline import Limit, Work, limit
from harness.sizing.hardware import Hardware
from harness.sizing.shapes import CacheLayer, ModelShape, Parameters

OPTIMISM = (
    "a lower limit of time, with nothing for launches, activations and sampling: vLLM on an L4 (Qwen3-4B, bfloat16) took 20 to "
    "25 % longer a step and its gains of FP8 lay within 3 points of these, so trust ratios before absolute values"
)


def decode_work(
    model: ModelShape, parameters: Parameters, rows: int, tokens: int, read_bytes: float, weight_bytes: float
) -> Work:
    """One step of ``rows`` requests of ``tokens``; ``weight_bytes`` of one parameter, ``read_bytes`` of one request's cache."""
    looks = sum(layer.look_elements * layer.read(layer.entries(tokens)) for layer in model.layers)
    return Work(parameters.read(rows) * weight_bytes + rows * read_bytes, 2 * rows * (parameters.active + looks))


def prefill_work(model: ModelShape, parameters: Parameters, tokens: int, kv_bytes: float, weight_bytes: float) -> Work:
    """A prompt of ``tokens``, alone: logits are made of its last token."""
    looks = sum(layer.look_elements * _looks(layer, tokens) for layer in model.layers)
    body = parameters.active - parameters.head
    moved = parameters.read(tokens) * weight_bytes + kv_bytes
    return Work(moved, 2 * (body * tokens + parameters.head + looks))


def _looks(layer: CacheLayer, tokens: int) -> float:
    """How many entries the tokens of a prompt look at together, themselves among them."""
    most = layer.window_tokens if layer.entry_tokens is None else layer.read_entries
    entry = layer.entry_tokens or 1
    if most is None:
        return tokens * (tokens + 1) / 2 / entry
    full = min(tokens, most * entry)
    return full * (full + 1) / 2 / entry + (tokens - full) * most


def fastest(work: Work, hardware: Hardware, devices: int) -> Limit | None:
    """The least time on so many devices that share the work evenly and talk for nothing; None where rates are not known."""
    if hardware.memory_bytes_s is None or hardware.matmul_flop_s is None:
        return None
    return limit(work, devices * hardware.memory_bytes_s, devices * hardware.matmul_flop_s)


def usd_per_million(price_hour: float, devices: int, tokens_s: float) -> float:
    """US dollars of a million tokens at this rate."""
    return devices * price_hour / 3600 / tokens_s * 1e6
