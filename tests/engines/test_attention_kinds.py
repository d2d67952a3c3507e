"""Every attention kind, as tiny random models: each stack works on it, its bytes are right, or it is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.engines.hf.session import HFSession
from strategies.base import Stack
from strategies.evict.keydiff import KeyDiff
from strategies.evict.random import Random
from strategies.evict.window import Window
from strategies.quant.fp8 import FP8
from tests.contract.layers import STACKS
from tests.engines.test_hf import FULL, fitted, generated, open_session, run, sample, tokens

CHUNK = 40
WINDOW = 48
MIX = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    **ROUTED,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
}
TWO_OF_FOUR = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
DELTA = {  # sizes of gated delta nets
    **TWO_OF_FOUR,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "mha": ("llama", {"num_key_value_heads": 4}),
    "gqa": ("llama", {"num_key_value_heads": 2}),
    "mqa": ("llama", {"num_key_value_heads": 1, "head_dim": 64}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "gemma3": ("gemma3_text", {"sliding_window": WINDOW, "layer_types": MIX}),
}
LATENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", LATENT),
    "deepseek_v3": ("deepseek_v3", LATENT),
    "minicpm3": ("minicpm3", LATENT),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT),
    "youtu": ("youtu", LATENT),
    "longcat_flash": (
        "longcat_flash",
        {**LATENT, "num_hidden_layers": 4, "num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32},
    ),
}
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("qwen3_next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3_5": ("qwen3_5_text", DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "olmo_hybrid": ("olmo_hybrid", DELTA),
    "lfm2": ("lfm2", {**CONVOLUTIONS, "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": ("lfm2_moe", {**CONVOLUTIONS, **EXPERTS, "num_dense_layers": 1}),
    "bamba": ("bamba", {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], **MAMBA}),
    "granitemoehybrid": (
        "granitemoehybrid",
        {**TWO_OF_FOUR, **MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32},
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            **ROUTED,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "attention", "moe", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 1,
            "chunk_size": 16,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "kimi_linear": ("kimi_linear", {**LATENT, **TWO_OF_FOUR, "linear_head_dim": 16, "linear_num_heads": 4}),
}
LATENT_NAMES = {*LATENTS, "kimi_linear"}
FAMILIES = {**HEADS, **LATENTS, **HYBRIDS}


@pytest.fixture(scope="module", params=FAMILIES)
def kind(request: pytest.FixtureRequest, tiny_family: Callable[..., Path]) -> Iterator[tuple[str, HFSession]]:
    """A family's name and a session with a tiny model of it."""
    family, changes = FAMILIES[request.param]
    changes = {key: value for key, value in changes.items() if (family, key) != ("deepseek_v2", "head_dim")}
    for session in open_session(tiny_family(family, **changes), chunk=CHUNK):
        yield request.param, session


Kind = tuple[str, HFSession]


def served(session: HFSession) -> list[Stack]:
    """The stacks of the contract table that this model is not refused with."""
    return [stack for stack in STACKS if not stack.problems(session.about.shape)]


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_full_is_plain_generate(kind: Kind, compress: str) -> None:
    _, session = kind
    for index in range(3):
        one = sample(index, length=2 * CHUNK + 17 * index)
        assert len(session.tokenizer.prompt(one).context) > max(2 * CHUNK, WINDOW)
        assert tokens(run(session, one, [FULL], compress)["full"]) == generated(session, one)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_every_stack_runs_and_weighs_what_its_formula_says_or_is_refused(kind: Kind, compress: str) -> None:
    name, session = kind
    shape, one = session.about.shape, sample(1)
    runs = served(session)
    for stack in STACKS:
        if stack not in runs:
            assert all(problem.strip() for problem in stack.problems(shape))
            assert name in LATENT_NAMES or all(shape.windows), (name, stack.name)
    answers = run(session, one, runs, compress)
    assert tokens(answers["full"]) == generated(session, one)
    fed = len(session.tokenizer.prompt(one).rest) if compress == "context" else 0
    for stack in runs:
        answer = answers[stack.name]
        assert answer.response is not None, (stack.name, answer.error)
        memory = answer.memory
        assert memory is not None and memory.stored_bytes == memory.formula_bytes, stack.name
        assert memory.full_elements * shape.element_bytes == FULL.formula_bytes(memory.prompt_tokens, shape)
        if (stack.evict and (stack.evict.phases()[1] or stack.evict.spread != "uniform")) or any(shape.windows):
            continue  # what is held at the end depends on more than lengths
        after = fed + len(tokens(answer)) - (answer.response.finish == "length")
        held = stack.kept(memory.prompt_tokens, shape)[0][0] + after
        formats = fitted(session, stack).formats(shape.layers)
        expected = sum(f.layer_bytes(held, shape) if f else shape.exact_bytes(held) for f in formats)
        assert memory.stored_bytes_end == expected, stack.name


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_row_of_a_joint_decode_is_the_same_stack_alone(kind: Kind, compress: str) -> None:
    _, session = kind
    some = [
        FULL,
        Stack("fp8", quant=FP8()),
        Stack("window", evict=Window(keep_tokens=40)),
        Stack("random", evict=Random(keep=0.25, first=2, last=8)),
        Stack("live", evict=Window(keep=0.5, every=3)),
        Stack("keydiff", evict=KeyDiff(keep=0.5)),
        Stack("live+fp8", evict=Window(keep=0.5, every=3), quant=FP8()),
    ]
    some = [stack for stack in some if not stack.problems(session.about.shape)]
    for index in range(2):
        one = sample(index, length=100)
        joint = run(session, one, some, compress)
        for stack in some:
            assert tokens(joint[stack.name]) == tokens(run(session, one, [stack], compress)[stack.name]), stack.name
