"""Low-rank cache: one small latent a token instead of its keys and values (what TransMLA, arXiv 2502.07864, starts from)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Calibration, Exchange, Format, KVShape, LayerView, Packing, Patch, Room, Store, Structure
from strategies.columns import exact_store


@dataclass(frozen=True, eq=False)
class Subspace:
    """The r directions of one layer's joint keys and values that carry most of a calibration text.

    A token's keys and values of all heads are one vector of ``2 * H * d`` numbers, keys first and scaled by ``balance`` so
    that both halves weigh the same in the fit.
    """

    mean: Tensor  # [2 * H * d]
    directions: Tensor  # [2 * H * d, r], orthonormal, by falling variance
    balance: float

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, rank: int) -> Subspace:
        """Principal components of calibration tokens ``[H, N, d]``."""
        balance = float(values.float().norm() / keys.float().norm().clamp_min(1e-12))
        joint = cls.joined(keys[None], values[None], balance)[0].double()
        mean = joint.mean(dim=0)
        variances, directions = torch.linalg.eigh((joint - mean).T @ (joint - mean))
        return cls(mean.float(), directions[:, variances.argsort(descending=True)[:rank]].float(), balance)

    @staticmethod
    def joined(keys: Tensor, values: Tensor, balance: float) -> Tensor:
        """``[R, H, m, d]`` twice to float32 ``[R, m, 2 * H * d]``."""
        return torch.cat([x.float().transpose(1, 2).flatten(2) for x in (keys * balance, values)], dim=-1)

    def encode(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Latents of ``[R, H, m, d]`` keys and values: their leading and trailing half, each ``[R, 1, m, r / 2]``."""
        latent = (self.joined(keys, values, self.balance) - self.mean) @ self.directions
        return tuple(half[:, None].to(keys.dtype) for half in latent.chunk(2, dim=-1))  # type: ignore[return-value]

    def decode(self, leading: Tensor, trailing: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[R, H, m, d]`` of latents."""
        latent = torch.cat([leading, trailing], dim=-1)[:, 0]
        joint = latent.float() @ self.directions.T + self.mean
        keys, values = (half.unflatten(-1, (heads, -1)).transpose(1, 2) for half in joint.chunk(2, dim=-1))
        return (keys / self.balance).to(leading.dtype), values.to(leading.dtype)


class LatentStore(Store):
    """Latents in a store of their own; keys and values are made from what that store reads back.

    ``leading`` and ``trailing`` are a dense copy of the latents, scratch like every dense copy.
    """

    def __init__(self, subspace: Subspace, inner: Format | None, keys: Tensor, values: Tensor) -> None:
        self.subspace = subspace
        self.heads = keys.shape[1]
        latents = subspace.encode(keys, values)
        self.store = inner.store(*latents) if inner else exact_store(*latents)
        self.leading, self.trailing = self.store.read()

    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        start, new = self.leading.shape[2], keys.shape[2]
        latents = self.subspace.encode(keys, values)
        changes = self.store.append(*latents)
        self.leading = torch.cat([self.leading, latents[0]], dim=2)
        self.trailing = torch.cat([self.trailing, latents[1]], dim=2)
        columns = {(start, start + new)}
        for dense, patches in zip((self.leading, self.trailing), changes, strict=True):
            for patch in patches:
                stop = patch.start + patch.dense.shape[2]
                dense[:, :, patch.start : stop] = patch.dense
                columns.add((patch.start, stop))
        made = [(first, self._decoded(first, stop)) for first, stop in sorted(columns)]
        return [Patch(first, both[0]) for first, both in made], [Patch(first, both[1]) for first, both in made]

    def _decoded(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        return self.subspace.decode(self.leading[:, :, first:stop], self.trailing[:, :, first:stop], self.heads)

    def read(self) -> tuple[Tensor, Tensor]:
        return self.subspace.decode(*self.store.read(), self.heads)

    def tensors(self) -> Iterator[Tensor]:
        return self.store.tensors()

    def select(self, rows: Tensor) -> None:
        self.store.select(rows)
        self.leading, self.trailing = self.leading[rows], self.trailing[rows]

    def swap(self, exchange: Exchange) -> None:
        self.store.swap(exchange)

    def reserve(self, room: Room) -> None:
        self.store.reserve(room)

    def facts(self) -> dict[str, Tensor]:
        return self.store.facts()


@dataclass(frozen=True)
class LatentFormat(Format):
    """One layer's latents, packed by ``inner``; None leaves them in full precision."""

    unrotated: ClassVar[bool] = True

    subspace: Subspace
    inner: Format | None
    rank: int

    @property
    def label(self) -> str:
        return f"rank {self.rank} {self.inner.label if self.inner else 'exact'}"

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        packed = latent_shape(shape, self.rank)
        return self.inner.layer_bytes(tokens, packed) if self.inner else packed.exact_bytes(tokens)

    def quantized_tokens(self, tokens: int) -> int:
        return self.inner.quantized_tokens(tokens) if self.inner else 0

    def store(self, keys: Tensor, values: Tensor) -> Store:
        return LatentStore(self.subspace, self.inner, keys, values)


def latent_shape(shape: KVShape, rank: int) -> KVShape:
    """What a number format sees: one head, its keys the leading and its values the trailing half of the latent."""
    return replace(shape, kv_heads=1, query_heads=1, head_dim=rank // 2)


@dataclass(frozen=True, kw_only=True)
class LowRank(Structure):
    """Caches ``rank`` numbers a token and layer: its joint keys and values in a subspace found by PCA on a calibration text.

    TransMLA without its training: keys before rotary positions and values, of all heads, are projected together, keys scaled
    to the values' norm first (its balance). It departs from TransMLA in what happens to positions: there RoPE is kept in a
    few channels only, which costs much before training; here keys are made again and rotated in full at every read, so the
    error is that of the rank alone. Where a model's rotation is unknown, keys are taken as they are cached.

    Args:
        rank: numbers cached a token and layer instead of ``2 * kv_heads * head_dim``; even.
    """

    name: ClassVar[str] = "lowrank"
    unrotated: ClassVar[bool] = True
    by_token: ClassVar[bool] = True

    rank: int

    @property
    def label(self) -> str:
        return f"{self.name}{self.rank}"

    @property
    def calibrates(self) -> bool:
        return True

    def problems(self, shape: KVShape) -> list[str]:
        width = 2 * shape.kv_heads * shape.head_dim
        if self.rank < 2 or self.rank % 2 or self.rank >= width:
            rule = f"must be even, 2 or more, and below the {width} numbers of a token's keys and values"
            return [f"{self.option('rank')} {rule}, got {self.rank}"]
        return []

    def latent(self, shape: KVShape) -> KVShape:
        return latent_shape(shape, self.rank)

    def acted(self, shape: KVShape) -> tuple[bool, str]:
        width = 2 * shape.kv_heads * shape.head_dim
        return self.rank < width, f"cached {self.rank} numbers a token and layer instead of {width}"

    def formats(self, layers: int, calibration: Calibration | None, pack: Packing) -> tuple[Format, ...]:
        assert calibration is not None
        subspaces = [
            Subspace.of(
                torch.cat([piece[layer].keys for piece in calibration], dim=1),
                torch.cat([piece[layer].values for piece in calibration], dim=1),
                self.rank,
            )
            for layer in range(layers)
        ]
        shown = tuple(
            tuple(_latent_layer(piece[layer], subspaces[layer]) for layer in range(layers)) for piece in calibration
        )
        inner = pack(layers, shown)
        return tuple(LatentFormat(subspaces[layer], inner[layer], self.rank) for layer in range(layers))


def _latent_layer(layer: LayerView, subspace: Subspace) -> LayerView:
    """A calibration layer as a number format sees it; queries do not look at latents."""
    leading, trailing = subspace.encode(layer.keys[None], layer.values[None])
    return layer._replace(keys=leading[0], values=trailing[0], window_queries=None)
