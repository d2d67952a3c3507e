"""Number formats against independent accounts of them: published byte counts, plain-Python code, torch's own casts."""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.base import KVShape
from strategies.quant.fp8 import FP8, FP8E5M2
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.quant.packing import pack, unpack
from strategies.stack import Stack


def shape(dim: int, element_bytes: int, layers: int = 1, heads: int = 1) -> KVShape:
    return KVShape(layers=layers, kv_heads=heads, query_heads=heads, head_dim=dim, element_bytes=element_bytes)


def test_kivi_bytes_are_the_published_ones() -> None:
    """n=4096, d=128, 2 bits, G=32, R=128 at bfloat16: 196,608 B of keys and 223,232 B of values, 4.995 times less."""
    kivi = KIVI(bits=2, group=32, residual=128).format
    assert kivi.layer_bytes(4096, shape(128, 2)) == 196_608 + 223_232
    assert shape(128, 2).exact_bytes(4096) / kivi.layer_bytes(4096, shape(128, 2)) == pytest.approx(4.995, abs=5e-4)


GOLDENS = [  # SmolLM2-135M (30 layers, 3 heads of 64), 1,000 prompt tokens: bytes at bfloat16 and at float32
    (Stack("full"), 23_040_000, 46_080_000),
    (Stack("fp8", quant=FP8()), 12_240_000, 12_240_000),
    (Stack("int8", quant=INT8()), 12_240_000, 12_240_000),
    (Stack("fp8 tensor", quant=FP8(scale="tensor")), 11_520_240, 11_520_240),
    (Stack("fp8 head", quant=FP8(scale="head")), 11_520_720, 11_520_720),
    # keys: 896 packed and 104 exact; values: 872 packed and 128 exact; 64 * (b/8 + 4/32) a packed token, 64 * e an exact
    (Stack("kivi4", quant=KIVI(bits=4)), 9_037_440, 11_710_080),
    (Stack("kivi2", quant=KIVI(bits=2)), 6_491_520, 9_164_160),
]


@pytest.mark.parametrize("stack, bfloat16, float32", GOLDENS, ids=lambda x: getattr(x, "name", ""))
def test_bytes_of_a_thousand_tokens(stack: Stack, bfloat16: int, float32: int) -> None:
    assert stack.formula_bytes(1000, shape(64, 2, 30, 3)) == bfloat16
    assert stack.formula_bytes(1000, shape(64, 4, 30, 3)) == float32


