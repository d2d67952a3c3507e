"""A store that grows from nothing, in pieces of many sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strategies.base import KVShape, Store, UniformQuant

ROWS, HEADS = 3, 2


def shape(dim: int, layers: int = 1, heads: int = 1) -> KVShape:
    return KVShape(layers=layers, kv_heads=heads, query_heads=heads, head_dim=dim, element_bytes=2)


def grown(layer: UniformQuant, dim: int, pieces: Sequence[int]) -> Store:
    """A store of bfloat16 tokens that came in these pieces; after each it weighs its formula, and all of them read back."""
    x = torch.randn(ROWS, HEADS, sum(pieces), dim, dtype=torch.bfloat16)
    held, tokens = layer.store(x[:, :, :0], x[:, :, :0]), 0
    for more in pieces:
        held.append(x[:, :, tokens : tokens + more], x[:, :, tokens : tokens + more])
        tokens += more
        assert held.nbytes() == ROWS * layer.layer_bytes(tokens, shape(dim, heads=HEADS))
    assert all(read.shape == x.shape and read.dtype == x.dtype for read in held.read())
    return held
