"""Every attention kind, as tiny random models: each stack works on it, its bytes are right, or it is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from harness.engines.base import Ask, Row
from harness.engines.hf import states
from harness.engines.hf.attention import attention
from harness.engines.hf.company import Company
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.joint import JointCache
from harness.engines.hf.prefill import prefill, reread
from harness.engines.hf.session import HFSession
from harness.types import BadInput
from strategies.base import Evict, KVShape, Layer, LayerView, UniformQuant
from strategies.evict.hybrid import Hybrid
from strategies.evict.keydiff import KeyDiff
from strategies.evict.oracle import Oracle
from strategies.evict.quest import Quest
from strategies.evict.random import Random
from strategies.evict.snapkv import SnapKV
from strategies.evict.two_phase import TwoPhase
from strategies.evict.window import Window
from strategies.offload.disk import Disk
from strategies.prefix.reuse import Reuse
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.minicache import MiniCache
from tests.contract.layers import EVICTIONS, FORMATS, STACKS, STRUCTURES
from tests.engines.test_hf import FULL, fitted, generated, open_session, plain_decode, run, sample, tokens
from tests.engines.test_prefill_modes import Coded

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


@pytest.fixture(autouse=True)
def no_second_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a batch that raises are answered apart, which would hide what is wrong with the batch."""
    raise_it(monkeypatch)


def raise_it(patch: pytest.MonkeyPatch) -> None:
    """What breaks in a batch is raised."""

    def raised(self: Company, *told: Any) -> Any:
        raise told[-1]

    for name in ("_one_by_one", "_broken"):
        patch.setattr(Company, name, raised)


@pytest.fixture(scope="module", params=FAMILIES)
def kind(request: pytest.FixtureRequest, tiny_family: Callable[..., Path]) -> Iterator[tuple[str, HFSession]]:
    """A family's name and a session with a tiny model of it."""
    family, changes = FAMILIES[request.param]
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
def test_samples_that_share_a_batch_say_what_each_says_alone(kind: Kind, compress: Any) -> None:
    _, session = kind
    rows = [Row(stack.name, fitted(session, stack)) for stack in served(session)[::16]]
    asks = [Ask(sample(index, length=50 + 37 * index, new=6 + 4 * (index % 2)), [rows]) for index in range(3)]
    said = []
    for together in (1, len(asks) * len(rows)):
        session.together = together
        answers = session.run(asks, compress=compress, seed=0)
        said.append({(answer.sample_id, answer.cell): tokens(answer) for answer in answers})
    assert said[0] == said[1]


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


# --- against the library's own attention and caches -----------------------------------------------------------------------

PLAIN = ("deepseek_v2", "deepseek_v3", "qwen3_next", "bamba", "lfm2", "kimi_linear")  # one of each way to compute


@pytest.fixture(scope="module", params=PLAIN)
def odd(request: pytest.FixtureRequest, tiny_family: Callable[..., Path]) -> Iterator[HFSession]:
    """A model with latents or with linear layers."""
    family, changes = FAMILIES[request.param]
    yield from open_session(tiny_family(family, **changes), chunk=CHUNK)


def test_an_eviction_is_what_a_cut_cache_of_transformers_gives(odd: HFSession) -> None:
    """Linear layers go on from the whole prompt, as they would with a cache that was cut."""
    window = Stack("window", evict=Window(keep_tokens=30, sinks=4))
    for index in range(4):
        one = sample(index)
        expected = plain_decode(odd, one, lambda n: [0, 1, 2, 3, *range(n - 26, n)], one.max_new_tokens)
        assert tokens(run(odd, one, [FULL, window])["window"]) == expected