@pytest.mark.parametrize("bits", [2, 4])
def test_packing_is_lossless(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (3, 5, 64), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, 5, 64 * bits // 8)
    assert torch.equal(unpack(packed, bits), codes)


# --- KIVI, told again in plain Python ---


def half(x: float) -> float:
    return float(struct.unpack("e", struct.pack("e", x))[0])


def plain_group(group: list[float], bits: int) -> list[float]:
    """Quantize one group: asymmetric, scale and minimum in float16."""
    low = half(min(group))
    scale = half((max(group) - low) / (2**bits - 1))
    if scale == 0:
        return [low for _ in group]
    codes = [min(2**bits - 1, max(0, round((x - low) / scale))) for x in group]
    return [code * scale + low for code in codes]


class PlainKIVI:
    """One head, token lists of channel lists, following the paper's two queues to the letter."""

    def __init__(self, bits: int, group: int, residual: int) -> None:
        self.bits, self.group, self.residual = bits, group, residual
        self.keys: list[list[float]] = []
        self.values: list[list[float]] = []
        self.packed_keys = self.packed_values = 0

    def append(self, key: list[float], value: list[float]) -> None:
        self.keys.append(list(key))
        self.values.append(list(value))
        if len(self.keys) - self.packed_keys == self.residual:  # keys: when R have gathered, all R leave
            for start in range(self.packed_keys, len(self.keys), self.group):
                for channel in range(len(key)):
                    tokens = range(start, start + self.group)
                    new = plain_group([self.keys[t][channel] for t in tokens], self.bits)
                    for t, x in zip(tokens, new, strict=True):
                        self.keys[t][channel] = x
            self.packed_keys = len(self.keys)
        if len(self.values) - self.packed_values > self.residual:  # values: the oldest leaves
            token = self.values[self.packed_values]
            for start in range(0, len(token), self.group):
                token[start : start + self.group] = plain_group(token[start : start + self.group], self.bits)
            self.packed_values += 1


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("prompt", [0, 1, 15, 16, 40, 48])
def test_kivi_is_the_paper_s_algorithm_with_its_flushes(bits: int, prompt: int) -> None:
    torch.manual_seed(1)
    total, dim, group, residual = 90, 16, 8, 16
    keys, values = torch.randn(total, dim), torch.randn(total, dim)
    plain = PlainKIVI(bits, group, residual)
    for t in range(total):
        plain.append(keys[t].tolist(), values[t].tolist())
    store = KIVI(bits=bits, group=group, residual=residual).format.store(
        keys[None, None, :prompt], values[None, None, :prompt]
    )
    for t in range(prompt, total):
        store.append(keys[None, None, t : t + 1], values[None, None, t : t + 1])
    read_keys, read_values = store.read()
    torch.testing.assert_close(read_keys[0, 0], torch.tensor(plain.keys), rtol=0, atol=1e-6)
    torch.testing.assert_close(read_values[0, 0], torch.tensor(plain.values), rtol=0, atol=1e-6)


# --- FP8 ---


def test_fp8_rounds_as_torch_does_and_saturates_instead_of_nan() -> None:
    x = torch.randn(1, 1, 64, 32) * 100
    read = FP8(scale="token_head").store(x, x).read()[0]
    scale = x.abs().amax(-1, keepdim=True) / 448
    torch.testing.assert_close(read, (x / scale).to(torch.float8_e4m3fn).float() * scale)


def test_a_frozen_scale_clips_later_outliers_and_counts_them() -> None:
    x = torch.randn(2, 3, 8, 16)
    store = FP8(scale="head").store(x, x)
    outlier = torch.full((2, 3, 1, 16), 1e4)
    store.append(outlier, -outlier)
    keys, values = store.read()
    largest = x.abs().amax(dim=(2, 3))
    assert torch.allclose(keys[:, :, -1], largest[:, :, None].expand(-1, -1, 16))
    assert torch.allclose(values[:, :, -1], -largest[:, :, None].expand(-1, -1, 16))
    assert store.facts()["clipped_elements"].tolist() == [96.0, 96.0]  # 3 heads x 16 channels, keys and values


def test_zeros_stay_zeros() -> None:
    zeros = torch.zeros(1, 2, 40, 16)
    for layer in (FP8(), FP8(scale="tensor"), INT8(), KIVI(bits=2, group=8, residual=16).format):
        for read in layer.store(zeros, zeros).read():
            assert torch.equal(read, zeros)


def test_outliers_of_ten_thousand_stay_finite_in_two_bits() -> None:
    x = torch.randn(1, 1, 64, 32)
    x[0, 0, ::7, 3] = 1e4
    for read in KIVI(bits=2, group=32, residual=32).format.store(x, x).read():
        assert torch.isfinite(read).all()
        assert math.isclose(float(read.max()), 1e4, rel_tol=1e-3)


def test_what_float16_cannot_hold_saturates() -> None:
    x = torch.randn(1, 1, 64, 32) * 1e6
    for read in KIVI(bits=4, group=32, residual=32).format.store(x, x).read():
        assert torch.isfinite(read).all()


BAD = [
    (KIVI(bits=3), "bits"),
    (KIVI(group=48), "group"),
    (KIVI(group=32, residual=100), "residual"),
    (KIVI(group=0), "group"),
    (FP8(scale="row"), "scale"),
]


@pytest.mark.parametrize("layer, field", BAD, ids=str)
def test_a_bad_option_is_named_with_its_rule_and_value(layer: KIVI | FP8, field: str) -> None:
    problems = layer.problems(shape(64, 2))
    assert any(f"strategy.quant.{field}" in problem and str(getattr(layer, field)) in problem for problem in problems)


# --- closed forms, over shapes and values ---


def drawn(dim: int, tokens: int, scale: float, kind: str, seed: int) -> torch.Tensor:
    x = torch.randn(2, 3, tokens, dim, generator=torch.Generator().manual_seed(seed)) * scale
    if kind == "flat":
        return torch.full_like(x, scale)
    if kind == "outliers":
        x[..., dim // 3] = 1e4
        x[:, :, tokens // 2] *= 5
    return x


shapes = given(
    dim=st.sampled_from([64, 80, 128, 256]),
    tokens=st.integers(1, 67),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    kind=st.sampled_from(["normal", "flat", "outliers"]),
    seed=st.integers(0, 99),
)


@pytest.mark.parametrize("granularity", ["tensor", "head", "token_head"])
@shapes
@settings(max_examples=30, deadline=None)
def test_int8_is_off_by_half_a_scale_at_most(granularity: str, dim: int, tokens: int, **how: Any) -> None:
    x = drawn(dim, tokens, **how)
    layer = INT8(scale=granularity)
    assert bool(((layer.store(x, x).read()[0] - x).abs() <= layer.scale_of(x) / 2 * (1 + 1e-5)).all())


@pytest.mark.parametrize(
    "layer, digits, least", [(FP8(), 3, -6), (FP8E5M2(scale="token_head", scale_from="prompt"), 2, -14)]
)
@shapes
@settings(max_examples=30, deadline=None)
def test_fp8_is_off_by_half_a_unit_in_the_last_place(
    layer: FP8, digits: int, least: int, dim: int, tokens: int, **how: Any
) -> None:
    """Of the number over its scale: 2**(exponent - digits) / 2, the exponent at least that of the smallest normal number."""
    x = drawn(dim, tokens, **how)
    scale = layer.scale_of(x)
    unit = torch.exp2((x / scale).abs().clamp_min(2.0**least).log2().floor() - digits)
    assert bool(((layer.store(x, x).read()[0] - x).abs() <= unit * scale / 2 * (1 + 1e-4)).all())


@pytest.mark.parametrize("name, layer", [("float8_e4m3fn", FP8()), ("float8_e5m2", FP8E5M2())])
def test_fp8_codes_are_those_of_an_independent_library(name: str, layer: FP8) -> None:
    """Every finite float16 number, rounded as ml_dtypes does where that does not overflow."""
    numbers = torch.arange(2**16).to(torch.uint16).view(torch.float16).float()
    numbers = numbers[numbers.isfinite() & (numbers.abs() <= layer.largest)]
    theirs = numbers.numpy().astype(getattr(ml_dtypes, name)).view("uint8")
    assert torch.equal(layer.encode(numbers).view(torch.uint8), torch.from_numpy(theirs))
    beyond = torch.tensor([1e6, -1e6, torch.inf, -torch.inf])
    assert layer.encode(beyond).float().tolist() == [layer.largest, -layer.largest] * 2


@pytest.mark.parametrize("bits", [2, 4])
@shapes
@settings(max_examples=30, deadline=None)
def test_kivi_is_off_by_half_a_step_and_the_rounding_of_scale_and_minimum(
    bits: int, dim: int, tokens: int, scale: float, kind: str, seed: int
) -> None:
    x = drawn(dim, tokens, min(scale, 1000.0), kind, seed)  # float16 holds 65504
    format = KIVI(bits=bits, group=16, residual=16).format
    keys, values = format.store(x, x).read()
    whole, old = tokens // 16 * 16, max(0, tokens - 16)
    for read, packed, groups in (
        (keys[:, :, :whole].transpose(2, 3), x[:, :, :whole].transpose(2, 3), 16),
        (values[:, :, :old], x[:, :, :old], 16),
    ):
        exact = packed.unflatten(-1, (-1, groups))
        spread = exact.amax(-1, keepdim=True) - exact.amin(-1, keepdim=True)
        rounding = 2**-11 * (spread + exact.abs().amax(-1, keepdim=True)) + 2**bits * 2**-24
        off = (read.unflatten(-1, (-1, groups)) - exact).abs()
        assert bool((off <= spread / (2**bits - 1) / 2 + 2 * rounding).all())
    assert torch.equal(keys[:, :, whole:], x[:, :, whole:]) and torch.equal(values[:, :, old:], x[:, :, old:])
