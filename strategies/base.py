"""The layer contracts: what a KV strategy is made of, what each part promises, and how parts stack.

A layer is a frozen dataclass: its fields are its options in ``conf/strategy/<slot>/``, its docstring names the paper. It
declares (bytes, budget, the condition under which it acted) and, for the reference engine, it acts on tensors. Layers know
no engine, no task and no configuration library.

Shapes: R rows (sequences that share length and format), H key/value heads, G query heads per key/value head, n tokens, d
head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

SLOTS = ("paging", "prefix", "structure", "evict", "quant", "offload")  # the order in which data meets them


@dataclass(frozen=True)
class KVShape:
    """What a model caches for each token."""

    layers: int
    kv_heads: int
    query_heads: int
    head_dim: int
    element_bytes: int  # of the dtype in which the unquantized cache is held
    window: tuple[int | None, ...] = ()  # by layer: sliding window in tokens, None for full attention

    def at(self, element_bytes: int) -> KVShape:
        """The same model with its unquantized cache held in elements of another size."""
        return replace(self, element_bytes=element_bytes)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.window or (None,) * self.layers

    def exact_bytes(self, tokens: int) -> int:
        """Bytes of ``tokens`` unquantized tokens in one layer, keys and values."""
        return 2 * tokens * self.kv_heads * self.head_dim * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """One idea in one slot. ``version`` is raised whenever its results change, so old cells are not reused for it."""

    slot: ClassVar[str]
    name: ClassVar[str]
    version: ClassVar[int] = 1
    simulated: ClassVar[bool] = False  # only the numbers are those of the hardware that has it; no speed is

    def spec(self) -> dict[str, Any]:
        """The neutral description that engines translate and that cell addresses are made of."""
        where = f"{type(self).__module__}.{type(self).__qualname__}"
        return {
            "slot": self.slot,
            "name": self.name,
            "class": where,
            "version": self.version,
            "options": asdict(self),
        }

    def problems(self, shape: KVShape) -> list[str]:
        """Every rule that this layer's options break for a model of this shape: field, rule and value."""
        return []

    @property
    def calibrates(self) -> bool:
        """Whether this layer must see the keys and values of a calibration text before it can act."""
        return False

    @property
    def label(self) -> str:
        """The short name of this layer as set up, for people."""
        return self.name

    def option(self, field: str) -> str:
        """The name under which the user set ``field``."""
        return f"strategy.{self.slot}.{field}"


# --- eviction -----------------------------------------------------------------------------------------------------------


class PromptLayer(NamedTuple):
    """What one attention layer knows after an exact prefill, before anything is compressed."""

    keys: Tensor  # [H, n, d], after RoPE
    values: Tensor  # [H, n, d]
    window_queries: Tensor | None  # [H * G, w, d]: the last w prompt queries, if any policy asked for them
    scaling: float  # softmax(scaling * q @ k)
    layer: int
    seed: int  # of (run seed, sample id): the only source of chance


Calibration = tuple[tuple[PromptLayer, ...], ...]  # pieces of a calibration text, and the attention layers of each


@dataclass(frozen=True, kw_only=True)
class Evict(Layer):
    """Keeps the tokens with the highest scores, per key/value head, and drops the rest after the prompt.

    Exactly one budget is given. ``keep`` is the fraction of prompt tokens kept, in (0, 1]; ``keep_tokens`` is a count.
    Kept tokens stay in their order and keep their original positions.
    """

    slot: ClassVar[str] = "evict"
    query_window: ClassVar[int] = 0  # how many of the last prompt queries ``scores`` needs
    per_head: ClassVar[bool] = True  # heads may keep different tokens

    keep: float | None = None
    keep_tokens: int | None = None

    def problems(self, shape: KVShape) -> list[str]:
        found = []
        if (self.keep is None) == (self.keep_tokens is None):
            both = f"keep={self.keep}, keep_tokens={self.keep_tokens}"
            found.append(f"{self.option('keep')}: give exactly one of keep and keep_tokens, got {both}")
        if self.keep is not None and not 0 < self.keep <= 1:
            found.append(f"{self.option('keep')} must be in (0, 1], got {self.keep}")
        if self.keep_tokens is not None and self.keep_tokens < 1:
            found.append(f"{self.option('keep_tokens')} must be 1 or more, got {self.keep_tokens}")
        if all(shape.windows):
            found.append(f"evict/{self.name}: every layer of this model has a sliding window, nothing to evict")
        return found

    def budget(self, tokens: int) -> int:
        """Tokens kept of a prompt of ``tokens``: at least one, at most all."""
        if self.keep_tokens is not None:
            return min(tokens, self.keep_tokens)
        assert self.keep is not None
        return min(tokens, max(1, int(tokens * self.keep)))

    @property
    def ranking(self) -> tuple[Any, ...]:
        """What the scores depend on. Policies with one ranking differ only in budget and share one computation."""
        scored = [f.name for f in fields(self) if f.name not in ("keep", "keep_tokens")]
        return (type(self), *(getattr(self, name) for name in scored))

    @abstractmethod
    def scores(self, prompt: PromptLayer) -> Tensor:
        """Importance of every prompt token, ``[H, n]``; ``inf`` protects a token within the budget."""

    def order(self, prompt: PromptLayer) -> Tensor:
        """Token indices by falling importance, ``[H, n]``. Ties go to the later token."""
        backwards = self.scores(prompt).flip(-1).argsort(dim=-1, descending=True, stable=True)
        return prompt.keys.shape[1] - 1 - backwards