@pytest.mark.parametrize("quant", [FP8(), INT8()], ids=["fp8", "int8"])
@pytest.mark.parametrize("way", ["exact", "chunked"])
def test_a_format_is_what_a_cache_of_transformers_with_coded_tokens_gives(
    odd: HFSession, quant: FP8 | INT8, way: str
) -> None:
    """Chunked, every chunk reads coded tokens; exact, the prompt does not and all that follows does."""
    for index in range(2):
        one = sample(index)
        prompt = odd.tokenizer.prompt(one)
        cache = DynamicCache(config=odd.model.config)
        if way == "chunked":
            cache.layers = [Coded(quant) if isinstance(layer, DynamicLayer) else layer for layer in cache.layers]
        ids, said = torch.tensor([prompt.context + prompt.rest]), []
        places = torch.arange(ids.shape[1] + one.max_new_tokens)[None]
        with torch.inference_mode():
            for at in range(0, ids.shape[1], CHUNK):
                chunk = ids[:, at : at + CHUNK]
                logits = odd.model(
                    chunk, past_key_values=cache, position_ids=places[:, at : at + chunk.shape[1]]
                ).logits
            for at, layer in enumerate(cache.layers):
                if type(layer) is DynamicLayer:
                    cache.layers[at] = Coded(quant)
                    cache.layers[at].update(layer.keys, layer.values)
            for at in range(ids.shape[1], places.shape[1]):
                said.append(int(logits[0, -1].argmax()))
                logits = odd.model(
                    torch.tensor([said[-1:]]), past_key_values=cache, position_ids=places[:, at : at + 1]
                ).logits
        assert tokens(run(odd, one, [FULL, Stack("q", quant=quant)], prefill=way)["q"]) == tuple(said)


def test_a_chunked_prefill_joins_rows_of_both_kinds(odd: HFSession) -> None:
    stacks = [FULL, Stack("fp8", quant=FP8()), Stack("window", evict=Window(keep=0.5)), Stack("int8", quant=INT8())]
    for compress in ("prompt", "context"):
        one = sample(2)
        joint = run(odd, one, stacks, compress, "chunked")
        for stack in stacks:
            rows = [FULL] if stack is FULL else [FULL, stack]
            alone = run(odd, one, rows, compress, "chunked")
            assert tokens(joint[stack.name]) == tokens(alone[stack.name]), stack.name
            memory = joint[stack.name].memory
            assert memory is not None and memory.stored_bytes == memory.formula_bytes
        assert tokens(joint["full"]) == generated(odd, one)


def test_rows_that_stop_leave_the_others_as_they_were(odd: HFSession) -> None:
    """Rows leave the batch when half have stopped: states and stores of the rest must stay theirs."""
    one = sample(1, new=20)
    stacks = [Stack(f"w{keep}", evict=Window(keep_tokens=keep)) for keep in (6, 12, 20, 40)] + [FULL]
    free = {name: answer.response for name, answer in run(odd, one, stacks).items()}
    left = 0
    for mark in sorted({char for response in free.values() for char in response.text}):  # type: ignore[union-attr]
        stopped = run(odd, replace(one, stop=(mark,)), stacks)
        lengths = {name: len(tokens(answer)) for name, answer in stopped.items()}
        left += len(set(lengths.values())) > 2
        for name, count in lengths.items():
            assert tokens(stopped[name]) == free[name].token_ids[:count], (name, mark)  # type: ignore[union-attr]
    assert left  # and some rows did leave before others


