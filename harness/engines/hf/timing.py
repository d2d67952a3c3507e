"""Speed of one setting alone: prompts are prefilled one by one, then decode as one batch, each on its own store.

Speed is never read from a joint decode of several settings. What a format computes on is a dense copy of its store, so this is
the speed of the reference engine and of nobody's kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from harness.engines.base import ModelFacts, Prompt
from harness.engines.hf import device_memory
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import feed
from harness.engines.hf.joint import JointCache
from harness.engines.hf.prefill import Prefilled
from harness.types import Evidence, LoadMemory, Request, Served
from strategies.base import UNMOVED
from strategies.stack import Stack


@dataclass
class Timing:
    """One load in the making. ``compute`` is the exact prefill of a prompt with what the setting wants to know of it."""

    model: PreTrainedModel
    about: ModelFacts
    stack: Stack
    compute: Callable[[Prompt], Prefilled]
    stored_bytes: int = 0
    formula_bytes: int = 0
    deployed_bytes: int = 0  # of all tokens, prompts' and answers', as the model will be deployed
    tokens: int = 0
    idle: dict[str, str] = field(default_factory=dict)  # by layer that did not act on some prompt, the condition

    def serve(self, prompts: Sequence[Prompt], in_flight: int) -> Served:
        """Batches of ``in_flight`` prompts, one after the other. All are due at the start and of one length."""
        told = device_memory.forget_load_peak(self.model.device)
        self.began = time.perf_counter()
        batches = (prompts[at : at + in_flight] for at in range(0, len(prompts), in_flight))
        requests = [request for batch in batches for request in self._batch(batch)]
        memory = LoadMemory(
            self.stored_bytes,
            self.formula_bytes,
            self.deployed_bytes / self.tokens,
            device_memory.load_peak_bytes(self.model.device) if told else None,
        )
        layers = [f"{layer.slot}/{layer.name}" for layer in self.stack.layers()]
        evidence = (Evidence(name, name not in self.idle, self.idle.get(name, "on every prompt")) for name in layers)
        return Served(tuple(requests), tuple(evidence), memory)

    @torch.inference_mode()
    def _batch(self, prompts: Sequence[Prompt]) -> list[Request]:
        """Serve prompts of one length together; tokens are the likeliest ones, and none of them ends an answer."""
        sent, steps = self._now(), prompts[0].output_tokens
        times: list[list[float]] = []
        tokens: list[int] = []
        cache: JointCache | None = None
        for prompt in prompts:
            filled = self.compute(prompt)
            row = build(filled, [self.stack], steps)
            tokens.append(int(filled.logits.argmax()))  # waits for the device
            times.append([self._now()])
            self.stored_bytes += row.stored_bytes(1)[0]
            self.formula_bytes += self.stack.formula_bytes(filled.tokens, self.about.shape, row.counts[0])
            if cache is None:
                cache = row
            else:
                cache.join(row, list(range(len(tokens) - 1)), [len(tokens) - 1])
        assert cache is not None
        with attention(self.model, DECODE):
            for position in range(len(prompts[0].token_ids), len(prompts[0].token_ids) + steps - 1):
                fed = torch.tensor(tokens, device=filled.logits.device)[:, None]
                tokens = feed(self.model, cache, fed, position).argmax(dim=-1).tolist()
                now = self._now()
                for mine in times:
                    mine.append(now)
        for prompt, after, end in zip(prompts, cache.counts, self._held(cache, len(prompts)), strict=True):
            self._note(prompt, after, end)
        return [
            Request(
                id=prompt.id,
                tokens_in=len(prompt.token_ids),
                tokens_out=len(mine),
                queued_s=0.0,
                sent_s=sent,
                first_token_s=mine[0],
                last_token_s=mine[-1],
                end_s=mine[-1],
                token_s=tuple(mine),
                cached_tokens=0,
            )
            for prompt, mine in zip(prompts, times, strict=True)
        ]

    def _now(self) -> float:
        return time.perf_counter() - self.began

    def _held(self, cache: JointCache, rows: int) -> list[list[tuple[int, ...]]]:
        """By row and layer, the tokens that each head holds now."""
        shape = self.about.shape
        held = [[[0] * shape.kv_heads for _ in range(shape.layers)] for _ in range(rows)]
        for at, (layer, window) in enumerate(zip(cache.joint, shape.windows, strict=True)):
            for bucket in layer.buckets:
                length = bucket.length if window is None else min(bucket.length, window - 1)
                for slot, row in enumerate(bucket.rows.tolist()):
                    heads = range(shape.kv_heads) if bucket.heads is None else [int(bucket.heads[slot])]
                    for head in heads:
                        held[row][at][head] = length
        return [[tuple(heads) for heads in layers] for layers in held]

    def _note(self, prompt: Prompt, after: Sequence[tuple[int, ...]], end: Sequence[tuple[int, ...]]) -> None:
        """Which layers have acted on a prompt, as each says itself, and what it would take where the model will be deployed.

        ``after`` and ``end`` are the tokens that each layer and head held after the prompt and at the end.
        """
        shape, tokens = self.about.shape, len(prompt.token_ids)
        answered = prompt.output_tokens - 1  # the last token is not fed
        acted = self.stack.acted(tokens, shape, after, answered, 0, UNMOVED)
        self.idle |= {layer: why for layer, (yes, why) in acted.items() if not yes}
        self.deployed_bytes += self.stack.formula_bytes(tokens + answered, shape.at(self.about.deploy_bytes), end)
        self.tokens += tokens + answered
