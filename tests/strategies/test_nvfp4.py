"""NVFP4 against ml_dtypes' own casts and a plain-Python account of the format."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strategies.quant import e2m1
from strategies.quant.nvfp4 import NVFP4, Blocks
from strategies.quant.packing import unpack
from tests.strategies.growing import grown, shape
from tests.strategies.plain import E2M1, E4M3, nearest, packed


def filled(x: Tensor, four_over_six: bool = False) -> Blocks:
    """The columns of ``x``, its scale being taken from it."""
    columns = Blocks(NVFP4(four_over_six=four_over_six), x)
    columns.append(x)
    return columns


def scales(columns: Blocks) -> Tensor:
    """The e4m3 scales ``[R, H, n, blocks]`` as numbers."""
    return torch.cat([part[1] for part in columns.held.parts], dim=2).view(torch.float8_e4m3fn).float()


variants = pytest.mark.parametrize("four_over_six", [False, True])


# --- rounding ---


def test_e2m1_rounds_as_ml_dtypes_does() -> None:
    middles = np.array([(low + high) / 2 for low, high in pairwise(E2M1)], dtype=np.float32)
    levels = np.array(E2M1, dtype=np.float32)
    near = np.concatenate([middles, levels, [5.5, 6.5, 7, 8, 1e4, 1e-30, 2**-149]]).astype(np.float32)
    chance = np.random.default_rng(0)
    drawn = np.concatenate([chance.normal(0, 3, 100_000), chance.uniform(-7, 7, 100_000)]).astype(np.float32)
    x = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)), drawn])
    x = np.concatenate([x, -x])
    theirs = x.astype(ml_dtypes.float4_e2m1fn)
    codes = e2m1.encode(torch.from_numpy(x))
    assert np.array_equal(codes.numpy(), theirs.view(np.uint8))
    assert np.array_equal(e2m1.decode(codes).numpy(), theirs.astype(np.float32))


def test_scales_round_as_ml_dtypes_does() -> None:
    middles = [(low + high) / 2 for low, high in pairwise(E4M3)]
    drawn = np.random.default_rng(0).lognormal(0, 3, 20_000).clip(max=448).tolist()
    wanted = np.array([448.0, *E4M3, *middles, *drawn], dtype=np.float32)
    x = torch.zeros(1, 1, len(wanted), 16)
    x[0, 0, :, 5] = torch.from_numpy(wanted) * 6  # the first makes the layer's scale 1
    columns = filled(x)
    assert float(columns.scale) == 1
    asked = (x[0, 0, :, 5] / 6).numpy()  # what is drawn may move by a bit
    assert np.array_equal(asked[: -len(drawn)], wanted[: -len(drawn)])
    assert np.array_equal(scales(columns).flatten().numpy(), asked.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


# --- the format, told again in plain Python ---


def plain_block(block: list[float], g: float, target: float) -> tuple[int, list[int], list[float]]:
    """Scale code, element codes and what they read back as, the largest element going to ``target``."""
    scale = nearest(max(abs(x) for x in block) / target / g, E4M3)
    step = E4M3[scale] * g
    codes = [nearest(abs(x) / step, E2M1) if step else 0 for x in block]
    back = [math.copysign(E2M1[code] * step, x) for code, x in zip(codes, block, strict=True)]
    return scale, [code | (8 if x < 0 else 0) for code, x in zip(codes, block, strict=True)], back


def plain_token(x: list[float], g: float, four_over_six: bool) -> tuple[bytes, bytes, list[float]]:
    all_scales, all_codes, all_back = [], [], []
    for start in range(0, len(x), 16):
        block = x[start : start + 16]
        tried = [plain_block(block, g, target) for target in ([6.0, 4.0] if four_over_six else [6.0])]
        scale, codes, back = min(
            tried, key=lambda one: sum((a - b) ** 2 for a, b in zip(one[2], block, strict=True))
        )  # of equals the first
        all_scales.append(scale)
        all_codes += codes
        all_back += back
    return packed(all_codes, 4), bytes(all_scales), all_back


@variants
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_a_store_is_the_plain_algorithm(four_over_six: bool, dim: int) -> None:
    chance = torch.Generator().manual_seed(dim)
    x = torch.randn(2, 2, 5, dim, generator=chance) * torch.randn(2, 2, 5, 1, generator=chance).exp()
    x[0, 1, 2] *= 1e-4  # subnormal scales
    layer = NVFP4(four_over_six=four_over_six)
    held = layer.store(x, -2 * x)
    for columns, exact, read in zip((held.keys, held.values), (x, -2 * x), held.read(), strict=True):
        for row in range(2):
            g = float(exact[row].abs().max()) / (6 * (256 if four_over_six else 448))
            assert float(columns.scale[row]) == pytest.approx(g)
            for at in [(row, 0, 0), (row, 1, 2), (row, 1, 4)]:
                codes, block_scales, back = plain_token(exact[at].tolist(), float(columns.scale[row]), four_over_six)
                assert bytes(columns.held.parts[0][0][at].tolist()) == codes
                assert bytes(columns.held.parts[0][1][at].tolist()) == block_scales
                torch.testing.assert_close(read[at], torch.tensor(back), rtol=1e-6, atol=0)


# --- bytes ---


@variants
@pytest.mark.parametrize("dim, each", [(64, 36), (80, 45), (128, 72), (256, 144)])
def test_bytes_are_the_published_four_and_a_half_bits(four_over_six: bool, dim: int, each: int) -> None:
    layer, pieces = NVFP4(four_over_six=four_over_six), (0, 1, 7, 0, 1, 37)
    grown(layer, dim, pieces)
    for tokens in accumulate(pieces):
        assert layer.layer_bytes(tokens, shape(dim, heads=2)) == 2 * (2 * tokens * each + 4)


# --- what must hold for every input ---


@variants
@given(
    dim=st.sampled_from([64, 80, 128, 256]),
    tokens=st.integers(1, 9),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e4]),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_error_is_half_of_the_widest_gap(
    four_over_six: bool, dim: int, tokens: int, scale: float, spread: float, seed: int
) -> None:
    """The widest gap between codes is 2 (4 to 6), so half of it is one step s * g.

    s is rounded too. Where it is normal that costs at most s / 16, so the largest element is at most 6.375 steps, and cut to
    6 it is nearer than half a gap. Where it is subnormal it costs up to 2**-10, and so the largest element up to 6 * 2**-10 * g.
    """
    chance = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(1, 2, tokens, dim, generator=chance)
    x *= (spread * torch.randn(1, 2, tokens, 1, generator=chance)).exp()
    columns = filled(x, four_over_six)
    error = (columns.read() - x).abs().unflatten(-1, (-1, 16)).amax(dim=-1)
    bound = (scales(columns) * columns.scale).clamp(min=float(6 * 2**-10 * columns.scale))
    assert bool((error <= bound * (1 + 1e-5)).all())
    assert int(columns.clipped) == 0


@given(scale=st.sampled_from([1e-3, 1.0, 100.0]), spread=st.sampled_from([0.0, 1.0, 3.0]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_four_over_six_is_never_worse_in_any_block(scale: float, spread: float, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(1, 2, 7, 64, generator=chance)
    x *= (spread * torch.randn(1, 2, 7, 1, generator=chance)).exp()
    chosen = filled(x, four_over_six=True)
    plain = Blocks(NVFP4(), x)
    plain.scale, plain.frozen = chosen.scale, True
    plain.append(x)
    errors = [(c.read() - x).square().unflatten(-1, (-1, 16)).sum(dim=-1) for c in (chosen, plain)]
    assert bool((errors[0] <= errors[1] * (1 + 1e-5)).all())


def test_four_over_six_gains_on_gaussian_numbers() -> None:
    x = torch.randn(1, 8, 500, 128, generator=torch.Generator().manual_seed(0))
    errors = [float((filled(x, four_over_six).read() - x).square().mean()) for four_over_six in (False, True)]
    assert errors[0] == pytest.approx(0.0089, rel=0.05)
    assert errors[1] < 0.9 * errors[0]


@variants
def test_how_tokens_come_and_with_whom_changes_no_bit(four_over_six: bool) -> None:
    layer = NVFP4(four_over_six=four_over_six)
    x = torch.randn(5, 3, 33, 64)
    whole = layer.store(x[:, :, :10], x[:, :, :10])
    whole.append(x[:, :, 10:], x[:, :, 10:])
    single = layer.store(x[2:3, :, :0], x[2:3, :, :0])  # the first tokens to come freeze the scale
    laid_out = x[2:3].transpose(1, 2).contiguous().transpose(1, 2)
    single.append(laid_out[:, :, :10], laid_out[:, :, :10])
    for t in range(10, 33):
        single.append(laid_out[:, :, t : t + 1], laid_out[:, :, t : t + 1])
    for all_at_once, one_by_one in zip(whole.read(), single.read(), strict=True):
        assert torch.equal(all_at_once[2:3], one_by_one)
    assert torch.equal(whole.facts()["clipped_elements"][2:3], single.facts()["clipped_elements"])


@variants
def test_a_frozen_scale_clips_later_outliers_and_counts_them(four_over_six: bool) -> None:
    layer = NVFP4(four_over_six=four_over_six)
    x = torch.randn(2, 3, 8, 32)
    held = layer.store(x, x)
    held.append(x, x)  # what defined the scale fits it
    assert held.facts()["clipped_elements"].tolist() == [0, 0]
    later = torch.zeros(2, 3, 1, 32)
    later[0, :, :, 3], later[0, 1, :, 20] = 1e4, -1e4
    held.append(later, -later)
    assert held.facts()["clipped_elements"].tolist() == [8, 0]  # 3 heads and one more, of keys and of values
    largest = x[0].abs().max() * (448 / 256 if four_over_six else 1)
    keys, values = held.read()
    torch.testing.assert_close(keys[0, :, -1, 3], largest.expand(3))
    torch.testing.assert_close(values[0, 1, -1, 20], largest)
    held.select(torch.tensor([1]))
    assert held.facts()["clipped_elements"].tolist() == [0]


@variants
def test_zeros_stay_zeros_and_blocks_too_small_for_a_scale_become_zeros(four_over_six: bool) -> None:
    layer = NVFP4(four_over_six=four_over_six)
    zeros = torch.zeros(1, 2, 7, 32)
    for read in layer.store(zeros, zeros).read():
        assert torch.equal(read, zeros)
    x = torch.randn(1, 2, 7, 32)
    x[..., :16] *= 1e-8
    read = layer.store(x, x).read()[0]
    assert torch.equal(read[..., :16], zeros[..., :16]) and torch.isfinite(read).all()


@variants
def test_outliers_of_ten_thousand_stay_finite(four_over_six: bool) -> None:
    x = torch.randn(1, 1, 63, 128)
    x[0, 0, ::7, 3] = 1e4
    for read in NVFP4(four_over_six=four_over_six).store(x, x).read():
        assert torch.isfinite(read).all()
        assert float(read.max()) == pytest.approx(1e4, rel=1e-3)


@variants
def test_it_works_on_a_device_without_values(four_over_six: bool) -> None:
    x = torch.empty(2, 3, 9, 64, device="meta")
    held = NVFP4(four_over_six=four_over_six).store(x[:, :, :0], x[:, :, :0])
    held.append(x, x)
    held.select(torch.empty(1, dtype=torch.int64, device="meta"))
    assert [read.shape for read in held.read()] == [(1, 3, 9, 64)] * 2
    assert held.facts()["clipped_elements"].shape == (1,)


def test_codes_lie_two_a_byte_the_first_in_the_low_nibble() -> None:
    x = torch.zeros(1, 1, 1, 16)
    x[..., 0], x[..., 1] = 6 * 448, -3 * 448
    columns = filled(x)
    assert columns.held.parts[0][0].flatten().tolist() == [0xD7, *[0] * 7]
    assert unpack(columns.held.parts[0][0], 4).flatten().tolist()[:2] == [7, 13]


# --- options ---


def test_a_head_dimension_that_blocks_do_not_divide_is_refused() -> None:
    (problem,) = NVFP4().problems(shape(72))
    assert all(word in problem for word in ("strategy.quant", "nvfp4", "multiple of 16", "got 72"))
    assert NVFP4().problems(shape(80)) == []


def test_its_speed_is_said_to_be_simulated() -> None:
    assert NVFP4.simulated and "simulated" in (NVFP4.__doc__ or "")