def test_what_looks_at_a_prompt_again_leaves_it_as_it_was(odd: HFSession) -> None:
    ids = list(range(2, 130))
    prompt = prefill(odd.model, ids, query_window=0, chunk=CHUNK, seed=0)
    before = [state.clone() for state in states_of(prompt.cache)]
    told = reread(odd.model, prompt, ids, [[5, 6, 7], [8, 9]])
    assert told.layers[0].reread is not None and told.layers[0].reread.shape[-1] == len(ids)
    assert all(map(torch.equal, before, states_of(prompt.cache)))
    assert not list(states_of(prompt.empty().cache)) and prompt.empty().state_bytes == 0
    assert prompt.state_bytes == sum(state.nbytes for state in before)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_tokens_that_are_reused_or_come_back_from_a_tier_answer_as_ever(
    odd: HFSession, tmp_path: Path, compress: str
) -> None:
    away = Disk(path=str(tmp_path))
    stacks = [
        FULL,
        Stack("away", offload=away),
        Stack("away+fp8", quant=FP8(), offload=away),
        Stack("reuse", prefix=Reuse(block=8)),
        Stack("reuse+window", prefix=Reuse(block=8), evict=Window(keep=0.5)),
    ]
    shape = odd.about.shape
    refused = {stack.name for stack in stacks if stack.problems(shape)}
    assert refused == ({"reuse", "reuse+window"} if shape.linear_layers else set())
    stacks = [stack for stack in stacks if stack.name not in refused]
    plain = [Stack(stack.name, evict=stack.evict, quant=stack.quant) for stack in stacks]
    for _ in range(2):  # the second time there is something to reuse
        for index in (0, 1):
            mine, theirs = (run(odd, sample(index), rows, compress) for rows in (stacks, plain))
            for stack in stacks:
                assert tokens(mine[stack.name]) == tokens(theirs[stack.name]), stack.name
                memory = mine[stack.name].memory
                assert memory is not None and memory.stored_bytes == memory.formula_bytes
    reused = [mine[name].evidence[0].facts for name in ("reuse",) if name in mine]
    assert all(facts["hit_tokens"] > 0 for facts in reused)


def test_states_of_rows_are_selected_and_joined_in_their_order() -> None:
    def layer(*rows: float) -> LinearAttentionLayer:
        made = LinearAttentionLayer()
        made.update_conv_state(torch.tensor(rows)[:, None, None].expand(-1, 2, 4))
        made.update_recurrent_state(torch.tensor(rows)[:, None])
        return made

    def held(made: LinearAttentionLayer) -> list[list[float]]:
        return [state.flatten(1)[:, 0].tolist() for state in states.tensors(made)]

    single, batch = layer(7), layer(1, 2)
    assert held(states.repeated(single, 3)) == [[7, 7, 7]] * 2 and held(single) == [[7]] * 2
    states.join(batch, layer(3, 4), mine=[1, 2], theirs=[0, 3])
    assert held(batch) == [[3, 1, 2, 4]] * 2
    cache = JointCache([batch], torch.zeros(4), [[], [], [], []])  # type: ignore[list-item]
    cache.select([3, 1], 4)
    assert held(batch) == [[4, 1]] * 2
    assert not list(states.tensors(states.fresh(batch)))
    assert held(states.repeated(LinearAttentionLayer(), 3)) == []  # of a layer that has only experts


def states_of(cache: DynamicCache) -> Iterator[Tensor]:
    for layer in cache.layers:
        for held in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            yield from (state for state in held.values() if state is not None)


def test_the_attention_that_an_eviction_loses_is_the_library_s(odd: HFSession) -> None:
    """attention_kept from the weights that transformers' eager attention tells of ``full``'s own decode."""
    one = sample(1)
    answers = run(odd, one, [FULL, Stack("w", evict=Window(keep_tokens=30))])
    prompt = odd.tokenizer.prompt(one)
    ids, lost, paid = prompt.context + prompt.rest, 0.0, 0.0
    cache = DynamicCache(config=odd.model.config)
    with torch.inference_mode(), attention(odd.model, "eager"):
        odd.model(torch.tensor([ids]), past_key_values=cache)
        for at, token in enumerate(tokens(answers["full"])[:-1], start=len(ids)):  # the last one is never fed
            out = odd.model(
                torch.tensor([[token]]),
                past_key_values=cache,
                position_ids=torch.tensor([[at]]),
                output_attentions=True,
            )
            for weights in filter(lambda x: x is not None, out.attentions):  # [1, H, 1, n]
                lost += float(weights[..., 4 : len(ids) - 26].mean(dim=1).sum())
                paid += float(weights.mean(dim=1).sum())
    facts = answers["w"].evidence[0].facts
    assert facts["attention_kept"] == pytest.approx(1 - lost / paid, abs=1e-4) and 0 < lost < paid


