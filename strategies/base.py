"""The layer contracts: what a KV strategy is made of, what each part promises, and how parts stack.

A layer is a frozen dataclass: its fields are its options in ``conf/strategy/<slot>/``, its docstring names the paper. It
declares (bytes, budget, the condition under which it acted) and, for the reference engine, it acts on tensors. Layers know
no engine, no task and no configuration library.

Shapes: R rows (sequences that share length and format), H key/value heads, G query heads per key/value head, n tokens, d
head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
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


@dataclass(frozen=True, kw_only=True)
class Evict(Layer):
    """Keeps the tokens with the highest scores, per key/value head, and drops the rest after the prompt.

    Exactly one budget is given. ``keep`` is the fraction of prompt tokens kept, in (0, 1]; ``keep_tokens`` is a count.
    Kept tokens stay in their order and keep their original positions.
    """

    slot: ClassVar[str] = "evict"
    query_window: ClassVar[int] = 0  # how many of the last prompt queries ``scores`` needs

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


@dataclass(frozen=True, kw_only=True)
class Quant(Layer):
    """A number format for cached keys and values."""

    slot: ClassVar[str] = "quant"

    @abstractmethod
    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        """Predicted bytes of one sequence of ``tokens`` stored tokens in one layer; equal to ``Store.nbytes()``."""

    @abstractmethod
    def quantized_tokens(self, tokens: int) -> int:
        """How many of ``tokens`` stored tokens have left full precision (keys or values, whichever is more)."""

    @abstractmethod
    def store(self, keys: Tensor, values: Tensor) -> Store:
        """Pack the tokens kept of the prompt, ``[R, H, m, d]``."""


# --- stacks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A strategy: at most one layer a slot, applied in data-path order. The empty stack is the baseline ``full``."""

    name: str
    evict: Evict | None = None
    quant: Quant | None = None

    def layers(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in (self.evict, self.quant) if layer is not None)

    def spec(self) -> Mapping[str, Any]:
        """The stack without its name: two names for one stack share their cells."""
        return {layer.slot: layer.spec() for layer in self.layers()}

    def describe(self) -> str:
        """One line for people: ``evict/snapkv keep=0.25 + quant/fp8 scale=token_head``."""
        parts = []
        for layer in self.layers():
            options = " ".join(f"{key}={value}" for key, value in asdict(layer).items() if value is not None)
            parts.append(f"{layer.slot}/{layer.name} {options}".strip())
        return " + ".join(parts) or "full"

    def short(self) -> str:
        """A name made of what the stack is: ``snapkv@0.25+fp8``, ``window@256tok``, ``full``."""
        parts = []
        if self.evict:
            budget = self.evict.keep if self.evict.keep is not None else f"{self.evict.keep_tokens}tok"
            parts.append(f"{self.evict.name}@{budget}")
        if self.quant:
            parts.append(self.quant.label)
        return "+".join(parts) or "full"

    def problems(self, shape: KVShape) -> list[str]:
        return [problem for layer in self.layers() for problem in layer.problems(shape)]

    def kept(self, tokens: int, window: int | None = None) -> int:
        """Prompt tokens that one head of one layer still holds. A sliding layer holds its last ``window - 1``."""
        if window is not None:
            return min(tokens, window - 1)
        return self.evict.budget(tokens) if self.evict else tokens

    def formula_bytes(self, tokens: int, shape: KVShape) -> int:
        """Predicted bytes held after a prompt of ``tokens``, over all layers."""
        total = 0
        for window in shape.windows:
            held = self.kept(tokens, window)
            total += self.quant.layer_bytes(held, shape) if self.quant else shape.exact_bytes(held)
        return total

    def acted(self, tokens: int, shape: KVShape) -> dict[str, tuple[bool, str]]:
        """By layer: whether it acts on a prompt of ``tokens``, and the condition in words with its numbers.

        A layer acts if it does so in some attention layer of the model. Here this depends on the prompt's length alone.
        """
        verdicts = {}
        if self.evict:
            held = self.kept(tokens) if None in shape.windows else tokens
            verdicts[f"evict/{self.evict.name}"] = (held < tokens, f"kept {held} of {tokens} prompt tokens a head")
        if self.quant:
            by_layer = {
                held: self.quant.quantized_tokens(held) for held in (self.kept(tokens, w) for w in shape.windows)
            }
            held, packed = max(by_layer.items(), key=lambda pair: pair[1])
            verdicts[f"quant/{self.quant.name}"] = (packed > 0, f"quantized {packed} of {held} stored tokens")
        return verdicts


def generator(prompt: PromptLayer) -> torch.Generator:
    """Seeded chance for a policy that draws: equal for equal (run seed, sample, layer), whatever else runs."""
    return torch.Generator().manual_seed((prompt.seed * 1_000_003 + prompt.layer) % 2**63)
