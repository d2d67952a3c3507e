"""Keys before rotary positions, against what the models' own projections give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.engines.hf.build import build
from harness.engines.hf.prefill import prefill
from harness.engines.hf.rope import UnrotatedStore, ropes_of
from strategies.evict.window import Window
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.lowrank import LowRank
from tests.engines.test_hf import FULL, fitted, open_session, run, sample, tokens
from tests.strategies.swapping import behave_alike

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 1024}
KV_HEADS = 2  # of every tiny model
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "partial": ("phi", {"partial_rotary_factor": 0.5}),
    "two kinds of layers": (
        "gemma3_text",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_turning_back_gives_what_the_projection_gave(tiny_family: Callable[..., Path], name: str) -> None:
    family, changes = FAMILIES[name]
    for session in open_session(tiny_family(family, **changes)):
        projected: dict[int, torch.Tensor] = {}

        def keep(module: torch.nn.Module, inputs: Any, output: torch.Tensor, projected: Any = projected) -> None:
            index = len(projected)
            heads = output if output.dim() == 4 else output.unflatten(-1, (-1, 32)).transpose(1, 2)
            projected[index] = heads.transpose(1, 2) if heads.shape[1] != KV_HEADS else heads

        ropes_of(session.model)  # looks at the model once, without the hooks
        attentions = [m for m in session.model.modules() if hasattr(m, "k_proj")]
        handles = [getattr(m, "k_norm", m.k_proj).register_forward_hook(keep) for m in attentions]
        prompt = prefill(session.model, list(range(2, 62)), query_window=0, chunk=64, seed=0)
        for handle in handles:
            handle.remove()
        for layer, back in enumerate(prompt.unrotated()):
            held = back.keys.shape[1]
            rope = ropes_of(session.model)[layer]
            assert rope is not None
            torch.testing.assert_close(back.keys, projected[layer][0, :, -held:], rtol=1e-4, atol=1e-4)
            where = prompt.positions(layer).expand(1, *back.keys.shape[:2])
            again = rope.turn(back.keys[None], where)[0]
            torch.testing.assert_close(again, prompt.layers[layer].keys, rtol=1e-4, atol=1e-4)


def test_a_model_without_such_a_rotation_gives_keys_as_cached(tiny_family: Callable[..., Path]) -> None:
    for session in open_session(tiny_family("cohere")):  # its channels turn in neighbouring pairs
        assert set(ropes_of(session.model)) == {None}
        prompt = prefill(session.model, list(range(2, 62)), query_window=0, chunk=64, seed=0)
        assert prompt.unrotated()[0].keys is prompt.layers[0].keys
        stack = fitted(session, Stack("l", LowRank(rank=126)))
        assert tokens(run(session, sample(0), [FULL, stack])["l"])


def test_nearly_all_directions_give_nearly_the_cache(tiny: Path) -> None:
    """Also for tokens that an eviction left behind, each at its own position, and while a packed past is rewritten."""
    for session in open_session(tiny):
        prompt = prefill(session.model, list(range(2, 202)), query_window=0, chunk=64, seed=0)
        lossless = fitted(session, Stack("l", LowRank(rank=126)))
        stacks = [FULL, lossless, Stack("w", evict=Window(keep=0.3)), Stack("lw", LowRank(rank=126), Window(keep=0.3))]
        stacks[3] = fitted(session, stacks[3])
        stacks += [fitted(session, Stack("lq", LowRank(rank=64), quant=q)) for q in (INT8(), KIVI(group=8, residual=8))]
        cache = build(prompt, stacks, 40)
        dense = {int(row): bucket.keys[at] for bucket in cache.layers[1].buckets for at, row in enumerate(bucket.rows)}
        for mine, exact in ((1, 0), (3, 2)):
            held = 200 if mine == 1 else 60
            error = (dense[mine] - dense[exact])[:, :held].norm() / dense[exact][:, :held].norm()
            assert float(error) < 0.05
        for bucket in cache.layers[1].buckets:
            for ahead in range(30):
                chance = torch.Generator().manual_seed(ahead)
                with torch.inference_mode():
                    bucket.append(*(torch.randn(6, 2, 1, 32, generator=chance) for _ in range(2)))
            for group in bucket.groups:
                if group.store:
                    for copy, read in zip((bucket.keys, bucket.values), group.store.read(), strict=True):
                        mine = copy[group.start : group.stop, :, : bucket.length]
                        torch.testing.assert_close(mine, read, rtol=1e-5, atol=1e-5)


def test_a_store_of_unrotated_keys_leaves_and_comes_back(tiny_family: Callable[..., Path]) -> None:
    for session in open_session(tiny_family("llama")):
        rope = ropes_of(session.model)[0]
        assert rope is not None
        x = torch.randn(3, KV_HEADS, 50, 32)
        where = torch.arange(40).expand(3, KV_HEADS, 40)
        stores = [UnrotatedStore(INT8(), rope, x[:, :, :40], x[:, :, :40].neg(), where, 40) for _ in range(2)]
        pieces = [(x[:, :, 40:41], x[:, :, 40:41]), (x[:, :, 41:], x[:, :, 41:])]
        behave_alike(stores[:1], stores[1:], pieces, torch.tensor([2, 0]))


@pytest.mark.parametrize("family", ["glm4", "ernie4_5"])
def test_a_model_that_turns_neighbouring_channels_is_not_believed_to_turn_halves(
    family: str, tiny_family: Callable[..., Path]
) -> None:
    """Its rotary module looks like the others'; what needs the rotation is refused instead of being computed wrongly."""
    for session in open_session(tiny_family(family)):
        assert set(ropes_of(session.model)) == {None}
        stack = Stack("s", evict=Window(keep=0.5, rerotate=True))
        answer = run(session, sample(0), [FULL, stack])["s"]
        assert answer.response is None and "rotary positions are known" in answer.error


def test_layers_that_do_not_turn_have_no_rotation(tiny_family: Callable[..., Path]) -> None:
    for session in open_session(tiny_family("smollm3", no_rope_layers=[1, 0, 1])):
        assert [rope is None for rope in ropes_of(session.model)] == [False, True, False]


def test_the_model_is_asked_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for session in open_session(tiny):
        first = ropes_of(session.model)
        monkeypatch.setattr(session.model, "forward", lambda *a, **k: pytest.fail("asked again"))
        assert ropes_of(session.model) is first
