"""Formats that store one small code an element and a float32 scale that some elements share: FP8 and INT8."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from strategies.base import KVShape, Patch, Quant, Store

SCALE_BYTES = 4  # scales are float32, as in the serving engines


class Codes:
    """Codes of one tensor (keys or values) with their scales; grows along the token dimension."""

    def __init__(self, format: ScaledFormat, x: Tensor) -> None:
        self.format = format
        self.dtype = x.dtype
        self.parts: list[Tensor] = []
        self.scales: list[Tensor] = []
        self.clipped = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        self.append(x)

    def append(self, x: Tensor) -> Tensor:
        """Encode the next tokens; return what they decode to."""
        if self.format.grows or not self.scales:
            scale = self.format.scale_of(x)
            self.scales.append(scale)
        else:
            scale = self.scales[0]  # frozen at the first update: later outliers saturate, and are counted
            self.clipped += (x.abs() > scale * self.format.largest).sum(dim=(1, 2, 3))
        codes = self.format.encode(x.float() / scale)
        self.parts.append(codes)
        return (codes.float() * scale).to(self.dtype)

    def read(self) -> Tensor:
        scale = torch.cat(self.scales, dim=2) if self.format.grows else self.scales[0]
        return (torch.cat([part.float() for part in self.parts], dim=2) * scale).to(self.dtype)

    def tensors(self) -> Iterator[Tensor]:
        yield from self.parts
        yield from self.scales

    def select(self, rows: Tensor) -> None:
        # one-byte floats cannot be gathered everywhere; their bytes can
        self.parts = [part.view(torch.uint8)[rows].view(part.dtype) for part in self.parts]
        self.scales = [scale[rows] for scale in self.scales]
        self.clipped = self.clipped[rows]


class ScaledStore(Store):
    """Keys and values as two ``Codes``."""

    def __init__(self, format: ScaledFormat, keys: Tensor, values: Tensor) -> None:
        self.length = keys.shape[2]
        self.keys, self.values = Codes(format, keys), Codes(format, values)

    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        start, self.length = self.length, self.length + keys.shape[2]
        return [Patch(start, self.keys.append(keys))], [Patch(start, self.values.append(values))]

    def read(self) -> tuple[Tensor, Tensor]:
        return self.keys.read(), self.values.read()

    def tensors(self) -> Iterator[Tensor]:
        yield from self.keys.tensors()
        yield from self.values.tensors()

    def select(self, rows: Tensor) -> None:
        self.keys.select(rows)
        self.values.select(rows)

    def facts(self) -> dict[str, Tensor]:
        return {"clipped_elements": self.keys.clipped + self.values.clipped}


@dataclass(frozen=True, kw_only=True)
class ScaledFormat(Quant):
    """code = encode(x / scale), x' = code * scale, with scale = max|x| / ``largest`` over the elements that share it.

    Args:
        scale: which elements share a scale: ``tensor`` (all heads and tokens of a layer), ``head`` or ``token_head``.
            Tensor and head scales are taken from the prompt and frozen; later tokens saturate at them.
    """

    scale: str = "token_head"

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest code."""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Scaled elements to one-byte codes, saturating."""

    @property
    def grows(self) -> bool:
        """Whether every new token brings scales of its own."""
        return self.scale == "token_head"

    def problems(self, shape: KVShape) -> list[str]:
        if self.scale not in ("tensor", "head", "token_head"):
            return [f"{self.option('scale')} must be tensor, head or token_head, got {self.scale!r}"]
        return []

    def scale_of(self, x: Tensor) -> Tensor:
        """float32 scales of ``[R, H, n, d]``, broadcastable to it; 1 where every element is zero."""
        shared = {"tensor": (1, 2, 3), "head": (2, 3), "token_head": (3,)}[self.scale]
        if x.shape[2] == 0 and not self.grows:
            raise ValueError(f"quant/{self.name}: a {self.scale} scale cannot be taken of an empty prompt")
        amax = x.abs().float().amax(dim=shared, keepdim=True)
        return torch.where(amax > 0, amax / self.largest, torch.ones_like(amax))

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        scales = {"tensor": 1, "head": shape.kv_heads, "token_head": tokens * shape.kv_heads}[self.scale]
        return 2 * (tokens * shape.kv_heads * shape.head_dim + SCALE_BYTES * scales)

    def store(self, keys: Tensor, values: Tensor) -> Store:
        return ScaledStore(self, keys, values)
