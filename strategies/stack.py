"""A strategy: layers in the slots, stacked in data-path order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from strategies.base import (
    SLOTS,
    UNMOVED,
    Calibration,
    Evict,
    Format,
    KVShape,
    Layer,
    Moved,
    Offload,
    Paging,
    Prefix,
    Quant,
    Structure,
)


@dataclass(frozen=True)
class Stack:
    """A strategy: at most one layer a slot, applied in data-path order. The empty stack is the baseline ``full``.

    A stack that calibrates must be ``fit`` before it has formats.
    """

    name: str
    structure: Structure | None = None
    evict: Evict | None = None
    quant: Quant | None = None
    paging: Paging | None = None
    prefix: Prefix | None = None
    offload: Offload | None = None
    fitted: tuple[Format | None, ...] | None = field(default=None, compare=False, repr=False)
    lesson: str = field(default="", compare=False, repr=False)  # names what it was fitted to

    def layers(self) -> tuple[Layer, ...]:
        layers = (getattr(self, slot) for slot in SLOTS)
        return tuple(layer for layer in layers if layer is not None)

    def settled(self, **choices: Mapping[str, Any]) -> Stack:
        """This stack with every option that was left open (None) as ``choices`` have it, by slot; others stay as they are."""
        layers = {slot: getattr(self, slot) for slot in choices}
        return replace(self, **{slot: layer.settled(choices[slot]) for slot, layer in layers.items() if layer})

    @property
    def policies(self) -> tuple[Evict, ...]:
        """What evicts after the prompt, and what does while decoding."""
        return tuple(policy for policy in (self.evict.phases() if self.evict else ()) if policy)

    @property
    def packs(self) -> bool:
        """Whether tokens are stored as something else than they were computed: what a chunked prefill would read."""
        return self.structure is not None or self.quant is not None

    @property
    def unrotated(self) -> bool:
        """Whether what is learnt is learnt from keys before rotary positions."""
        return self.structure is not None and self.structure.unrotated

    @property
    def calibrates(self) -> bool:
        return any(layer.calibrates for layer in self.layers())

    def spec(self) -> Mapping[str, Any]:
        """The stack without its name: two names for one stack share their cells."""
        return {layer.slot: layer.spec() for layer in self.layers()}

    def describe(self) -> str:
        """One line for people: ``evict/snapkv keep=0.25 + quant/fp8 scale=token_head``."""
        parts = []
        for layer in self.layers():
            options = " ".join(f"{key}={value}" for key, value in layer.shown())
            parts.append(f"{layer.slot}/{layer.name} {options}".strip())
        return " + ".join(parts) or "full"

    def short(self) -> str:
        """A name made of what the stack is: ``snapkv@0.25+fp8``, ``window@256tok``, ``full``."""
        return "+".join(layer.label for layer in self.layers()) or "full"

    def problems(self, shape: KVShape) -> list[str]:
        if shape.latent and (lost := [layer for layer in self.layers() if not layer.on_latents]):
            why = "works on the keys and values of heads, and this model caches a latent (MLA), which is neither"
            return [f"strategy.{layer.slot}: {layer.slot}/{layer.name} {why}" for layer in lost]
        before = (self.paging, self.prefix, self.structure, self.evict, self.offload)
        found = [problem for layer in before if layer for problem in layer.problems(shape)]
        found += self._unpaged() + self._unreusable()
        if self.structure and self.evict and not self.evict.keeps_alike:
            alike = "evict/window with spread=uniform, every=0, score_on=full and rerotate=false"
            found.append(
                f"strategy.evict must keep the same tokens in every head and layer, for good, under structure/"
                f"{self.structure.name}: {alike}; got {self.evict.name}"
            )
        if self.quant and not (self.structure and found):  # a wrong structure has no shape to speak of
            packed = self.structure.latent(shape) if self.structure else shape
            found += self.quant.problems(packed)
        return found

    def _unpaged(self) -> list[str]:
        """Layers whose tokens cannot be laid out as the paging layer wants."""
        if not (self.paging and self.paging.by_token):
            return []
        return [
            f"strategy.paging: paging/{self.paging.name} lays tokens out one by one, and {layer.slot}/{layer.name} packs "
            "several together; paging/dynamic takes them as they are"
            for layer in (self.structure, self.quant)
            if layer and not layer.by_token
        ]

    def _unreusable(self) -> list[str]:
        """What a reused prefix cannot tell, since the queries of its tokens are not computed again."""
        if not (self.prefix and self.evict):
            return []
        wanted = frozenset().union(*(policy.needs for policy in self.policies)) & {"mass", "moments"}
        told = f"evict/{self.evict.name} asks for the {' and '.join(sorted(wanted))} of all queries of a prompt"
        rule = f"and prefix/{self.prefix.name} computes no queries for tokens that it reuses"
        return [f"strategy.prefix: {told}, {rule}"] if wanted else []

    def formats(self, layers: int) -> tuple[Format | None, ...]:
        """How each attention layer holds its tokens; None where that is full precision."""
        if self.fitted is not None:
            return self.fitted
        if self.calibrates:
            raise RuntimeError(f"strategy {self.name} must see a calibration text before it has formats")
        return self._formats(layers, None)

    def fit(self, layers: int, calibration: Calibration) -> Stack:
        """This stack with what its layers learn from ``calibration``."""
        return replace(self, fitted=self._formats(layers, calibration))

    def _formats(self, layers: int, calibration: Calibration | None) -> tuple[Format | None, ...]:
        if self.structure:
            formats = self.structure.formats(layers, calibration, self._packed)
        else:
            formats = self._packed(layers, calibration)
        return tuple(map(self.paging.holding, formats)) if self.paging else formats

    def _packed(self, layers: int, calibration: Calibration | None) -> tuple[Format | None, ...]:
        """The number format of every layer, None where there is none or the layer is skipped."""
        if not self.quant:
            return (None,) * layers
        skipped = self.quant.skipped(layers)
        made = self.quant.formats(layers, calibration)
        return tuple(None if layer in skipped else made[layer] for layer in range(layers))

    def kept(self, tokens: int, shape: KVShape) -> list[tuple[int, ...]]:
        """By layer and head, the prompt tokens that are still held, as far as the prompt's length tells.

        A sliding layer holds its last ``window - 1``; heads that share a layer's budget unevenly are told their average.
        """
        after = self.evict.phases()[0] if self.evict else None

        def held(layer: int, window: int | None) -> int:
            if window is not None:
                return min(tokens, window - 1)
            return after.layer_budget(tokens, layer, shape.layers) if after else tokens

        return [(held(layer, window),) * shape.kv_heads for layer, window in enumerate(shape.windows)]

    def most_held(self, tokens: int, shape: KVShape) -> int:
        """The most that one head may hold of a prompt of ``tokens``."""
        uneven = self.evict is not None and self.evict.spread == "heads"  # then some head may keep everything
        return tokens if uneven else max(map(max, self.kept(tokens, shape)))

    def formula_bytes(self, tokens: int, shape: KVShape, counts: Sequence[tuple[int, ...]] | None = None) -> int:
        """Predicted bytes held after a prompt of ``tokens``, over all layers.

        ``counts`` are the tokens that each layer and head really kept, where the prompt's length does not tell.
        """
        total = 0
        single = replace(shape, kv_heads=1)
        for heads, format in zip(counts or self.kept(tokens, shape), self.formats(shape.layers), strict=True):
            alike = len(set(heads)) == 1
            for held in heads[:1] if alike else heads:
                part = shape if alike else single  # heads of different lengths are packed one by one
                total += format.layer_bytes(held, part) if format else part.exact_bytes(held)
        return total

    def acted(
        self,
        tokens: int,
        shape: KVShape,
        counts: Sequence[tuple[int, ...]] | None = None,
        answered: int = 0,
        hit_tokens: int = 0,
        moved: Moved = UNMOVED,
    ) -> dict[str, tuple[bool, str]]:
        """By layer: whether it acted on a prompt of ``tokens`` and an answer of ``answered``, and the condition in words.

        A layer acts if it does so in some attention layer of the model.
        """
        verdicts = {}
        counts = counts or self.kept(tokens, shape)
        if self.paging:
            held = [count for heads in counts for count in heads]
            verdicts[f"paging/{self.paging.name}"] = self.paging.acted(held)
        if self.prefix:
            verdicts[f"prefix/{self.prefix.name}"] = self.prefix.acted(hit_tokens, tokens)
        if self.structure:
            verdicts[f"structure/{self.structure.name}"] = self.structure.acted(shape)
        if self.evict:
            full = [heads for heads, window in zip(counts, shape.windows, strict=True) if window is None]
            verdicts[f"evict/{self.evict.name}"] = self.evict.acted(tokens, full, answered)
        if self.quant:
            formats = self.formats(shape.layers)
            packed, stored = max(
                (format.quantized_tokens(max(heads)) if format else 0, max(heads))
                for format, heads in zip(formats, counts, strict=True)
            )
            why = f"quantized {packed} of {stored} stored tokens{_by_layer(formats)}"
            verdicts[f"quant/{self.quant.name}"] = (packed > 0, why)
        if self.offload:
            verdicts[f"offload/{self.offload.name}"] = self.offload.acted(moved)
        return verdicts


def _by_layer(formats: tuple[Format | None, ...]) -> str:
    """Which layers hold their tokens how, where they differ: ``; by layer: 0-1 exact, 2-27 K4V2, 28-29 exact``."""
    labels = [format.label if format else "exact" for format in formats]
    if len(set(labels)) == 1:
        return ""
    runs, first = [], 0
    for label, same in groupby(labels):
        last = first + len(list(same)) - 1
        runs.append(f"{first if first == last else f'{first}-{last}'} {label}")
        first = last + 1
    return f"; by layer: {', '.join(runs)}"