# --- number formats -----------------------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """Columns of the dense view that now read differently: ``dense`` is ``[R, H, m, d]`` from column ``start`` on."""

    start: int
    dense: Tensor


class Store(ABC):
    """The packed keys and values of R sequences of one length and one format, in one attention layer.

    The tensors held here are the storage: what they weigh is what is reported. ``append`` returns how the dense view
    changes, so that an engine may keep a dequantized working copy without ever reading full-precision values back.
    """

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        """Take in the next tokens ``[R, H, m, d]``; return the changed columns of the keys' and the values' dense view."""

    @abstractmethod
    def read(self) -> tuple[Tensor, Tensor]:
        """Dequantize everything: keys and values ``[R, H, n, d]``."""

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Every tensor held, first dimension R."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""

    def nbytes(self) -> int:
        """Bytes held for all R rows."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def facts(self) -> dict[str, Tensor]:
        """Numbers worth reporting about what the format did (clipped elements, say), each ``[R]``."""
        return {}


class Format(ABC):
    """How one attention layer holds its tokens. Formats that are equal pack their rows together."""

    unrotated: ClassVar[bool] = False  # packs keys as they are before rotary positions, where an engine has them

    @property
    def label(self) -> str:
        """The short name of this format as set up, for people."""
        raise NotImplementedError

    @abstractmethod
    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        """Predicted bytes of one sequence of ``tokens`` stored tokens in one layer; equal to ``Store.nbytes()``."""

    @abstractmethod
    def quantized_tokens(self, tokens: int) -> int:
        """How many of ``tokens`` stored tokens have left full precision (keys or values, whichever is more)."""

    @abstractmethod
    def store(self, keys: Tensor, values: Tensor) -> Store:
        """Pack the tokens kept of the prompt, ``[R, H, m, d]``; m may be 0, when a prompt comes in chunks."""


@dataclass(frozen=True, kw_only=True)
class Quant(Layer):
    """A number format for cached keys and values.

    Args:
        skip: attention layers left in full precision: a list of their numbers (negative ones count from the end), or a count
            of layers at each end of the model.
    """

    slot: ClassVar[str] = "quant"

    skip: int | tuple[int, ...] = ()

    @abstractmethod
    def formats(self, layers: int, calibration: Calibration | None) -> tuple[Format, ...]:
        """The format of every attention layer, as if none were skipped. ``calibration`` is there if it was asked for."""

    def skipped(self, layers: int) -> frozenset[int]:
        """Numbers of the layers left in full precision; a count is at most half of the model at each end."""
        if isinstance(self.skip, int):
            ends = min(self.skip, layers // 2)
            return frozenset([*range(ends), *range(layers - ends, layers)])
        return frozenset(layer % layers for layer in self.skip)

    def problems(self, shape: KVShape) -> list[str]:
        if isinstance(self.skip, int):
            wrong = self.skip < 0
        else:
            wrong = any(not -shape.layers <= layer < shape.layers for layer in self.skip)
        if wrong:
            rule = f"must be a count of layers, or numbers from {-shape.layers} to {shape.layers - 1}"
            return [f"{self.option('skip')} {rule}, got {self.skip}"]
        if len(self.skipped(shape.layers)) == shape.layers:
            return [f"{self.option('skip')} must leave a layer to quantize, got {self.skip} of {shape.layers} layers"]
        return []


@dataclass(frozen=True, kw_only=True)
class UniformQuant(Quant, Format):
    """A number format that serves every attention layer alike."""

    def formats(self, layers: int, calibration: Calibration | None) -> tuple[Format, ...]:
        return (self,) * layers


# --- structure ----------------------------------------------------------------------------------------------------------

Packing = Callable[[int, Calibration | None], tuple[Format | None, ...]]  # of so many attention layers


@dataclass(frozen=True, kw_only=True)
class Structure(Layer):
    """Caches something smaller than keys and values, from which they are made again; a number format may pack it."""

    slot: ClassVar[str] = "structure"
    unrotated: ClassVar[bool] = False  # learns from keys as they are before rotary positions

    @abstractmethod
    def latent(self, shape: KVShape) -> KVShape:
        """The shape of what is cached, as a number format sees it."""

    @abstractmethod
    def formats(self, layers: int, calibration: Calibration | None, pack: Packing) -> tuple[Format, ...]:
        """How every attention layer holds its tokens.

        ``pack`` gives the formats of what this layer makes of keys and values; what it is shown of a calibration text must
        be made so too.
        """

    @abstractmethod
    def acted(self, shape: KVShape) -> tuple[bool, str]:
        """Whether this layer makes anything smaller, and the numbers in words."""


# --- stacks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A strategy: at most one layer a slot, applied in data-path order. The empty stack is the baseline ``full``.

    A stack that calibrates must be ``fit`` before it has formats.
    """

    name: str
    structure: Structure | None = None
    evict: Evict | None = None
    quant: Quant | None = None
    fitted: tuple[Format | None, ...] | None = field(default=None, compare=False, repr=False)

    def layers(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in (self.structure, self.evict, self.quant) if layer is not None)

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
            options = " ".join(f"{key}={value}" for key, value in asdict(layer).items() if value not in (None, ()))
            parts.append(f"{layer.slot}/{layer.name} {options}".strip())
        return " + ".join(parts) or "full"

    def short(self) -> str:
        """A name made of what the stack is: ``snapkv@0.25+fp8``, ``window@256tok``, ``full``."""
        parts = [self.structure.label] if self.structure else []
        if self.evict:
            budget = self.evict.keep if self.evict.keep is not None else f"{self.evict.keep_tokens}tok"
            parts.append(f"{self.evict.name}@{budget}")
        if self.quant:
            parts.append(self.quant.label)
        return "+".join(parts) or "full"

    def problems(self, shape: KVShape) -> list[str]:
        found = [problem for layer in (self.structure, self.evict) if layer for problem in layer.problems(shape)]
        if self.structure and self.evict and self.evict.per_head:
            found.append(
                f"strategy.evict must keep the same tokens in every head under structure/{self.structure.name}, which "
                f"caches all heads of a token together, got {self.evict.name}"
            )
        if self.quant and not (self.structure and found):  # a wrong structure has no shape to speak of
            packed = self.structure.latent(shape) if self.structure else shape
            found += self.quant.problems(packed)
        return found

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
            return self.structure.formats(layers, calibration, self._packed)
        return self._packed(layers, calibration)

    def _packed(self, layers: int, calibration: Calibration | None) -> tuple[Format | None, ...]:
        """The number format of every layer, None where there is none or the layer is skipped."""
        if not self.quant:
            return (None,) * layers
        skipped = self.quant.skipped(layers)
        made = self.quant.formats(layers, calibration)
        return tuple(None if layer in skipped else made[layer] for layer in range(layers))

    def kept(self, tokens: int, window: int | None = None) -> int:
        """Prompt tokens that one head of one layer still holds. A sliding layer holds its last ``window - 1``."""
        if window is not None:
            return min(tokens, window - 1)
        return self.evict.budget(tokens) if self.evict else tokens

    def formula_bytes(self, tokens: int, shape: KVShape) -> int:
        """Predicted bytes held after a prompt of ``tokens``, over all layers."""
        total = 0
        for window, format in zip(shape.windows, self.formats(shape.layers), strict=True):
            held = self.kept(tokens, window)
            total += format.layer_bytes(held, shape) if format else shape.exact_bytes(held)
        return total

    def acted(self, tokens: int, shape: KVShape) -> dict[str, tuple[bool, str]]:
        """By layer: whether it acts on a prompt of ``tokens``, and the condition in words with its numbers.

        A layer acts if it does so in some attention layer of the model. Here this depends on the prompt's length alone.
        """
        verdicts = {}
        if self.structure:
            verdicts[f"structure/{self.structure.name}"] = self.structure.acted(shape)
        if self.evict:
            held = self.kept(tokens) if None in shape.windows else tokens
            verdicts[f"evict/{self.evict.name}"] = (held < tokens, f"kept {held} of {tokens} prompt tokens a head")
        if self.quant:
            formats = self.formats(shape.layers)
            packed, held = max(
                (format.quantized_tokens(held) if format else 0, held)
                for format, held in zip(formats, (self.kept(tokens, w) for w in shape.windows), strict=True)
            )
            why = f"quantized {packed} of {held} stored tokens{_by_layer(formats)}"
            verdicts[f"quant/{self.quant.name}"] = (packed > 0, why)
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


def generator(prompt: PromptLayer) -> torch.Generator:
    """Seeded chance for a policy that draws: equal for equal (run seed, sample, layer), whatever else runs."""
    return torch.Generator().manual_seed((prompt.seed * 1_000_003 + prompt.layer) % 2**63)
