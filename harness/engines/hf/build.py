"""From one exact prefill to the joint cache: every strategy ranks, keeps and packs its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from harness.engines.hf import states
from harness.engines.hf.joint import Bucket, Group, JointCache, JointLayer
from harness.engines.hf.live import EvictingBucket, ReadingBucket
from harness.engines.hf.prefill import Prefilled
from harness.engines.hf.rope import Rope, UnrotatedStore
from harness.engines.hf.trail import Trail, Watch
from harness.types import Unsupported
from strategies.base import Evict, Format, LayerView, SharedFormat, Store
from strategies.stack import Stack


@dataclass(frozen=True)
class Slot:
    """What becomes one slot of a bucket: a row, or one head of it, with the tokens it keeps."""

    row: int
    head: int | None
    chosen: tuple[Tensor, ...] | None  # by head, indices into what the layer holds; None for all
    length: int
    source: LayerView  # where keys and values are taken from

    @property
    def alone(self) -> bool:
        return self.head is not None

    def gather(self) -> tuple[Tensor, Tensor]:
        """Keys and values ``[h, m, d]``."""
        keys, values = self.source.keys, self.source.values
        if self.head is not None:
            keys, values = keys[self.head, None], values[self.head, None]
        if self.chosen is None:
            return keys, values
        index = torch.stack(self.chosen)[..., None]
        return tuple(x.gather(1, index.expand(-1, -1, x.shape[-1])) for x in (keys, values))  # type: ignore[return-value]


class LayerBuilder:
    """Builds one attention layer of the joint cache."""

    def __init__(
        self, prompt: Prefilled, index: int, stacks: Sequence[Stack], formats: Sequence[Format | None], new_tokens: int
    ) -> None:
        self.prompt, self.index, self.stacks, self.formats = prompt, index, stacks, formats
        self.new_tokens = new_tokens
        self.layer, self.window = prompt.layers[index], prompt.windows[index]
        self.whole = prompt.whole or prompt  # what policies look at
        self.heads, self.held, _ = self.layer.keys.shape
        self._importance: dict[object, Tensor] = {}  # one ranking serves a policy's whole budget ladder
        self._stored: dict[Format, LayerView] = {}

    def build(
        self, watch: int | Watch | None, shared: dict[tuple[int, int], Store]
    ) -> tuple[JointLayer, list[tuple[int, ...]]]:
        """The layer, and by row how many prompt tokens each head keeps.

        ``watch`` is the row whose attention tells what evictions cost, or who watches that row in another cache.
        ``shared`` carries stores of layers that hold their tokens together from the first of two to the second.
        """
        by_row = [self._slots(row) for row in range(len(self.stacks))]
        slots = [slot for mine in by_row for slot in mine]
        slots.sort(key=lambda slot: (*self._bucket_of(slot), self.formats.index(self.formats[slot.row])))
        buckets = [self._bucket(list(same), shared) for _, same in groupby(slots, key=self._bucket_of)]
        layer = JointLayer(buckets, self.prompt.tokens, self.window, self.heads)
        if watch is not None and self.window is None:
            capacity = self.prompt.tokens + self.new_tokens
            watcher = Watch(self.heads, capacity, self.layer.keys.device) if isinstance(watch, int) else watch
            self._follow_losses(layer, slots, watcher)
        layer.buckets = [self._alive(bucket, layer, by_row) for bucket in buckets]
        if isinstance(watch, int) and self.window is None:
            layer.watching({watch: watcher})
        counts = [tuple(slot.length for slot in mine) for mine in by_row]
        return layer, [mine if len(mine) == self.heads else mine * self.heads for mine in counts]

    # --- what each row keeps ---

    def _slots(self, row: int) -> list[Slot]:
        stack = self.stacks[row]
        policy = stack.evict.phases()[0] if stack.evict else None
        if policy is None or self.window is not None or not self.held:
            return [Slot(row, None, None, self.held, self.layer)]
        view = self.whole.layers[self.index]
        if policy.score_on == "stored":
            format = self.formats[row]
            view = self._read_back(view, format.numbers if format else None)
        source = view._replace(keys=view.keys[:, : self.held], values=view.values[:, : self.held])
        budget = policy.layer_budget(self.prompt.tokens, self.index, len(self.prompt.layers))
        if budget >= self.held:
            return [Slot(row, None, None, self.held, source)]
        chosen = policy.chosen(self._ranked(policy, view)[:, : self.held], budget)
        if len({len(head) for head in chosen}) == 1:
            return [Slot(row, None, chosen, budget, source)]
        return [Slot(row, head, (kept,), len(kept), source) for head, kept in enumerate(chosen)]

    def _ranked(self, policy: Evict, view: LayerView) -> Tensor:
        key = (policy.ranking, id(view))
        if key not in self._importance:
            if "future" in policy.needs:
                view = view._replace(future=self.prompt.futures[policy.future_steps][self.index])
            self._importance[key] = policy.importance(view)
        return self._importance[key]

    def _read_back(self, view: LayerView, format: Format | None) -> LayerView:
        """The layer as ``format`` reads it back."""
        if format is None:
            return view
        if format not in self._stored:
            everything = self.whole.positions(self.index).expand(1, self.heads, -1)
            store = self._store(format, view.keys[None], view.values[None], everything, self.whole.tokens)
            keys, values = store.read()
            self._stored[format] = view._replace(keys=keys[0], values=values[0])
        return self._stored[format]

    def _positions(self, slot: Slot) -> Tensor:
        """Original positions ``[h, m]`` of the tokens that a slot keeps."""
        everything = self.prompt.positions(self.index)
        if slot.chosen is None:
            return everything.expand(1 if slot.alone else self.heads, -1)
        return everything[torch.stack(slot.chosen)]

    # --- buckets ---

    def _bucket_of(self, slot: Slot) -> tuple[int, int, bool]:
        """Slots with one key share a bucket; a row that chooses anew while decoding, or goes away, has its own."""
        evict, offload = self.stacks[slot.row].evict, self.stacks[slot.row].offload
        chooses = self.window is None and evict is not None and (evict.selects_reads or evict.phases()[1] is not None)
        return slot.row if chooses or offload else -1, slot.length, slot.alone

    def _bucket(self, slots: list[Slot], shared: dict[tuple[int, int], Store]) -> Bucket:
        length, device = slots[0].length, self.layer.keys.device
        heads = 1 if slots[0].alone else self.heads
        keys, values = (
            x.new_empty(len(slots), heads, length + self.new_tokens, x.shape[-1])
            for x in (self.layer.keys, self.layer.values)
        )
        for at, slot in enumerate(slots):
            keys[at, :, :length], values[at, :, :length] = slot.gather()
            if self._rerotates(slot):
                moved = self._rope().together(keys[at : at + 1, :, :length], self._positions(slot)[None])
                keys[at : at + 1, :, :length] = moved
        groups = []
        for format, same in groupby(range(len(slots)), key=lambda at: self.formats[slots[at].row]):
            places = list(same)
            part = slice(places[0], places[-1] + 1)
            store = self._packed(format, slots[part], keys[part, :, :length], values[part, :, :length], shared)
            if store:
                keys[part, :, :length], values[part, :, :length] = store.read()
            groups.append(Group(part.start, part.stop, store))
        rows = torch.tensor([slot.row for slot in slots], device=device)
        single = torch.tensor([slot.head for slot in slots], device=device) if slots[0].alone else None
        return Bucket(rows, single, keys, values, length, groups)

    def _packed(
        self,
        format: Format | None,
        slots: list[Slot],
        keys: Tensor,
        values: Tensor,
        shared: dict[tuple[int, int], Store],
    ) -> Store | None:
        if format is None:
            return None
        if isinstance(format, SharedFormat):
            here = self.index, slots[0].row
            if format.first:
                other = self.prompt.layers[format.partner]
                twins = [replace(slot, source=other).gather() for slot in slots]
                partner = torch.stack([k for k, _ in twins]), torch.stack([v for _, v in twins])
                mine, shared[format.partner, slots[0].row] = format.stores((keys, values), partner)
                return mine
            return shared.pop(here)
        if slots[0].alone:
            format = format.of_heads(torch.tensor([slot.head for slot in slots], device=keys.device))
        positions = torch.stack([self._positions(slot) for slot in slots])
        return self._store(format, keys, values, positions, self.prompt.tokens)

    def _store(self, format: Format, keys: Tensor, values: Tensor, positions: Tensor, seen: int) -> Store:
        rope = self.prompt.ropes[self.index] if format.unrotated else None
        return UnrotatedStore(format, rope, keys, values, positions, seen) if rope else format.store(keys, values)

    # --- keys that move together ---

    def _rerotates(self, slot: Slot) -> bool:
        evict = self.stacks[slot.row].evict
        return evict is not None and evict.rerotate and slot.chosen is not None

    def _rope(self) -> Rope:
        rope = self.prompt.ropes[self.index]
        if rope is None:
            raise Unsupported(
                "strategy.evict.rerotate needs a model whose rotary positions are known, and this one's are not"
            )
        return rope

    # --- rows that choose anew ---

    def _alive(self, bucket: Bucket, layer: JointLayer, by_row: Sequence[list[Slot]]) -> Bucket:
        row = int(bucket.rows[0])
        stack = self.stacks[row]
        if self.window is not None or stack.evict is None:
            return bucket
        if stack.evict.selects_reads:
            return ReadingBucket(bucket, stack.evict, self.index)  # type: ignore[arg-type]
        policy = stack.evict.phases()[1]
        if policy is None:
            return bucket
        positions = self._positions(by_row[row][0])  # heads of such a row keep equally many tokens: one slot
        mass = None if self.layer.mass is None else self.layer.mass.gather(1, positions)
        view = self.layer._replace(positions=positions, mass=mass)
        if self.prompt.whole:  # the queries and instructions of a question that is not in the cache are nobody's
            spans = None if view.spans is None else view.spans[: self.held]
            view = view._replace(window_queries=None, spans=spans)
        if policy.rerotate:
            self._rope()  # or say at once that there is none
        format = self.formats[row]
        make = None if format is None else partial(self._store, format)
        return EvictingBucket(bucket, policy, view, self.prompt.tokens, make, layer.trails.get(row))

    def _follow_losses(self, layer: JointLayer, slots: list[Slot], watch: Watch) -> None:
        for slot in slots:
            evict = self.stacks[slot.row].evict
            if evict is None or evict.selects_reads:
                continue
            trail = layer.trails.setdefault(slot.row, Trail(watch, self.layer.keys.device))
            if slot.chosen is not None:
                for head, kept in zip(
                    range(self.heads) if slot.head is None else [slot.head], slot.chosen, strict=True
                ):
                    trail.gone[head, : self.prompt.tokens] = True
                    trail.gone[head, kept] = False


@torch.inference_mode()
def build(
    prompt: Prefilled,
    stacks: Sequence[Stack],
    new_tokens: int,
    *,
    watch: int | None = None,
    beside: JointCache | None = None,
) -> JointCache:
    """Compress the prompt for every stack; row i of the cache is ``stacks[i]``, with room for ``new_tokens`` more.

    ``watch`` is a row that holds every token, whose attention tells what the others' evictions cost. Where the rows are to join
    another cache, ``beside``, it is that cache's.
    """
    formats = [stack.formats(len(prompt.layers)) for stack in stacks]
    layers, by_layer = [], []
    shared: dict[tuple[int, int], Store] = {}
    for index in range(len(prompt.layers)):
        mine = [format[index] for format in formats]
        watching = next(iter(beside.joint[index].watches.values()), None) if beside else watch
        layer, counts = LayerBuilder(prompt, index, stacks, mine, new_tokens).build(watching, shared)
        layers.append(layer)
        by_layer.append(counts)
    counts = [[layer[row] for layer in by_layer] for row in range(len(stacks))]
    offsets = torch.zeros(len(stacks), dtype=torch.long, device=prompt.logits.device)
    for row, stack in enumerate(stacks):
        if stack.evict and stack.evict.rerotate:
            offsets[row] = prompt.tokens - counts[row][0][0]
    joint = dict(zip(prompt.places, layers, strict=True))
    everything = [
        joint[place] if place in joint else states.repeated(layer, len(stacks))
        for place, layer in enumerate(prompt.cache.layers)
    ]
    return JointCache(everything, offsets, counts)
