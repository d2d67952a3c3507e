"""One exact prefill a sample: the full-precision keys and values, and what the eviction policies want to know."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from harness.engines.hf.attention import PREFILL, QueryWindow, attention
from harness.engines.hf.rope import Rope, rope_of
from harness.types import Unsupported
from strategies.base import PromptLayer


@dataclass(frozen=True)
class Prefilled:
    """A prompt in full precision.

    ``layers[i].keys`` is ``[H, n, d]``; in a layer with a sliding window only its last ``window - 1`` tokens are there.
    """

    layers: tuple[PromptLayer, ...]
    windows: tuple[int | None, ...]
    tokens: int
    logits: Tensor  # [V], after the last token
    ropes: tuple[Rope | None, ...]  # by layer: how its keys are rotated, if that is known

    def positions(self, layer: int) -> Tensor:
        """Positions ``[n]`` of the tokens that are there of ``layer``."""
        keys = self.layers[layer].keys
        return torch.arange(self.tokens - keys.shape[1], self.tokens, device=keys.device)

    def unrotated(self) -> tuple[PromptLayer, ...]:
        """The layers with keys as they were before rotary positions, where these are known."""

        def turned_back(index: int) -> PromptLayer:
            layer, rope = self.layers[index], self.ropes[index]
            where = self.positions(index).expand(1, *layer.keys.shape[:2])
            return layer._replace(keys=rope.back(layer.keys[None], where)[0]) if rope else layer

        return tuple(turned_back(index) for index in range(len(self.layers)))

    def empty(self) -> Prefilled:
        """The same prompt before its first token."""
        layers = (layer._replace(keys=layer.keys[:, :0], values=layer.values[:, :0]) for layer in self.layers)
        return replace(self, layers=tuple(layers), tokens=0)


@torch.inference_mode()
def prefill(model: PreTrainedModel, token_ids: list[int], *, query_window: int, chunk: int, seed: int) -> Prefilled:
    """Feed ``token_ids`` in chunks of ``chunk`` tokens; no attention matrix larger than chunk x n is ever built."""
    observer = QueryWindow(query_window)
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([token_ids], device=model.device)
    with attention(model, PREFILL):
        for part in ids.split(chunk, dim=1):
            out = model(part, past_key_values=cache, use_cache=True, logits_to_keep=1, kvgate=observer)
    windows = tuple(_window(layer) for layer in cache.layers)
    layers = tuple(
        PromptLayer(
            keys=layer.keys[0],
            values=layer.values[0],
            window_queries=observer.queries.get(index),
            scaling=observer.scaling[index],
            layer=index,
            seed=seed,
        )
        for index, layer in enumerate(cache.layers)
    )
    ropes = tuple(rope_of(model, layer) for layer in range(len(layers)))
    return Prefilled(layers, windows, len(token_ids), out.logits[0, -1], ropes)


def _window(layer: object) -> int | None:
    keys = getattr(layer, "keys", None)
    if not isinstance(keys, Tensor) or keys.dim() != 4:
        raise Unsupported(f"engine hf cannot serve a model whose cache has a layer of type {type(layer).__name__}")
    return layer.sliding_window if getattr(layer, "is_sliding", False) else None  # type: ignore[attr-defined]
