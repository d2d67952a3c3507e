"""What fits, by hand, by brute force and as laws; a hardware file that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.bench import roofline
from harness.sizing import capacity
from harness.sizing.hardware import hardware_of, problems_of
from harness.sizing.shapes import Parameters, shape_of
from harness.sizing.speed import decode_work, fastest, prefill_work, usd_per_million
from harness.sizing.stacks import times_smaller
from harness.types import BadInput
from tests.sizing.conftest import LLAMA_8B, case, exact

ROOT = Path(__file__).resolve().parents[2]


@given(st.integers(1, 100), st.integers(0, 3000), st.integers(0, 500))
def test_the_longest_context_and_the_crossover_are_those_of_brute_force(token: int, budget: int, apart: int) -> None:
    """Of a cache that holds some tokens apart, as a residual window does."""
    held = lambda tokens: token * tokens + min(tokens, 8) * apart  # noqa: E731
    fits = [tokens for tokens in range(4000) if held(tokens) <= budget]
    assert capacity.max_context_tokens(budget, held) == max(fits)
    assert capacity.crossover_tokens(budget, held) == max(fits) + 1
    assert capacity.crossover_tokens(budget, held, rows=3) == max(t for t in range(4000) if 3 * held(t) <= budget) + 1


def test_a_window_alone_has_no_longest_context() -> None:
    held = lambda tokens: min(tokens, 127) * 10  # noqa: E731
    assert capacity.max_context_tokens(5000, held) is None and capacity.crossover_tokens(5000, held) is None
    assert capacity.max_context_tokens(100, held) == 10


def test_nothing_fits_into_nothing() -> None:
    assert capacity.pool_tokens(-1.0, 10) == capacity.max_batch(-1.0, 10) == 0
    assert capacity.max_context_tokens(-1.0, lambda tokens: tokens) == 0


@given(st.floats(1e6, 1e12), st.floats(1, 1e6), st.floats(1, 1e6))
def test_fewer_bytes_a_token_never_admit_less(budget: float, less: float, more: float) -> None:
    low, high = sorted((less, more))
    assert capacity.pool_tokens(budget, low) >= capacity.pool_tokens(budget, high)
    assert capacity.max_batch(budget, low) >= capacity.max_batch(budget, high)


TURBO = "strategies.quant.turboquant.TurboQuant"


@pytest.mark.parametrize(
    "layers, preset, ratio",
    [(36, "4bit_nc", 2.91), (48, "k8v4", 2.30), (48, "3bit_nc", 3.76), (80, "k8v4", 2.42), (80, "4bit_nc", 3.35)],
)
def test_exact_layers_lower_the_ratio_of_a_format(layers: int, preset: str, ratio: float) -> None:
    """TurboQuant with the first and last two layers exact: L / (s + (L - s) / r); vLLM's study has 2.3 to 3.7, 2.4 and 3.4."""
    model = shape_of("m", {**LLAMA_8B, "num_hidden_layers": layers}, 2)
    assert times_smaller({"quant": {"_target_": TURBO, "preset": preset, "skip": 2}}, model, 4096) == pytest.approx(
        ratio, abs=0.006
    )


@given(st.integers(1, 20_000))
def test_more_bits_are_never_fewer_bytes(tokens: int) -> None:
    model = shape_of("m", LLAMA_8B, 2)
    kivi = [{"quant": {"_target_": "strategies.quant.kivi.KIVI", "bits": bits}} for bits in (2, 4)]
    turbo = [{"quant": {"_target_": TURBO, "preset": preset}} for preset in ("3bit_nc", "4bit_nc", "k8v4")]
    for formats in (kivi, turbo):
        held = [times_smaller(layers, model, tokens) for layers in formats]
        assert held == sorted(held, reverse=True)


def test_blocks_waste_less_than_four_percent_above_180_tokens() -> None:
    """PagedAttention's blocks of 16 (arXiv 2309.06180); the mean of an evenly filled last block."""
    assert capacity.paged_waste(180, 16) == pytest.approx(0.04)
    assert all(capacity.paged_waste(tokens, 16) < 0.04 for tokens in range(181, 4000))
    assert capacity.paged_waste(179, 16) > 0.04


def test_the_roofline_of_a_plain_model_is_that_of_bench() -> None:
    here = case()
    model, parameters = here.model, here.model.parameters
    assert parameters is not None
    attention = 32 * 32 * 256
    size = roofline.Size(parameters.body, parameters.head, 2, attention, model.exact_bytes(1))
    kv = model.exact_bytes(5000)
    assert decode_work(model, parameters, 3, 5000, kv, 2) == roofline.decode(size, 3, 5000, kv)
    assert prefill_work(model, parameters, 5000, kv, 2) == roofline.prefill(size, 5000, kv)


def test_experts_are_read_when_they_are_met() -> None:
    mixture = Parameters(1000, 90, 10, experts=800, expert_share=0.25)
    assert mixture.active == 300 and mixture.read(1) == 300 and mixture.read(2) == 100 + 800 * (1 - 0.75**2)
    assert mixture.read(1000) == pytest.approx(900)


