"""Eviction policies against what their papers say is kept."""

from __future__ import annotations

import pytest
import torch

from strategies.base import KVShape, LayerView
from strategies.evict.keydiff import KeyDiff
from strategies.evict.random import Random
from strategies.evict.snapkv import SnapKV
from strategies.evict.window import Window

SHAPE = KVShape(layers=2, kv_heads=2, query_heads=6, head_dim=16, element_bytes=2)


def prompt(tokens: int, seed: int = 0, index: int = 0) -> LayerView:
    chance = torch.Generator().manual_seed(7)
    keys, values = (torch.randn(2, tokens, 16, generator=chance) for _ in range(2))
    return LayerView(keys, values, torch.randn(6, tokens, 16, generator=chance), 0.25, index, seed)


def kept(layer: Window | SnapKV | KeyDiff | Random, facts: LayerView) -> list[list[int]]:
    chosen = layer.chosen(layer.importance(facts), layer.budget(facts.keys.shape[1]))
    return [head.tolist() for head in chosen]


def test_window_keeps_sinks_and_the_newest() -> None:
    assert kept(Window(keep_tokens=6, sinks=2), prompt(20)) == [[0, 1, 16, 17, 18, 19]] * 2


def test_random_keeps_the_ends_and_differs_by_head_layer_and_sample() -> None:
    layer = Random(keep_tokens=20, first=3, last=5)
    first, second = kept(layer, prompt(100))
    for head in (first, second):
        assert head[:3] == [0, 1, 2]
        assert head[-5:] == [95, 96, 97, 98, 99]
    assert first != second
    assert kept(layer, prompt(100)) == [first, second]
    assert kept(layer, prompt(100, index=1)) != [first, second]
    assert kept(layer, prompt(100, seed=1)) != [first, second]


def test_keydiff_drops_the_keys_nearest_to_the_mean_direction() -> None:
    facts = prompt(50)
    unit = facts.keys / facts.keys.norm(dim=-1, keepdim=True)
    cosine = torch.stack([torch.cosine_similarity(facts.keys[h], unit[h].mean(0), dim=-1) for h in range(2)])
    expected = [sorted(cosine[h].argsort()[:20].tolist()) for h in range(2)]
    assert kept(KeyDiff(keep=0.4), facts) == expected


def plain_snapkv(facts: LayerView, capacity: int, window: int, kernel: int) -> list[list[int]]:
    """SnapKV in loops: full causal softmax, sum over window queries, mean over the group, average pooling, top."""
    assert facts.window_queries is not None
    heads, tokens, _ = facts.keys.shape
    group = facts.window_queries.shape[0] // heads
    chosen = []
    for head in range(heads):
        votes = [0.0] * (tokens - window)
        for member in range(group):
            for offset in range(window):
                position = tokens - window + offset
                query = facts.window_queries[head * group + member][-window + offset]
                scores = (facts.keys[head, : position + 1] @ query * facts.scaling).softmax(0)
                for token in range(tokens - window):
                    votes[token] += float(scores[token]) / group
        half = kernel // 2
        padded = [0.0] * half + votes + [0.0] * half
        pooled = [sum(padded[t : t + kernel]) / kernel for t in range(len(votes))]
        best = sorted(range(len(votes)), key=lambda t: -pooled[t])[: capacity - window]
        chosen.append(sorted(best + list(range(tokens - window, tokens))))
    return chosen


@pytest.mark.parametrize("kernel", [1, 5])
def test_snapkv_is_the_published_algorithm(kernel: int) -> None:
    facts = prompt(60)
    assert kept(SnapKV(keep_tokens=24, window=8, kernel=kernel), facts) == plain_snapkv(facts, 24, 8, kernel)


def test_snapkv_keeps_the_newest_of_its_window_when_the_budget_is_smaller() -> None:
    assert kept(SnapKV(keep_tokens=3, window=8), prompt(30)) == [[27, 28, 29]] * 2


def test_snapkv_keeps_all_of_a_prompt_shorter_than_its_window() -> None:
    facts = prompt(5)
    assert kept(SnapKV(keep=1.0), facts) == [[0, 1, 2, 3, 4]] * 2


BAD = [
    (Window(keep=0.0), "keep must be in (0, 1], got 0.0"),
    (Window(keep=1.5), "keep must be in (0, 1], got 1.5"),
    (Window(), "exactly one"),
    (Window(keep=0.5, keep_tokens=10), "exactly one"),
    (Window(keep_tokens=0), "keep_tokens must be 1 or more, got 0"),
    (Window(keep=0.5, sinks=-1), "sinks must be 0 or more, got -1"),
    (SnapKV(keep=0.5, kernel=4), "kernel must be odd"),
    (SnapKV(keep=0.5, window=0), "window must be 1 or more, got 0"),
    (Random(keep=0.5, last=-2), "last must be 0 or more, got -2"),
]


@pytest.mark.parametrize("layer, words", BAD, ids=str)
def test_a_bad_option_is_named_with_its_rule_and_value(layer: Window | SnapKV | Random, words: str) -> None:
    assert any(words in problem and "strategy.evict." in problem for problem in layer.problems(SHAPE))
