"""The joint cache: many strategies of one sample decode as one batch, each row on its own store.

Rows whose stores have one length in a layer form a *bucket* and are read by one attention call without a mask; within a
bucket, rows of one number format form a *group* and are packed together. What a quantized row computes on is a dense copy
of its store, refreshed only where the store says it changed: scratch, counted apart from storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from harness.engines.hf.prefill import Prefilled
from harness.engines.hf.rope import UnrotatedStore
from strategies.base import Format, Stack, Store


@dataclass
class Group:
    """Rows ``start:stop`` of a bucket and their packed store; None where the working copy itself is the store."""

    start: int
    stop: int
    store: Store | None


class Bucket:
    """Rows of one length in one layer. ``keys`` and ``values`` are ``[R, H, capacity, d]``, filled up to ``length``."""

    def __init__(self, rows: Tensor, keys: Tensor, values: Tensor, length: int, groups: list[Group]) -> None:
        self.rows = rows  # which rows of the batch, [R]
        self.keys, self.values = keys, values
        self.length = length
        self.groups = groups

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens ``[B, H, m, d]`` of the batch, and let each format change what reads back."""
        keys, values = keys[self.rows], values[self.rows]
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        for group in self.groups:
            if group.store:
                rows = slice(group.start, group.stop)
                for dense, patches in zip(
                    (self.keys, self.values), group.store.append(keys[rows], values[rows]), strict=True
                ):
                    for patch in patches:
                        dense[rows, :, patch.start : patch.start + patch.dense.shape[2]] = patch.dense
        self.length = end

    def attend(self, query: Tensor, scaling: float, window: int | None) -> Tensor:
        """Attention of the newest m queries ``[R, H * G, m, d]`` over this bucket; causal among themselves."""
        rows, query_heads, new, dim = query.shape
        heads = self.keys.shape[1]
        first = 0 if window is None else max(0, self.length - window - new + 1)
        keys, values = self.keys[:, :, first : self.length], self.values[:, :, first : self.length]
        # query heads that share a key/value head become more queries of that head: no key is copied
        folded = query.reshape(rows, heads, query_heads // heads * new, dim)
        mask = None if new == 1 else self._mask(new, self.length - first, window, query.device, query_heads // heads)
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        return out.reshape(rows, query_heads, new, values.shape[-1])

    def _mask(self, new: int, held: int, window: int | None, device: torch.device, repeats: int) -> Tensor:
        """True where query i (the newest is last) may look: not ahead, not further back than the window."""
        distance = torch.arange(held - new, held, device=device)[:, None] - torch.arange(held, device=device)
        allowed = distance >= 0
        if window is not None:
            allowed &= distance < window
        return allowed.repeat(repeats, 1)

    def select(self, keep: Tensor, renumbered: Tensor) -> None:
        """Drop rows. ``keep`` says which of this bucket's rows stay; ``renumbered`` maps old batch rows to new."""
        self.rows = renumbered[self.rows[keep]]
        self.keys, self.values = self.keys[keep], self.values[keep]
        survivors, start = [], 0
        for group in self.groups:
            local = keep[(keep >= group.start) & (keep < group.stop)] - group.start
            if len(local):
                if group.store:
                    group.store.select(local)
                survivors.append(Group(start, start + len(local), group.store))
                start += len(local)
        self.groups = survivors


class JointLayer(CacheLayerMixin):
    """One attention layer of the joint cache; what transformers' model code talks to."""

    is_sliding = False

    def __init__(self, buckets: list[Bucket], tokens: int, window: int | None) -> None:
        super().__init__()
        self.buckets = buckets
        self.tokens = tokens  # seen, not held
        self.window = window
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: a joint layer is born filled."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kw: object) -> tuple[Tensor, Tensor]:
        """Append to every row's store. The attention function reads the buckets itself, so nothing dense is returned."""
        for bucket in self.buckets:
            bucket.append(key_states, value_states)
        self.tokens += key_states.shape[2]
        return key_states, value_states

    def attend(self, query: Tensor, scaling: float) -> Tensor:
        """``[B, H * G, m, d]`` queries to ``[B, m, H * G, d]`` outputs."""
        if len(self.buckets) == 1:  # its rows are the batch, in some order
            bucket = self.buckets[0]
            out = bucket.attend(query[bucket.rows], scaling, self.window)
            return out[bucket.rows.argsort()].transpose(1, 2)
        out = query.new_empty(*query.shape[:3], self.buckets[0].values.shape[-1])
        for bucket in self.buckets:
            out[bucket.rows] = bucket.attend(query[bucket.rows], scaling, self.window)
        return out.transpose(1, 2)

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + query_length, 0


class JointCache(Cache):
    """The caches of all rows of a batch."""

    layers: list[JointLayer]

    def select(self, keep: list[int], rows: int) -> None:
        """Keep only these of ``rows`` batch rows; they are renumbered in the order given."""
        kept = torch.tensor(keep)
        renumbered = torch.full((rows,), -1)
        renumbered[kept] = torch.arange(len(keep))
        for layer in self.layers:
            survivors = []
            for bucket in layer.buckets:
                device = bucket.keys.device
                local = (renumbered.to(device)[bucket.rows] >= 0).nonzero().squeeze(1)
                if len(local) < len(bucket.rows):
                    if not len(local):
                        continue
                    bucket.select(local, renumbered.to(device))
                else:
                    bucket.rows = renumbered.to(device)[bucket.rows]
                survivors.append(bucket)
            layer.buckets = survivors

    def join(self, other: JointCache, mine: list[int], theirs: list[int]) -> None:
        """Take in the rows of ``other``, a cache of as many tokens; both sides' rows get the numbers given."""
        for layer, more in zip(self.layers, other.layers, strict=True):
            for buckets, numbers in ((layer.buckets, mine), (more.buckets, theirs)):
                for bucket in buckets:
                    bucket.rows = torch.tensor(numbers, device=bucket.rows.device)[bucket.rows]
            layer.buckets += more.buckets

    def stored_bytes(self, rows: int) -> list[int]:
        """Bytes that each row's stores hold now, over all layers: of packed tensors, or of exact tokens held."""
        totals = [0] * rows
        for layer in self.layers:
            for bucket in layer.buckets:
                for group in bucket.groups:
                    size = group.stop - group.start
                    if group.store:
                        each = group.store.nbytes() // size
                    else:
                        held = (bucket.keys[0, :, : bucket.length], bucket.values[0, :, : bucket.length])
                        each = sum(t.numel() * t.element_size() for t in held)
                    for row in bucket.rows[group.start : group.stop].tolist():
                        totals[row] += each
        return totals

    def working_bytes(self, rows: int) -> list[int]:
        """Bytes of dense working copies by row, where they are not the store itself."""
        totals = [0] * rows
        for layer in self.layers:
            for bucket in layer.buckets:
                each = (bucket.keys.nbytes + bucket.values.nbytes) // len(bucket.rows)
                for group in bucket.groups:
                    if group.store:
                        for row in bucket.rows[group.start : group.stop].tolist():
                            totals[row] += each
        return totals

    def facts(self, rows: int) -> list[dict[str, float]]:
        """What each row's number format reports about itself, summed over layers."""
        totals: list[dict[str, float]] = [{} for _ in range(rows)]
        for layer in self.layers:
            for bucket in layer.buckets:
                for group in bucket.groups:
                    if group.store:
                        members = bucket.rows[group.start : group.stop].tolist()
                        for key, by_row in group.store.facts().items():
                            for row, value in zip(members, by_row.tolist(), strict=True):
                                totals[row][key] = totals[row].get(key, 0.0) + float(value)
        return totals


@torch.inference_mode()
def build(prompt: Prefilled, stacks: Sequence[Stack], new_tokens: int) -> JointCache:
    """Compress the prompt for every stack; row i of the cache is ``stacks[i]``, with room for ``new_tokens`` more."""
    formats = [stack.formats(len(prompt.layers)) for stack in stacks]
    layers = []
    for index, window in enumerate(prompt.windows):
        buckets = _buckets(prompt, index, stacks, [mine[index] for mine in formats], new_tokens)
        layers.append(JointLayer(buckets, prompt.tokens, window))
    return JointCache(layers=layers)


def _buckets(
    prompt: Prefilled, index: int, stacks: Sequence[Stack], formats: Sequence[Format | None], new_tokens: int
) -> list[Bucket]:
    layer, window = prompt.layers[index], prompt.windows[index]
    heads, held, dim = layer.keys.shape
    orders: dict[object, Tensor] = {}  # one ranking serves a policy's whole budget ladder

    def kept(stack: Stack) -> Tensor | None:
        """Indices ``[H, m]`` of the tokens that this stack keeps, in prompt order; None for all."""
        budget = stack.kept(prompt.tokens, window)
        if stack.evict is None or window is not None or budget >= held:
            return None
        if stack.evict.ranking not in orders:
            orders[stack.evict.ranking] = stack.evict.order(layer)
        return orders[stack.evict.ranking][:, :budget].sort(dim=-1).values

    def positions(row: int) -> Tensor:
        """Positions ``[H, m]`` of the tokens that a row keeps."""
        everything, chosen = prompt.positions(index), kept(stacks[row])
        return everything.expand(heads, -1) if chosen is None else everything[chosen]

    def length(row: int) -> int:
        return min(held, stacks[row].kept(prompt.tokens, window))

    # rows by (length, format): buckets and, inside them, groups become runs of neighbours
    ranked = sorted(range(len(stacks)), key=lambda row: (length(row), formats.index(formats[row])))
    buckets = []
    for tokens, members in groupby(ranked, key=length):
        rows = list(members)
        keys = layer.keys.new_empty(len(rows), heads, tokens + new_tokens, dim)
        values = layer.values.new_empty(len(rows), heads, tokens + new_tokens, layer.values.shape[-1])
        for slot, row in enumerate(rows):
            chosen = kept(stacks[row])
            for source, dense in ((layer.keys, keys), (layer.values, values)):
                if chosen is None:
                    dense[slot, :, :tokens] = source
                else:
                    dense[slot, :, :tokens] = source.gather(1, chosen[..., None].expand(-1, -1, source.shape[-1]))
        groups = []
        for format, same in groupby(range(len(rows)), key=lambda slot: formats[rows[slot]]):
            slots = list(same)
            start, stop = slots[0], slots[-1] + 1
            store = None
            if format:
                packed = keys[start:stop, :, :tokens], values[start:stop, :, :tokens]
                rope = prompt.ropes[index] if format.unrotated else None
                if rope:
                    where = torch.stack([positions(rows[slot]) for slot in slots])
                    store = UnrotatedStore(format, rope, *packed, where, prompt.tokens)
                else:
                    store = format.store(*packed)
                keys[start:stop, :, :tokens], values[start:stop, :, :tokens] = store.read()
            groups.append(Group(start, stop, store))
        buckets.append(Bucket(torch.tensor(rows, device=keys.device), keys, values, tokens, groups))
    return buckets
