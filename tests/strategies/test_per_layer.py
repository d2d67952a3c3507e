"""Widths by layer: the search against brute force, its errors against a plain account, and its budget in bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.base import Calibration, KVShape, LayerView
from strategies.quant.kivi import Grouped, decode, encode
from strategies.quant.per_layer import PAIRS, PerLayer, cheapest, pair_errors
from strategies.stack import Stack

HEADS, GROUPED, DIM = 2, 3, 32


def shape(layers: int = 4) -> KVShape:
    return KVShape(layers=layers, kv_heads=HEADS, query_heads=HEADS * GROUPED, head_dim=DIM, element_bytes=2)


def piece(layer: int, tokens: int = 100, queries: int | None = 16, key_outliers: float = 1.0) -> LayerView:
    chance = torch.Generator().manual_seed(layer)
    keys, values = (torch.randn(HEADS, tokens, DIM, generator=chance) for _ in range(2))
    asked = torch.randn(HEADS * GROUPED, queries or 1, DIM, generator=chance)
    keys[..., 5] *= key_outliers
    return LayerView(keys, values, asked if queries else None, DIM**-0.5, layer, 0)


def text(layers: int = 4, pieces: int = 2, **options: float) -> Calibration:
    return tuple(tuple(piece(10 * at + layer, **options) for layer in range(layers)) for at in range(pieces))  # type: ignore[arg-type]


def labels(layer: PerLayer, layers: int, calibration: Calibration | None = None) -> list[str]:
    return [format.label for format in layer.formats(layers, calibration)]


# --- the search ---

errors = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 3.0]), min_size=9, max_size=9), min_size=1, max_size=4
)


@given(table=errors, spare=st.integers(0, 26))
@settings(max_examples=60, deadline=None)
def test_the_search_finds_what_trying_everything_finds(table: list[list[float]], spare: int) -> None:
    capacity = 2 * len(table) + spare

    def cost(chosen: tuple[int, ...]) -> int:
        return sum(sum(PAIRS[index]) // 2 for index in chosen)

    def summed(chosen: tuple[int, ...]) -> float:
        return sum((layer[index] for layer, index in zip(table, chosen, strict=True)), 0.0)

    affordable = (chosen for chosen in product(range(9), repeat=len(table)) if cost(chosen) <= capacity)
    best = min((summed(chosen), cost(chosen)) for chosen in affordable)
    found = tuple(PAIRS.index(pair) for pair in cheapest(table, capacity))
    assert (summed(found), cost(found)) == best  # equal errors: the fewest bits


def test_the_errors_are_of_causal_attention_in_plain_loops() -> None:
    facts, group = piece(3, tokens=43, queries=8, key_outliers=20), 8
    keys, values = facts.keys[:, :40], facts.values[:, :40]  # three ragged tokens are left out
    for (key_bits, value_bits), error in zip(PAIRS, pair_errors(facts, group).tolist(), strict=True):
        new_keys, new_values = torch.empty_like(keys), torch.empty_like(values)
        for at in range(0, 40, group):
            for channel in range(DIM):
                block = encode(keys[:, at : at + group, channel], key_bits, group)
                new_keys[:, at : at + group, channel] = decode(block, key_bits)
        for token in range(40):
            for at in range(0, DIM, group):
                new_values[:, token, at : at + group] = decode(
                    encode(values[:, token, at : at + group], value_bits, group), value_bits
                )
        off, whole = 0.0, 0.0
        for head in range(HEADS * GROUPED):
            for query in range(8):
                sees = min(40, 43 - 8 + query + 1)
                asked = facts.window_queries[head, query]  # type: ignore[index]
                outs = []
                for k, v in ((keys, values), (new_keys, new_values)):
                    k, v = k[head // GROUPED, :sees], v[head // GROUPED, :sees]
                    outs.append((facts.scaling * k @ asked).softmax(0) @ v)
                off += float((outs[0] - outs[1]).square().sum())
                whole += float(outs[0].square().sum())
        assert error == pytest.approx((off / whole) ** 0.5, rel=1e-3)


def test_without_queries_keys_and_values_count_alike() -> None:
    found = dict(zip(PAIRS, pair_errors(piece(0, queries=None), 8).tolist(), strict=True))
    assert found[8, 2] == pytest.approx(found[2, 8], rel=0.1)
    assert found[2, 2] > found[4, 2] > found[4, 4] > found[8, 8] > 0


def test_a_sliding_layer_may_hold_fewer_tokens_than_there_are_queries() -> None:
    assert torch.isfinite(pair_errors(piece(0, tokens=15, queries=64), 8)).all()


def test_keys_get_more_bits_than_values_where_attention_is_sharp() -> None:
    """With an outlier channel in the keys and queries that pick out single tokens, an error of keys picks out wrong ones."""
    sharp = tuple(
        tuple(layer._replace(window_queries=3 * layer.window_queries) for layer in layers)  # type: ignore[operator]
        for layers in text(key_outliers=8)
    )
    assert labels(PerLayer(budget=7, group=8, residual=16), 4, sharp) == ["K4V2"] * 4
    bits = [(f.key_bits, f.value_bits) for f in PerLayer(budget=9, group=8, residual=16).formats(4, sharp)]  # type: ignore[attr-defined]
    assert sum(key for key, _ in bits) > sum(value for _, value in bits)


@pytest.mark.parametrize("budget", [6, 6.6, 8, 9.49, 12])
@pytest.mark.parametrize("skip", [(), (1,), 1])
def test_a_budget_holds_to_the_byte(budget: float, skip: int | tuple[int, ...]) -> None:
    layer = PerLayer(budget=budget, group=8, residual=16, skip=skip)
    assert layer.problems(shape()) == []
    stack = Stack("s", quant=layer).fit(4, text())
    acting = [format for format in stack.formats(4) if format]
    assert len(acting) == 4 - len(layer.skipped(4))
    # 160 more tokens that leave the residual: packed bytes alone
    more = stack.formula_bytes(480, shape()) - stack.formula_bytes(320, shape())
    exact = shape().exact_bytes(160)
    packed = more - (4 - len(acting)) * exact
    used = 8 * packed / (len(acting) * exact / 2)
    assert used <= budget
    assert used > budget - 1.5 or budget == 12  # the next step of one layer is at most 8 of 2 * acting bits
    if budget in (6, 12):
        assert {format.label for format in acting} == {"K2V2" if budget == 6 else "K8V8"}


def test_the_search_is_deterministic_and_shown() -> None:
    stacks = [Stack("s", quant=PerLayer(budget=7.5, group=8, residual=16, skip=(0,))).fit(4, text()) for _ in range(2)]
    assert stacks[0].formats(4) == stacks[1].formats(4)
    assert "by layer: 0 exact, 1" in stacks[0].acted(500, shape())["quant/per_layer"][1]


def test_a_calibration_text_must_hold_a_group() -> None:
    layer = PerLayer(budget=7.5, group=32)
    with pytest.raises(ValueError, match=r"calibration.tokens must give every layer 32 tokens \(a group\), got 20"):
        layer.formats(1, text(layers=1, tokens=20))
    mixed = (*text(layers=1, pieces=1), *text(layers=1, pieces=1, tokens=20))  # a short last piece is left out
    assert layer.formats(1, mixed) == layer.formats(1, mixed[:1])


# --- given pairs ---


def test_pairs_are_of_one_layer_each_or_of_all() -> None:
    assert labels(PerLayer(pairs=("K4V2",)), 3) == ["K4V2"] * 3
    assert labels(PerLayer(pairs=("K8V4", "K4V2", "K2V8")), 3) == ["K8V4", "K4V2", "K2V8"]
    assert PerLayer(pairs=("K4V2",)).formats(1, None) == (Grouped(4, 2, 32, 128),)
    assert not PerLayer(pairs=("K4V2",)).calibrates and PerLayer(budget=4).calibrates


def test_a_skipped_layer_is_exact() -> None:
    stack = Stack("s", quant=PerLayer(pairs=("K8V8", "K2V2", "K4V4", "K4V2"), skip=(0,)))
    assert [format.label if format else None for format in stack.formats(4)] == [None, "K2V2", "K4V4", "K4V2"]


BAD = [
    (PerLayer(), "pairs: give exactly one of pairs and budget, got pairs=[], budget=None"),
    (PerLayer(pairs=("K4V2",), budget=4), "pairs: give exactly one of pairs and budget, got pairs=['K4V2'], budget=4"),
    (PerLayer(pairs=("K4V3", "k4v2", "K4V2", "V4K2")), "pairs must be like K4V2, with widths of (2, 4, 8) bits, got"),
    (PerLayer(pairs=("K4V2", "K4V4")), "pairs must hold one pair for all layers or one for each of 4, got 2"),
    (
        PerLayer(budget=2.9),
        "budget must lie between the 3 bits an element of K2V2 and the 9 of K8V8 in groups of 32, got",
    ),
    (
        PerLayer(budget=9.1),
        "budget must lie between the 3 bits an element of K2V2 and the 9 of K8V8 in groups of 32, got",
    ),
    (PerLayer(budget=4, group=6), "group must be a multiple of 4"),
    (PerLayer(pairs=("K4V2",), group=48, residual=96), "group must divide the head dimension 32, got 48"),
    (PerLayer(pairs=("K4V2",), residual=100), "residual must be a positive multiple of the group size 32, got 100"),
    (PerLayer(budget=4, group=0), "group must be a multiple of 4"),
    (PerLayer(budget=4, skip=(4,)), "skip must be a count of layers"),
]


@pytest.mark.parametrize("layer, rule", BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_a_bad_option_is_named_with_its_rule_and_value(layer: PerLayer, rule: str) -> None:
    assert any(problem.startswith(f"strategy.quant.{rule}") for problem in layer.problems(shape()))


def test_good_options_have_no_problems() -> None:
    for layer in (
        PerLayer(pairs=("K8V8",), group=1 * 32),
        PerLayer(budget=3),
        PerLayer(budget=9),
        PerLayer(budget=3.25),
    ):
        assert layer.problems(shape()) == [] and layer.problems(replace(shape(), head_dim=64)) == []
