"""KVTuner's form (arXiv 2502.04420): each layer has its own bits for keys and for values, over KIVI's storage.

The pairs are given, or searched under a budget by how much each changes the attention output of a calibration text. KVTuner
first prunes and clusters layers and pairs by an error of this kind and then searches with a genetic algorithm on the final
accuracy. Here the layers' errors are summed and the sum is minimized, exactly; it does not see how errors of one layer grow in
the next ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strategies.base import Calibration, Format, KVShape, LayerView, Quant
from strategies.quant.kivi import GROUP_BYTES, Grouped, decode, encode

WIDTHS = (2, 4, 8)
PAIRS = tuple((key_bits, value_bits) for key_bits in WIDTHS for value_bits in WIDTHS)


@dataclass(frozen=True, kw_only=True)
class PerLayer(Quant):
    """KIVI with a pair of widths for each layer. Exactly one of ``pairs`` and ``budget`` is given.

    Args:
        pairs: ``K4V2`` for keys of 4 bits and values of 2 (each 2, 4 or 8): one pair for all layers, or one a layer.
        budget: bits an element of the quantized part, scales and minima included, on average over keys and values of all
            layers that are not skipped. The pairs under it are searched with the calibration text.
        group: elements that share a scale and a minimum: consecutive tokens for keys, consecutive channels for values.
        residual: newest tokens kept in full precision; keys leave it this many at a time.
    """

    name: ClassVar[str] = "per_layer"

    pairs: tuple[str, ...] = ()
    budget: float | None = None
    group: int = 32
    residual: int = 128

    @property
    def calibrates(self) -> bool:
        return self.budget is not None

    @property
    def shared_bits(self) -> float:
        """Bits an element of scales and minima."""
        return 8 * GROUP_BYTES / self.group

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if bool(self.pairs) == (self.budget is not None):
            both = f"pairs={list(self.pairs)}, budget={self.budget}"
            found.append(f"{self.option('pairs')}: give exactly one of pairs and budget, got {both}")
        wrong = [pair for pair in self.pairs if not _bits(pair)]
        if wrong:
            found.append(f"{self.option('pairs')} must be like K4V2, with widths of {WIDTHS} bits, got {wrong}")
        if self.pairs and len(self.pairs) not in (1, shape.layers):
            rule = f"must hold one pair for all layers or one for each of {shape.layers}"
            found.append(f"{self.option('pairs')} {rule}, got {len(self.pairs)}")
        widths = [min(bits) for bits in map(_bits, self.pairs) if bits] or [min(WIDTHS)]
        sizes = self._format(min(widths), min(widths)).problems(shape, self.option)
        if self.budget is not None and not sizes:
            least, most = min(WIDTHS) + self.shared_bits, max(WIDTHS) + self.shared_bits
            if not least <= self.budget <= most:
                rule = f"must lie between the {least:g} bits an element of K2V2 and the {most:g} of K8V8"
                found.append(f"{self.option('budget')} {rule} in groups of {self.group}, got {self.budget}")
        return found + sizes

    def formats(self, layers: int, calibration: Calibration | None) -> tuple[Format, ...]:
        if self.budget is None:
            given = [bits for bits in map(_bits, self.pairs) if bits]
            return tuple(self._format(*bits) for bits in (given * layers if len(given) == 1 else given))
        assert calibration is not None
        skipped = self.skipped(layers)
        acting = [layer for layer in range(layers) if layer not in skipped]
        errors = [self._errors([piece[layer] for piece in calibration]) for layer in acting]
        # a layer with a pair costs (key bits + value bits) / 2 and the shared bits an element
        capacity = math.floor((self.budget - self.shared_bits) * len(acting) + 1e-9)
        chosen = dict(zip(acting, cheapest(errors, capacity), strict=True))
        # nobody asks for the format of a skipped layer
        return tuple(self._format(*chosen.get(layer, PAIRS[-1])) for layer in range(layers))

    def _format(self, key_bits: int, value_bits: int) -> Grouped:
        return Grouped(key_bits, value_bits, self.group, self.residual)

    def _errors(self, pieces: Sequence[LayerView]) -> list[float]:
        """The error of every pair in one layer, averaged over the pieces that hold a group of tokens."""
        held = [piece for piece in pieces if piece.keys.shape[1] >= self.group]
        if not held:
            longest = max((piece.keys.shape[1] for piece in pieces), default=0)
            raise ValueError(f"calibration.tokens must give every layer {self.group} tokens (a group), got {longest}")
        return torch.stack([pair_errors(piece, self.group) for piece in held]).mean(dim=0).tolist()


def _bits(pair: str) -> tuple[int, int] | None:
    """``K4V2`` as (4, 2); None for what is no pair."""
    match = re.fullmatch(r"K([248])V([248])", pair)
    return (int(match[1]), int(match[2])) if match else None


def pair_errors(piece: LayerView, group: int) -> Tensor:
    """What quantizing a whole piece with each of ``PAIRS`` does to it, ``[9]``: ||o - o'|| / ||o|| over all its query heads.

    o is the attention output of the piece's last queries. Without queries it is the same measure of the keys, plus that of the
    values. The ragged last tokens, too few for a group of keys, are left out on both sides.
    """
    tokens = piece.keys.shape[1] // group * group
    keys, values = piece.keys[:, :tokens].float(), piece.values[:, :tokens].float()
    coarse_keys = {b: decode(encode(keys.transpose(1, 2), b, group), b).transpose(1, 2) for b in WIDTHS}
    coarse_values = {b: decode(encode(values, b, group), b) for b in WIDTHS}
    if piece.window_queries is None:
        return torch.stack(
            [_relative(keys, coarse_keys[k]) + _relative(values, coarse_values[v]) for k, v in PAIRS],
        )
    weights = {b: _attention(piece, coarse_keys[b]) for b in WIDTHS}
    exact = _attention(piece, keys) @ values
    return torch.stack([_relative(exact, weights[k] @ coarse_values[v]) for k, v in PAIRS])


def _attention(piece: LayerView, keys: Tensor) -> Tensor:
    """Weights ``[H, G * w, m]`` that the last queries of the piece pay to its first m tokens, with their causal corner."""
    assert piece.window_queries is not None
    heads, held = piece.keys.shape[:2]
    queries = piece.window_queries[:, -held:].float()  # a sliding layer may hold fewer tokens than there are queries
    window = queries.shape[1]
    logits = piece.scaling * queries.reshape(heads, -1, queries.shape[-1]) @ keys.transpose(1, 2)
    at = torch.arange(held - window, held, device=keys.device)[:, None]
    ahead = torch.arange(keys.shape[1], device=keys.device) > at  # [w, m]
    return logits.unflatten(1, (-1, window)).masked_fill(ahead, -torch.inf).softmax(dim=-1).flatten(1, 2)


def _relative(exact: Tensor, coarse: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm
    return norm(exact - coarse) / norm(exact).clamp_min(torch.finfo(exact.dtype).tiny)


def cheapest(errors: Sequence[Sequence[float]], capacity: int) -> list[tuple[int, int]]:
    """One of ``PAIRS`` for each layer: the least summed error of all choices that cost at most ``capacity``.

    A pair costs (key bits + value bits) / 2, an integer. A multiple-choice knapsack, solved by dynamic programming: for every
    total cost, the best choice for the layers so far. Equal errors go to fewer bits.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for left, layer in zip(reversed(range(len(errors))), errors, strict=True):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for cost, (error, chosen) in best.items():
            for index, (key_bits, value_bits) in enumerate(PAIRS):
                total, summed = cost + (key_bits + value_bits) // 2, error + layer[index]
                if total + left * min(WIDTHS) <= capacity and (total not in longer or summed < longer[total][0]):
                    longer[total] = (summed, (*chosen, index))
        best = longer
    _, least = min(best.items(), key=lambda item: (item[1][0], item[0]))
    return [PAIRS[index] for index in least[1]]