@given(st.floats(1e9, 1e13), st.floats(1.0, 100.0), st.integers(1, 64), st.integers(1, 100_000))
def test_more_bandwidth_is_never_slower(bandwidth: float, times: float, rows: int, tokens: int) -> None:
    here = case()
    assert here.model.parameters is not None
    work = decode_work(here.model, here.model.parameters, rows, tokens, exact(here.model).read_bytes(tokens), 2)
    slow, fast = (
        fastest(work, hardware_of({"memory_bytes_s": rate, "matmul_flop_s": 1e15}), 1)
        for rate in (bandwidth, bandwidth * times)
    )
    assert slow and fast and fast.seconds <= slow.seconds


def test_a_price() -> None:
    assert usd_per_million(3.6, 2, 1000) == pytest.approx(2.0)


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "zero bandwidth": (
        {"memory_bytes_s": 0, "matmul_flop_s": 1e12},
        ["hardware.memory_bytes_s must be null or a rate above 0, got 0"],
    ),
    "no memory": ({"memory_bytes": -1}, ["hardware.memory_bytes must be null or above 0, got -1"]),
    "a tier without a rate": (
        {"tiers": {"nvme": {"latency_s": 0}}},
        ["hardware.tiers.nvme.read_bytes_s must be above 0, got nothing"],
    ),
    "a tier of zero": (
        {"tiers": {"nvme": {"read_bytes_s": 0}}},
        ["hardware.tiers.nvme.read_bytes_s must be above 0, got 0"],
    ),
    "a tier of something else": (
        {"tiers": {"nvme": {"read_bytes_s": 1, "speed": 3}}},
        ["hardware.tiers.nvme.speed is no number of a tier"],
    ),
    "a tier that is a word": ({"tiers": {"nvme": "fast"}}, ["hardware.tiers.nvme must be a node", "got 'fast'"]),
    "a code without its way back": (
        {"coding": {"fp8": {"code_bytes_s": 1}}},
        ["hardware.coding.fp8 must have code_bytes_s and"],
    ),
    "all at once": (
        {"memory_bytes": "much", "reserve_bytes": -1, "tiers": {"nvme": {"read_bytes_s": float("inf"), "bytes": 0}}},
        [
            "hardware.memory_bytes",
            "hardware.reserve_bytes",
            "nvme.read_bytes_s must be above 0, got inf",
            "nvme.bytes must be",
        ],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_hardware_file_that_cannot_be_is_refused(name: str) -> None:
    config, says = WRONG[name]
    with pytest.raises(BadInput) as refused:
        hardware_of(config)
    assert all(one in str(refused.value) for one in says)


def test_a_measured_file_is_hardware() -> None:
    """What ``kvgate bench load=links`` writes: rates of disk and copies become tiers."""
    measured = {
        "name": "box",
        "measured": "2026-11-30T00:00:00+00:00",
        "price_hour": None,
        "memory_bytes_s": 2e12,
        "matmul_flop_s": 1e14,
        "to_device_large_bytes_s": 20e9,
        "from_device_large_bytes_s": 18e9,
        "to_device_small_bytes_s": 4e9,
        "disk": {
            "write_large_bytes_s": 2e9,
            "read_large_bytes_s": 3e9,
            "write_small_bytes_s": 1e6,
            "read_small_bytes_s": 1e6,
        },
    }
    assert problems_of(measured) == []
    found = hardware_of(measured)
    assert found.tier("host") and found.tier("host").read_bytes_s == 20e9  # type: ignore[union-attr]
    assert found.tier("disk") and found.tier("disk").write_bytes_s == 2e9  # type: ignore[union-attr]
    assert found.tier("host").latency_s == pytest.approx(2**16 / 4e9 - 2**16 / 20e9)  # type: ignore[union-attr]
    assert found.memory_bytes is None


def test_tiers_may_be_switched_off() -> None:
    """A built-in file has the rate of the host's link for a GPU's copies, and no tier for it where none is asked for."""
    assert hardware_of({"to_device_large_bytes_s": 1e9, "from_device_large_bytes_s": 1e9, "tiers": {}}).tiers == ()


def test_a_link_that_is_not_there_is_no_tier() -> None:
    tiers = {"peer": {"read_bytes_s": None, "latency_s": 1}, "s3": None, "nvme": {"read_bytes_s": 1e9}}
    assert [tier.name for tier in hardware_of({"tiers": tiers}).tiers] == ["nvme"]


def test_coding_rates_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/offload.json").read_text())["models"]["8B, GQA"]["formats"]
    told = yaml.safe_load((ROOT / "conf/hardware/cpu.yaml").read_text())["coding"]
    for name, rates in told.items():
        seconds, full = measured[name]["seconds"], measured["exact"]["deploy_bytes"]
        assert float(rates["code_bytes_s"]) == pytest.approx(full / seconds["code"]["median"], rel=1e-3)
        assert float(rates["decode_bytes_s"]) == pytest.approx(full / seconds["decode"]["median"], rel=1e-3)
