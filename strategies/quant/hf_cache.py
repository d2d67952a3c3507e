"""transformers' own quantized cache (``cache_implementation="quantized"``), backends quanto and hqq: "HF int4", "HF int2".

It is not KIVI, although its docstring names it. The whole prompt is quantized at once, its newest tokens included; a
full-precision residual fills only while decoding; when it is full, the whole history is dequantized, joined with it and
quantized again, at a cost that grows with it. The step that quantizes still attends to what was there before.

The library's layers run here as they are, one for each row, since their groups cross the borders of rows and heads. What the
axes mean differs between the backends, and no axis means a channel of one head:

- quanto axis 0: groups of neighbours in the flattened ``[H, n, d]``, channels of one token when ``group`` divides d. Axis -1:
  a channel of ``group`` tokens that follow each other in ``[H * n]``, which cross heads.
- hqq axis 1: as quanto's axis 0. Axis 0 (the library's default): elements H * n * d / group apart, which mixes heads and tokens.

Groups of channels of a token stay the same when tokens are added, and quantizing them again changes nothing. The others shift
with the length, so that every flush adds its error (hqq's defaults on normal data: 0.09 of the norm at first, 0.38 after 20).

Departure: rows cannot share a group, as they would in a batch of the library's.
"""

from __future__ import annotations

import os
import shutil
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from strategies.base import Exchange, KVShape, Patch, Store, UniformQuant

if TYPE_CHECKING:
    from transformers.cache_utils import QuantizedLayer

BESIDE_PYTHON = os.path.dirname(sys.executable)  # where pip puts programs such as ninja


class HFStore(Store):
    """One library layer a row, and what attention reads in a step that quantizes.

    Such a step (a flush, or the first tokens of an empty store) reads the values from before; they are kept until the next
    one, so that ``read`` is what the last step attended to. A store made of a prompt reads quantized from the start, as the
    library does in the first step after a prefill.
    """

    def __init__(self, format: HFCache, keys: Tensor, values: Tensor) -> None:
        self.format = format
        self.layers = [format.layer() for _ in range(keys.shape[0])]
        self.before: tuple[Tensor, Tensor] | None = (keys[:, :, :0], values[:, :, :0])
        if keys.shape[2]:
            self.append(keys, values)
            self.before = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[list[Patch], list[Patch]]:
        if not keys.shape[2]:
            return [], []
        seen = [layer.update(k[None], v[None]) for layer, k, v in zip(self.layers, keys, values, strict=True)]
        all_keys, all_values = (torch.cat(side) for side in zip(*seen, strict=True))
        just_quantized = not self.layers[0].keys.numel()
        self.before = (all_keys, all_values) if just_quantized else None
        return [Patch(0, all_keys)], [Patch(0, all_values)]

    def read(self) -> tuple[Tensor, Tensor]:
        if self.before:
            return self.before
        keys = [torch.cat([x._dequantize(x._quantized_keys), x.keys], dim=2) for x in self.layers]
        values = [torch.cat([x._dequantize(x._quantized_values), x.values], dim=2) for x in self.layers]
        return torch.cat(keys), torch.cat(values)

    def tensors(self) -> Iterator[Tensor]:
        for same in zip(*(self._held(layer) for layer in self.layers), strict=True):
            yield torch.stack(same)  # of all rows

    def _held(self, layer: QuantizedLayer) -> Iterator[Tensor]:
        if layer.is_initialized:
            for quantized in (layer._quantized_keys, layer._quantized_values):
                yield from self.format.held(quantized)
            yield layer.keys
            yield layer.values

    def select(self, rows: Tensor) -> None:
        # a shallow copy is enough: the library replaces its tensors and never writes into them
        self.layers = [copy(self.layers[row]) for row in rows.tolist()]
        if self.before:
            self.before = (self.before[0][rows], self.before[1][rows])

    def swap(self, exchange: Exchange) -> None:
        held = zip(*(self._held(layer) for layer in self.layers), strict=True)
        exchanged = [exchange(torch.stack(same)).unbind() for same in held]
        rows = zip(*exchanged, strict=True)  # none where the layers are empty
        for layer, row in zip(self.layers, rows, strict=False):
            *quantized, layer.keys, layer.values = row
            half = len(quantized) // 2
            layer._quantized_keys = self.format.holding(layer._quantized_keys, quantized[:half])
            layer._quantized_values = self.format.holding(layer._quantized_values, quantized[half:])


