"""What a device must do at the least: bytes that must move and operations that must run, over what it can move and run. Pure.

A measurement cannot be faster than the slower of the two. How many times slower it is, is the gap to the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strategies.base import KVShape  # brings torch, and nothing here needs it

RATES = ("memory_bytes_s", "matmul_flop_s")  # of a hardware file, without which there is no limit


@dataclass(frozen=True)
class Size:
    """What a model is to its device. ``attention`` is layers x query heads x (dimension of a key + dimension of a value)."""

    body: int  # parameters that every token is multiplied with
    head: int  # those that make logits, of the last token alone
    element_bytes: int
    attention: int
    kv_bytes: int  # of an exact token, over all layers

    @property
    def weight_bytes(self) -> int:
        return (self.body + self.head) * self.element_bytes


def size_of(shape: KVShape, parameters: tuple[int, int] | None) -> Size | None:
    """None where the parameters of a step are not known, or not every layer looks at every key and value."""
    if parameters is None or any(shape.windows) or shape.linear_layers or shape.latent:
        return None
    attention = shape.layers * shape.query_heads * sum(shape.widths)
    return Size(*parameters, shape.element_bytes, attention, shape.layers * shape.exact_bytes(1))


@dataclass(frozen=True)
class Work:
    """The least that must be done."""

    moved_bytes: float
    flop: float


@dataclass(frozen=True)
class Limit:
    """The least time that it takes on a device, and whether moving or computing takes it."""

    seconds: float
    bound: str  # memory or compute


def prefill(size: Size, tokens: int, kv_bytes: float) -> Work:
    """A prompt of ``tokens``: weights are read once, ``kv_bytes`` are written, a token looks at those before it and at itself."""
    looks = tokens * (tokens + 1) / 2
    flop = 2 * (size.body * tokens + size.head + size.attention * looks)
    return Work(size.weight_bytes + kv_bytes, flop)


def decode(size: Size, rows: int, tokens: float, kv_bytes: float) -> Work:
    """One step of ``rows`` requests that look at ``tokens`` each: weights are read once for all, ``kv_bytes`` for each."""
    flop = 2 * rows * (size.body + size.head + size.attention * tokens)
    return Work(size.weight_bytes + rows * kv_bytes, flop)


def limit(work: Work, memory_bytes_s: float, matmul_flop_s: float) -> Limit:
    moving, computing = work.moved_bytes / memory_bytes_s, work.flop / matmul_flop_s
    return Limit(moving, "memory") if moving >= computing else Limit(computing, "compute")


def hardware_problems(hardware: Mapping[str, Any]) -> list[str]:
    """Every rule that a hardware file breaks: field, rule and value. What it does not have is null."""
    numbers = {"price_hour": "a price above 0", **dict.fromkeys(RATES, "a rate above 0")}
    found = [
        f"hardware.{name} must be null or {rule}, got {hardware[name]!r}"
        for name, rule in numbers.items()
        if hardware.get(name) is not None and not _positive(hardware[name])
    ]
    given = [name for name in RATES if hardware.get(name) is not None]
    if len(given) == 1:
        found.append(f"hardware must have both of {' and '.join(RATES)} or neither, got {given[0]} alone")
    return found


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def same_device(hardware: Mapping[str, Any], engine: Mapping[str, Any], cpu: str) -> Sequence[str]:
    """What to say where rates were measured on another device than the one that runs."""
    where = {"device": engine.get("device"), "cpu": cpu}
    return [
        f"rates of hardware {hardware.get('name')} are those of {key} {hardware[key]}, and this ran on {here}"
        for key, here in where.items()
        if hardware.get(key) and here and hardware[key] != here
    ]
