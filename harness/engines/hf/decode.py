"""Decoding as one batch: the rows of several samples, each sample's at its own position."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.joint import JointCache
from harness.engines.hf.rows import Rows


@torch.inference_mode()
def feed(model: PreTrainedModel, cache: JointCache, tokens: Tensor, position: int | Tensor) -> Tensor:
    """Append ``[B, m]`` tokens; logits ``[B, V]`` after the last.

    The first is the ``position``-th of the text, of each row's own where these are ``[B]``.
    """
    ahead = torch.arange(tokens.shape[1], device=tokens.device)
    positions = ahead + (position - cache.offsets)[:, None]
    out = model(tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1, kvgate=cache)
    cache.settle()
    return out.logits[:, -1]


class Batch:
    """What decodes together: samples come in at any time and leave when they have finished. Rows are numbered as they came."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.parts: list[Rows] = []

    def __len__(self) -> int:
        return sum(len(part.here) for part in self.parts)

    @torch.inference_mode()
    def join(self, rows: Rows, cache: JointCache, logits: Tensor) -> None:
        """Take in a sample's rows, with their cache and the logits ``[R, V]`` after what they were fed so far."""
        if self.parts:
            here = len(self)
            self._cache.join(cache, list(range(here)), list(range(here, here + len(logits))))
            self._logits = torch.cat([self._logits, logits])
        else:
            self._cache, self._logits = cache, logits
        self.parts.append(rows)

    def advance(self) -> list[Rows]:
        """Decode until all rows of some sample have finished; these have left."""
        with attention(self.model, DECODE):
            while not (done := self._step()):
                pass
        return done

    @torch.inference_mode()
    def _step(self) -> list[Rows]:
        tokens = self._say()
        self._note()
        self._cache.stop_watching([running for part in self.parts for running in part.running])
        done = [part for part in self.parts if not any(part.running)]
        tokens = self._leave(tokens)
        if self.parts:
            device = self._logits.device
            position = torch.tensor([part.position for part in self.parts for _ in part.here], device=device)
            self._logits = feed(self.model, self._cache, torch.tensor(tokens, device=device)[:, None], position)
            for part in self.parts:
                part.position += 1
        return done

    def _say(self) -> list[int]:
        """What each row is fed next."""
        finite = self._logits.isfinite().all(dim=-1).tolist()
        each = self._logits.split([len(part.here) for part in self.parts])
        drawn = torch.cat([part.draw(logits) for part, logits in zip(self.parts, each, strict=True)]).tolist()
        fed: list[int] = []
        for part in self.parts:
            mine = slice(len(fed), len(fed) + len(part.here))
            fed += part.take(drawn[mine], finite[mine])
        return fed

    def _note(self) -> None:
        """Write down what the store of each row that has just finished weighs; rows that finished before are left as noted."""
        rows = [(part.states[index], part.position) for part in self.parts for index in part.here]
        finished = [at for at, (state, _) in enumerate(rows) if not state.running and state.stored_bytes_end is None]
        if not finished:
            return
        cache = self._cache
        for at in finished:
            cache.bring_back(at)
        stored, working, facts = (f(len(rows)) for f in (cache.stored_bytes, cache.working_bytes, cache.facts))
        for at in finished:
            state, state.seen = rows[at]
            state.stored_bytes_end, state.working_bytes, state.facts = stored[at], working[at], facts[at]

    def _leave(self, tokens: list[int]) -> list[int]:
        """Let go of the rows that do not stay; the tokens of those that do."""
        keep: list[int] = []
        start = 0
        for part in self.parts:
            staying = part.staying()
            keep += [start + place for place in staying]
            start += len(part.here)
            part.here = [part.here[place] for place in staying]
        self.parts = [part for part in self.parts if part.here]
        if not keep:
            del self._cache
        elif len(keep) < len(tokens):
            self._cache.select(keep, len(tokens))
        return [tokens[row] for row in keep]
