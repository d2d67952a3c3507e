"""The layer contracts: what a KV strategy is made of, what each part promises, and how parts stack.

A layer is a frozen dataclass: its fields are its options in ``conf/strategy/<slot>/``, its docstring names the paper. It
declares (bytes, budget, the condition under which it acted) and, for the reference engine, it acts on tensors. Layers know
no engine, no task and no configuration library.

Shapes: R rows (sequences that share length and format), H key/value heads, G query heads per key/value head, n tokens, d
head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

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
    value_dim: int | None = None  # of a latent (MLA): its keys are the compressed part, its values the rotary part
    linear_layers: int = 0  # layers with linear attention, which hold a state and cache nothing for a token

    def at(self, element_bytes: int) -> KVShape:
        """The same model with its unquantized cache held in elements of another size."""
        return replace(self, element_bytes=element_bytes)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.window or (None,) * self.layers

    @property
    def latent(self) -> bool:
        """Whether what is cached is a latent that all query heads share, and from which each makes keys and values."""
        return self.value_dim is not None

    @property
    def widths(self) -> tuple[int, int]:
        """Elements of a cached key and of a cached value."""
        return self.head_dim, self.head_dim if self.value_dim is None else self.value_dim

    def exact_bytes(self, tokens: int) -> int:
        """Bytes of ``tokens`` unquantized tokens in one layer, keys and values."""
        return tokens * self.kv_heads * sum(self.widths) * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """One idea in one slot. ``version`` is raised whenever its results change, so old cells are not reused for it."""

    slot: ClassVar[str]
    name: ClassVar[str]
    version: ClassVar[int] = 1
    simulated: ClassVar[bool] = False  # only the numbers are those of the hardware that has it; no speed is
    on_latents: ClassVar[bool] = False  # also right where what is cached is no key and no value but a latent (MLA)

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

    def settled(self, choices: Mapping[str, Any]) -> Self:
        """This layer with the options that were left open (None) as an engine chooses them."""
        open_ones = {name for name in choices if getattr(self, name, ...) is None}
        return replace(self, **{name: choices[name] for name in open_ones})

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

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Options worth telling: the layer's own, and of those that its whole slot has the ones that were set."""
        general = {f.name: f.default for base in type(self).__mro__ if "slot" in vars(base) for f in fields(base)}
        for name, value in asdict(self).items():
            if value is not None and (name not in general or value != general[name]):
                yield name, value

    def option(self, field: str) -> str:
        """The name under which the user set ``field``."""
        return f"strategy.{self.slot}.{field}"


# --- eviction -----------------------------------------------------------------------------------------------------------


