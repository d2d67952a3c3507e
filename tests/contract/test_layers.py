"""What every layer and every composition of them must keep."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.types import canonical
from strategies.base import Evict, KVShape, PromptLayer, Quant, Stack
from tests.contract.layers import EVICTIONS, FORMATS, STACKS

HEADS, GROUPS, DIM = 2, 3, 32


def shape(element_bytes: int, dim: int = DIM) -> KVShape:
    return KVShape(layers=1, kv_heads=HEADS, query_heads=HEADS * GROUPS, head_dim=dim, element_bytes=element_bytes)


def prompt(tokens: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> PromptLayer:
    chance = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(HEADS, tokens, DIM, generator=chance).to(dtype) for _ in range(2))
    queries = torch.randn(HEADS * GROUPS, tokens, DIM, generator=chance).to(dtype)
    return PromptLayer(keys, values, queries, DIM**-0.5, 0, seed)


evictions = pytest.mark.parametrize("layer", EVICTIONS.values(), ids=EVICTIONS.keys())
formats = pytest.mark.parametrize("layer", FORMATS.values(), ids=FORMATS.keys())


@evictions
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 40, 41, 200])
def test_an_eviction_ranks_every_token_once_and_keeps_its_budget(layer: Evict, tokens: int) -> None:
    order = layer.order(prompt(tokens))
    assert order.shape == (HEADS, tokens)
    assert torch.equal(order.sort(dim=-1).values, torch.arange(tokens).expand(HEADS, -1))
    assert 1 <= layer.budget(tokens) <= tokens


@evictions
def test_an_eviction_is_deterministic(layer: Evict) -> None:
    assert torch.equal(layer.order(prompt(100)), layer.order(prompt(100)))


@evictions
def test_an_eviction_has_scores_that_do_not_depend_on_its_budget(layer: Evict) -> None:
    tighter = type(layer)(**{**asdict(layer), "keep": 0.1, "keep_tokens": None})
    assert tighter.ranking == layer.ranking
    assert torch.equal(tighter.order(prompt(100)), layer.order(prompt(100)))


@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 100])
def test_a_format_weighs_what_its_formula_says(layer: Quant, dtype: torch.dtype, tokens: int) -> None:
    facts = prompt(tokens, dtype)
    store = layer.store(facts.keys.expand(3, -1, -1, -1), facts.values.expand(3, -1, -1, -1))
    assert store.nbytes() == 3 * layer.layer_bytes(tokens, shape(dtype.itemsize))
    more = prompt(5, dtype, seed=1)
    for step in range(5):  # and goes on to do so while it grows
        store.append(
            more.keys[None, :, step : step + 1].expand(3, -1, -1, -1),
            more.values[None, :, step : step + 1].expand(3, -1, -1, -1),
        )
        assert store.nbytes() == 3 * layer.layer_bytes(tokens + step + 1, shape(dtype.itemsize))


@formats
@pytest.mark.parametrize("tokens", [0, 1, 20, 70])
def test_patches_keep_a_dense_copy_equal_to_the_store(layer: Quant, tokens: int) -> None:
    if tokens == 0 and getattr(layer, "scale", "token_head") != "token_head":
        with pytest.raises(ValueError, match="empty prompt"):
            layer.store(torch.zeros(1, HEADS, 0, DIM), torch.zeros(1, HEADS, 0, DIM))
        return
    facts = prompt(tokens)
    store = layer.store(facts.keys[None], facts.values[None])
    dense = list(store.read())
    for step, added in enumerate([1, 1, 7, 1, 40, 1, 1]):
        new = prompt(added, seed=step + 1)
        patches = store.append(new.keys[None], new.values[None])
        for side, fresh in enumerate((new.keys, new.values)):
            dense[side] = torch.cat([dense[side], fresh[None]], dim=2)
            for patch in patches[side]:
                dense[side][:, :, patch.start : patch.start + patch.dense.shape[2]] = patch.dense
        for mine, theirs in zip(dense, store.read(), strict=True):
            assert torch.equal(mine, theirs)


@formats
def test_rows_of_a_store_are_independent_and_can_be_selected(layer: Quant) -> None:
    facts = [prompt(50, seed=seed) for seed in range(4)]
    store = layer.store(torch.stack([f.keys for f in facts]), torch.stack([f.values for f in facts]))
    if layer.quantized_tokens(50) and getattr(layer, "scale", "") != "tensor":
        alone = layer.store(facts[2].keys[None], facts[2].values[None])
        assert torch.equal(store.read()[0][2], alone.read()[0][0])
    before = store.read()[1]
    store.select(torch.tensor([3, 1]))
    assert torch.equal(store.read()[1], before[[3, 1]])
    assert store.nbytes() == 2 * layer.layer_bytes(50, shape(4))


@formats
@given(scale=st.sampled_from([1e-6, 1.0, 1e4]), tokens=st.integers(1, 80), seed=st.integers(0, 9), flat=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_error_is_at_most_half_a_step(layer: Quant, scale: float, tokens: int, seed: int, flat: bool) -> None:
    facts = prompt(tokens, seed=seed)
    keys, values = facts.keys * scale, facts.values * scale
    if flat:
        keys, values = torch.full_like(keys, scale), torch.full_like(values, -scale)
    store = layer.store(keys[None], values[None])
    for exact, read in zip((keys, values), store.read(), strict=True):
        assert torch.isfinite(read).all()
        spread = float(exact.max() - exact.min()) if layer.name == "kivi" else 2 * float(exact.abs().max())
        steps = {"kivi": 2 ** getattr(layer, "bits", 8) - 1, "int8": 254, "fp8": 28}[layer.name]
        rounding = 2**-10 * float(exact.abs().max()) + 6e-8 * 2 ** getattr(
            layer, "bits", 0
        )  # of float16 scale and minimum
        assert float((read[0] - exact).abs().max()) <= spread / steps / 2 * 1.001 + rounding


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_a_stack_predicts_its_bytes_and_says_when_it_acts(stack: Stack) -> None:
    facts = shape(4)
    for tokens in (1, 10, 500):
        bytes_held = stack.formula_bytes(tokens, facts)
        assert bytes_held > 0
        acted = stack.acted(tokens, facts)
        assert len(acted) == len(stack.layers())
        if tokens == 500:
            assert all(yes for yes, _ in acted.values())
            if stack.layers():
                assert bytes_held < Stack("full").formula_bytes(tokens, facts)
    assert not any(yes for layer, (yes, _) in stack.acted(1, facts).items() if layer.startswith("evict"))


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_a_stack_has_a_spec_of_plain_data_and_no_problems(stack: Stack) -> None:
    assert canonical(stack.spec())
    assert stack.problems(shape(4)) == []


def test_names_are_not_part_of_what_a_stack_is() -> None:
    assert Stack("a", quant=FORMATS["fp8"]).spec() == Stack("b", quant=FORMATS["fp8"]).spec()


def test_sliding_layers_hold_their_window_and_are_not_evicted() -> None:
    mixed = KVShape(layers=2, kv_heads=1, query_heads=1, head_dim=8, element_bytes=2, window=(None, 16))
    stack = Stack("s", evict=EVICTIONS["keydiff"])
    assert stack.formula_bytes(100, mixed) == mixed.exact_bytes(50) + mixed.exact_bytes(15)
    assert stack.acted(100, mixed)["evict/keydiff"] == (True, "kept 50 of 100 prompt tokens a head")
    every = KVShape(layers=1, kv_heads=1, query_heads=1, head_dim=8, element_bytes=2, window=(16,))
    assert "sliding window" in stack.problems(every)[0]
    packed = Stack("p", quant=FORMATS["kivi2"])  # nothing leaves the residual window of a layer that holds less
    assert not packed.acted(500, every)["quant/kivi"][0]


def test_two_classes_of_one_name_are_two_layers() -> None:
    class Mine(type(FORMATS["fp8"])):  # type: ignore[misc]
        pass

    assert Mine().spec() != FORMATS["fp8"].spec()
