"""Keys as they were before rotary positions, for formats that pack those.

Attention needs rotated keys and the cache holds rotated keys; a format that asks for ``unrotated`` ones gets them turned back
on their way in and turned again on their way out, by the model's own angles.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from strategies.base import Exchange, Format, Patch, Room, Store

PROBED = (0, 7)  # positions at which a token is looked at
SLACK = 0.03  # of a key's length; what bfloat16 rounds, and far from what a wrong rotation does


_CHECKED: WeakKeyDictionary[PreTrainedModel, tuple[Rope | None, ...]] = WeakKeyDictionary()


class Rope:
    """The rotation of one attention layer's keys: channels i and i + r / 2 of the first r turn together."""

    def __init__(self, rotary: torch.nn.Module, options: dict[str, Any]) -> None:
        self._rotary = rotary
        self._options = options

    def angles(self, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin ``[..., m, r]`` of positions ``[..., m]``."""
        cos, sin = self._rotary(keys, positions.reshape(1, -1), **self._options)
        return tuple(x.float().reshape(*positions.shape, x.shape[-1]) for x in (cos, sin))  # type: ignore[return-value]

    def width(self, like: Tensor) -> int:
        """How many channels turn."""
        return int(self.angles(like, torch.zeros(1, dtype=torch.long, device=like.device))[0].shape[-1])

    def turn(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Rotate keys ``[R, H, m, d]`` to their positions ``[R, H, m]``."""
        cos, sin = self.angles(keys, positions)
        return self._rotated(keys, cos, sin)

    def back(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Undo ``turn``, and the scale that some models' angles carry."""
        cos, sin = self.angles(keys, positions)
        square = cos.square() + sin.square()
        return self._rotated(keys, cos / square, -sin / square)

    def together(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Keys ``[R, H, m, d]`` that stand at ``positions`` ``[R, H, m]``, moved to 0, 1, 2 ..."""
        return self.turn(
            self.back(keys, positions), torch.arange(keys.shape[2], device=keys.device).expand(keys.shape[:3])
        )

    def _rotated(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = keys.float().split([cos.shape[-1], keys.shape[-1] - cos.shape[-1]], dim=-1)
        first, second = turned.chunk(2, dim=-1)
        out = turned * cos + torch.cat([-second, first], dim=-1) * sin
        return torch.cat([out, rest], dim=-1).to(keys.dtype)


@torch.inference_mode()
def ropes_of(model: PreTrainedModel) -> tuple[Rope | None, ...]:
    """The rotation of each layer's keys; None where there is none, or none that channels share by halves.

    What a model's rotary module says is believed only where it is what the model does: alone, a token's keys at two
    positions differ by the rotation and by nothing else. Some models turn neighbouring channels, and some layers none.
    """
    if model not in _CHECKED:
        layers = DynamicCache(config=model.config).layers
        at = [_keys(model, position) for position in PROBED]
        said = _said(model, len(layers))
        _CHECKED[model] = tuple(
            rope if rope and _turns(rope, *keys) else None for rope, *keys in zip(said, *at, strict=True)
        )
    return _CHECKED[model]


def _keys(model: PreTrainedModel, position: int) -> list[Tensor | None]:
    """By layer the keys ``[1, H, 1, d]`` of one token that stands alone at ``position``."""
    cache = DynamicCache(config=model.config)
    some = 1 if model.config.get_text_config().pad_token_id != 1 else 2  # a padding's embedding may be zero
    token, where = (torch.tensor([[number]], device=model.device) for number in (some, position))
    model(token, position_ids=where, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return [getattr(layer, "keys", None) for layer in cache.layers]


def _turns(rope: Rope, here: Tensor | None, there: Tensor | None) -> bool:
    if here is None or there is None or here.shape[-1] < rope.width(here):
        return False
    first, second = (torch.full(here.shape[:3], position, device=here.device) for position in PROBED)
    moved = rope.turn(rope.back(here, first), second)
    return bool((moved - there).float().norm() < SLACK * there.float().norm())


def _said(model: PreTrainedModel, layers: int) -> tuple[Rope | None, ...]:
    """The rotation of each layer's keys as the model's rotary module tells it."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    if not isinstance(rotary, torch.nn.Module):
        return (None,) * layers
    if "layer_type" not in inspect.signature(rotary.forward).parameters:
        return (_rope(rotary, {}, model.device),) * layers
    kinds = model.config.get_text_config().layer_types[:layers]
    by_kind = {kind: _rope(rotary, {"layer_type": kind}, model.device) for kind in set(kinds)}
    return tuple(by_kind[kind] for kind in kinds)


def _rope(rotary: torch.nn.Module, options: dict[str, Any], device: torch.device) -> Rope | None:
    found = rotary(torch.zeros(1, 1, device=device), torch.tensor([[3]], device=device), **options)
    if not isinstance(found, tuple) or not all(isinstance(x, Tensor) for x in found):
        return None
    return Rope(rotary, options) if all(torch.equal(*x.chunk(2, dim=-1)) for x in found) else None


class UnrotatedStore(Store):
    """A store of keys before rotation, seen from outside as one of rotated keys."""

    def __init__(self, format: Format, rope: Rope, keys: Tensor, values: Tensor, positions: Tensor, seen: int) -> None:
        """``positions`` ``[R, H, m]`` are those of ``keys``; the next token stands at ``seen``."""
        self.rope = rope
        self.positions = positions
        self.seen = seen
        self.store = format.store(rope.back(keys, positions), values)

    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        ahead = torch.arange(self.seen, self.seen + keys.shape[2], device=keys.device).expand(keys.shape[:3])
        self.seen += keys.shape[2]
        self.positions = torch.cat([self.positions, ahead], dim=2)
        key_patches, value_patches = self.store.append(self.rope.back(keys, ahead), values)
        return [Patch(patch.start, self._turned(patch)) for patch in key_patches], value_patches

    def _turned(self, patch: Patch) -> Tensor:
        stop = patch.start + patch.dense.shape[2]
        return self.rope.turn(patch.dense, self.positions[:, :, patch.start : stop])

    def read(self) -> tuple[Tensor, Tensor]:
        keys, values = self.store.read()
        return self.rope.turn(keys, self.positions), values

    def tensors(self) -> Iterator[Tensor]:
        return self.store.tensors()

    def select(self, rows: Tensor) -> None:
        self.store.select(rows)
        self.positions = self.positions[rows]

    def swap(self, exchange: Exchange) -> None:
        self.store.swap(exchange)

    def reserve(self, room: Room) -> None:
        self.store.reserve(room)

    def facts(self) -> dict[str, Tensor]:
        return self.store.facts()
