"""The low-rank cache against a plain SVD of the calibration tokens."""

from __future__ import annotations

import pytest
import torch

from strategies.base import KVShape
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.lowrank import LowRank, Subspace
from tests.contract.layers import fitted, text

SHAPE = KVShape(layers=1, kv_heads=2, query_heads=6, head_dim=32, element_bytes=2)


def joined(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.cat([keys.transpose(0, 1).flatten(1), values.transpose(0, 1).flatten(1)], dim=-1)


@pytest.mark.parametrize("rank", [2, 30, 64, 126])
def test_no_projection_of_that_rank_is_nearer_to_the_text(rank: int) -> None:
    """Eckart and Young: the squared error left is the sum of the squared singular values that were dropped."""
    layer = text(pieces=1)[0][0]
    keys, values = layer.keys * 7, layer.values
    subspace = Subspace.of(keys, values, rank)
    assert subspace.balance == pytest.approx(float(values.norm() / keys.norm()))
    read_keys, read_values = subspace.decode(*subspace.encode(keys[None], values[None]), heads=2)
    exact = joined(keys * subspace.balance, values).double()
    left = joined(read_keys[0] * subspace.balance, read_values[0]).double() - exact
    dropped = torch.linalg.svdvals(exact - exact.mean(0))[rank:]
    torch.testing.assert_close(left.square().sum(), dropped.square().sum(), rtol=1e-4, atol=1e-3)


def test_tokens_of_the_subspace_come_back() -> None:
    chance = torch.Generator().manual_seed(0)
    basis = torch.randn(8, 128, generator=chance)

    def tokens(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        joint = torch.randn(count, 8, generator=chance) @ basis
        keys, values = (half.unflatten(-1, (2, 32)).transpose(0, 1) for half in joint.chunk(2, dim=-1))
        return keys, values

    subspace = Subspace.of(*tokens(100), 8)
    keys, values = tokens(20)
    read_keys, read_values = subspace.decode(*subspace.encode(keys[None], values[None]), heads=2)
    torch.testing.assert_close(read_keys[0], keys, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(read_values[0], values, rtol=1e-3, atol=1e-3)


def test_bytes_are_those_of_the_latents() -> None:
    plain = fitted(Stack("l", LowRank(rank=64)))
    assert plain.formula_bytes(1000, SHAPE) == 1000 * 64 * 2
    packed = fitted(Stack("l", LowRank(rank=64), quant=INT8()))
    assert packed.formula_bytes(1000, SHAPE) == 1000 * (64 + 2 * 4)  # two halves with a float32 scale each


def test_a_number_format_sees_latents_also_in_the_calibration_text() -> None:
    quant = INT8(scale="tensor", scale_from="text")
    format = fitted(Stack("l", LowRank(rank=64), quant=quant)).formats(1)[0]
    keys = torch.cat([piece[0].keys for piece in text()], dim=1)
    values = torch.cat([piece[0].values for piece in text()], dim=1)
    leading, trailing = format.subspace.encode(keys[None], values[None])  # type: ignore[union-attr]
    torch.testing.assert_close(format.inner.key_scale.squeeze(), leading.abs().max() / 127)  # type: ignore[union-attr]
    torch.testing.assert_close(format.inner.value_scale.squeeze(), trailing.abs().max() / 127)  # type: ignore[union-attr]


@pytest.mark.parametrize("rank", [0, 3, 128, 200])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    problem = Stack("l", LowRank(rank=rank)).problems(SHAPE)[0]
    assert "strategy.structure.rank must be even" in problem and "128 numbers" in problem and str(rank) in problem


def test_a_number_format_must_fit_the_latents() -> None:
    assert Stack("l", LowRank(rank=64), quant=KIVI(group=32)).problems(SHAPE) == []
    assert "must divide the head dimension 24" in Stack("l", LowRank(rank=48), quant=KIVI(group=32)).problems(SHAPE)[0]
