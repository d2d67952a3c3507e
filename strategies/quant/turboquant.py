"""TurboQuant (arXiv 2504.19874) as vLLM has it (pull request 38479, ``--kv-cache-dtype turboquant_*``).

Keys: the direction is rotated, so that its coordinates look like draws from N(0, 1/d), and each is replaced by the nearest
level of the Lloyd-Max quantizer of that density; the length is held in float16. Values: uniform codes between the minimum and
the maximum of the whole head vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from strategies.base import KVShape, Store, UniformQuant
from strategies.columns import Columns, ColumnStore, to_half, total
from strategies.quant.lloydmax import codebook
from strategies.quant.packing import pack, unpack

HALF_BYTES = 2
LARGEST_E4M3 = 448.0
EPSILON = 1e-8  # added to a key's length, and the smallest step of values


class Preset(NamedTuple):
    """Bits of a code, and whether the levels of a key are brought back to unit length (norm correction) when it is read."""

    key_bits: int  # 8 is an e4m3 cast, without rotation
    value_bits: int
    corrects: bool


PRESETS = {
    "k8v4": Preset(8, 4, False),
    "4bit_nc": Preset(4, 4, True),
    "k3v4_nc": Preset(3, 4, True),
    "3bit_nc": Preset(3, 3, True),
}


def hadamard(x: Tensor) -> Tensor:
    """Multiply the last dimension, d a power of two, by the Sylvester matrix H / sqrt(d), which is its own inverse.

    By d log d sums and differences: unlike a matrix product they round the same in every batch.
    """
    dim, span = x.shape[-1], 1
    while span < dim:
        pairs = x.unflatten(-1, (-1, 2, span))
        (left, right), out = pairs.unbind(-2), torch.empty_like(pairs)
        torch.add(left, right, out=out[..., 0, :])
        torch.sub(left, right, out=out[..., 1, :])
        x, span = out.flatten(-3), 2 * span
    return x / math.sqrt(dim)


class CastKeys(Columns):
    """e4m3 bytes with scale 1."""

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x.clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn).view(torch.uint8),)

    def decode(self, *stored: Tensor) -> Tensor:
        return stored[0].view(torch.float8_e4m3fn).float()


class RotatedKeys(Columns):
    """Codes ``[R, H, n, d * bits / 8]`` of the rotated unit vectors, lengths ``[R, H, n, 1]``."""

    def __init__(self, bits: int, corrects: bool, like: Tensor) -> None:
        super().__init__(like)
        self.bits, self.corrects = bits, corrects
        self.levels, self.boundaries = codebook(bits, like.shape[-1] ** -0.5, like.device)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        length = total(x.square()).sqrt()
        turned = hadamard(x / (length + EPSILON))
        codes = torch.bucketize(turned, self.boundaries, right=True, out_int32=True)  # a number on a boundary goes up
        return pack(codes.to(torch.uint8), self.bits), to_half(length)

    def decode(self, *stored: Tensor) -> Tensor:
        packed, length = stored
        turned = self.levels[unpack(packed, self.bits).int()]
        if self.corrects:
            turned = turned / (total(turned.square()) + 1e-16).sqrt()
        return hadamard(turned * length.float())


class UniformValues(Columns):
    """Codes ``[R, H, n, d * bits / 8]``, scale and minimum ``[R, H, n, 1]``.

    The codes are taken with scale and minimum as they are before they are rounded to float16.
    """

    def __init__(self, bits: int, like: Tensor) -> None:
        super().__init__(like)
        self.bits = bits

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
        largest = 2**self.bits - 1
        scale = ((high - low) / largest).clamp(min=EPSILON)  # of a constant vector: 0 in float16, and so are its codes
        codes = ((x - low) / scale + 0.5).floor().clamp(0, largest).to(torch.uint8)
        return pack(codes, self.bits), to_half(scale), to_half(low)

    def decode(self, *stored: Tensor) -> Tensor:
        packed, scale, low = stored
        return unpack(packed, self.bits).float() * scale.float() + low.float()


@dataclass(frozen=True, kw_only=True)
class TurboQuant(UniformQuant):
    """vLLM's four presets. The first and last two attention layers stay exact, as vLLM leaves them.

    With D the distortion of the quantizer, 0.0095 at 4 bits and 0.0345 at 3, the squared error of a key is about D times its
    squared length. A key along a row of the Hadamard matrix (a constant one) is worse: it rotates into one coordinate, far
    beyond the largest level, and may be off by about its own length. A value is off by half a step of
    (max - min) / (2**bits - 1) and the float16 rounding of scale and minimum at most.

    Like vLLM and unlike the paper it rotates by a Hadamard matrix without random signs, and has no second stage (QJL). Unlike
    vLLM it solves for the levels in closed form, and a length, minimum or scale beyond float16 saturates; so does an e4m3 key.

    Args:
        preset: ``k8v4``, ``4bit_nc``, ``k3v4_nc`` or ``3bit_nc``: bits of keys and values, nc with norm correction.
    """

    name: ClassVar[str] = "turboquant"
    by_token: ClassVar[bool] = True

    preset: str = "4bit_nc"
    skip: int | tuple[int, ...] = 2

    @property
    def label(self) -> str:
        return f"{self.name}_{self.preset}"

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.preset not in PRESETS:
            found.append(f"{self.option('preset')} must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        if shape.head_dim < 8 or shape.head_dim & (shape.head_dim - 1):
            rule = "needs a head dimension that is a power of two, 8 or more (for the Hadamard rotation)"
            found.append(f"{self.option('preset')}: quant/{self.name} {rule}, got {shape.head_dim}")
        return found

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        preset = PRESETS[self.preset]
        codes = shape.head_dim * (preset.key_bits + preset.value_bits) // 8
        halves = 2 if preset.key_bits == 8 else 3  # scale and minimum of a value, length of a rotated key
        return tokens * shape.kv_heads * (codes + halves * HALF_BYTES)

    def store(self, keys: Tensor, values: Tensor) -> Store:
        key_bits, value_bits, corrects = PRESETS[self.preset]
        keys_to = CastKeys(keys) if key_bits == 8 else RotatedKeys(key_bits, corrects, keys)
        return ColumnStore(keys_to, UniformValues(value_bits, values), keys, values)
