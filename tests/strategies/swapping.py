"""Stores whose tensors leave and come back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strategies.base import Store


def swapped(stores: Sequence[Store]) -> None:
    """Swap every tensor of these stores out, as an offload does, and put clones of them in."""
    held = [[tensor.clone() for tensor in store.tensors()] for store in stores]
    weight, facts = [store.nbytes() for store in stores], [store.facts() for store in stores]
    gone: list[Tensor] = []

    def leave(tensor: Tensor) -> Tensor:
        gone.append(tensor.clone())
        return tensor.to("meta")

    def come(place: Tensor) -> Tensor:
        tensor = gone.pop(0)
        assert place.device.type == "meta" and (place.shape, place.dtype) == (tensor.shape, tensor.dtype)
        return tensor

    for store in stores:
        store.swap(leave)
    assert [store.nbytes() for store in stores] == weight
    assert sum(tensor.numel() * tensor.element_size() for tensor in gone) == sum(weight)
    assert all(tensor.device.type == "meta" for store in stores for tensor in store.tensors())
    for store in stores:
        store.swap(come)
    assert not gone
    for store, before, told in zip(stores, held, facts, strict=True):
        assert all(map(same, store.tensors(), before)) and len(list(store.tensors())) == len(before)
        assert store.facts().keys() == told.keys() and all(same(store.facts()[key], told[key]) for key in told)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal to the bit."""
    return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)


def bits(x: Tensor) -> bytes:
    return x.flatten().clone().view(torch.uint8).numpy().tobytes()


def behave_alike(
    stores: Sequence[Store], twins: Sequence[Store], pieces: Sequence[tuple[Tensor, Tensor]], rows: Tensor
) -> None:
    """After each piece and before the first, ``stores`` leave and come back; ``twins`` never do. Then some rows are kept."""
    for new in [None, *pieces, rows]:
        for store, twin in zip(stores, twins, strict=True):
            if isinstance(new, Tensor):
                store.select(new)
                twin.select(new)
            elif new:
                for mine, theirs in zip(store.append(*new), twin.append(*new), strict=True):
                    assert [patch.start for patch in mine] == [patch.start for patch in theirs]
                    assert all(same(a.dense, b.dense) for a, b in zip(mine, theirs, strict=True))
        swapped(stores)
        for store, twin in zip(stores, twins, strict=True):
            assert all(map(same, store.read(), twin.read()))