@dataclass(frozen=True, kw_only=True)
class HFCache(UniformQuant):
    """One backend of the library's cache; the defaults are the library's.

    ``layer_bytes`` is of a prompt, all of it packed. What a growing store weighs depends on where the prompt ended.

    Args:
        bits: of a code.
        axis_key, axis_value: how elements form groups; see the module.
        group: elements that share a scale and a shift, both held in the model's dtype.
        residual: a step that would make the full-precision residual this long packs everything instead. Counted as if it
            brought one token.
    """

    widths: ClassVar[tuple[int, ...]]  # bits there are
    axes: ClassVar[tuple[int, ...]]
    module: ClassVar[str]
    package: ClassVar[str]

    bits: int = 4
    axis_key: int = 0
    axis_value: int = 0
    group: int = 64
    residual: int = 128

    @abstractmethod
    def layer(self) -> QuantizedLayer:
        """A new layer of the library's."""

    @abstractmethod
    def held(self, quantized: Any) -> Iterator[Tensor]:
        """The tensors that one quantized tensor of the library's is made of."""

    @abstractmethod
    def holding(self, quantized: Any, held: Sequence[Tensor]) -> Any:
        """That quantized tensor, made of others."""

    @abstractmethod
    def side_bytes(self, tokens: int, axis: int, shape: KVShape) -> int:
        """Bytes of the packed keys, or values, of one sequence."""

    @abstractmethod
    def axis_problem(self, axis: int, shape: KVShape) -> str | None:
        """Why groups along this axis do not work for every number of tokens, if they do not."""

    @property
    def label(self) -> str:
        return f"{self.name}{self.bits}"

    @property
    def options(self) -> dict[str, int]:
        """The options under the library's names."""
        return {
            "nbits": self.bits,
            "axis_key": self.axis_key,
            "axis_value": self.axis_value,
            "q_group_size": self.group,
            "residual_length": self.residual,
        }

    def groups(self, tokens: int, shape: KVShape) -> int:
        return tokens * shape.kv_heads * shape.head_dim // self.group

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        return sum(self.side_bytes(tokens, axis, shape) for axis in (self.axis_key, self.axis_value))

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def store(self, keys: Tensor, values: Tensor) -> Store:
        return HFStore(self, keys, values)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.bits not in self.widths:
            found.append(f"{self.option('bits')} must be one of {self.widths}, got {self.bits}")
        if self.group < 1 or shape.kv_heads * shape.head_dim % self.group:
            rule = f"must divide the {shape.kv_heads} heads of {shape.head_dim} elements of every token"
            found.append(f"{self.option('group')} {rule}, got {self.group}")
        sizes_fit = not found
        for field in ("axis_key", "axis_value"):
            axis = getattr(self, field)
            if axis not in self.axes:
                found.append(f"{self.option(field)} must be one of {self.axes}, got {axis}")
            elif sizes_fit and (reason := self.axis_problem(axis, shape)):
                found.append(f"{self.option(field)}={axis} {reason}")
        if self.residual < 1:
            found.append(f"{self.option('residual')} must be 1 or more, got {self.residual}")
        if any(shape.windows):
            found.append(f"quant/{self.name}: transformers refuses its quantized cache for models with sliding windows")
        return found + self.missing()

    def missing(self) -> list[str]:
        """What is not installed, and how to install it."""
        if find_spec(self.module.partition(".")[0]) and find_spec(self.module):
            return []
        how = 'pip install "kvgate[hf-cache]"'
        return [f"quant/{self.name} needs the package {self.package}, which is not installed: {how}"]


