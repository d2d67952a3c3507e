"""Formats that store one small code an element and a float32 scale that some elements share: FP8 and INT8."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Calibration, Exchange, Format, KVShape, Store, UniformQuant
from strategies.columns import ColumnStore, Side

SCALE_BYTES = 4  # scales are float32, as in the serving engines
SLACK = 1 + 2.0**-20  # float32 rounding must not make a number that fits look clipped
SHARED = {"tensor": (0, 1, 2), "head": (1, 2), "token_head": (2,)}  # dimensions of [H, n, d] that share a scale


class Codes(Side):
    """One-byte codes with their scales, held in the parts in which they came. ``scale`` is given or taken from the first."""

    def __init__(self, format: ScaledFormat, like: Tensor, scale: Tensor | None) -> None:
        self.format = format
        self.dtype = like.dtype
        self.parts: list[Tensor] = []
        self.scales: list[Tensor] = [] if scale is None else [scale.to(like.device).repeat(like.shape[0], 1, 1, 1)]
        self.clipped = torch.zeros(like.shape[0], dtype=torch.int64, device=like.device)

    def append(self, x: Tensor) -> Tensor:
        if not x.shape[2] and self.parts:
            return x
        scale = self._scale(x)
        codes = self.format.encode(x.float() / scale)
        self.parts.append(codes)
        return (codes.float() * scale).to(self.dtype)

    def _scale(self, x: Tensor) -> Tensor:
        """The scales of the next tokens; frozen ones saturate later outliers, which are counted."""
        if self.format.scale == "token_head":
            self.scales.append(self.format.scale_of(x))
        elif self.scales:
            self.clipped += (x.abs() > self.scales[0] * (self.format.largest * SLACK)).sum(dim=(1, 2, 3))
        elif x.shape[2]:
            self.scales.append(self.format.scale_of(x))
        else:
            return x.new_ones(1, dtype=torch.float32)  # nothing to scale yet
        return self.scales[-1]

    def read(self) -> Tensor:
        codes = torch.cat([part.float() for part in self.parts], dim=2)
        if not codes.shape[2]:
            return codes.to(self.dtype)
        scale = torch.cat(self.scales, dim=2) if self.format.scale == "token_head" else self.scales[0]
        return (codes * scale).to(self.dtype)

    def tensors(self) -> Iterator[Tensor]:
        yield from self.parts
        yield from self.scales

    def select(self, rows: Tensor) -> None:
        # one-byte floats cannot be gathered everywhere; their bytes can
        self.parts = [part.view(torch.uint8)[rows].view(part.dtype) for part in self.parts]
        self.scales = [scale[rows] for scale in self.scales]
        self.clipped = self.clipped[rows]

    def swap(self, exchange: Exchange) -> None:
        self.parts = [exchange(part) for part in self.parts]
        self.scales = [exchange(scale) for scale in self.scales]


class ScaledStore(ColumnStore):
    """Keys and values as two ``Codes``."""

    keys: Codes
    values: Codes

    def facts(self) -> dict[str, Tensor]:
        return {"clipped_elements": self.keys.clipped + self.values.clipped}


@dataclass(frozen=True, kw_only=True)
class ScaledFormat(UniformQuant):
    """code = encode(x / scale), x' = code * scale, with scale = max|x| / ``largest`` over the elements that share it.

    Args:
        scale: which elements share a scale: ``tensor`` (all heads and tokens of a layer), ``head`` or ``token_head``.
        scale_from: what a tensor or head scale is taken from, before it is frozen and later outliers saturate at it:
            ``prompt`` (the first update), ``text`` (a calibration text) or ``one`` (it is 1.0, what serving engines use
            without calibration). A token brings its own scale.
    """

    on_latents: ClassVar[bool] = True  # a code an element, whatever the elements are
    largest: ClassVar[float]  # the largest code

    scale: str = "token_head"
    scale_from: str = "prompt"

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Scaled elements to one-byte codes, saturating."""

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.scale not in SHARED:
            found.append(f"{self.option('scale')} must be tensor, head or token_head, got {self.scale!r}")
        if self.scale_from not in ("prompt", "text", "one"):
            found.append(f"{self.option('scale_from')} must be prompt, text or one, got {self.scale_from!r}")
        elif self.scale == "token_head" and self.scale_from != "prompt":
            rule = "applies to scale=tensor and scale=head; with token_head every token brings its own"
            found.append(f"{self.option('scale_from')} {rule}, got {self.scale_from!r}")
        return found

    @property
    def calibrates(self) -> bool:
        return self.scale_from == "text"

    @property
    def label(self) -> str:
        granularity = "" if self.scale == "token_head" else f"/{self.scale}"
        return f"{self.name}{granularity}{'' if self.scale_from == 'prompt' else f'/{self.scale_from}'}"

    def scale_of(self, x: Tensor) -> Tensor:
        """float32 scales of ``[R, H, n, d]``, broadcastable to it; 1 where every element is zero."""
        amax = x.abs().float().amax(dim=[at + 1 for at in SHARED[self.scale]], keepdim=True)
        return torch.where(amax > 0, amax / self.largest, torch.ones_like(amax))

    def formats(self, layers: int, calibration: Calibration | None) -> tuple[Format, ...]:
        if not self.calibrates:
            return super().formats(layers, calibration)
        assert calibration is not None
        return tuple(
            Calibrated(
                self,
                self._calibrated([piece[layer].keys for piece in calibration]),
                self._calibrated([piece[layer].values for piece in calibration]),
            )
            for layer in range(layers)
        )

    def _calibrated(self, pieces: Sequence[Tensor]) -> Tensor:
        """The scale ``[1, H or 1, 1, 1]`` that holds every piece ``[H, n, d]`` of a calibration text."""
        return torch.stack([self.scale_of(piece[None]) for piece in pieces]).amax(dim=0)

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        scales = {"tensor": 1, "head": shape.kv_heads, "token_head": tokens * shape.kv_heads}[self.scale]
        return tokens * shape.kv_heads * sum(shape.widths) + 2 * SCALE_BYTES * scales

    def store(self, keys: Tensor, values: Tensor) -> Store:
        one = keys.new_ones(1, 1 if self.scale == "tensor" else keys.shape[1], 1, 1, dtype=torch.float32)
        scale = one if self.scale_from == "one" else None
        return ScaledStore(Codes(self, keys, scale), Codes(self, values, scale), keys, values)


@dataclass(frozen=True, eq=False)
class Calibrated(Format):
    """A scaled format whose scales ``[1, H or 1, 1, 1]`` a calibration text gave."""

    origin: ScaledFormat
    key_scale: Tensor
    value_scale: Tensor

    @property
    def label(self) -> str:
        return self.origin.label

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        return self.origin.layer_bytes(tokens, shape)

    def quantized_tokens(self, tokens: int) -> int:
        return self.origin.quantized_tokens(tokens)

    def store(self, keys: Tensor, values: Tensor) -> Store:
        sides = Codes(self.origin, keys, self.key_scale), Codes(self.origin, values, self.value_scale)
        return ScaledStore(*sides, keys, values)
