"""Formats that store one small code an element and a float32 scale that some elements share: FP8 and INT8."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Calibration, Format, KVShape, Store, UniformQuant
from strategies.columns import Columns, ColumnStore, FrozenColumns, FrozenStore

SCALE_BYTES = 4  # scales are float32, as in the serving engines
SHARED = {"tensor": (0, 1, 2), "head": (1, 2), "token_head": (2,)}  # dimensions of [H, n, d] that share a scale


class TokenCodes(Columns):
    """Codes ``[R, H, n, d]`` as bytes, and each token's scale ``[R, H, n, 1]``."""

    def __init__(self, format: ScaledFormat, like: Tensor) -> None:
        super().__init__(like)
        self.format = format

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        scale = self.format.scale_of(x)
        return self.format.encode(x / scale).view(torch.uint8), scale

    def decode(self, *stored: Tensor) -> Tensor:
        codes, scale = stored
        return codes.view(self.format.dtype).float() * scale


class TokenStore(ColumnStore):
    """Keys and values as two ``TokenCodes``."""

    def facts(self) -> dict[str, Tensor]:
        rows = len(next(self.tensors()))
        return {"clipped_elements": torch.zeros(rows, dtype=torch.int64)}  # a token's own scale fits it


class FrozenCodes(FrozenColumns):
    """Codes ``[R, H, n, d]`` as bytes, under one scale of all tokens, given or taken from the first."""

    def __init__(self, format: ScaledFormat, like: Tensor, scale: Tensor | None = None) -> None:
        """``scale`` ``[1 or R, 1 or H, 1, 1]`` is given where a calibration text told it."""
        one = torch.ones(1, 1 if format.scale == "tensor" else like.shape[1], 1, 1)
        super().__init__(like, one if scale is None else scale, format.largest, frozen=format.scale_from != "prompt")
        self.format = format

    def scale_of(self, x: Tensor) -> Tensor:
        return self.format.scale_of(x)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.format.encode(x / self.scale).view(torch.uint8),)

    def decode(self, *stored: Tensor) -> Tensor:
        return stored[0].view(self.format.dtype).float() * self.scale


@dataclass(frozen=True, kw_only=True)
class ScaledFormat(UniformQuant):
    """code = encode(x / scale), x' = code * scale, with scale = max|x| / ``largest`` over the elements that share it.

    Args:
        scale: which elements share a scale: ``tensor`` (all heads and tokens of a layer), ``head`` or ``token_head``. None leaves
            it and ``scale_from`` to the engine.
        scale_from: what a tensor or head scale is taken from, before it is frozen and later outliers saturate at it:
            ``prompt`` (the first update), ``text`` (a calibration text) or ``one`` (it is 1.0, what serving engines use
            without calibration). A token brings its own scale.
    """

    by_token: ClassVar[bool] = True
    on_latents: ClassVar[bool] = True  # a code an element, whatever the elements are
    largest: ClassVar[float]  # the largest code
    dtype: ClassVar[torch.dtype]  # of a code, one byte

    scale: str | None = "token_head"
    scale_from: str | None = "prompt"

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
        if self.scale == "token_head":
            return TokenStore(TokenCodes(self, keys), TokenCodes(self, values), keys, values)
        return FrozenStore(FrozenCodes(self, keys), FrozenCodes(self, values), keys, values)


@dataclass(frozen=True, eq=False)
class Calibrated(Format):
    """A scaled format whose scales ``[1 or R, H or 1, 1, 1]`` a calibration text gave."""

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

    def of_heads(self, heads: Tensor) -> Format:
        def picked(scale: Tensor) -> Tensor:
            return scale if scale.shape[1] == 1 else scale[0, heads.to(scale.device)][:, None]

        return replace(self, key_scale=picked(self.key_scale), value_scale=picked(self.value_scale))

    def store(self, keys: Tensor, values: Tensor) -> Store:
        sides = FrozenCodes(self.origin, keys, self.key_scale), FrozenCodes(self.origin, values, self.value_scale)
        return FrozenStore(*sides, keys, values)