def test_each_layer_has_its_own_rotation(tiny_family: Callable[..., Path]) -> None:
    for name in ("gemma3", "qwen3_next"):
        family, changes = FAMILIES[name]
        for session in open_session(tiny_family(family, **changes), chunk=CHUNK):
            prompt = prefill(session.model, list(range(2, 90)), query_window=0, chunk=CHUNK, seed=0)
            assert [view.rotation for view in prompt.layers] == list(prompt.ropes)
            assert len(set(prompt.ropes)) == (2 if name == "gemma3" else 1)


def test_layers_are_counted_among_those_that_cache_tokens(tiny_family: Callable[..., Path]) -> None:
    family, changes = HYBRIDS["qwen3_next"]
    for session in open_session(tiny_family(family, **changes), chunk=CHUNK):
        assert session.about.shape.layers == 2
        prompt = prefill(session.model, list(range(2, 90)), query_window=4, chunk=CHUNK, seed=0, needs={"mass"})
        assert prompt.places == (1, 3) and [(view.layer, view.layers) for view in prompt.layers] == [(0, 2), (1, 2)]
        stacks = [
            FULL,
            Stack("pair", MiniCache(start=0)),
            Stack("skip", quant=INT8(skip=(1,))),
            Stack("spread", evict=KeyDiff(keep=0.5, spread="layers")),
        ]
        assert not [problem for stack in stacks for problem in stack.problems(session.about.shape)]
        for compress in ("prompt", "context"):
            joint = run(session, sample(1), stacks, compress)
            for stack in stacks:
                memory, facts = joint[stack.name].memory, [e.facts for e in joint[stack.name].evidence]
                assert memory is not None and memory.stored_bytes == memory.formula_bytes
                assert all(each["state_bytes"] == prompt.state_bytes > 0 for each in facts)
                assert tokens(joint[stack.name]) == tokens(run(session, sample(1), [stack], compress)[stack.name])


# --- what is refused ------------------------------------------------------------------------------------------------------

SHAPE = KVShape(3, 1, 4, 32, 4, value_dim=16)


@pytest.mark.parametrize(
    "family, changes, reason",
    [
        ("gemma2", {"sliding_window": 32}, "soft-capped attention scores"),
        (
            "gpt_oss",
            {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
            "learned attention sinks",
        ),
        ("llama4_text", {"attention_chunk_size": 32, "num_local_experts": 2, "intermediate_size_mlp": 64}, "chunks of"),
        ("deepseek_v32", LATENT, "DynamicIndexedLayer"),
        ("falcon_h1", {"mamba_d_ssm": 128, **MAMBA}, "LinearAttentionAndFullAttentionLayer"),
        (
            "jamba",
            {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "use_mamba_kernels": False},
            "forget their state",
        ),
        ("minimax", {**TWO_OF_FOUR, "num_local_experts": 4, "block_size": 16}, "linear attention .served are bamba"),
        ("qwen3_next", {**DELTA, **EXPERTS, "layer_types": ["linear_attention"] * 4}, "caches no keys and values"),
        ("gemma4_text", {"layer_types": MIX, "num_kv_shared_layers": 0}, "layers of different"),
        ("gemma4_text", {"layer_types": MIX, "num_kv_shared_layers": 1}, "read other layers"),
        ("llama", {"kv_lora_rank": 8}, "no expand_kv"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "follow the length"),
        (
            "phi3",
            {
                "head_dim": 16,
                "original_max_position_embeddings": 256,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                },
            },
            "follow the length",
        ),
    ],
)
def test_models_that_cannot_be_served_are_refused_before_weights_load(
    family: str, changes: dict[str, Any], reason: str, tiny_family: Callable[..., Path]
) -> None:
    folder = tiny_family(family, **changes)
    for weights in folder.glob("*.safetensors"):
        weights.write_bytes(b"")
    with pytest.raises(BadInput, match=f"cannot serve {family} with .*{reason}"):
        HFEngine().describe({"name": "hf", "path": str(folder)})


