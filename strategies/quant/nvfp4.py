"""NVFP4, NVIDIA's block-scaled 4-bit float, as a cache (vLLM ``--kv-cache-dtype nvfp4``, ``nvfp4_4over6``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import KVShape, Store, UniformQuant
from strategies.columns import FrozenColumns, FrozenStore, total
from strategies.quant import e2m1
from strategies.quant.packing import pack, unpack

BLOCK = 16
LARGEST_E4M3 = 448.0
LARGEST_E4M3_OVER_SIX = 256.0  # what a scale of max|x| / 6 may be, so that max|x| / 4 fits e4m3 too
SCALE_BYTES = 4


class Blocks(FrozenColumns):
    """Blocks of 16 consecutive channels: codes ``[R, H, n, d / 2]``, e4m3 scales ``[R, H, n, d / 16]`` as bytes, and the
    float32 scale ``[R, 1, 1, 1]`` of everything, which is 1 until the first tokens come.
    """

    def __init__(self, format: NVFP4, like: Tensor) -> None:
        super().__init__(like, torch.ones(1, 1, 1, 1), e2m1.LARGEST * LARGEST_E4M3, frozen=False)
        self.format = format

    def scale_of(self, x: Tensor) -> Tensor:
        return self.format.scale_of(x)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        blocks = x.unflatten(-1, (-1, BLOCK))
        codes, scales = self._coded(blocks, e2m1.LARGEST)
        if self.format.four_over_six:
            other_codes, other_scales = self._coded(blocks, 4.0)
            better = self._error(blocks, other_codes, other_scales) < self._error(blocks, codes, scales)
            codes, scales = torch.where(better, other_codes, codes), torch.where(better, other_scales, scales)
        return pack(codes.flatten(-2), 4), scales.squeeze(-1)

    def _coded(self, blocks: Tensor, target: float) -> tuple[Tensor, Tensor]:
        """Codes and scale bytes if the largest element of each block ``[..., blocks, 16]`` is to be coded as ``target``."""
        wanted = blocks.abs().amax(dim=-1, keepdim=True) / target / self.scale[..., None]
        scales = wanted.clamp(max=LARGEST_E4M3).to(torch.float8_e4m3fn).view(torch.uint8)
        step = self._step(scales)
        return e2m1.encode(blocks / torch.where(step > 0, step, torch.inf)), scales

    def _step(self, scales: Tensor) -> Tensor:
        return scales.view(torch.float8_e4m3fn).float() * self.scale[..., None]

    def _error(self, blocks: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        return total((e2m1.decode(codes) * self._step(scales) - blocks).square())

    def decode(self, *stored: Tensor) -> Tensor:
        packed, scales = stored
        codes = unpack(packed, 4).unflatten(-1, (-1, BLOCK))
        return (e2m1.decode(codes) * self._step(scales.unsqueeze(-1))).flatten(-2)


@dataclass(frozen=True, kw_only=True)
class NVFP4(UniformQuant):
    """e2m1 codes, an e4m3 scale for every 16 channels, and a float32 scale g for the keys and for the values of a layer.

    s = e4m3(max|x| / 6 / g) of a block, code = e2m1(x / (s * g)), x' = code * s * g. The step of a block is s * g, and half of
    the widest gap between two codes, 4 and 6, is one step: |x - x'| <= s * g, or <= 6 * 2**-10 * g where s is subnormal or zero,
    as long as |x| <= 6 * 448 * g.

    g = max|x| / (6 * 448) over the first tokens that come (the prompt or its first chunk), then frozen: a later block beyond it
    saturates, and its elements beyond the largest number that can be held are counted as ``clipped_elements``.

    Speed is simulated: the codes are exact, but the arithmetic here does not run on 4-bit hardware, so no time measured with it
    says anything about NVFP4.

    Args:
        four_over_six: code every block also with its largest element at 4 instead of 6, where the codes lie closer, and keep
            what has the smaller squared error. g is then max|x| / (6 * 256), so that the larger scale fits e4m3.
    """

    name: ClassVar[str] = "nvfp4"
    by_token: ClassVar[bool] = True
    on_latents: ClassVar[bool] = True
    simulated: ClassVar[bool] = True

    four_over_six: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}_4over6" if self.four_over_six else self.name

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        for width in dict.fromkeys(shape.widths):
            if width % BLOCK:
                rule = f"needs a head dimension that is a multiple of {BLOCK} (elements that share a scale)"
                found.append(f"strategy.{self.slot}: quant/{self.name} {rule}, got {width}")
        return found

    def scale_of(self, x: Tensor) -> Tensor:
        """The float32 scale g ``[R, 1, 1, 1]`` of tokens ``[R, H, m, d]``; 1 where every element is zero."""
        largest_scale = LARGEST_E4M3_OVER_SIX if self.four_over_six else LARGEST_E4M3
        g = x.abs().float().amax(dim=(1, 2, 3), keepdim=True) / (e2m1.LARGEST * largest_scale)
        return torch.where(g > 0, g, torch.ones_like(g))

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        bytes_each = sum(width // 2 + width // BLOCK for width in shape.widths)
        return tokens * shape.kv_heads * bytes_each + 2 * SCALE_BYTES

    def store(self, keys: Tensor, values: Tensor) -> Store:
        return FrozenStore(Blocks(self, keys), Blocks(self, values), keys, values)
