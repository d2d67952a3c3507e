"""What every layer and every composition of them must keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.types import Unsupported, canonical
from strategies.base import Evict, Format, KVShape, LayerView, Moments, Quant
from strategies.columns import exact_store
from strategies.paging.dynamic import Dynamic
from strategies.paging.paged import Paged
from strategies.paging.room import Roomy
from strategies.paging.static import Static
from strategies.quant.int8 import INT8
from strategies.stack import Stack
from strategies.structure.lowrank import LatentFormat
from tests.contract.layers import EVICTIONS, FORMATS, PAGINGS, STACKS, STRUCTURES, fitted
from tests.strategies.swapping import behave_alike, same

HEADS, GROUPS, DIM = 2, 3, 32


def shape(element_bytes: int, dim: int = DIM) -> KVShape:
    return KVShape(layers=1, kv_heads=HEADS, query_heads=HEADS * GROUPS, head_dim=dim, element_bytes=element_bytes)


def prompt(tokens: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> LayerView:
    chance = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(HEADS, tokens, DIM, generator=chance).to(dtype) for _ in range(2))
    queries = torch.randn(HEADS * GROUPS, tokens, DIM, generator=chance).to(dtype)
    mass, reread, future = (torch.rand(HEADS, tokens, generator=chance) for _ in range(3))
    mean, root = (torch.randn(HEADS * GROUPS, *size, generator=chance) for size in ((DIM,), (DIM, DIM)))
    return LayerView(
        keys,
        values,
        queries,
        DIM**-0.5,
        0,
        seed,
        mass=mass,
        moments=Moments(mean, root @ root.transpose(1, 2) / DIM),
        reread=reread,
        future=future,
    )


def one(layer: Quant) -> Format:
    """The format of a model with one attention layer."""
    format = fitted(Stack("s", quant=layer)).formats(1)[0]
    assert format is not None
    return format


evictions = pytest.mark.parametrize("layer", EVICTIONS.values(), ids=EVICTIONS.keys())
formats = pytest.mark.parametrize("layer", FORMATS.values(), ids=FORMATS.keys())


@evictions
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 40, 41, 200])
def test_an_eviction_keeps_its_budget_of_tokens_in_order(layer: Evict, tokens: int) -> None:
    importance = layer.importance(prompt(tokens))
    assert importance.shape == (HEADS, tokens) and not importance.isnan().any()
    for budget in {1, layer.budget(tokens), tokens}:
        chosen = layer.chosen(importance, budget)
        assert sum(map(len, chosen)) == HEADS * budget
        for head in chosen:
            assert head.tolist() == sorted(set(head.tolist())) and all(0 <= at < tokens for at in head.tolist())
    assert 1 <= layer.budget(tokens) <= tokens


@evictions
def test_an_eviction_is_deterministic(layer: Evict) -> None:
    assert torch.equal(layer.importance(prompt(100)), layer.importance(prompt(100)))


@evictions
def test_an_eviction_has_scores_that_do_not_depend_on_its_budget(layer: Evict) -> None:
    tighter = replace(layer, keep=0.1, keep_tokens=None)
    assert tighter.ranking == layer.ranking
    assert torch.equal(tighter.importance(prompt(100)), layer.importance(prompt(100)))


@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 100])
def test_a_format_weighs_what_its_formula_says(layer: Quant, dtype: torch.dtype, tokens: int) -> None:
    facts = prompt(tokens, dtype)
    format = one(layer)
    store = format.store(facts.keys.expand(3, -1, -1, -1), facts.values.expand(3, -1, -1, -1))
    assert store.nbytes() == 3 * format.layer_bytes(tokens, shape(dtype.itemsize))
    more = prompt(5, dtype, seed=1)
    for step in range(5):  # and goes on to do so while it grows
        store.append(
            more.keys[None, :, step : step + 1].expand(3, -1, -1, -1),
            more.values[None, :, step : step + 1].expand(3, -1, -1, -1),
        )
        assert store.nbytes() == 3 * format.layer_bytes(tokens + step + 1, shape(dtype.itemsize))


@formats
@pytest.mark.parametrize("tokens", [0, 1, 20, 70])
def test_patches_keep_a_dense_copy_equal_to_the_store(layer: Quant, tokens: int) -> None:
    facts = prompt(tokens)
    store = one(layer).store(facts.keys[None], facts.values[None])
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
    format = one(layer)
    store = format.store(torch.stack([f.keys for f in facts]), torch.stack([f.values for f in facts]))
    assert format.quantized_tokens(50)
    alone = format.store(facts[2].keys[None], facts[2].values[None])
    assert torch.equal(store.read()[0][2], alone.read()[0][0])
    before = store.read()[1]
    store.select(torch.tensor([3, 1]))
    assert torch.equal(store.read()[1], before[[3, 1]])
    assert store.nbytes() == 2 * format.layer_bytes(50, shape(4))


@formats
@given(
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    tokens=st.integers(1, 80),
    seed=st.integers(0, 9),
    shape=st.sampled_from(["normal", "flat", "zero", "outliers"]),
)
@settings(max_examples=25, deadline=None)
def test_a_format_stays_finite_and_near(layer: Quant, scale: float, tokens: int, seed: int, shape: str) -> None:
    """Nothing is NaN, and reading zeros instead would be no nearer; each format has a test of its own bound."""
    facts = prompt(tokens, seed=seed)
    keys, values = facts.keys * scale, facts.values * scale
    if shape == "flat":
        keys, values = torch.full_like(keys, scale), torch.full_like(values, -scale)
    elif shape == "zero":
        keys, values = torch.zeros_like(keys), torch.zeros_like(values)
    elif shape == "outliers":
        keys[:, :, 3] = 1e4
        values[:, ::7, 5] = -1e4
    store = one(layer).store(keys[None], values[None])
    frozen = getattr(layer, "scale_from", "prompt") != "prompt"  # its scale was not made for this
    for exact, read in zip((keys, values), store.read(), strict=True):
        assert torch.isfinite(read).all()
        if not frozen:
            assert float((read[0] - exact).norm()) <= float(exact.norm()) + 1e-5 * exact.numel() ** 0.5


META = [stack for stack in STACKS if not stack.evict and fitted(stack).formats(1)[0]]
ROOMY = [stack for stack in META if isinstance(fitted(stack).formats(1)[0], Roomy)]


@pytest.mark.parametrize("tokens", [0, 1, 50])
@pytest.mark.parametrize("stack", META, ids=lambda stack: stack.name)
def test_a_store_whose_tensors_left_and_came_back_is_the_same(stack: Stack, tokens: int) -> None:
    format = fitted(stack).formats(1)[0]
    assert format is not None
    facts = [prompt(size, torch.bfloat16, seed) for seed, size in enumerate((tokens, 1, 40, 1, 1))]
    rows = torch.tensor([1.0, 3.0, 0.5], dtype=torch.bfloat16)[:, None, None, None]  # that differ
    first, *pieces = [(f.keys[None] * rows, f.values[None] / rows) for f in facts]
    behave_alike([format.store(*first)], [format.store(*first)], pieces, torch.tensor([2, 0]))


@pytest.mark.parametrize("tokens", [0, 1, 50])
@pytest.mark.parametrize("stack", ROOMY, ids=lambda stack: stack.name)
def test_a_store_with_room_reads_what_it_would_without_and_weighs_its_room(stack: Stack, tokens: int) -> None:
    roomy = fitted(stack).formats(1)[0]
    assert isinstance(roomy, Roomy)
    facts = [prompt(size, torch.bfloat16, seed) for seed, size in enumerate((tokens, 1, 1, 15, 40))]
    first, *pieces = [(f.keys.expand(3, -1, -1, -1), f.values.expand(3, -1, -1, -1)) for f in facts]
    store, twin = roomy.store(*first), (roomy.inner.store if roomy.inner else exact_store)(*first)
    for more in [None, *pieces]:
        if more:
            for mine, theirs in zip(store.append(*more), twin.append(*more), strict=True):
                assert all(same(a.dense, b.dense) for a, b in zip(mine, theirs, strict=True))
            tokens += more[0].shape[2]
        assert all(map(same, store.read(), twin.read()))
        assert store.nbytes() == 3 * roomy.layer_bytes(tokens, shape(2))
        if tokens:
            heaviest = max(store.tensors(), key=torch.numel)
            assert heaviest.shape[2] == roomy.paging.room(tokens)
    store.select(torch.tensor([1]))
    assert store.nbytes() == roomy.layer_bytes(tokens, shape(2))


@pytest.mark.parametrize("stack", ROOMY, ids=lambda stack: stack.name)
def test_what_a_store_with_room_read_is_not_written_into(stack: Stack) -> None:
    """An engine may keep it as its dense copy, and write there."""
    format = fitted(stack).formats(1)[0]
    assert format is not None
    facts = prompt(20)
    store = format.store(facts.keys[None], facts.values[None])
    read = store.read()
    before = [side.clone() for side in read]
    for side in read:
        side.zero_()
    assert all(map(same, store.read(), before))


def test_room_that_is_not_there_is_refused() -> None:
    facts, static = prompt(40), PAGINGS["static"]
    format = replace(static, tokens=40).holding(None)  # type: ignore[call-arg]
    assert format is not None
    store = format.store(facts.keys[None], facts.values[None])
    with pytest.raises(Unsupported, match=r"strategy\.paging\.tokens is too small: .* room for 40 .* holds 41"):
        store.append(facts.keys[None, :, :1], facts.values[None, :, :1])
    with pytest.raises(Unsupported, match="holds 513"):
        Stack("s", paging=static).formula_bytes(513, shape(2))


def test_only_what_is_packed_token_by_token_can_be_laid_out() -> None:
    assert Stack("s", quant=FORMATS["kivi4"], paging=PAGINGS["dynamic"]).problems(shape(2)) == []
    for quant in ("kivi4", "per_layer"):
        for paging in ("static", "paged"):
            (problem,) = Stack("s", quant=FORMATS[quant], paging=PAGINGS[paging]).problems(shape(2))
            assert f"paging/{paging} lays tokens out one by one, and quant/{quant.rstrip('4')} packs" in problem


def test_paging_says_in_words_and_numbers_what_it_set_aside() -> None:
    told = {
        "static": ([1020, 1020], "holds 1,020 tokens a head in room for 2,000; 49.0 % of the room is unused"),
        "dynamic": ([1020, 1021], "holds 1,020.5 tokens a head in room that grows with them"),
        "paged": ([1020, 1020], "holds 1,020 tokens a head in 64 blocks of 16; 0.4 % of the room is unused"),
        "paged_7": ([7, 8], "holds 7.5 tokens a head in 1.5 blocks of 7; 28.6 % of the room is unused"),
    }
    for name, (held, words) in told.items():
        layer = replace(PAGINGS[name], tokens=2000) if name == "static" else PAGINGS[name]  # type: ignore[call-arg]
        assert layer.acted(held) == (True, words)
        for nothing in ([], [0, 0]):
            assert layer.acted(nothing) == (False, "holds no tokens")
            assert not any(
                layer.facts(nothing)[key] for key in ("blocks", "reserved_tokens") if name.startswith("paged")
            )
    assert PAGINGS["paged"].facts([16, 17]) == {"reserved_tokens": 24.0, "unused_share": 1 - 33 / 48, "blocks": 1.5}
    for layer in (Static(tokens=0), Paged(block=0), Dynamic(pool_gib=0.0)):
        (problem,) = layer.problems(shape(2))
        assert problem.startswith("strategy.paging.") and problem.endswith(("got 0", "got 0.0"))


def on_meta(format: Format | None) -> Format | None:
    """``format``, with what was learnt where the model lies."""
    if isinstance(format, Roomy):
        return replace(format, inner=on_meta(format.inner))
    if isinstance(format, LatentFormat):
        moved = {key: getattr(format.subspace, key).to("meta") for key in ("mean", "directions")}
        return replace(format, subspace=replace(format.subspace, **moved))
    return format


@pytest.mark.parametrize("stack", META, ids=lambda stack: stack.name)
def test_a_format_works_where_its_data_is(stack: Stack) -> None:
    """On a device without values nothing can be copied to the host or looked at, and nothing made elsewhere can be mixed in."""
    format = on_meta(fitted(stack).formats(1)[0])
    assert format is not None
    store = format.store(*torch.empty(2, 3, HEADS, 50, DIM, device="meta"))
    for tokens in (1, 1, 40):
        store.append(*torch.empty(2, 3, HEADS, tokens, DIM, device="meta"))
    keys, values = store.read()
    assert keys.device.type == values.device.type == "meta" and keys.shape == (3, HEADS, 92, DIM)


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_a_stack_predicts_its_bytes_and_says_when_it_acts(stack: Stack) -> None:
    facts = shape(4)
    stack = fitted(stack)
    for tokens in (1, 10, 500):
        bytes_held = stack.formula_bytes(tokens, facts)
        assert bytes_held > 0
        acted = stack.acted(tokens, facts)
        assert len(acted) == len(stack.layers())
        if tokens == 500:
            assert all(yes for yes, _ in acted.values())
            if (stack.packs or stack.evict) and not isinstance(stack.paging, Static):  # its room is what it is
                assert bytes_held < Stack("full").formula_bytes(tokens, facts)
    assert not any(yes for layer, (yes, _) in stack.acted(1, facts).items() if layer.startswith("evict"))


def test_layers_may_be_skipped_and_evidence_says_which() -> None:
    facts = replace(shape(2), layers=6)
    stack = Stack("s", quant=INT8(skip=(0, -1)))
    assert [format is None for format in stack.formats(6)] == [True, False, False, False, False, True]
    assert stack.formula_bytes(100, facts) == 2 * facts.exact_bytes(100) + 4 * INT8().layer_bytes(100, facts)
    acted, why = stack.acted(100, facts)["quant/int8"]
    assert acted and why == "quantized 100 of 100 stored tokens; by layer: 0 exact, 1-4 int8, 5 exact"
    assert [f is None for f in Stack("s", quant=INT8(skip=2)).formats(3)] == [True, False, True]
    for skip, rule in (
        ((6,), "numbers from -6 to 5"),
        (-1, "must be a count"),
        (3, "must leave a layer"),
        (tuple(range(6)), "must"),
    ):
        assert any(rule in problem and "strategy.quant.skip" in problem for problem in INT8(skip=skip).problems(facts))


def test_a_latent_joins_all_heads_of_a_token() -> None:
    structure = STRUCTURES["lowrank"]
    assert Stack("s", structure, EVICTIONS["window"]).problems(shape(4)) == []
    assert "same tokens in every head" in Stack("s", structure, EVICTIONS["snapkv"]).problems(shape(4))[0]


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
