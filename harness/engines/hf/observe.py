"""What eviction policies want to know of a prefill, taken while it runs and never as an n x n matrix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from harness.engines.hf.rope import Rope
from strategies.base import Moments

BLOCK = 64  # queries whose weights are in memory at once: few enough for a CPU's cache
SINKS = 4  # first queries left out of the moments, as published


def weights(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """Causal softmax weights ``[H, G, m, n]`` of the newest m queries ``[H * G, m, d]`` over n keys ``[H, n, d]``."""
    heads, tokens, _ = key.shape
    new = query.shape[1]
    logits = scaling * query.reshape(heads, -1, query.shape[-1]).float() @ key.float().transpose(1, 2)
    logits = logits.unflatten(1, (-1, new))
    if new > 1:
        ahead = torch.arange(tokens, device=key.device) > torch.arange(tokens - new, tokens, device=key.device)[:, None]
        logits = logits.masked_fill(ahead, -torch.inf)
    return logits.softmax(dim=-1)


def attend(query: Tensor, key: Tensor, value: Tensor, scaling: float, take: Callable[[Tensor], None]) -> Tensor:
    """Causal attention in blocks of queries; ``take`` is shown the weights ``[H, G, b, n']`` of each, n' the keys it sees.

    Args:
        query: the newest m queries ``[H * G, m, d]``; key, value: all tokens ``[H, n, d]``.

    Returns:
        ``[1, m, H * G, d]``.
    """
    tokens, new = key.shape[1], query.shape[1]
    outputs = []
    for start in range(0, new, BLOCK):
        block = query[:, start : start + BLOCK]
        seen = tokens - new + start + block.shape[1]
        paid = weights(block, key[:, :seen], scaling)
        take(paid)
        outputs.append((paid.flatten(1, 2) @ value[:, :seen].float()).unflatten(1, (-1, block.shape[1])))
    return torch.cat(outputs, dim=2).flatten(0, 1).transpose(0, 1)[None].to(query.dtype)


class Observer:
    """Collects, for each layer, the newest queries, and what of ``needs`` is asked for.

    Args:
        width: how many of the newest queries to keep.
        needs: of "mass" (softmax weight that each key got, summed over queries and group) and "moments" (mean and covariance
            of queries before rotary positions).
        ropes: by layer, how queries are rotated; for the moments.
    """

    def __init__(self, width: int, needs: Collection[str] = (), ropes: Sequence[Rope | None] = ()) -> None:
        self.width = width
        self.needs = needs
        self.ropes = ropes
        self.queries: dict[int, Tensor] = {}
        self.scaling: dict[int, float] = {}
        self.mass: dict[int, Tensor] = {}
        self._sums: dict[int, tuple[int, Tensor, Tensor]] = {}  # queries, their sum and that of their outer products

    def saw(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, *, sliding: bool
    ) -> Tensor | None:
        """Take in the next chunk: queries ``[1, H * G, m, d]``, keys and values of all tokens so far ``[1, H, n, d]``.

        Returns the chunk's attention ``[1, m, H * G, d]`` if it was computed on the way.
        """
        self.scaling[layer] = scaling
        if self.width:
            earlier = self.queries.get(layer)
            joined = query[0] if earlier is None else torch.cat([earlier, query[0]], dim=1)
            self.queries[layer] = joined[:, -self.width :].clone()
        if sliding:  # never evicted, and its keys do not line up with the prompt
            return None
        if "moments" in self.needs:
            self._add_moments(layer, query, key.shape[2])
        if "mass" in self.needs:
            return self._attend(layer, query[0], key[0], value[0], scaling)
        return None

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """The same weights give the output and the mass."""
        mass = torch.zeros(key.shape[:2], device=key.device)
        if layer in self.mass:
            mass[:, : self.mass[layer].shape[1]] = self.mass[layer]

        def add(paid: Tensor) -> None:
            mass[:, : paid.shape[-1]] += paid.sum(dim=(1, 2))

        self.mass[layer] = mass
        return attend(query, key, value, scaling, add)

    def _add_moments(self, layer: int, query: Tensor, tokens: int) -> None:
        new = query.shape[2]
        positions = torch.arange(tokens - new, tokens, device=query.device)
        rope = self.ropes[layer]
        plain = rope.back(query, positions.expand(query.shape[:3])) if rope else query
        plain = plain[0, :, max(0, SINKS - (tokens - new)) :].double()
        count, total, outer = self._sums.get(layer, (0, 0.0, 0.0))
        self._sums[layer] = (
            count + plain.shape[1],
            total + plain.sum(dim=1),
            outer + plain.transpose(1, 2) @ plain,
        )

    def moments(self, layer: int) -> Moments | None:
        """Of all queries seen but the first four."""
        if layer not in self._sums:
            return None
        count, total, outer = self._sums[layer]
        mean = total / max(1, count)
        covariance = outer / max(1, count) - mean[:, :, None] * mean[:, None, :]
        return Moments(mean.float(), covariance.float())


class Reread:
    """The largest weight that each of the first ``tokens`` keys gets while the model reads them once more."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.largest: dict[int, Tensor] = {}

    def saw(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, *, sliding: bool
    ) -> Tensor | None:
        """As ``Observer.saw``."""
        if sliding:
            return None
        largest = self.largest.setdefault(layer, torch.zeros(key.shape[1], self.tokens, device=key.device))

        def raise_to(paid: Tensor) -> None:
            torch.maximum(largest, paid[..., : self.tokens].amax(dim=(1, 2)), out=largest)

        return attend(query[0], key[0], value[0], scaling, raise_to)