@dataclass(frozen=True, kw_only=True)
class Mine(UniformQuant):
    """A user's own format, which says nothing of latents."""

    name = "mine"

    def quantized_tokens(self, tokens: int) -> int:
        return tokens

    def layer_bytes(self, tokens: int, shape: KVShape) -> int:
        return 0

    def store(self, keys: Tensor, values: Tensor) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Newest(Evict):
    """A user's own eviction, which says nothing of latents."""

    name = "newest"

    def scores(self, view: LayerView) -> Tensor:
        raise NotImplementedError


def test_what_works_on_heads_is_refused_on_latents_in_one_sentence() -> None:
    works = {"window", "window_tokens", "random", "flexgen4", "nvfp4", "nvfp4_4over6"}
    works |= {name for name in FORMATS if name.startswith(("fp8", "int8"))}
    for name, layer in (EVICTIONS | FORMATS | STRUCTURES | {"mine": Mine(), "newest": Newest(keep=0.5)}).items():
        problems = Stack("s", **{layer.slot: layer}).problems(SHAPE)
        if name in works:
            assert not problems
        else:
            words = "works on the keys and values of heads, and this model caches a latent (MLA), which is neither"
            assert problems == [f"strategy.{layer.slot}: {layer.slot}/{layer.name} {words}"]
    two = Stack("s", evict=SnapKV(keep=0.5), quant=KIVI()).problems(SHAPE)
    assert [problem.split(" ")[1] for problem in two] == ["evict/snapkv", "quant/kivi"]


@pytest.mark.parametrize(
    "layer, refused",
    [
        (Window(keep=0.5, every=4), ""),
        (Window(keep=0.5, spread="layers"), ""),
        (Window(keep=0.5, rerotate=True), "rerotate must be false"),
        (Random(keep=0.5, spread="heads"), "spread must not be heads: this model caches a latent"),
        (TwoPhase(prefill=Random(keep=0.5), decode=Window(keep=0.5, every=4)), ""),
        (TwoPhase(prefill=SnapKV(keep=0.5), decode=Window(keep=0.5, every=4)), "evict/two_phase works on"),
        (TwoPhase(prefill=Random(keep=0.5), decode=Window(keep=0.5, every=4, rerotate=True)), "rerotate"),
        (Hybrid(keep=0.5, parts=(Random(), Window()), weights=(0.5, 0.5)), ""),
        (Hybrid(keep=0.5, parts=(Random(), KeyDiff()), weights=(0.5, 0.5)), "evict/hybrid works on"),
        (Oracle(keep=0.5), "evict/oracle works on"),
        (Quest(keep=0.5), "evict/quest works on"),
    ],
)
def test_options_that_need_heads_are_refused_on_latents(layer: Layer, refused: str) -> None:
    problems = Stack("s", evict=layer).problems(SHAPE)  # type: ignore[arg-type]
    assert any(refused in problem for problem in problems) if refused else not problems
    ordinary = replace(SHAPE, kv_heads=2, value_dim=None)
    assert not any("latent" in problem for problem in Stack("s", evict=layer).problems(ordinary))  # type: ignore[arg-type]


def test_bytes_of_a_latent_are_those_of_its_two_parts() -> None:
    assert SHAPE.latent and SHAPE.widths == (32, 16) and SHAPE.exact_bytes(10) == 10 * (32 + 16) * 4
    assert FP8().layer_bytes(10, SHAPE) == 10 * (32 + 16) + 2 * 10 * 4
    assert INT8(scale="head").layer_bytes(10, SHAPE) == 10 * (32 + 16) + 2 * 4
    assert Stack("full").formula_bytes(10, SHAPE) == 3 * SHAPE.exact_bytes(10)
    ordinary = replace(SHAPE, value_dim=None)
    assert not ordinary.latent and ordinary.exact_bytes(10) == 10 * 2 * 32 * 4
