"""KIVI (arXiv 2402.02750): keys quantized per channel, values per token, the newest tokens left in full precision.

Asymmetric uniform codes: s = (max - min) / (2**bits - 1), q = round((x - min) / s), x' = q * s + min, with s and min held in
float16, where they saturate. The codes are taken with the rounded s and min, so up to 65504 the error stays within s / 2 and
the rounding of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from strategies.base import Calibration, Exchange, Format, KVShape, Patch, Quant, Store
from strategies.columns import to_half
from strategies.quant.packing import pack, unpack

GROUP_BYTES = 4  # a float16 scale and a float16 minimum


class Block(NamedTuple):
    """Groups along the last dimension: codes ``[..., groups, group * bits / 8]``, scale and low ``[..., groups, 1]``."""

    packed: Tensor
    scale: Tensor
    low: Tensor


def encode(x: Tensor, bits: int, group: int) -> Block:
    """Quantize groups of ``group`` neighbours along the last dimension, which ``group`` must divide."""
    grouped = x.float().unflatten(-1, (-1, group))
    low = to_half(grouped.amin(dim=-1, keepdim=True))
    scale = to_half((grouped.amax(dim=-1, keepdim=True) - low.float()) / (2**bits - 1))
    step = torch.where(scale > 0, scale, torch.ones_like(scale)).float()  # a constant group: every code is 0
    codes = ((grouped - low.float()) / step).round().clamp(0, 2**bits - 1).to(torch.uint8)
    return Block(pack(codes, bits), scale, low)


def decode(block: Block, bits: int) -> Tensor:
    """float32 values with the groups flattened back into the last dimension."""
    return (unpack(block.packed, bits).float() * block.scale.float() + block.low.float()).flatten(-2)


class KIVIStore(Store):
    """Quantized blocks of the past and a full-precision residual, for keys and for values.

    Keys leave the residual ``residual`` tokens at a time, when so many have gathered; values leave it one by one, so that
    always the newest ``residual`` are exact.
    """

    def __init__(self, format: Grouped, keys: Tensor, values: Tensor) -> None:
        self.format = format
        self.key_blocks: list[Block] = []  # of [R, H, d, tokens]: groups are consecutive tokens of one channel
        self.value_blocks: list[Block] = []  # of [R, H, tokens, d]: groups are consecutive channels of one token
        self.key_tokens = self.value_tokens = 0  # quantized so far
        self.key_residual, self.value_residual = keys[:, :, :0], values[:, :, :0]
        self.append(keys, values)

    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        self.key_residual = torch.cat([self.key_residual, keys], dim=2)
        self.value_residual = torch.cat([self.value_residual, values], dim=2)
        limit = self.format.residual
        keys_due = self.key_residual.shape[2] // limit * limit
        values_due = max(0, self.value_residual.shape[2] - limit)
        return self._flush_keys(keys_due), self._flush_values(values_due)

    def _flush_keys(self, tokens: int) -> list[Patch]:
        if not tokens:
            return []
        leaving = self.key_residual[:, :, :tokens]
        block = encode(leaving.transpose(2, 3), self.format.key_bits, self.format.group)
        patch = Patch(self.key_tokens, decode(block, self.format.key_bits).transpose(2, 3).to(leaving.dtype))
        self.key_blocks.append(block)
        self.key_residual = self.key_residual[:, :, tokens:].clone()
        self.key_tokens += tokens
        return [patch]

    def _flush_values(self, tokens: int) -> list[Patch]:
        if not tokens:
            return []
        leaving = self.value_residual[:, :, :tokens]
        block = encode(leaving, self.format.value_bits, self.format.group)
        patch = Patch(self.value_tokens, decode(block, self.format.value_bits).to(leaving.dtype))
        self.value_blocks.append(block)
        self.value_residual = self.value_residual[:, :, tokens:].clone()
        self.value_tokens += tokens
        return [patch]

    def read(self) -> tuple[Tensor, Tensor]:
        form, dtype = self.format, self.key_residual.dtype
        keys = [decode(block, form.key_bits).transpose(2, 3).to(dtype) for block in self.key_blocks]
        values = [decode(block, form.value_bits).to(dtype) for block in self.value_blocks]
        return torch.cat([*keys, self.key_residual], dim=2), torch.cat([*values, self.value_residual], dim=2)

    def tensors(self) -> Iterator[Tensor]:
        for block in (*self.key_blocks, *self.value_blocks):
            yield from block
        yield self.key_residual
        yield self.value_residual

    def select(self, rows: Tensor) -> None:
        self.key_blocks = [Block(*(t[rows] for t in block)) for block in self.key_blocks]
        self.value_blocks = [Block(*(t[rows] for t in block)) for block in self.value_blocks]
        self.key_residual, self.value_residual = self.key_residual[rows], self.value_residual[rows]

    def swap(self, exchange: Exchange) -> None:
        self.key_blocks = [Block(*map(exchange, block)) for block in self.key_blocks]
        self.value_blocks = [Block(*map(exchange, block)) for block in self.value_blocks]
        self.key_residual, self.value_residual = exchange(self.key_residual), exchange(self.value_residual)


@dataclass(frozen=True)
class Grouped(Format):
    """KIVI's storage in one layer, with as many bits for keys and for values as wanted (2, 4 or 8)."""

    key_bits: int
    value_bits: int
    group: int
    residual: int

    @property
    def label(self) -> str:
        return f"K{self.key_bits}V{self.value_bits}"

    def _quantized(self, tokens: int) -> tuple[int, int]:
        return tokens // self.residual * self.residual, max(0, tokens - self.residual)

    def quantized_tokens(self, tokens: int) -> int:
        return max(self._quantized(tokens))

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        total = 0
        for packed, bits in zip(self._quantized(tokens), (self.key_bits, self.value_bits), strict=True):
            elements = packed * shape.head_dim
            exact = (tokens - packed) * shape.head_dim * shape.element_bytes
            total += elements * bits // 8 + GROUP_BYTES * elements // self.group + exact
        return total * shape.kv_heads

    def store(self, keys: Tensor, values: Tensor) -> Store:
        return KIVIStore(self, keys, values)

    def problems(self, shape: KVShape, option: Callable[[str], str]) -> list[str]:
        """Rules on the sizes; ``option`` gives the name under which the user set one."""
        found = []
        per_byte = 8 // min(self.key_bits, self.value_bits)
        if self.group < 1 or self.group % per_byte:
            found.append(f"{option('group')} must be a multiple of {per_byte} (whole bytes), got {self.group}")
        if self.group >= 1 and shape.head_dim % self.group:
            found.append(f"{option('group')} must divide the head dimension {shape.head_dim}, got {self.group}")
        if self.residual < 1 or (self.group >= 1 and self.residual % self.group):
            rule = f"must be a positive multiple of the group size {self.group}"
            found.append(f"{option('residual')} {rule}, got {self.residual}")
        return found


@dataclass(frozen=True, kw_only=True)
class KIVI(Quant):
    """KIVI with any group and residual size.

    Args:
        bits: 2 or 4.
        group: elements that share a scale and a minimum: consecutive tokens for keys, consecutive channels for values.
        residual: newest tokens kept in full precision; keys leave it this many at a time.
    """

    name: ClassVar[str] = "kivi"

    bits: int = 2
    group: int = 32
    residual: int = 128

    @property
    def label(self) -> str:
        return f"kivi{self.bits}"

    @property
    def format(self) -> Grouped:
        return Grouped(self.bits, self.bits, self.group, self.residual)

    def formats(self, layers: int, calibration: Calibration | None) -> tuple[Format, ...]:
        return (self.format,) * layers

    def problems(self, shape: KVShape) -> list[str]:
        if self.bits not in (2, 4):
            return [*super().problems(shape), f"{self.option('bits')} must be 2 or 4, got {self.bits}"]
        return super().problems(shape) + self.format.problems(shape, self.option)