class Rotation(Protocol):
    """The rotary positions of one attention layer's keys."""

    def turn(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``[..., n, d]`` to positions ``[..., n]``."""
        ...

    def back(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Undo ``turn``."""
        ...


class Moments(NamedTuple):
    """Mean and covariance of a prompt's queries before rotary positions, the first four left out, by query head."""

    mean: Tensor  # [H * G, d]
    covariance: Tensor  # [H * G, d, d]


class LayerView(NamedTuple):
    """What one attention layer knows of one sequence when tokens are to be evicted: after the prompt, or while decoding.

    What a policy did not ask for is None.
    """

    keys: Tensor  # [H, n, d], after rotary positions
    values: Tensor  # [H, n, d]
    window_queries: Tensor | None  # [H * G, w, d]: the newest w queries
    scaling: float  # softmax(scaling * q @ k)
    layer: int
    seed: int  # of (run seed, sample id): the only source of chance
    layers: int = 1  # attention layers of the model
    positions: Tensor | None = None  # [H, n]: where the keys are rotated to; None: 0 to n - 1
    step: int = 0  # answer tokens decoded so far
    mass: Tensor | None = None  # [H, n]: weight that each key got from all queries so far, summed over the group
    moments: Moments | None = None
    rotation: Rotation | None = None
    reread: Tensor | None = None  # [H, n]: largest weight that each key got while the model read the context once more
    future: Tensor | None = None  # [H, n]: weight that each key gets from ``full``'s later queries, mean over the group
    spans: Tensor | None = None  # [n] or [H, n]: number of the instruction that a token belongs to, -1 for none


Calibration = tuple[tuple[LayerView, ...], ...]  # pieces of a calibration text, and the attention layers of each
SPREADS = ("uniform", "layers", "heads")
SPANS = ("protect", "fair", "ignore")


@dataclass(frozen=True, kw_only=True)
class Evict(Layer):
    """Keeps the tokens with the highest scores and drops the rest, after the prompt and, if asked, while decoding.

    Exactly one budget is given. Kept tokens stay in their order and, unless asked otherwise, at their positions.

    Args:
        keep: fraction of the tokens seen that are kept, in (0, 1].
        keep_tokens: tokens kept.
        every: answer tokens between two evictions while decoding; 0 evicts after the prompt only.
        spread: how a layer's budget is spread: ``uniform``; ``layers``, more in early layers and less in late ones, the sum
            unchanged (PyramidKV); ``heads``, more where a head's scores are high, the sum over heads unchanged (Ada-KV).
        beta: of ``spread=layers``: the last layer keeps 1 / beta of its uniform budget.
        floor: of ``spread=heads``: the share of its uniform budget that each head keeps in any case.
        share: of ``spread=heads``: ``mix`` adds that share to what a head's scores earn (the paper); ``protect`` makes it a lower
            bound of it (kvpress).
        spans: what happens to instructions that a task marks: ``protect`` (never evicted), ``fair`` (each keeps the same
            share of its tokens as the rest) or ``ignore``.
        score_on: ``full``, or ``stored``: the keys and values as the stack's number format reads them back.
        rerotate: whether kept keys move together to positions 0, 1, 2 ... (StreamingLLM's cache positions).
    """

    slot: ClassVar[str] = "evict"
    per_head: ClassVar[bool] = True  # heads may keep different tokens
    needs: ClassVar[frozenset[str]] = frozenset()  # of "mass", "moments", "reread", "future"
    selects_reads: ClassVar[bool] = False  # evicts nothing; ``reads`` selects what each decode step looks at

    keep: float | None = None
    keep_tokens: int | None = None
    every: int = 0
    spread: str = "uniform"
    beta: float = 20.0
    floor: float = 0.2
    share: str = "mix"
    spans: str = "protect"
    score_on: str = "full"
    rerotate: bool = False

    @property
    def label(self) -> str:
        budget = self.keep if self.keep is not None else f"{self.keep_tokens}tok"
        return f"{self.name}@{budget}"

    @property
    def keeps_alike(self) -> bool:
        """Whether all heads and layers keep the same tokens of a prompt, and keep them."""
        plain = self.spread == "uniform" and self.score_on == "full" and not self.rerotate and not self.selects_reads
        return plain and self.phases() == (self, None) and not self.per_head

    @property
    def query_window(self) -> int:
        """How many of the newest queries ``scores`` needs."""
        return 0

    @property
    def future_steps(self) -> int:
        """How many of ``full``'s later queries ``future`` holds, if it is needed."""
        return 0

    def phases(self) -> tuple[Evict | None, Evict | None]:
        """What acts after the prompt, and what acts every ``every`` tokens while decoding."""
        return self, self if self.every else None

    @abstractmethod
    def scores(self, view: LayerView) -> Tensor:
        """Importance of every token, ``[H, n]``; ``inf`` protects a token within the budget."""

    def problems(self, shape: KVShape) -> list[str]:
        found = []
        if (self.keep is None) == (self.keep_tokens is None):
            both = f"keep={self.keep}, keep_tokens={self.keep_tokens}"
            found.append(f"{self.option('keep')}: give exactly one of keep and keep_tokens, got {both}")
        if self.keep is not None and not 0 < self.keep <= 1:
            found.append(f"{self.option('keep')} must be in (0, 1], got {self.keep}")
        if self.keep_tokens is not None and self.keep_tokens < 1:
            found.append(f"{self.option('keep_tokens')} must be 1 or more, got {self.keep_tokens}")
        if self.every < 0:
            found.append(f"{self.option('every')} must be 0 or more, got {self.every}")
        choices = {"spread": SPREADS, "share": ("mix", "protect"), "spans": SPANS, "score_on": ("full", "stored")}
        for choice, known in choices.items():
            if getattr(self, choice) not in known:
                found.append(f"{self.option(choice)} must be one of {', '.join(known)}, got {getattr(self, choice)!r}")
        if self.beta < 1:
            found.append(f"{self.option('beta')} must be 1 or more, got {self.beta}")
        if not 0 <= self.floor <= 1:
            found.append(f"{self.option('floor')} must be in [0, 1], got {self.floor}")
        if self.spread == "heads" and not self.per_head:
            rule = f"must not be heads with {self.name}, which scores all heads alike"
            found.append(f"{self.option('spread')} {rule}, got heads")
        if self.spread == "heads" and self.every:
            rule = "must be 0 with spread=heads: heads that grew apart are not evicted again"
            found.append(f"{self.option('every')} {rule}, got {self.every}")
        if self.rerotate and (self.spread != "uniform" or any(shape.windows)):
            rule = "needs spread=uniform and a model without sliding windows: all layers must agree on positions"
            found.append(f"{self.option('rerotate')} {rule}, got spread={self.spread}")
        if self.spread == "heads" and shape.latent:
            rule = "must not be heads: this model caches a latent (MLA) that all heads share"
            found.append(f"{self.option('spread')} {rule}, got heads")
        if self.rerotate and shape.latent:
            rule = "must be false: this model caches a latent (MLA), and only a part of that has a position"
            found.append(f"{self.option('rerotate')} {rule}, got True")
        if all(shape.windows):
            found.append(f"evict/{self.name}: every layer of this model has a sliding window, nothing to evict")
        return found

    def budget(self, tokens: int) -> int:
        """Tokens kept of ``tokens`` seen, on average over layers and heads: at least one, at most all."""
        if self.keep_tokens is not None:
            return min(tokens, self.keep_tokens)
        assert self.keep is not None
        return min(tokens, max(1, int(tokens * self.keep)))

    def acted(self, tokens: int, counts: Sequence[tuple[int, ...]], answered: int) -> tuple[bool, str]:
        """Whether anything was dropped, given what layers and heads kept of a prompt of ``tokens``; and the numbers in words."""
        after, live = self.phases()
        flat = [held for heads in counts for held in heads] or [tokens]
        least, most = min(flat), max(flat)
        span = f"{least}" if least == most else f"{least} to {most}"
        why = f"kept {span} of {tokens} prompt tokens a head" if after else f"kept all {tokens} prompt tokens"
        if least < most:
            why += "; by layer: " + ", ".join(f"{at} {list(heads)}" for at, heads in enumerate(counts))
        if live is None:
            return least < tokens, why
        seen = tokens + answered
        due = answered >= live.every and live.budget(seen) < seen
        return least < tokens or due, f"{why}; every {live.every} answer tokens down to {live.budget(seen)} of {seen}"

    def layer_budget(self, tokens: int, layer: int, layers: int) -> int:
        """Tokens kept in one layer, on average over its heads.

        With ``spread=layers`` budgets fall evenly from the first layer to the last (arXiv 2406.02069), rounded so that their
        sum is that of the uniform ones.
        """
        budget = self.budget(tokens)
        if self.spread != "layers" or layers == 1:
            return budget
        lowest = max(1, round(budget / self.beta))
        highest = min(tokens, 2 * budget - lowest)
        lowest = 2 * budget - highest

        def up_to(count: int) -> int:  # summed budgets of the first ``count`` layers
            return round(sum(highest - (highest - lowest) * at / (layers - 1) for at in range(count)))

        return up_to(layer + 1) - up_to(layer)

    @property
    def ranking(self) -> tuple[Any, ...]:
        """What the importance depends on. Policies with one ranking differ in budgets only and share one computation."""
        budgets = ("keep", "keep_tokens", "every", "spread", "beta", "floor", "share", "rerotate")
        return (type(self), *(getattr(self, f.name) for f in fields(self) if f.name not in budgets))

    def importance(self, view: LayerView) -> Tensor:
        """``scores``, with what instructions are due."""
        scores = self.scores(view)
        if view.spans is None or self.spans == "ignore":
            return scores
        if self.spans == "protect":  # before all that a policy protects itself
            return scores.clamp(max=torch.finfo(scores.dtype).max).masked_fill(view.spans >= 0, torch.inf)
        return _fair(scores, view.spans.expand(scores.shape))

    def chosen(self, importance: Tensor, budget: int) -> tuple[Tensor, ...]:
        """Indices of the tokens kept by each head, in order: ``budget`` of them, or so many on average over the heads.

        Equal importance goes to the later token.
        """
        tokens = importance.shape[1]
        order = tokens - 1 - importance.flip(-1).argsort(dim=-1, descending=True, stable=True)
        counts = self.head_counts(importance, budget) if self.spread == "heads" else [budget] * len(importance)
        return tuple(head[:count].sort().values for head, count in zip(order, counts, strict=True))

    def head_counts(self, importance: Tensor, budget: int) -> list[int]:
        """How many tokens each head keeps with ``spread=heads`` (Ada-KV, arXiv 2407.11550).

        ``share=mix``: a head gets ``floor`` of its uniform budget and, of the rest, as much as it has tokens among the best of
        all heads. ``share=protect``: as many as it has among the best when the best ``floor`` of each are sure of their place.
        """
        heads, tokens = importance.shape
        if self.share == "protect":
            safe = importance.topk(max(1, int(self.floor * budget)), dim=-1).indices
            importance = importance.scatter(1, safe, torch.inf)
        sure = importance.isposinf()
        held = sure.sum(dim=1).clamp(max=budget)
        rest = importance.masked_fill(sure, -torch.inf).flatten()
        best = rest.argsort(descending=True, stable=True)[: heads * budget - int(held.sum())] // tokens
        counts = (held + torch.bincount(best, minlength=heads)).double()
        if self.share == "protect":
            return [int(count) for count in counts.tolist()]
        exact = (1 - self.floor) * counts + self.floor * budget
        whole = exact.floor()
        left = heads * budget - int(whole.sum())
        whole[(exact - whole).argsort(descending=True, stable=True)[:left]] += 1  # the sum is what was asked for
        return [int(count) for count in whole.tolist()]


def _fair(scores: Tensor, spans: Tensor) -> Tensor:
    """Scores that rank every token by its place within its own span, so that each span keeps the same share."""
    fair = torch.empty_like(scores)
    for head, head_scores, head_spans in zip(fair, scores, spans, strict=True):
        for span in head_spans.unique():
            inside = (head_spans == span).nonzero().squeeze(1)
            places = head_scores[inside].argsort(stable=True).argsort(stable=True)  # 0 is the worst
            head[inside] = ((places + 0.5) / len(inside)).to(scores.dtype)
    return fair


# --- number formats -----------------------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """Columns of the dense view that now read differently: ``dense`` is ``[R, H, m, d]`` from column ``start`` on."""

    start: int
    dense: Tensor


Room = Callable[[int], int]  # tokens for which there is room where so many are held
Exchange = Callable[[Tensor], Tensor]


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

    @abstractmethod
    def swap(self, exchange: Exchange) -> None:
        """Put ``exchange(tensor)`` in the place of every tensor held, always in the same order.

        What comes has the shape and dtype of what goes, and may be written into from then on. Until the values are there again
        nothing but ``nbytes`` may be asked.
        """

    def reserve(self, room: Room) -> None:
        """From now on hold room for ``room(n)`` tokens where n are held. Only stores that pack each token by itself can."""
        raise NotImplementedError

    def nbytes(self) -> int:
        """Bytes held for all R rows."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def facts(self) -> dict[str, Tensor]:
        """Numbers worth reporting about what the format did (clipped elements, say), each ``[R]``.

        They can be told while the tensors held are away.
        """
        return {}


class Format(ABC):
    """How one attention layer holds its tokens. Formats that are equal pack their rows together."""

    unrotated: ClassVar[bool] = False  # packs keys as they are before rotary positions, where an engine has them

    @property
    @abstractmethod
    def label(self) -> str:
        """The short name of this format as set up, for people."""

    @abstractmethod
    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        """Predicted bytes of one sequence of ``tokens`` stored tokens in one layer; equal to ``Store.nbytes()``."""

    @abstractmethod
    def quantized_tokens(self, tokens: int) -> int:
        """How many of ``tokens`` stored tokens have left full precision (keys or values, whichever is more)."""

    @property
    def numbers(self) -> Format | None:
        """What decides the numbers that are stored, whatever room is set aside for them; None where they stay exact."""
        return self

    def of_heads(self, heads: Tensor) -> Format:
        """This format for rows that hold a single head each, row i head ``heads[i]`` of the layer."""
        return self

    @abstractmethod
    def store(self, keys: Tensor, values: Tensor) -> Store:
        """Pack the tokens kept of the prompt, ``[R, H, m, d]``; m may be 0, when a prompt comes in chunks."""


class SharedFormat(Format):
    """The format of one of two attention layers that hold their tokens together."""

    first: bool  # whether this is the first of the two layers
    partner: int  # the other layer

    @abstractmethod
    def stores(self, mine: tuple[Tensor, Tensor], partner: tuple[Tensor, Tensor]) -> tuple[Store, Store]:
        """The stores of both layers, made from both layers' keys and values ``[R, H, m, d]``. Asked of the first layer."""

    def store(self, keys: Tensor, values: Tensor) -> Store:
        raise NotImplementedError("two layers hold their tokens together: ask for the stores of both")


@dataclass(frozen=True, kw_only=True)
class Quant(Layer):
    """A number format for cached keys and values.

    Args:
        skip: attention layers left in full precision: a list of their numbers (negative ones count from the end), or a count
            of layers at each end of the model.
    """

    slot: ClassVar[str] = "quant"
    by_token: ClassVar[bool] = False  # packs each token by itself, so that tokens can be laid out in blocks

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
    by_chunk: ClassVar[bool] = True  # works on a prompt that comes in chunks
    by_token: ClassVar[bool] = False  # stores each token by itself, so that tokens can be laid out in blocks

    @abstractmethod
    def latent(self, shape: KVShape) -> KVShape:
        """The shape of what is cached, as a number format sees it."""

    @abstractmethod
    def formats(self, layers: int, calibration: Calibration | None, pack: Packing) -> tuple[Format | None, ...]:
        """How every attention layer holds its tokens.

        ``pack`` gives the formats of what this layer makes of keys and values; what it is shown of a calibration text must
        be made so too.
        """

    @abstractmethod
    def acted(self, shape: KVShape) -> tuple[bool, str]:
        """Whether this layer makes anything smaller, and the numbers in words."""


# --- paging -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Paging(Layer):
    """How much room is set aside for a sequence as it grows. Changes no number that is stored.

    Args:
        pool_gib: memory for keys and values, of which requests are admitted; evidence only. None leaves it out.
    """

    slot: ClassVar[str] = "paging"
    on_latents: ClassVar[bool] = True
    by_token: ClassVar[bool] = True  # lays tokens out, so a format must pack each by itself

    pool_gib: float | None = None

    @abstractmethod
    def room(self, tokens: int) -> int:
        """Tokens for which there is room where ``tokens`` are held. Raises Unsupported if they do not fit."""

    @abstractmethod
    def acted(self, held: Sequence[int]) -> tuple[bool, str]:
        """Whether room was set aside as this layer says, given the tokens that each layer and head holds; and how in words."""

    @abstractmethod
    def holding(self, inner: Format | None) -> Format | None:
        """``inner``, or full precision if that is None, in stores with this room."""

    def facts(self, held: Sequence[int]) -> dict[str, float]:
        """Numbers for the evidence, of the tokens that each layer and head holds."""
        reserved = sum(map(self.room, held))
        return {
            "reserved_tokens": reserved / max(1, len(held)),
            "unused_share": 1 - sum(held) / reserved if reserved else 0.0,
        }

    def problems(self, shape: KVShape) -> list[str]:
        if self.pool_gib is not None and self.pool_gib <= 0:
            return [f"{self.option('pool_gib')} must be above 0, got {self.pool_gib}"]
        return []


# --- prefix reuse -------------------------------------------------------------------------------------------------------


class Reused(NamedTuple):
    """Where a prompt's blocks lie. The first ``hit_tokens`` tokens are there already; the rest is to be computed."""

    blocks: tuple[int, ...]
    hit_tokens: int


class PrefixIndex(Protocol):
    """Which blocks of tokens are kept, and where; the keys and values themselves are the engine's."""

    block: int

    def take(self, tokens: Sequence[int], most: int) -> Reused:
        """Find the longest prefix of at most ``most`` tokens that is kept, and a place for every other full block."""
        ...

    def release(self, reused: Reused) -> None:
        """A prompt is done with; its blocks stay findable until their places are needed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Prefix(Layer):
    """Keys and values of prompts are kept, so that a later prompt that begins alike need not compute them.

    Args:
        block: tokens of a block; None leaves it to the engine.
    """

    slot: ClassVar[str] = "prefix"
    on_latents: ClassVar[bool] = True

    block: int | None = 16

    @abstractmethod
    def index(self) -> PrefixIndex:
        """An index with nothing in it."""

    def acted(self, hit_tokens: int, tokens: int) -> tuple[bool, str]:
        """Whether anything was reused of a prompt of ``tokens``, and the numbers in words."""
        return hit_tokens > 0, f"reused {hit_tokens} of {tokens} prompt tokens"

    def problems(self, shape: KVShape) -> list[str]:
        found, cannot = [], f"strategy.prefix: prefix/{self.name} cannot serve this model"
        if self.block is not None and self.block < 1:
            found.append(f"{self.option('block')} must be 1 or more, got {self.block}")
        if any(shape.windows):
            found.append(f"{cannot}: what a later prompt would need has left its layers with a sliding window")
        if shape.linear_layers:
            found.append(f"{cannot}: the state of its layers with linear attention is that of a whole prompt")
        return found


# --- offload ------------------------------------------------------------------------------------------------------------


class Lost(Exception):
    """A tier has no such object, or cannot give it back as it was put; the message names tier, key and reason."""


class Moved(NamedTuple):
    """What left the device and came back, of one sequence."""

    bytes_out: Mapping[str, int]  # by name of the tier
    bytes_in: Mapping[str, int]
    out_s: float  # spent on putting
    in_s: float  # spent on getting, in another thread
    waited_s: float  # of which the model had to wait
    lost: Sequence[str] = ()  # why layers had to be recomputed

    @property
    def hidden_share(self) -> float:
        """How much of the time that getting took was spent computing something else."""
        return max(0.0, 1 - self.waited_s / self.in_s) if self.in_s else 0.0

    def facts(self) -> dict[str, float]:
        """Numbers for the evidence."""
        by_tier = {
            f"bytes_{way}_{tier}": float(count)
            for way, counts in (("out", self.bytes_out), ("in", self.bytes_in))
            for tier, count in counts.items()
        }
        return {
            "bytes_out": float(sum(self.bytes_out.values())),
            "bytes_in": float(sum(self.bytes_in.values())),
            **by_tier,
            "out_s": self.out_s,
            "in_s": self.in_s,
            "waited_s": self.waited_s,
            "hidden_share": self.hidden_share,
            "recomputed_layers": float(len(self.lost)),
        }


UNMOVED = Moved({}, {}, 0.0, 0.0, 0.0)


class Tier(ABC):
    """Somewhere else to keep bytes. Calls may come from another thread, one at a time."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> str:
        """Keep ``data`` under ``key``, whole or not at all; returns the name of the tier. Raises OSError."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str]:
        """What was put under ``key``, to the bit, and the name of the tier it came from. Raises Lost or OSError."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Forget ``key``, if it is there."""


@dataclass(frozen=True, kw_only=True)
class Offload(Layer):
    """The stored tokens leave the device after the prompt and come back, layer by layer, when they are read.

    Args:
        on_loss: what happens to a sample whose tokens are not there any more, or are damaged: ``recompute`` or ``fail``.
        persist: whether they stay in the tier after the sample, so that a run with ``start=restarted`` finds them.
    """

    slot: ClassVar[str] = "offload"
    on_latents: ClassVar[bool] = True
    places: ClassVar[frozenset[str]] = frozenset()  # options that say where and not what: see ``spec``
    serving_only: ClassVar[str] = ""  # why an engine that serves nobody cannot have it

    on_loss: str = "recompute"
    persist: bool = False

    @abstractmethod
    def tier(self) -> Tier:
        """Connect. Raises OSError."""

    def spec(self) -> dict[str, Any]:
        """Without ``places``: a folder that was moved holds what it held."""
        plain = super().spec()
        options = {name: value for name, value in plain["options"].items() if name not in self.places}
        return {**plain, "options": options}

    def acted(self, moved: Moved) -> tuple[bool, str]:
        """Whether everything that was read had come back from a tier, and the numbers in words."""
        if moved.lost:
            return False, f"{len(moved.lost)} layers were recomputed; the first: {moved.lost[0]}"
        ways = ((moved.bytes_out, "out to"), (moved.bytes_in, "in from"))
        told = [f"{count:,} bytes {way} {tier}" for counts, way in ways for tier, count in counts.items()]
        return sum(moved.bytes_in.values()) > 0, "; ".join(told) or "nothing moved"

    def problems(self, shape: KVShape) -> list[str]:
        if self.on_loss not in ("recompute", "fail"):
            return [f"{self.option('on_loss')} must be recompute or fail, got {self.on_loss!r}"]
        return []


def generator(view: LayerView) -> torch.Generator:
    """Seeded chance for a policy that draws: equal for equal (run seed, sample, layer, step), whatever else runs."""
    return torch.Generator().manual_seed(((view.seed * 1_000_003 + view.layer) * 1_000_003 + view.step) % 2**63)
