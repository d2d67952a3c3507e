"""Linear-attention layers of hybrid models: they are the library's own and are left as they are, with a state for each row.

A state has one size however many tokens it has seen, so there is nothing to evict and nothing to pack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer


def repeated(layer: LinearAttentionLayer, rows: int) -> LinearAttentionLayer:
    """A copy of one sequence's layer for a batch of ``rows``; states are written in place, so nothing is shared."""
    batch = deepcopy(layer)
    batch.reorder_cache(torch.zeros(rows, dtype=torch.long))
    return batch


def fresh(layer: LinearAttentionLayer) -> LinearAttentionLayer:
    """The same layer before its first token."""
    return type(layer)(number_of_states=layer.number_of_states)


def join(layer: LinearAttentionLayer, other: LinearAttentionLayer, mine: Sequence[int], theirs: Sequence[int]) -> None:
    """Take in the rows of ``other``; both sides' rows get the numbers given."""
    order = torch.tensor([*mine, *theirs]).argsort()
    for held, more in ((layer.conv_states, other.conv_states), (layer.recurrent_states, other.recurrent_states)):
        for at, state in held.items():
            if state is not None:
                held[at] = torch.cat([state, more[at]])[order.to(state.device)]


def tensors(layer: LinearAttentionLayer) -> Iterator[Tensor]:
    """The states that it holds, first dimension the rows."""
    for held in (layer.conv_states, layer.recurrent_states):
        yield from (state for state in held.values() if state is not None)
