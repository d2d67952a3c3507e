"""Evictions against kvpress 0.5.5 on one prompt of a tiny model: the same tokens stay, or a test here says why not.

The goldens are made by ``tests/golden/kvpress/make.py``; kvpress itself is not needed here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.engines.hf.rope import Rope
from strategies.base import Evict, LayerView, Moments
from strategies.evict.adakv import AdaKV
from strategies.evict.expected_attention import ExpectedAttention
from strategies.evict.keydiff import KeyDiff
from strategies.evict.knorm import Knorm
from strategies.evict.snapkv import SnapKV
from strategies.evict.tova import TOVA
from strategies.evict.window import Window

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kvpress"
FACTS = json.loads((GOLDEN / "golden.json").read_text())
RATIOS = FACTS["ratios"]  # of the cache that is removed
LAYERS = range(FACTS["model"]["num_hidden_layers"])
SNAPKV = {"window": 32, "kernel": 5}


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN / "golden.safetensors")


class Rotary(torch.nn.Module):
    """The golden model's rotary angles, called as a model's own."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies

    def forward(self, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = (positions[..., None].float() * self.frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def view(golden: dict[str, Tensor], layer: int) -> LayerView:
    keys = golden["keys"][layer]
    return LayerView(
        keys,
        golden["values"][layer],
        golden["queries"][layer],
        keys.shape[-1] ** -0.5,
        layer,
        seed=0,
        layers=len(LAYERS),
        moments=Moments(golden["mean"][layer], golden["covariance"][layer]),
        rotation=Rope(Rotary(golden["frequencies"]), {}),
    )


def mask(chosen: tuple[Tensor, ...], tokens: int) -> Tensor:
    """Kept indices of each head as ``[H, n]`` of False and True."""
    return torch.stack([torch.zeros(tokens, dtype=torch.bool).index_fill(0, head, True) for head in chosen])


def same_up_to_ties(ours: Tensor, theirs: Tensor, scores: Tensor) -> bool:
    """Whether two choices ``[H, n]`` are one, but for tokens as good as equal by ``scores`` to the worst one kept.

    The scores are those of kvpress: a policy of ours that found all tokens equal would not pass for that.
    """
    if not torch.equal(ours.sum(dim=1), theirs.sum(dim=1)):
        return False
    worst = scores.masked_fill(~theirs, torch.inf).amin(dim=1, keepdim=True)
    tied = (scores - worst).abs() <= 1e-5 * worst.abs()
    return bool((tied | (ours == theirs)).all())


def kept(policy: Evict, golden: dict[str, Tensor], layer: int) -> Tensor:
    at = view(golden, layer)
    tokens = at.keys.shape[1]
    return mask(policy.chosen(policy.importance(at), policy.budget(tokens)), tokens)


POLICIES: dict[str, tuple[type[Evict], dict[str, Any]]] = {
    "knorm": (Knorm, {}),
    "snapkv": (SnapKV, SNAPKV),
    "keydiff": (KeyDiff, {}),
    "streaming_llm": (Window, {"sinks": 4}),
    "expected_attention": (ExpectedAttention, {}),
    "expected_attention_keys": (ExpectedAttention, {"use_vnorm": False}),
    "expected_attention_near": (ExpectedAttention, {"future": 16, "epsilon": 0.02}),
}


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("press", POLICIES)
def test_keeps_what_kvpress_keeps(golden: dict[str, Tensor], press: str, ratio: float) -> None:
    policy, options = POLICIES[press]
    for layer in LAYERS:
        ours = kept(policy(keep=1 - ratio, **options), golden, layer)
        theirs = golden[f"kept/{press}/{ratio}"][layer].bool()
        assert same_up_to_ties(ours, theirs, golden[f"scores/{press}"][layer]), f"layer {layer}"


@pytest.mark.parametrize("ratio", RATIOS)
def test_tova_may_drop_the_newest_token_which_kvpress_protects(golden: dict[str, Tensor], ratio: float) -> None:
    """The paper drops the token with the least weight, whichever it is. Nothing but this protection differs."""
    policy = TOVA(keep=1 - ratio)
    for layer in LAYERS:
        at = view(golden, layer)
        tokens = at.keys.shape[1]
        importance = policy.importance(at)
        newest = torch.arange(tokens) == tokens - 1
        protected = mask(policy.chosen(importance.masked_fill(newest, torch.inf), policy.budget(tokens)), tokens)
        theirs = golden[f"kept/tova/{ratio}"][layer].bool()
        assert theirs[:, -1].all()
        assert same_up_to_ties(protected, theirs, golden["scores/tova"][layer]), f"layer {layer}"
        among_best = (importance > importance[:, -1:]).sum(dim=1) < policy.budget(tokens)
        assert torch.equal(kept(policy, golden, layer)[:, -1], among_best)


def test_the_goldens_hold_a_newest_token_that_tova_drops(golden: dict[str, Tensor]) -> None:
    assert not all(kept(TOVA(keep=1 - ratio), golden, layer)[:, -1].all() for ratio in RATIOS for layer in LAYERS)


# of AdaKVPress: our policy, and the press whose scores are spread over heads
ADAPTIVE: dict[str, tuple[type[Evict], dict[str, Any], str]] = {
    "adakv_snapkv": (AdaKV, {**SNAPKV, "pool": "avg"}, "snapkv"),
    "adakv_knorm": (Knorm, {"spread": "heads", "floor": 0.5}, "knorm"),
}


def winners(scores: Tensor, budget: int) -> Tensor:
    """How many of the best ``H * budget`` tokens of all heads each head has."""
    heads, tokens = scores.shape
    best = scores.flatten().argsort(descending=True)[: heads * budget]
    return torch.bincount(best // tokens, minlength=heads)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("press", ADAPTIVE)
def test_adakv_budgets_are_the_papers_and_not_those_of_kvpress(
    golden: dict[str, Tensor], press: str, ratio: float
) -> None:
    """The paper mixes: (1 - floor) of what a head wins among all heads' tokens, and ``floor`` of its uniform budget.

    kvpress lets all heads' tokens compete for the whole budget and protects from this each head's best ``floor`` of its
    uniform budget. The sum over heads is one and the same; within a head both keep the best by the same scores.
    """
    kind, options, scored_by = ADAPTIVE[press]
    policy = kind(keep=1 - ratio, **options)
    for layer in LAYERS:
        scores = golden[f"scores/{scored_by}"][layer]
        theirs = golden[f"kept/{press}/{ratio}"][layer].bool()
        at = view(golden, layer)
        tokens = at.keys.shape[1]
        budget = policy.budget(tokens)
        importance = policy.importance(at)

        counts = kept(policy, golden, layer).sum(dim=1)
        assert counts.sum() == theirs.sum() == budget * len(counts)
        mixed = (1 - policy.floor) * winners(scores, budget) + policy.floor * budget
        assert ((counts - mixed).abs() < 1).all(), f"layer {layer}"

        safe = scores.argsort(dim=1, descending=True)[:, : max(1, int(policy.floor * budget))]
        assert torch.equal(theirs.sum(dim=1), winners(scores.scatter(1, safe, torch.inf), budget)), f"layer {layer}"

        order = importance.argsort(dim=1, descending=True)
        best = tuple(head[:count] for head, count in zip(order, theirs.sum(dim=1).tolist(), strict=True))
        assert same_up_to_ties(mask(best, tokens), theirs, scores), f"layer {layer}"


@pytest.mark.parametrize("press", ADAPTIVE)
def test_the_goldens_tell_the_two_budgets_of_adakv_apart(golden: dict[str, Tensor], press: str) -> None:
    kind, options, _ = ADAPTIVE[press]
    ours = [kept(kind(keep=1 - ratio, **options), golden, layer).sum(dim=1) for ratio in RATIOS for layer in LAYERS]
    theirs = [golden[f"kept/{press}/{ratio}"][layer].sum(dim=1) for ratio in RATIOS for layer in LAYERS]
    assert not torch.equal(torch.stack(ours), torch.stack(theirs))


def test_adakv_pools_as_its_code_does_and_snapkv_as_kvpress(golden: dict[str, Tensor]) -> None:
    """Ada-KV's code takes the largest of 7 votes; kvpress spreads the mean of 5, as SnapKV does by default."""
    at = view(golden, 0)
    assert torch.equal(AdaKV(keep=0.5, **SNAPKV, pool="avg").importance(at), SnapKV(keep=0.5).importance(at))
    assert not torch.equal(AdaKV(keep=0.5).importance(at), SnapKV(keep=0.5).importance(at))


@pytest.mark.parametrize("press", ADAPTIVE)
@pytest.mark.parametrize("ratio", RATIOS)
def test_adakv_with_protected_shares_keeps_what_kvpress_keeps(
    golden: dict[str, Tensor], press: str, ratio: float
) -> None:
    kind, options, scored_by = ADAPTIVE[press]
    policy = kind(keep=1 - ratio, share="protect", **options)
    for layer in LAYERS:
        theirs = golden[f"kept/{press}/{ratio}"][layer].bool()
        scores = golden[f"scores/{scored_by}"][layer]
        assert same_up_to_ties(kept(policy, golden, layer), theirs, scores), f"layer {layer}"
