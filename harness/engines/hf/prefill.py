"""One exact prefill a sample: the full-precision keys and values, and what the eviction policies want to know."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer

from harness.engines.hf import states
from harness.engines.hf.attention import PREFILL, attention
from harness.engines.hf.observe import Observer, Reread
from harness.engines.hf.rope import Rope, ropes_of
from harness.types import Unsupported
from strategies.base import LayerView

REREAD_CHUNK = 2048  # tokens of the context that are read once more at a time, as published


@dataclass(frozen=True)
class Prefilled:
    """A prompt in full precision.

    ``layers[i].keys`` is ``[H, n, d]``; in a layer with a sliding window only its last ``window - 1`` tokens are there.
    Layers are those that cache tokens, counted among themselves; ``places`` says which of all the model's layers they are.
    """

    layers: tuple[LayerView, ...]
    windows: tuple[int | None, ...]
    places: tuple[int, ...]
    tokens: int
    logits: Tensor  # [V], after the last token
    ropes: tuple[Rope | None, ...]  # by layer: how its keys are rotated, if that is known
    cache: Cache  # the library's own, with the same keys and values, and with the states of linear layers
    reused: int = 0  # first tokens that were not computed here
    whole: Prefilled | None = None  # the prompt that this is the beginning of, which policies look at when they rank
    futures: Mapping[int, Sequence[Tensor | None]] = field(
        default_factory=dict
    )  # by steps ahead and layer: LayerView.future

    def positions(self, layer: int) -> Tensor:
        """Positions ``[n]`` of the tokens that are there of ``layer``."""
        keys = self.layers[layer].keys
        return torch.arange(self.tokens - keys.shape[1], self.tokens, device=keys.device)

    def beginning(self, tokens: int) -> Prefilled:
        """The first ``tokens`` tokens, to be ranked as they are in this prompt. Its logits are not theirs."""
        if any(self.windows) or self.state_bytes:
            raise Unsupported("sliding windows and linear attention do not keep the beginning of a prompt")
        layers = (layer._replace(keys=layer.keys[:, :tokens], values=layer.values[:, :tokens]) for layer in self.layers)
        return replace(self, layers=tuple(layers), tokens=tokens, reused=min(self.reused, tokens), whole=self)

    def unrotated(self) -> tuple[LayerView, ...]:
        """The layers with keys as they were before rotary positions, where these are known."""

        def turned_back(index: int) -> LayerView:
            layer, rope = self.layers[index], self.ropes[index]
            where = self.positions(index).expand(1, *layer.keys.shape[:2])
            return layer._replace(keys=rope.back(layer.keys[None], where)[0]) if rope else layer

        return tuple(turned_back(index) for index in range(len(self.layers)))

    def empty(self) -> Prefilled:
        """The same prompt before its first token."""
        layers = (layer._replace(keys=layer.keys[:, :0], values=layer.values[:, :0]) for layer in self.layers)
        cache = copy(self.cache)
        cache.layers = [states.fresh(x) if isinstance(x, LinearAttentionLayer) else x for x in cache.layers]
        return replace(self, layers=tuple(layers), tokens=0, cache=cache)

    def knowing(self, **facts: Sequence[Tensor | None]) -> Prefilled:
        """The same prompt with more known of each layer: fields of ``LayerView``, by layer."""
        layers = [
            layer._replace(**{name: by_layer[index] for name, by_layer in facts.items()})
            for index, layer in enumerate(self.layers)
        ]
        return replace(self, layers=tuple(layers))

    @property
    def state_bytes(self) -> int:
        """What the linear layers hold of one sequence."""
        linear = (layer for layer in self.cache.layers if isinstance(layer, LinearAttentionLayer))
        return sum(state.nbytes for layer in linear for state in states.tensors(layer))


@torch.inference_mode()
def prefill(
    model: PreTrainedModel,
    token_ids: list[int],
    *,
    query_window: int,
    chunk: int,
    seed: int,
    needs: Collection[str] = (),
    past: Sequence[tuple[Tensor, Tensor]] = (),
) -> Prefilled:
    """Feed ``token_ids`` in chunks of ``chunk`` tokens; no attention matrix larger than chunk x n is ever built.

    ``past`` holds, by layer, the keys and values ``[H, m, d]`` of the first m tokens, if they are known already.
    """
    cache = DynamicCache(config=model.config)
    for layer, (keys, values) in zip(cache.layers, past, strict=False):
        layer.update(keys[None], values[None])
    places = tuple(at for at, layer in enumerate(cache.layers) if not isinstance(layer, LinearAttentionLayer))
    ropes = ropes_of(model)
    observer = Observer(query_window, needs, ropes)
    reused = cache.get_seq_length()
    ids = torch.tensor([token_ids[reused:]], device=model.device)
    with attention(model, PREFILL):
        for at in range(0, ids.shape[1], chunk):
            out = _read(model, cache, ids[:, at : at + chunk], reused + at, observer)
    windows = tuple(_window(cache.layers[place]) for place in places)
    layers = tuple(
        LayerView(
            keys=cache.layers[place].keys[0],
            values=cache.layers[place].values[0],
            window_queries=observer.queries.get(place),
            scaling=observer.scaling[place],
            layer=index,
            seed=seed,
            layers=len(places),
            mass=observer.mass.get(place),
            moments=observer.moments(place),
            rotation=ropes[place],
        )
        for index, place in enumerate(places)
    )
    mine = tuple(ropes[place] for place in places)
    return Prefilled(layers, windows, places, len(token_ids), out.logits[0, -1], mine, cache, reused)


def _read(model: PreTrainedModel, cache: Cache, ids: Tensor, position: int, observer: Observer | Reread) -> Any:
    """The model's output for tokens ``[1, m]`` that follow what is in the cache, the first at ``position``.

    Some models would count the positions of every call from 0.
    """
    positions = torch.arange(position, position + ids.shape[1], device=ids.device)[None]
    return model(ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1, kvgate=observer)


@torch.inference_mode()
def reread(model: PreTrainedModel, prompt: Prefilled, token_ids: list[int], ask: Sequence[list[int]]) -> Prefilled:
    """Let the model read the prompt once more, a chunk at a time on top of the whole, and note what it looks at (KVzip).

    Args:
        prompt: what was prefilled of ``token_ids``.
        ask: the words that ask for the first chunk, and those before the last tokens of the chunk before for later ones.
    """
    observer = Reread(prompt.tokens)
    with attention(model, PREFILL):
        for start in range(0, prompt.tokens, REREAD_CHUNK):
            chunk = token_ids[start : start + REREAD_CHUNK]
            asked = ask[0] if not start else ask[1] + token_ids[max(0, start - 8) : start]
            # layers replace their tensors when they grow, so the prompt's stay; states are written in place
            cache = copy(prompt.cache)
            cache.layers = [
                deepcopy(layer) if isinstance(layer, LinearAttentionLayer) else copy(layer)
                for layer in prompt.cache.layers
            ]
            _read(model, cache, torch.tensor([asked + chunk], device=model.device), prompt.tokens, observer)
    return prompt.knowing(reread=[observer.largest.get(place) for place in prompt.places])


def _window(layer: object) -> int | None:
    keys = getattr(layer, "keys", None)
    if not isinstance(keys, Tensor) or keys.dim() != 4:
        raise Unsupported(f"engine hf cannot serve a model whose cache has a layer of type {type(layer).__name__}")
    return layer.sliding_window if getattr(layer, "is_sliding", False) else None  # type: ignore[attr-defined]
