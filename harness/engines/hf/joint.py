"""The joint cache: many strategies, of one sample or of several, decode as one batch, each row on its own store.

What has one length in a layer forms a *bucket* and is read by one attention call without a mask: whole rows, or single heads
of rows whose heads keep different numbers of tokens. Within a bucket, what has one number format forms a *group* and is packed
together. What a quantized row computes on is a dense copy of its store, refreshed only where the store says it changed:
scratch, counted apart from storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from harness.engines.hf import states
from harness.engines.hf.trail import Trail, Watch
from strategies.base import Store

# what is cached of some tokens, ``[R, 1, n, r]`` and ``[R, 1, n, p]``, to keys and values ``[R, H, n, d]``: the model's own
Expand = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
T = TypeVar("T")


@dataclass
class Group:
    """Slots ``start:stop`` of a bucket and their packed store; None where the working copy itself is the store."""

    start: int
    stop: int
    store: Store | None


class Bucket:
    """What has one length in one layer. ``keys`` and ``values`` are ``[R, h, capacity, d]``, filled up to ``length``.

    ``rows`` ``[R]`` says which rows of the batch these are; ``heads`` ``[R]`` which head of each (then h is 1), None for all.
    ``moved`` is by how much positions lag behind the tokens seen, where that changes while decoding.
    """

    moved: int | None = None

    def __init__(
        self, rows: Tensor, heads: Tensor | None, keys: Tensor, values: Tensor, length: int, groups: list[Group]
    ) -> None:
        self.rows = rows
        self.heads = heads
        self.keys, self.values = keys, values
        self.length = length
        self.groups = groups

    @property
    def rows(self) -> Tensor:
        return self._rows

    @rows.setter
    def rows(self, rows: Tensor) -> None:
        self._rows = rows
        self._in_order = rows.tolist() == list(range(len(rows)))  # asked here, since a decode step must not wait for it

    def whole(self, batch: int) -> bool:
        """Whether this bucket is a batch of so many rows as it is: nothing then needs to be picked out of it or put back."""
        return self.heads is None and self._in_order and len(self._rows) == batch

    def own(self, x: Tensor) -> Tensor:
        """This bucket's part ``[R, h, ...]`` of a tensor ``[B, H, ...]``."""
        if self.whole(len(x)):
            return x
        return x[self.rows] if self.heads is None else x[self.rows, self.heads][:, None]

    def put(self, out: Tensor, part: Tensor) -> None:
        """Write a part ``[R, h, ...]`` where it belongs in ``[B, H, ...]``."""
        if self.heads is None:
            out[self.rows] = part
        else:
            out[self.rows, self.heads] = part[:, 0]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens ``[B, H, m, d]`` of the batch, and let each format change what reads back."""
        keys, values = self.own(keys), self.own(values)
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        for group in self.groups:
            if group.store:
                slots = slice(group.start, group.stop)
                for dense, patches in zip(
                    (self.keys, self.values), group.store.append(keys[slots], values[slots]), strict=True
                ):
                    for patch in patches:
                        dense[slots, :, patch.start : patch.start + patch.dense.shape[2]] = patch.dense
        self.length = end

    def dense(self, slots: slice, first: int, expand: Expand | None) -> tuple[Tensor, Tensor]:
        """Keys and values ``[r, h, n, d]`` of some slots from token ``first`` on; expanded if a latent is cached."""
        keys, values = (x[slots, :, first : self.length] for x in (self.keys, self.values))
        return expand(keys, values) if expand else (keys, values)

    def attend(self, query: Tensor, scaling: float, window: int | None, expand: Expand | None) -> Tensor:
        """Attention ``[R, h, G, m, d]`` of the newest m queries over this bucket; causal among themselves."""
        rows, heads, repeats, new, dim = query.shape
        first = 0 if window is None else max(0, self.length - window - new + 1)
        keys, values = self.dense(slice(None), first, expand)
        # query heads that share a key/value head become more queries of that head: no key is copied
        folded = query.reshape(rows, heads, repeats * new, dim)
        mask = None if new == 1 else self._mask(new, self.length - first, window, query.device, repeats)
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        return out.reshape(rows, heads, repeats, new, values.shape[-1])

    def _mask(self, new: int, held: int, window: int | None, device: torch.device, repeats: int) -> Tensor:
        """True where query i (the newest is last) may look: not ahead, not further back than the window."""
        distance = torch.arange(held - new, held, device=device)[:, None] - torch.arange(held, device=device)
        allowed = distance >= 0
        if window is not None:
            allowed &= distance < window
        return allowed.repeat(repeats, 1)

    def select(self, keep: Tensor, renumbered: Tensor) -> None:
        """Drop slots. ``keep`` says which of them stay; ``renumbered`` maps old batch rows to new."""
        self.rows = renumbered[self.rows[keep]]
        self.heads = None if self.heads is None else self.heads[keep]
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

    def leave(self) -> list[Tensor]:
        """Give up what is stored and the dense copy of it; ``come_back`` with the same tensors undoes it."""
        gone: list[Tensor] = []

        def take(held: Tensor) -> Tensor:
            gone.append(held)
            return held.to("meta")

        for group in self.groups:
            if group.store:
                group.store.swap(take)
            else:
                slots = slice(group.start, group.stop)
                gone += [x[slots, :, : self.length].contiguous() for x in (self.keys, self.values)]
        self.keys, self.values = self.keys.to("meta"), self.values.to("meta")
        return gone

    def come_back(self, tensors: Iterator[Tensor]) -> None:
        """Take in what ``leave`` gave."""
        device = self.rows.device
        back = (tensor.to(device) for tensor in tensors)
        self.keys, self.values = (torch.empty_like(x, device=device) for x in (self.keys, self.values))
        for group in self.groups:
            if group.store:
                group.store.swap(lambda _: next(back))
            slots = slice(group.start, group.stop)
            keys, values = group.store.read() if group.store else (next(back), next(back))
            self.keys[slots, :, : self.length], self.values[slots, :, : self.length] = keys, values

    def facts(self) -> dict[str, Tensor]:
        """Numbers that this bucket has to tell beside those of its stores, each ``[R]``."""
        return {}


class JointLayer(CacheLayerMixin):
    """One attention layer of the joint cache; what transformers' model code talks to."""

    is_sliding = False

    def __init__(self, buckets: list[Bucket], tokens: int, window: int | None, heads: int) -> None:
        super().__init__()
        self.buckets = buckets
        self.tokens = tokens  # seen, not held, by the row that has seen most
        self.window = window
        self.heads = heads
        self.watches: dict[int, Watch] = {}  # by row whose attention is noted
        self.trails: dict[int, Trail] = {}  # by row that drops tokens
        self.arrivals: dict[int, Callable[[], None]] = {}  # by row whose tokens are away: brings them back
        self._watched: list[tuple[Watch, int, Bucket, int]] = []  # with the row, and where it is
        self.is_initialized = True

    def watching(self, watches: dict[int, Watch]) -> None:
        """These rows of the batch are watched from here on."""
        self.watches, self._watched = watches, []
        for bucket in self.buckets if watches else ():
            if bucket.heads is None:
                for slot, row in enumerate(bucket.rows.tolist()):
                    if row in watches:
                        self._watched.append((watches[row], row, bucket, slot))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: a joint layer is born filled."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kw: object) -> tuple[Tensor, Tensor]:
        """Append to every row's store. The attention function reads the buckets itself, so nothing dense is returned."""
        while self.arrivals:
            self.arrivals.popitem()[1]()
        for bucket in self.buckets:
            bucket.append(key_states, value_states)
        self.tokens += key_states.shape[2]
        return key_states, value_states

    def attend(self, query: Tensor, scaling: float, expand: Expand | None = None) -> Tensor:
        """``[B, H * G, m, d]`` queries to ``[B, m, H * G, d]`` outputs.

        With ``expand`` a latent is cached: every query head then has keys and values of its own, made anew at each step and
        for one bucket at a time.
        """
        grouped = query.unflatten(1, (query.shape[1] if expand else self.heads, -1))
        for watch, row, bucket, slot in self._watched:
            keys, _ = bucket.dense(slice(slot, slot + 1), 0, expand)
            watch.saw(query[row], keys[0], scaling)
        if len(self.buckets) == 1 and self.buckets[0].heads is None:  # its rows are the batch, in some order
            bucket = self.buckets[0]
            out = bucket.attend(bucket.own(grouped), scaling, self.window, expand)
            out = out if bucket.whole(len(out)) else out[bucket.rows.argsort()]
        else:
            parts = [bucket.attend(bucket.own(grouped), scaling, self.window, expand) for bucket in self.buckets]
            out = query.new_empty(*grouped.shape[:4], parts[0].shape[-1])
            for bucket, part in zip(self.buckets, parts, strict=True):
                bucket.put(out, part)
        return out.flatten(1, 2).transpose(1, 2)

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + query_length, 0


