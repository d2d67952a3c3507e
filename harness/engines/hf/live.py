"""Rows that choose anew while they decode: those that evict every few tokens, and those that read a part of what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from harness.engines.hf.joint import Bucket, Expand, Group
from harness.engines.hf.observe import weights
from harness.engines.hf.trail import Trail
from strategies.base import Evict, LayerView, Store

# of keys and values ``[1, H, m, d]``, their positions ``[1, H, m]`` and the number of tokens seen
Make = Callable[[Tensor, Tensor, Tensor, int], Store]


class EvictingBucket(Bucket):
    """One row that evicts with ``policy`` whenever ``policy.every`` more tokens have come.

    What is kept is packed again from what the store reads back. ``view`` is what is known of the kept tokens of the prompt.
    """

    def __init__(
        self,
        base: Bucket,
        policy: Evict,
        view: LayerView,
        seen: int,
        make: Make | None,
        trail: Trail | None,
    ) -> None:
        super().__init__(base.rows, base.heads, base.keys, base.values, base.length, base.groups)
        self.policy, self.view, self.make = policy, view, make
        self.trail = trail
        heads, capacity = self.keys.shape[1:3]
        self.original = torch.zeros(heads, capacity, dtype=torch.long, device=self.keys.device)
        assert view.positions is not None
        self.original[:, : self.length] = view.positions
        self.mass = torch.zeros(heads, capacity, device=self.keys.device)
        if view.mass is not None:
            self.mass[:, : self.length] = view.mass
        self.queries = view.window_queries
        self.prompt, self.seen, self.due = seen, seen, policy.every
        self.moved = seen - self.length if policy.rerotate else None

    def append(self, keys: Tensor, values: Tensor) -> None:
        start, new = self.length, keys.shape[2]
        super().append(keys, values)
        self.mass[:, start : self.length] = 0  # what stood there before was evicted
        self.original[:, start : self.length] = torch.arange(self.seen, self.seen + new, device=self.original.device)
        self.seen += new

    def attend(self, query: Tensor, scaling: float, window: int | None, expand: Expand | None) -> Tensor:
        out = super().attend(query, scaling, window, expand)
        flat = query[0].flatten(0, 1)  # [H * G, m, d]
        if "mass" in self.policy.needs:
            self.mass[:, : self.length] += weights(flat, self.keys[0, :, : self.length], scaling).sum(dim=(1, 2))
        if self.policy.query_window:
            joined = flat if self.queries is None else torch.cat([self.queries, flat], dim=1)
            self.queries = joined[:, -self.policy.query_window :]
        self.due -= query.shape[3]
        heard = self.queries is None or self.queries.shape[1] >= self.policy.query_window
        if self.due <= 0 and heard:  # a reused context brings no queries of its own: the vote waits for them
            self._evict(scaling)
            self.due = self.policy.every
        return out

    def _evict(self, scaling: float) -> None:
        budget = self.policy.layer_budget(self.seen, self.view.layer, self.view.layers)
        if self.length <= budget:
            return
        held = slice(0, self.length)
        view = self.view._replace(
            keys=self.keys[0, :, held],
            values=self.values[0, :, held],
            window_queries=self.queries,
            scaling=scaling,
            positions=self._rotated_to(),
            step=self.seen - self.prompt,
            mass=self.mass[:, held] if "mass" in self.policy.needs else None,
            spans=None if self.view.spans is None else self._spans(),
        )
        chosen = torch.stack(self.policy.chosen(self.policy.importance(view), budget))  # [H, budget]
        self._note(chosen)
        keys, values = (
            x[0].gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))[None] for x in (self.keys, self.values)
        )
        places = self.original.gather(1, chosen)
        self.mass[:, :budget] = self.mass.gather(1, chosen)
        self.original[:, :budget] = places
        if self.policy.rerotate:
            rope = self.view.rotation
            assert rope is not None
            keys = rope.together(keys, self._rotated_to().gather(1, chosen)[None])
            self.moved = self.seen - budget
        if self.make:
            store = self.make(keys, values, places[None], self.seen)
            keys, values = store.read()
            self.groups = [Group(0, 1, store)]
        self.keys[:, :, :budget], self.values[:, :, :budget] = keys, values
        self.length = budget

    def _rotated_to(self) -> Tensor:
        """Positions ``[H, n]`` that the held keys are rotated to."""
        if self.moved is None:
            return self.original[:, : self.length]
        return torch.arange(self.length, device=self.keys.device).expand(self.keys.shape[1], -1)

    def _spans(self) -> Tensor:
        """Instruction ``[H, n]`` of each held token."""
        assert self.view.spans is not None
        where = self.original[:, : self.length]
        known = where < len(self.view.spans)
        return torch.where(known, self.view.spans[where.clamp(max=len(self.view.spans) - 1)], -1)

    def _note(self, chosen: Tensor) -> None:
        if self.trail:
            positions = self.original[:, : self.length]
            stays = torch.zeros_like(positions, dtype=torch.bool).scatter_(1, chosen, True)
            self.trail.drop(positions, stays)

    def facts(self) -> dict[str, Tensor]:
        one = torch.ones(1, dtype=torch.long)
        return {"tokens_held_end": one * self.length, "_evicting_layers": one}


class Reader(Protocol):
    """A policy that evicts nothing and reads a part."""

    def reads(self, query: Tensor, keys: Tensor, layer: int) -> Tensor:
        """Which tokens ``[H, n]`` the newest query ``[H, G, d]`` reads of ``keys`` ``[H, n, d]``."""
        ...


class ReadingBucket(Bucket):
    """One row whose every decode step reads the tokens that ``reader`` selects for it, and no others."""

    def __init__(self, base: Bucket, reader: Reader, layer: int) -> None:
        super().__init__(base.rows, base.heads, base.keys, base.values, base.length, base.groups)
        self.reader, self.layer = reader, layer
        self.read = torch.zeros(1, dtype=torch.long, device=self.keys.device)
        self.held = torch.zeros(1, dtype=torch.long, device=self.keys.device)

    def attend(self, query: Tensor, scaling: float, window: int | None, expand: Expand | None) -> Tensor:
        if query.shape[3] > 1:  # a question is prefilled: all of the past is read
            return super().attend(query, scaling, window, expand)
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        selected = self.reader.reads(query[0, :, :, 0], keys[0], self.layer)
        self.read += selected.sum()
        self.held += selected.numel()
        out = scaled_dot_product_attention(
            query[:, :, :, 0], keys, values, attn_mask=selected[None, :, None], scale=scaling
        )
        return out[:, :, :, None]

    def facts(self) -> dict[str, Tensor]:
        return {"tokens_read": self.read, "tokens_readable": self.held}
