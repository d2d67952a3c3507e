"""FlexGen's 4 bits against plain Python and against optimum.quanto, which has the same numbers in another form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strategies.quant.flexgen import FlexGen4
from tests.strategies.growing import grown, shape
from tests.strategies.plain import half, packed

# --- FlexGen's algorithm, told again in plain Python ---


def plain_group(group: list[float]) -> tuple[bytes, list[float]]:
    """What is stored of the codes, and what they read back as."""
    low, spread = half(min(group)), max(group) - min(group)
    scale = half(15 / spread) if spread > 15 / 65504 else 65504.0
    codes = [min(15, max(0, round((x - low) * scale))) for x in group]
    return packed(codes, 4), [code / scale + low for code in codes]


@pytest.mark.parametrize("dim, group", [(64, 64), (128, 64), (80, 16), (64, 2)])
def test_a_store_is_the_plain_algorithm(dim: int, group: int) -> None:
    chance = torch.Generator().manual_seed(dim)
    x = torch.randn(2, 2, 4, dim, generator=chance) * torch.randn(2, 2, 4, 1, generator=chance).exp()
    x[0, 1, 2] = 0.3  # constant
    x[1, 0, 1] = 0.3 + 1e-5 * x[1, 0, 1]  # so narrow that 15 / (max - min) is beyond float16
    held = FlexGen4(group=group).store(x, -2 * x)
    for columns, exact, read in zip((held.keys, held.values), (x, -2 * x), held.read(), strict=True):
        for row in range(2):
            for head in range(2):
                for token in range(4):
                    at = (row, head, token)
                    for index in range(dim // group):
                        channels = slice(index * group, (index + 1) * group)
                        codes, back = plain_group(exact[at][channels].tolist())
                        assert bytes(columns.held.parts[0][0][at][index].tolist()) == codes
                        torch.testing.assert_close(read[at][channels], torch.tensor(back), rtol=0, atol=1e-5)


# --- bytes ---


def test_bytes_are_four_and_a_half_bits_an_element() -> None:
    assert FlexGen4().layer_bytes(1000, shape(128, heads=8)) * 8 == 2 * 1000 * 8 * 128 * 4.5


@pytest.mark.parametrize("dim, group", [(64, 64), (128, 64), (80, 16), (8, 2)])
def test_a_store_weighs_its_formula_from_nothing_on(dim: int, group: int) -> None:
    grown(FlexGen4(group=group), dim, (0, 1, 7, 0, 1, 37))


# --- what must hold for every input ---


def bound(x: Tensor) -> Tensor:
    """Half a step and the rounding of float16, by group ``[..., groups, group]``, as the class says."""
    low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
    step = ((high - low) / 15).clamp(min=1 / 65504) * (1 + 2**-11)  # as the rounded scale gives it
    return step / 2 + 2**-11 * (high - low + low.abs()) + 2**-25


@given(
    sizes=st.sampled_from([(64, 64), (128, 64), (80, 16), (32, 8)]),
    tokens=st.integers(1, 9),
    scale=st.sampled_from([1e-6, 1e-5, 1e-4, 1e-3, 1.0, 1e2, 1e4]),
    offset=st.sampled_from([0.0, 1e-4, 1.0, -3e3]),
    flat=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=300, deadline=None)
def test_the_error_is_half_a_step_and_float16_s_rounding(
    sizes: tuple[int, int], tokens: int, scale: float, offset: float, flat: bool, seed: int
) -> None:
    dim, group = sizes
    x = offset + scale * torch.randn(1, 2, tokens, dim, generator=torch.Generator().manual_seed(seed))
    if flat:
        x[:, :, ::2] = offset + scale
    for read in FlexGen4(group=group).store(x, x).read():
        assert torch.isfinite(read).all()
        grouped = x.unflatten(-1, (-1, group))
        error = (read.unflatten(-1, (-1, group)) - grouped).abs()
        float32 = 4e-7 * grouped.abs().amax(dim=-1, keepdim=True)
        assert bool((error <= bound(grouped) + float32).all())


@pytest.mark.parametrize("constant", [0.0, 1.0, -0.37, 1e-6, 300.0, 1e4])
def test_a_constant_stays_constant(constant: float) -> None:
    x = torch.full((1, 2, 5, 64), constant)
    for read in FlexGen4().store(x, x).read():
        assert bool((read == read.flatten()[0]).all())
        assert math.isclose(float(read.flatten()[0]), constant, rel_tol=2**-11, abs_tol=2**-25)


def test_outliers_stay_finite() -> None:
    x = torch.randn(1, 1, 64, 128)
    x[0, 0, ::7, 3] = 1e4
    x[0, 0, 5, 7] = 1e9  # 15 / (max - min) is below float16
    x[0, 0, 6, 7] = -1e9
    for read in FlexGen4().store(x, x).read():
        assert torch.isfinite(read).all()
        assert float(read[0, 0, 7, 3]) == pytest.approx(1e4, rel=1e-3)


def test_how_tokens_come_and_with_whom_changes_no_bit() -> None:
    x = torch.randn(5, 3, 33, 64)
    whole = FlexGen4().store(x, x)
    single = FlexGen4().store(x[2:3, :, :0], x[2:3, :, :0])
    for t in range(33):
        single.append(x[2:3, :, t : t + 1], x[2:3, :, t : t + 1])
    for all_at_once, one_by_one in zip(whole.read(), single.read(), strict=True):
        assert torch.equal(all_at_once[2:3], one_by_one)


def test_it_works_on_a_device_without_values() -> None:
    x = torch.empty(2, 3, 9, 64, device="meta")
    held = FlexGen4().store(x[:, :, :0], x[:, :, :0])
    held.append(x, x)
    held.select(torch.empty(1, dtype=torch.int64, device="meta"))
    assert [read.shape for read in held.read()] == [(1, 3, 9, 64)] * 2


# --- another implementation ---


@pytest.mark.slow
def test_quanto_s_four_bits_are_the_same_but_for_float16() -> None:
    """It holds (max - min) / 15 and the minimum in the tensor's dtype, here float32; a code may then fall one step beside."""
    quanto = pytest.importorskip("optimum.quanto")
    x = torch.randn(1, 4, 250, 128, generator=torch.Generator().manual_seed(0))
    flat = x.reshape(-1, 64)
    scale, shift = quanto.MaxOptimizer()(flat, quanto.qint4, axis=0, group_size=64)
    theirs = quanto.quantize_weight(flat, quanto.qint4, 0, scale, shift, 64, optimized=False).dequantize()
    mine = FlexGen4().store(x, x).read()[0].reshape(-1, 64)
    step = (flat.amax(dim=-1, keepdim=True) - flat.amin(dim=-1, keepdim=True)) / 15
    beside = ((mine - theirs).abs() > step / 2).float().mean()
    rounding = 2 * bound(flat) - step  # of scale and minimum
    assert bool(((mine - theirs).abs() <= step + rounding).all())
    assert float(beside) < 0.01
    errors = [(read - flat).square().mean() for read in (mine, theirs)]
    assert float(errors[0] / errors[1]) == pytest.approx(1, abs=0.01)


# --- options ---


@pytest.mark.parametrize("group, dim, rule", [
    (64, 80, "must divide the head dimension 80"),
    (7, 64, "must be a positive multiple of 2"),
    (0, 64, "must be a positive multiple of 2"),
])  # fmt: skip
def test_a_bad_group_is_named_with_its_rule_and_value(group: int, dim: int, rule: str) -> None:
    (problem,) = FlexGen4(group=group).problems(shape(dim))
    assert problem == f"strategy.quant.group {rule}{'' if '80' in rule else ' (whole bytes)'}, got {group}"