@dataclass(frozen=True, kw_only=True)
class HFQuanto(HFCache):
    """Backend quanto: codes taken once, from minimum and maximum of the group.

    Its first read compiles a C++ extension into its own folder (half a minute, once an installation) and has no switch for
    going without: a compiler and ninja must be there.
    """

    name: ClassVar[str] = "hf_quanto"
    widths: ClassVar[tuple[int, ...]] = (2, 4)
    axes: ClassVar[tuple[int, ...]] = (0, -1)
    module: ClassVar[str] = "optimum.quanto"
    package: ClassVar[str] = "optimum-quanto"

    def layer(self) -> QuantizedLayer:
        from transformers.cache_utils import QuantoQuantizedLayer

        if not shutil.which("ninja"):  # the library looks in PATH only
            os.environ["PATH"] = f"{os.environ.get('PATH', '')}{os.pathsep}{BESIDE_PYTHON}"
        return QuantoQuantizedLayer(**self.options)

    def held(self, quantized: Any) -> Iterator[Tensor]:
        yield quantized._data._data
        yield quantized._scale
        yield quantized._shift

    def holding(self, quantized: Any, held: Sequence[Tensor]) -> Any:
        quantized._data._data, quantized._scale, quantized._shift = held
        return quantized

    def side_bytes(self, tokens: int, axis: int, shape: KVShape) -> int:
        groups, a_byte = self.groups(tokens, shape), 8 // self.bits
        if axis == 0:  # [groups, group]: whole rows are packed into one, the last ones with padding
            packed = -(-groups // a_byte) * self.group
            shared = self.group if groups == 1 else groups  # each element of a lone group gets a scale of its own
        else:  # [group, groups]
            packed, shared = -(-self.group // a_byte) * groups, groups
        return packed + 2 * shared * shape.element_bytes

    def axis_problem(self, axis: int, shape: KVShape) -> str | None:
        if axis == 0 or shape.kv_heads % self.group == 0:
            return None
        return (
            "asks quanto for groups of tokens, and it raises unless group divides heads * tokens; for any number of tokens "
            f"strategy.quant.group must divide the {shape.kv_heads} heads, got {self.group}"
        )

    def missing(self) -> list[str]:
        found = super().missing()
        for tool in (os.environ.get("CXX", "c++"), "ninja"):
            if not (shutil.which(tool) or shutil.which(tool, path=BESIDE_PYTHON)):
                why = "compiles a C++ extension at its first use"
                found.append(f"quant/{self.name} {why} and needs {tool}, which is not in PATH")
        return found


@dataclass(frozen=True, kw_only=True)
class HFHQQ(HFCache):
    """Backend hqq: the shift of every group is optimised in rounds at each flush, which makes flushes slow."""

    name: ClassVar[str] = "hf_hqq"
    widths: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 8)
    axes: ClassVar[tuple[int, ...]] = (0, 1)
    module: ClassVar[str] = "hqq"
    package: ClassVar[str] = "hqq"

    def layer(self) -> QuantizedLayer:
        from transformers.cache_utils import HQQQuantizedLayer

        return HQQQuantizedLayer(**self.options)

    def held(self, quantized: Any) -> Iterator[Tensor]:
        packed, meta = quantized
        yield packed
        yield meta["scale"]
        yield meta["zero"]

    def holding(self, quantized: Any, held: Sequence[Tensor]) -> Any:
        packed, scale, zero = held
        return packed, {**quantized[1], "scale": scale, "zero": zero}

    def side_bytes(self, tokens: int, axis: int, shape: KVShape) -> int:
        groups = self.groups(tokens, shape)
        packed = self.group * self.bits // 8  # of a group
        if self.bits == 3:  # ten codes in an int32, the last one padded
            packed = -(-self.group // 10) * 4
        return groups * (packed + 2 * shape.element_bytes)

    def axis_problem(self, axis: int, shape: KVShape) -> str | None:
        if self.bits == 3:
            wrong = "cannot be read back with bits=3: hqq counts the groups as those of a two-dimensional weight"
            return wrong if axis == 1 else None
        rows, what = (self.group, "group") if axis == 0 else (self.groups(1, shape), "the number of groups in a token")
        a_byte = 8 // self.bits
        if rows % a_byte == 0:
            return None
        rule = f"packs {a_byte} rows into one and does not pad: {what} must be a multiple of {a_byte}, got {rows}"
        return f"with bits={self.bits} {rule} (strategy.quant.group={self.group})"