class JointCache(Cache):
    """The caches of all rows of a batch. ``layers`` are the model's: joint ones, and linear-attention ones of the library's.

    ``offsets`` ``[B]`` is by how much each row's positions lag behind the tokens it has seen, after its keys moved together.
    ``counts`` holds, by row and layer, the tokens that each head kept of the prompt.
    """

    layers: list[JointLayer | LinearAttentionLayer]

    def __init__(
        self, layers: list[JointLayer | LinearAttentionLayer], offsets: Tensor, counts: list[list[tuple[int, ...]]]
    ) -> None:
        super().__init__(layers=layers)
        self.offsets = offsets
        self.counts = counts

    @property
    def joint(self) -> list[JointLayer]:
        """The layers that cache tokens."""
        return [layer for layer in self.layers if isinstance(layer, JointLayer)]

    @property
    def linear(self) -> list[LinearAttentionLayer]:
        """The layers that keep a state."""
        return [layer for layer in self.layers if isinstance(layer, LinearAttentionLayer)]

    def select(self, keep: list[int], rows: int) -> None:
        """Keep only these of ``rows`` batch rows; they are renumbered in the order given."""
        kept = torch.tensor(keep)
        renumbered = torch.full((rows,), -1)
        renumbered[kept] = torch.arange(len(keep))
        places = {row: place for place, row in enumerate(keep)}
        self.counts = [self.counts[row] for row in keep]
        self.offsets = self.offsets[kept.to(self.offsets.device)]
        for state in self.linear:
            state.reorder_cache(kept)
        for layer in self.joint:
            survivors = []
            for bucket in layer.buckets:
                device = bucket.rows.device
                local = (renumbered.to(device)[bucket.rows] >= 0).nonzero().squeeze(1)
                if len(local) < len(bucket.rows):
                    if not len(local):
                        continue
                    bucket.select(local, renumbered.to(device))
                else:
                    bucket.rows = renumbered.to(device)[bucket.rows]
                survivors.append(bucket)
            layer.buckets = survivors
            layer.trails = _moved(layer.trails, places)
            layer.arrivals = _moved(layer.arrivals, places)
            layer.watching(_moved(layer.watches, places))

    def join(self, other: JointCache, mine: list[int], theirs: list[int]) -> None:
        """Take in the rows of ``other``, whatever they have seen; both sides' rows get the numbers given."""
        here, there = dict(enumerate(mine)), dict(enumerate(theirs))
        offsets = self.offsets.new_zeros(len(mine) + len(theirs))
        offsets[mine], offsets[theirs] = self.offsets, other.offsets
        counts = dict(zip((*mine, *theirs), (*self.counts, *other.counts), strict=True))
        self.offsets, self.counts = offsets, [counts[row] for row in sorted(counts)]
        for state, other_state in zip(self.linear, other.linear, strict=True):
            states.join(state, other_state, mine, theirs)
        for layer, more in zip(self.joint, other.joint, strict=True):
            for buckets, numbers in ((layer.buckets, mine), (more.buckets, theirs)):
                for bucket in buckets:
                    bucket.rows = torch.tensor(numbers, device=bucket.rows.device)[bucket.rows]
            layer.buckets += more.buckets
            layer.tokens = max(layer.tokens, more.tokens)
            layer.trails = _moved(layer.trails, here) | _moved(more.trails, there)
            layer.arrivals = _moved(layer.arrivals, here) | _moved(more.arrivals, there)
            layer.watching(_moved(layer.watches, here) | _moved(more.watches, there))

    def bring_back(self, row: int) -> None:
        """A row that has finished before its tokens were needed gets them back all the same, whoever decodes beside it."""
        for layer in self.joint:
            if row in layer.arrivals:
                layer.arrivals.pop(row)()

    def stop_watching(self, running: list[bool]) -> None:
        """A watched row that has finished may stay in the batch for a while; what it is fed there does not count."""
        for layer in self.joint:
            if not all(running[row] for row in layer.watches):
                layer.watching({row: watch for row, watch in layer.watches.items() if running[row]})

    def settle(self) -> None:
        """After a step: rows whose keys have moved together lag behind by more."""
        for layer in self.joint:
            if layer.window is None:
                for bucket in layer.buckets:
                    if bucket.moved is not None:
                        self.offsets[bucket.rows] = bucket.moved
                return

    def stored_bytes(self, rows: int) -> list[int]:
        """Bytes that each row's stores hold now, over all layers: of packed tensors, or of exact tokens held."""
        totals = [0] * rows
        for layer in self.joint:
            for bucket in layer.buckets:
                for group in bucket.groups:
                    if group.store:
                        each = group.store.nbytes() // (group.stop - group.start)
                    else:
                        held = (bucket.keys[0, :, : bucket.length], bucket.values[0, :, : bucket.length])
                        each = sum(t.numel() * t.element_size() for t in held)
                    for row in bucket.rows[group.start : group.stop].tolist():
                        totals[row] += each
        return totals

    def working_bytes(self, rows: int) -> list[int]:
        """Bytes of dense working copies by row, where they are not the store itself."""
        totals = [0] * rows
        for layer in self.joint:
            for bucket in layer.buckets:
                each = (bucket.keys.nbytes + bucket.values.nbytes) // len(bucket.rows)
                for group in bucket.groups:
                    if group.store:
                        for row in bucket.rows[group.start : group.stop].tolist():
                            totals[row] += each
        return totals

    def facts(self, rows: int) -> list[dict[str, float]]:
        """What each row's formats and evictions report about themselves, over all layers."""
        totals: list[dict[str, float]] = [{} for _ in range(rows)]

        def add(row: int, key: str, value: float) -> None:
            totals[row][key] = totals[row].get(key, 0.0) + value

        for layer in self.joint:
            for bucket in layer.buckets:
                told = [(slice(g.start, g.stop), g.store.facts()) for g in bucket.groups if g.store]
                for slots, facts in [*told, (slice(None), bucket.facts())]:
                    for key, by_row in facts.items():
                        for row, value in zip(bucket.rows[slots].tolist(), by_row.tolist(), strict=True):
                            add(row, key, float(value))
            for row, trail in layer.trails.items():
                if trail.watch.queries:
                    for key, value in zip(("_lost", "_paid", "missed_tokens"), trail.lost(), strict=True):
                        add(row, key, float(value))
        for facts in totals:
            if layers := facts.pop("_evicting_layers", 0.0):
                facts["tokens_held_end"] /= layers
            if paid := facts.pop("_paid", 0.0):
                facts["attention_kept"] = 1 - facts.pop("_lost") / paid
        return totals


def _moved(by_row: dict[int, T], places: dict[int, int]) -> dict[int, T]:
    """What belongs to rows, under their new numbers; without the rows that have none."""
    return {places[row]: what for row, what in by_row.items() if row in places}
