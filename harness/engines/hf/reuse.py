"""Prefix reuse: keys and values of earlier prompts, kept by blocks, from which later prompts that begin alike start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.hf.prefill import Prefilled, prefill
from strategies.base import Prefix, Reused

Block = list[tuple[Tensor, Tensor]]  # keys and values ``[H, block, d]`` of every layer


class PrefixCache:
    """The blocks that one prefix layer keeps. Where they lie is its index's business; this holds what lies there."""

    def __init__(self, layer: Prefix) -> None:
        self.layer = layer
        self._clear()

    def _clear(self) -> None:
        self.index = self.layer.index()
        self.blocks: dict[int, Block] = {}  # by the index's number

    def prefill(self, model: PreTrainedModel, token_ids: list[int], *, query_window: int, **facts: Any) -> Prefilled:
        """As the function ``prefill``, but computing only what is not kept.

        The last token is always computed, for its logits, and so are the last ``query_window``, for their queries.
        """
        with self._all_or_nothing():
            reused = self.index.take(token_ids, most=max(0, len(token_ids) - max(1, query_window)))
            past = joined([self.blocks[number] for number in reused.blocks[: reused.hit_tokens // self.index.block]])
            prompt = prefill(model, token_ids, query_window=query_window, past=past, **facts)
            self._keep(prompt, reused)
        return prompt

    def learn(self, prompt: Prefilled, token_ids: list[int]) -> None:
        """Keep a prompt that was computed elsewhere, as if it had been asked here before."""
        with self._all_or_nothing():
            self._keep(prompt, self.index.take(token_ids, most=len(token_ids)))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A prompt that fails leaves places to blocks that will never be there, so everything is forgotten with it."""
        try:
            yield
        except BaseException:
            self._clear()
            raise

    def _keep(self, prompt: Prefilled, reused: Reused) -> None:
        size = self.index.block
        for at, number in enumerate(reused.blocks):
            if at * size >= reused.hit_tokens:
                part = slice(at * size, (at + 1) * size)
                self.blocks[number] = [(x.keys[:, part].clone(), x.values[:, part].clone()) for x in prompt.layers]
        self.index.release(reused)


def joined(blocks: list[Block]) -> Block:
    """Consecutive blocks as one, layer by layer; empty if there are none."""
    layers = zip(*blocks, strict=True)
    return [tuple(torch.cat(side, dim=1) for side in zip(*layer, strict=True)) for layer in layers]  # type: ignore[misc]
