"""FlexGen's group-wise 4 bits (arXiv 2303.06865, section on compression; its code's ``group_dim`` 2 for keys and values)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import KVShape, Store, UniformQuant
from strategies.columns import LARGEST_HALF, Columns, ColumnStore, to_half
from strategies.quant.packing import pack, unpack

BITS = 4
LARGEST = 2**BITS - 1
GROUP_BYTES = 4  # a float16 scale and a float16 minimum
SMALLEST_HALF = 2.0**-24


class Groups(Columns):
    """Groups of consecutive channels: codes ``[R, H, n, groups, group / 2]``, scale and low ``[R, H, n, groups, 1]``."""

    def __init__(self, group: int, like: Tensor) -> None:
        super().__init__(like)
        self.group = group

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        grouped = x.unflatten(-1, (-1, self.group))
        least, most = grouped.amin(dim=-1, keepdim=True), grouped.amax(dim=-1, keepdim=True)
        low = to_half(least)
        scale = (LARGEST / (most - least)).clamp(SMALLEST_HALF, LARGEST_HALF).half()
        codes = ((grouped - low.float()) * scale.float()).round().clamp(0, LARGEST).to(torch.uint8)
        return pack(codes, BITS), scale, low

    def decode(self, *stored: Tensor) -> Tensor:
        packed, scale, low = stored
        return (unpack(packed, BITS).float() / scale.float() + low.float()).flatten(-2)


@dataclass(frozen=True, kw_only=True)
class FlexGen4(UniformQuant):
    """Groups of consecutive channels of one token share a scale and a minimum, for keys and values alike.

    scale = 15 / (max - min), code = round((x - min) * scale), x' = code / scale + min, with scale and min held in float16. The
    codes are taken with the rounded ones, so |x - x'| <= step / 2 + rounding: step = 1 / scale is (max - min) / 15, but at
    least 1 / 65504, the largest float16; the rounding of scale and minimum is at most 2**-11 (max - min + |min|) + 2**-25 up
    to |x| = 65504.

    Departs from the source in three things. There codes are taken with the unrounded scale. There a group of equal elements
    divides by zero; here scale is cut at 65504, so such a group, and one so narrow that its scale would overflow, reads back
    within the bound. There a last group that does not fill up is padded with zeros; here ``group`` must divide the head
    dimension.

    Args:
        group: elements that share a scale and a minimum.
    """

    name: ClassVar[str] = "flexgen4"
    by_token: ClassVar[bool] = True
    on_latents: ClassVar[bool] = True

    group: int = 64

    @property
    def label(self) -> str:
        return self.name if self.group == 64 else f"{self.name}/{self.group}"

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.group < 2 or self.group % 2:
            found.append(f"{self.option('group')} must be a positive multiple of 2 (whole bytes), got {self.group}")
        else:
            for width in dict.fromkeys(shape.widths):
                if width % self.group:
                    found.append(f"{self.option('group')} must divide the head dimension {width}, got {self.group}")
        return found

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        elements = tokens * shape.kv_heads * sum(shape.widths)
        return elements * BITS // 8 + GROUP_BYTES * elements // self.group

    def store(self, keys: Tensor, values: Tensor) -> Store:
        return ColumnStore(Groups(self.group, keys), Groups(self.group, values), keys, values)
