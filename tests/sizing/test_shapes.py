"""Bytes a token of known models, by hand and against the library's own caches; rules that a configuration may break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from harness.engines.hf.census import count, shape_of_model
from harness.engines.hf.kinds import shape_of as served_shape_of
from harness.sizing.shapes import ModelShape, shape_of
from harness.sizing.stacks import kv_shape
from harness.types import BadInput
from tests.sizing.conftest import LLAMA_8B

MODELS = Path(__file__).resolve().parents[2] / "conf/model"


def gqa(layers: int, kv_heads: int, width: int, heads: int | None = None) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads or kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
    }


def mla(layers: int, index: int = 0) -> dict[str, Any]:
    kind = "indexed_attention" if index else "full_attention"
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": index}
    return {"num_hidden_layers": layers, "num_attention_heads": 128, "layer_types": [kind] * layers, **latent}


# 2 x layers x heads x width x 2 bytes, or layers x (512 + 64, + 128 of an indexer) x 2 bytes
BYTES_PER_TOKEN = {
    "SmolLM2-135M": (gqa(30, 3, 64), 23_040),
    "SmolLM2-360M": (gqa(32, 5, 64), 40_960),
    "SmolLM2-1.7B": (gqa(24, 32, 64), 196_608),
    "Qwen2.5-0.5B": (gqa(24, 2, 64), 12_288),
    "Qwen2.5-1.5B": (gqa(28, 2, 128), 28_672),
    "Qwen3-0.6B": (gqa(28, 8, 128), 114_688),
    "Qwen3-4B": (gqa(36, 8, 128), 147_456),
    "Llama-3.2-1B": (gqa(16, 8, 64), 32_768),
    "Llama-3.1-8B": (LLAMA_8B, 131_072),
    "Llama-3.1-70B": (gqa(80, 8, 128), 327_680),
    "Llama-2-7B": (gqa(32, 32, 128), 524_288),
    "DeepSeek-V2": (mla(60), 69_120),
    "DeepSeek-V3": (mla(61), 70_272),
    "DeepSeek-V3.2": (mla(61, 128), 85_888),
}


@pytest.mark.parametrize("name", BYTES_PER_TOKEN)
def test_bytes_a_token_of_known_models(name: str) -> None:
    config, wanted = BYTES_PER_TOKEN[name]
    assert shape_of(name, config, 2).exact_bytes(1000) == 1000 * wanted


def built_in(name: str) -> ModelShape:
    """A shape of conf/model, as Hydra composes it."""
    config = yaml.safe_load((MODELS / f"{name}.yaml").read_text())
    return shape_of_model({"deploy_dtype": "bfloat16", **config})


BUILT_IN = {  # bytes of 100,000 tokens, parameters as published (in units of the last digit), attention
    "qwen3_4b": (14.7456e9, "4.02e9", "GQA"),
    "llama31_8b": (13.1072e9, "8.03e9", "GQA"),
    "llama31_70b": (32.768e9, "7.06e10", "GQA"),
    "llama2_7b": (52.4288e9, "6.74e9", "MHA"),
    "falcon_7b": (0.8192e9, "6.92e9", "MQA"),
    "gemma3_4b": (100_000 * 5 * 4096 + 1023 * 29 * 4096, "3.88e9", "sliding 1024 + GQA"),
    "gpt_oss_20b": (100_000 * 12 * 2048 + 127 * 12 * 2048, "2.09e10", "sliding 128 + GQA"),
    "deepseek_v3": (7.0272e9, "6.71e11", "MLA"),
    "deepseek_v32": (8.5888e9, "6.72e11", "sparse MLA"),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_shapes(name: str) -> None:
    held, parameters, kind = BUILT_IN[name]
    model = built_in(name)
    assert model.exact_bytes(100_000) == held
    assert model.kind == kind
    assert model.parameters and f"{model.parameters.total:.2e}".replace("e+", "e").replace("e0", "e") == parameters


def test_a_mixture_reads_the_experts_that_are_met() -> None:
    """DeepSeek-V3 is published with 37 billion active parameters, gpt-oss-20b with 3.6."""
    parameters = built_in("deepseek_v3").parameters
    assert parameters and parameters.active == pytest.approx(37e9, rel=0.03)
    assert parameters.read(1) == pytest.approx(parameters.active)
    assert parameters.read(4096) == pytest.approx(
        parameters.total - 129280 * 7168, rel=1e-6
    )  # but the looked-up embedding
    small = built_in("gpt_oss_20b").parameters
    assert small and small.active == pytest.approx(3.6e9, rel=0.03)


def test_deepseek_v4_is_fitted_and_says_so() -> None:
    """The published 9.62 GiB at a million tokens is what the split of its layers was chosen for."""
    model, v32 = built_in("deepseek_v4_pro"), built_in("deepseek_v32")
    assert model.fitted and model.parameters is None
    assert model.exact_bytes(100_000) == pytest.approx(0.9928e9, rel=1e-3)
    assert model.exact_bytes(2**20) / 2**30 == pytest.approx(9.62, abs=0.005)
    assert v32.exact_bytes(2**20) / 2**30 == 83.875
    assert v32.exact_bytes(100_000) / model.exact_bytes(100_000) == pytest.approx(8.65, abs=0.01)
    assert v32.exact_bytes(2**20) / model.exact_bytes(2**20) == pytest.approx(8.71, abs=0.01)


@pytest.mark.parametrize(
    "family, changes",
    [
        ("llama", {}),
        ("qwen3", {"num_key_value_heads": 1}),
        ("mistral", {"sliding_window": 64}),
        ("gemma3_text", {"sliding_window": 64}),
        ("qwen3_next", {"num_experts": 4, "num_experts_per_tok": 2}),
        (
            "deepseek_v3",
            {"kv_lora_rank": 32, "qk_rope_head_dim": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
        ),
    ],
)
def test_a_shape_is_what_the_reference_engine_reads(family: str, changes: dict[str, Any]) -> None:
    """Built apart from the engine's own reading of a configuration, which asks the library's cache what each layer is."""
    sizes = {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_size": 64,
    }
    config = AutoConfig.for_model(family, **{**sizes, **changes})
    served = served_shape_of(config, torch.bfloat16)
    model = shape_of_model({"name": "m", "shape": {"model_type": family, **sizes, **changes}})
    assert kv_shape(model) == replace(served, window=served.windows)


def test_parameters_are_those_of_the_model(tiny_family: Callable[..., Path]) -> None:
    for tied in (True, False):
        folder = tiny_family("llama", tie_word_embeddings=tied)
        found = count(AutoConfig.from_pretrained(folder))
        model = AutoModelForCausalLM.from_pretrained(folder)
        embedding = model.get_input_embeddings().weight.numel()
        assert found.total == sum(parameter.numel() for parameter in model.parameters())
        assert (found.head, found.body) == (embedding, found.total - embedding * (1 if tied else 2))


def test_experts_of_which_nobody_says_how_many_are_met() -> None:
    config = AutoConfig.for_model(
        "mixtral", num_hidden_layers=1, hidden_size=64, intermediate_size=64, num_local_experts=4
    )
    assert count(config).expert_share == 0.5
    config.num_experts_per_tok = 0
    with pytest.raises(BadInput, match="has experts, and its configuration has none of num_experts_per_tok"):
        count(config)


def test_a_folder_and_a_file_are_read_alike(tiny: Path) -> None:
    folder, file = (shape_of_model({"name": "hf", "path": str(path)}) for path in (tiny, tiny / "config.json"))
    assert folder.name == file.name == "llama" and folder.layers == file.layers and folder.parameters == file.parameters
    # the user's own files come before a built-in shape
    own = shape_of_model({"name": "qwen3_4b", "path": str(tiny), "shape": {"model_type": "qwen3"}, "fitted": "no"})
    assert own.layers == folder.layers and own.parameters and not own.fitted


WRONG = {
    "missing": ({}, ["num_hidden_layers must be a whole number of 1 or more, got None", "num_attention_heads must"]),
    "heads": (
        {**LLAMA_8B, "num_key_value_heads": 5},
        ["num_key_value_heads must divide the 32 num_attention_heads, got 5"],
    ),
    "width": (
        {"num_hidden_layers": 2, "num_attention_heads": 7, "hidden_size": 64},
        ["num_attention_heads must divide hidden_size 64 where head_dim is not given, got 7"],
    ),
    "window": ({**LLAMA_8B, "layer_types": ["sliding_attention"] * 32}, ["sliding_window must be", "got None"]),
    "names": ({**LLAMA_8B, "layer_types": ["full_attention"]}, ["layer_types must name 32 layers, got 1"]),
    "kind": ({**LLAMA_8B, "layer_types": ["magic"] * 32}, ["layer_types must be of full_attention", "got 'magic'"]),
    "several": (
        {**LLAMA_8B, "num_key_value_heads": 5, "layer_types": ["magic"]},
        ["must divide the 32", "must name 32 layers", "'magic'"],
    ),
    "state alone": ({**LLAMA_8B, "layer_types": ["linear_attention"] * 32}, ["cache no keys and values"]),
    "zero": ({**LLAMA_8B, "head_dim": 0}, ["head_dim must be a whole number of 1 or more, got 0"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_configuration_that_cannot_be_is_refused(name: str) -> None:
    config, says = WRONG[name]
    with pytest.raises(BadInput) as refused:
        shape_of("m", config, 2)
    assert all(one in str(refused.value) for one in says)


@given(st.integers(1, 200_000), st.integers(0, 5000), st.sampled_from(sorted(BYTES_PER_TOKEN)))
def test_longer_requests_never_hold_less(tokens: int, more: int, name: str) -> None:
    model = shape_of(name, BYTES_PER_TOKEN[name][0], 2)
    assert model.exact_bytes(tokens) <= model.exact_bytes(tokens + more)
    assert model.exact_bytes(tokens) <= shape_of(name, BYTES_PER_TOKEN[name][0], 4).exact_bytes(tokens)
