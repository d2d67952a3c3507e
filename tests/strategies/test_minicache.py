"""MiniCache against plain loops, and what its two layers' stores must keep together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from strategies.base import Format, KVShape, Store
from strategies.quant.flexgen import FlexGen4
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.minicache import MiniCache, PairFormat, angle, slerp, unit
from tests.contract.layers import FORMATS, fitted, text
from tests.strategies.plain import half
from tests.strategies.swapping import behave_alike

HEADS, DIM = 2, 32
SHAPE = KVShape(layers=2, kv_heads=HEADS, query_heads=6, head_dim=DIM, element_bytes=4)
LLAMA_2_7B = KVShape(layers=32, kv_heads=32, query_heads=32, head_dim=128, element_bytes=2)
INNER = {
    name: FORMATS[name] for name in ("fp8", "int8_head", "kivi4", "kivi2", "flexgen4", "nvfp4", "turboquant_4bit_nc")
}
Both = tuple[torch.Tensor, torch.Tensor]

packings = pytest.mark.parametrize("quant", [None, *INNER.values()], ids=["exact", *INNER])


def pair(stack: Stack) -> tuple[PairFormat, PairFormat]:
    """The formats of a model with two layers, both merged."""
    lower, upper = fitted(stack, layers=2).formats(2)
    assert isinstance(lower, PairFormat) and isinstance(upper, PairFormat)
    return lower, upper


def merging(quant: object = None, t: float = 0.6, retain: float = 0.05) -> tuple[PairFormat, PairFormat]:
    return pair(Stack("m", MiniCache(start=0, t=t, retain=retain), quant=quant))  # type: ignore[arg-type]


def prompt(tokens: int, rows: int = 1, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Both, Both]:
    """Keys and values of two layers that resemble each other; a layer's lengths differ from token to token."""
    chance = torch.Generator().manual_seed(seed)

    def draw(*last: int) -> torch.Tensor:
        return torch.randn(rows, HEADS, tokens, *last, generator=chance)

    common = draw(DIM), draw(DIM)
    lower, upper = (tuple(((x + 0.4 * draw(DIM)) * draw(1).exp()).to(dtype) for x in common) for _ in range(2))
    return lower, upper  # type: ignore[return-value]


def norm(x: Sequence[float]) -> float:
    return math.sqrt(sum(each * each for each in x))


def plainly(lower: list[float], upper: list[float], t: float) -> tuple[float, list[float]]:
    """The angle of two vectors and their merged direction, by the book."""
    first, second = ([each / norm(x) for each in x] for x in (lower, upper))
    between = math.acos(max(-1.0, min(1.0, sum(a * b for a, b in zip(first, second, strict=True)))))
    towards = math.sin((1 - t) * between) / math.sin(between), math.sin(t * between) / math.sin(between)
    return between, [towards[0] * a + towards[1] * b for a, b in zip(first, second, strict=True)]


@pytest.mark.parametrize("t, retain, tokens", [(0.6, 0.05, 41), (0.0, 0.0, 10), (1.0, 0.3, 10), (0.5, 1.0, 3)])
def test_both_layers_read_back_what_plain_loops_say(t: float, retain: float, tokens: int) -> None:
    layers = prompt(tokens)
    stores = merging(t=t, retain=retain)[0].stores(*layers)
    kept = math.ceil(retain * tokens)
    for part in range(2):  # keys, values
        lower, upper = (layers[at][part][0].tolist() for at in range(2))
        reads = [stores[at].read()[part][0] for at in range(2)]
        for head in range(HEADS):
            merged = [plainly(lower[head][token], upper[head][token], t) for token in range(tokens)]
            unmerged = sorted(range(tokens), key=lambda token: -merged[token][0])[:kept]
            for at, exact in enumerate((lower, upper)):
                for token in range(tokens):
                    x = exact[head][token]
                    expected = x if token in unmerged else [half(norm(x)) * each for each in merged[token][1]]
                    torch.testing.assert_close(reads[at][head, token], torch.tensor(expected), rtol=1e-5, atol=1e-5)
                    if token in unmerged:
                        assert reads[at][head, token].tolist() == x


def test_layers_that_are_alike_merge_without_loss() -> None:
    """Up to the rounding of lengths to float16, also where they differ in length."""
    lower, _ = prompt(50)
    upper = (lower[0] * 3, lower[1] / 5)
    for store, exact in zip(merging(retain=0)[0].stores(lower, upper), (lower, upper), strict=True):
        for read, x in zip(store.read(), exact, strict=True):
            assert bool(((read - x).norm(dim=-1) <= 2**-11 * 1.01 * x.norm(dim=-1)).all())


@pytest.mark.parametrize("t", [0.0, 0.3, 0.5, 0.6, 1.0])
def test_the_shared_direction_lies_where_t_says(t: float) -> None:
    chance = torch.Generator().manual_seed(1)
    first, second = (unit(torch.randn(100, 16, generator=chance))[0] for _ in range(2))
    merged = slerp(first, second, t)
    torch.testing.assert_close(merged.norm(dim=-1), torch.ones(100).double())
    torch.testing.assert_close(angle(first, merged), t * angle(first, second), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(angle(merged, second), (1 - t) * angle(first, second), rtol=1e-6, atol=1e-7)


def test_right_angles_opposites_and_neighbours() -> None:
    x, y = torch.eye(4)[:1].double(), torch.eye(4)[1:2].double()
    torch.testing.assert_close(slerp(x, y, 0.5), (x + y) / 2**0.5)
    torch.testing.assert_close(slerp(x, -x, 0.6), -0.2 * x)  # no answer: a straight line
    torch.testing.assert_close(angle(x, -x), torch.full((1, 1), math.pi).double())
    for turn in (1e-3, 1e-5, 1e-9, 0.0):  # where arccos would have lost its digits
        near = math.cos(turn) * x + math.sin(turn) * y
        torch.testing.assert_close(angle(x, near), torch.full((1, 1), turn).double(), rtol=1e-7, atol=0)
        expected = math.cos(0.6 * turn) * x + math.sin(0.6 * turn) * y
        torch.testing.assert_close(slerp(x, near, 0.6), expected, rtol=0, atol=1e-12)
        assert bool((slerp(x, -near, 0.6).norm(dim=-1) < 1.1).all())


@packings
def test_stores_whose_tensors_left_and_came_back_are_the_same(quant: object) -> None:
    layers, (more, _) = prompt(41, rows=3), prompt(40, rows=3, seed=1)
    format = merging(quant)[0]
    pieces = [(more[0][:, :, first:stop], more[1][:, :, first:stop]) for first, stop in ((0, 1), (1, 39), (39, 40))]
    behave_alike(format.stores(*layers), format.stores(*layers), pieces, torch.tensor([2, 0]))


@packings
@pytest.mark.parametrize("kind", ["zero", "one zero", "opposite", "orthogonal", "same", "huge", "tiny"])
def test_what_reads_back_is_finite(quant: object, kind: str) -> None:
    lower, upper = prompt(40)
    x = lower[0]
    x, y = {
        "zero": (x * 0, x * 0),
        "one zero": (x * 0, x),
        "opposite": (x, -x),
        "orthogonal": (x, torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)),
        "same": (x, x),
        "huge": (x * 1e30, upper[0] * 1e30),
        "tiny": (x * 1e-30, upper[0] * 1e-30),
    }[kind]
    for store in merging(quant, retain=0)[0].stores((x, y), (y, x)):
        for read in store.read():
            assert torch.isfinite(read).all()
            if kind in ("zero", "tiny"):
                assert not read.any()
            if kind == "huge":
                assert read.norm(dim=-1).max() < 65504 * 1.2


def test_the_tokens_furthest_apart_stay_unmerged_in_keys_and_values_apart() -> None:
    lower, upper = prompt(40)
    upper[0][:, 0, 7], upper[0][:, 1, 30], upper[1][:, 0, 39] = (
        -lower[0][:, 0, 7],
        -lower[0][:, 1, 30],
        -lower[1][:, 0, 39],
    )
    stores = merging(retain=0.02)[0].stores(lower, upper)
    keys_kept, values_kept = stores[0].shared.retained  # type: ignore[attr-defined]
    assert keys_kept.tolist() == [[[7], [30]]] and values_kept[0, 0].tolist() == [39]
    for store, (keys, values) in zip(stores, (lower, upper), strict=True):
        assert torch.equal(store.read()[0][:, 0, 7], keys[:, 0, 7])
        assert torch.equal(store.read()[1][:, 0, 39], values[:, 0, 39])
        assert not torch.equal(store.read()[1][:, 0, 7], values[:, 0, 7])
        assert store.facts()["retained_vectors"].tolist() == [2 * HEADS]


def test_equal_angles_keep_the_earlier_tokens() -> None:
    lower, _ = prompt(20)
    store, _ = merging(retain=0.15)[0].stores(lower, lower)
    assert store.shared.retained[0][0].tolist() == [[0, 1, 2]] * HEADS  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "retain, tokens, count", [(0, 100, 0), (0.05, 0, 0), (0.05, 1, 1), (0.05, 21, 2), (0.07, 100, 7)]
)
def test_so_many_tokens_stay_unmerged(retain: float, tokens: int, count: int) -> None:
    assert merging(retain=retain)[0].retained(tokens) == count


@packings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 15, 33, 100])
def test_both_layers_weigh_what_their_formulas_say(quant: object, dtype: torch.dtype, tokens: int) -> None:
    shape = SHAPE.at(dtype.itemsize)
    formats = merging(quant)
    layers = prompt(tokens, rows=3, dtype=dtype)
    for store, format, tail in zip(formats[0].stores(*layers), formats, formats[0].tails, strict=True):
        prompt_bytes = format.layer_bytes(tokens, shape)
        if tokens or quant is not INNER["int8_head"]:  # which counts scales that no token has given yet
            assert store.nbytes() == 3 * prompt_bytes
        held = store.nbytes()
        for step in range(1, 40):  # what comes later weighs what the number format makes of it
            store.append(*prompt(1, rows=3, seed=step, dtype=dtype)[0])
            assert store.nbytes() - held == 3 * (tail.layer_bytes(step, shape) if tail else shape.exact_bytes(step))


@packings
@pytest.mark.parametrize("tokens", [0, 1, 20, 70])
def test_patches_keep_a_dense_copy_equal_to_both_stores(quant: object, tokens: int) -> None:
    stores = merging(quant)[0].stores(*prompt(tokens))
    dense = [list(store.read()) for store in stores]
    for step, added in enumerate([1, 1, 7, 1, 40, 1, 1]):
        for store, copy, new in zip(stores, dense, prompt(added, seed=step + 1), strict=True):
            for part, patches in enumerate(store.append(*new)):
                copy[part] = torch.cat([copy[part], new[part]], dim=2)
                for patch in patches:
                    copy[part][:, :, patch.start : patch.start + patch.dense.shape[2]] = patch.dense
        for store, copy in zip(stores, dense, strict=True):
            for mine, theirs in zip(copy, store.read(), strict=True):
                assert torch.equal(mine, theirs)


def test_later_tokens_are_held_as_without_merging() -> None:
    stores = merging(KIVI(bits=4, group=8, residual=16))[0].stores(*prompt(50))
    later = prompt(40, seed=1)
    for store, (keys, values) in zip(stores, later, strict=True):
        store.append(keys, values)
        alone = KIVI(bits=4, group=8, residual=16).format.store(keys, values).read()
        assert torch.equal(store.read()[0][:, :, 50:], alone[0]) and torch.equal(store.read()[1][:, :, 50:], alone[1])


def chosen(layers: tuple[Both, Both], rows: Sequence[int]) -> tuple[Both, Both]:
    return tuple(tuple(x[list(rows)] for x in both) for both in layers)  # type: ignore[return-value]


def same(store: Store, other: Store) -> bool:
    mine, theirs = (
        (*each.read(), *each.tensors(), *(value for _, value in sorted(each.facts().items())))
        for each in (store, other)
    )
    return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@packings
def test_rows_are_independent_and_both_layers_select_them_one_after_the_other(quant: object) -> None:
    format = merging(quant)[0]
    layers, more, last = prompt(50, rows=4), prompt(20, rows=4, seed=1), prompt(3, rows=4, seed=2)

    def alone(rows: Sequence[int]) -> tuple[Store, Store]:
        made = format.stores(*chosen(layers, rows))
        for store, new in zip(made, chosen(more, rows), strict=True):
            store.append(*new)
        return made

    stores = alone([0, 1, 2, 3])
    held = [0, 1, 2, 3]
    for rows in ([3, 1, 0], [3, 0], [0]):
        expected, before = alone(rows), [store.read() for store in stores]
        local, held = torch.tensor([held.index(row) for row in rows]), rows
        stores[0].select(local)
        for read, was in zip(stores[0].read(), before[0], strict=True):  # the other layer has not yet
            assert torch.equal(read, was[local])
        for read, was in zip(stores[1].read(), before[1], strict=True):
            assert torch.equal(read, was)
        stores[1].select(local)
        assert all(same(store, other) for store, other in zip(stores, expected, strict=True))
    for store, other, new in zip(stores, alone([0]), chosen(last, [0]), strict=True):
        store.append(*new)
        other.append(*new)
        assert same(store, other)


def test_a_selection_of_all_rows_may_reach_one_layer_only() -> None:
    """As when the rows that leave share a bucket with one layer of a pair and not with the other."""
    stores = merging()[0].stores(*prompt(20, rows=2))
    before = [store.read() for store in stores]
    stores[1].select(torch.tensor([0, 1]))
    assert all(torch.equal(store.read()[0], was[0]) for store, was in zip(stores, before, strict=True))
    stores[1].select(torch.tensor([1]))
    stores[0].select(torch.tensor([1]))
    assert all(torch.equal(store.read()[0], was[0][1:]) for store, was in zip(stores, before, strict=True))


@packings
def test_a_pair_works_where_its_data_is(quant: object) -> None:
    lower, upper = torch.empty(2, 2, 3, HEADS, 50, DIM, device="meta").unbind(0)
    for store in merging(quant)[0].stores((lower[0], lower[1]), (upper[0], upper[1])):
        for tokens in (1, 1, 40):
            store.append(*torch.empty(2, 3, HEADS, tokens, DIM, device="meta"))
        keys, values = store.read()
        assert keys.device.type == values.device.type == "meta" and keys.shape == (3, HEADS, 92, DIM)
        assert all(fact.shape == (3,) for fact in store.facts().values())  # told without looking at what is held


def test_a_store_of_one_layer_of_a_pair_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="two layers hold their tokens together"):
        merging()[0].store(*prompt(5)[0])


def test_pairs_begin_in_the_middle_and_a_last_layer_without_a_partner_stays() -> None:
    assert MiniCache().pairs(30) == [(15, 16), (17, 18), (19, 20), (21, 22), (23, 24), (25, 26), (27, 28)]
    assert MiniCache().pairs(32)[0] == (16, 17) and MiniCache().pairs(32)[-1] == (30, 31)
    assert MiniCache(start=0).pairs(3) == [(0, 1)] and MiniCache(start=0.9).pairs(3) == []
    shape = replace(LLAMA_2_7B, layers=30)
    assert MiniCache().acted(shape) == (True, "merged 14 of 30 layers in 7 pairs")
    assert MiniCache().acted(replace(shape, layers=2)) == (False, "merged 0 of 2 layers in 0 pairs")
    assert MiniCache(start=0).acted(replace(shape, layers=2)) == (True, "merged 2 of 2 layers in 1 pair")


def test_layers_that_are_not_merged_are_packed_as_without_merging() -> None:
    quant = FlexGen4(group=16, skip=(5,))
    formats = Stack("m", MiniCache(), quant=quant).formats(7)
    assert formats[:4] == (quant,) * 4  # round(0.5 * 7) is 4
    assert formats[4] == PairFormat(4, 5, "lower", None, (quant, None), 0.6, 0.05)  # layer 5 is left exact
    assert formats[5] == PairFormat(4, 5, "upper", None, (quant, None), 0.6, 0.05)
    assert formats[6] == quant
    assert Stack("m", MiniCache()).formats(7)[6] is None
    again = Stack("n", MiniCache(), quant=replace(quant)).formats(7)
    assert again == formats and len({*again, *formats}) == 3  # rows of equal stacks are packed together
    labels = [format.label if format else "exact" for format in Stack("m", MiniCache(), quant=INT8()).formats(6)]
    assert labels == ["int8"] * 3 + ["minicache(int8)"] * 2 + ["int8"]


def test_rows_packed_together_in_one_layer_are_so_in_the_other() -> None:
    """Also where two stacks differ in the upper layer's number format alone."""
    lower, upper = merging(FORMATS["kivi4"])
    other: Format = FORMATS["kivi2"].formats(1, None)[0]
    assert replace(lower, tails=(lower.tails[0], other)) != lower
    assert replace(upper, tails=(upper.tails[0], other)) != upper


def test_a_number_format_sees_directions_also_in_the_calibration_text() -> None:
    quant = INT8(scale="tensor", scale_from="text")
    lower, upper = merging(quant)
    pieces = text(layers=2)
    assert lower.inner is upper.inner and lower.tails == upper.tails
    largest = max(float(slerp(unit(piece[0].keys)[0], unit(piece[1].keys)[0], 0.6).abs().max()) for piece in pieces)
    assert float(lower.inner.key_scale) == pytest.approx(largest / 127)  # type: ignore[union-attr]
    for at, tail in enumerate(lower.tails):
        largest = max(float(piece[at].keys.abs().max()) for piece in pieces)
        assert float(tail.key_scale) == pytest.approx(largest / 127)  # type: ignore[union-attr]


def test_merging_alone_is_below_a_third_and_the_published_ratio_is_not_reached_without_its_four_bits() -> None:
    """LLaMA-2-7B, 4096 tokens. The paper's 5.02 lies between FlexGen's 4.5 bits and 4 bits without scales."""

    def ratio(retain: float, quant: FlexGen4 | None = None) -> float:
        stack = Stack("m", MiniCache(retain=retain), quant=quant)
        return Stack("full").formula_bytes(4096, LLAMA_2_7B) / stack.formula_bytes(4096, LLAMA_2_7B)

    mib = 2**20
    assert Stack("full").formula_bytes(4096, LLAMA_2_7B) == 2048 * mib
    # 16 layers of 64 MiB, 8 pairs of 64 MiB of directions and twice 0.5 MiB of lengths
    assert Stack("m", MiniCache(retain=0)).formula_bytes(4096, LLAMA_2_7B) == (16 * 64 + 8 * 65) * mib
    assert ratio(0) == pytest.approx(1.3264, abs=1e-4) and ratio(0) < 1 / (1 - 1 / 4)
    assert ratio(0.05) == pytest.approx(1.2835, abs=1e-4)
    assert Stack("m", MiniCache(retain=0), quant=FlexGen4()).formula_bytes(4096, LLAMA_2_7B) == (16 * 18 + 8 * 19) * mib
    assert ratio(0, FlexGen4()) == pytest.approx(4.6545, abs=1e-4)
    assert ratio(0.05, FlexGen4()) == pytest.approx(4.1656, abs=1e-4)
    assert ratio(0, FlexGen4()) < 5.02 < 16 / 4 / (1 - 1 / 4)


def test_a_stack_weighs_what_its_formula_says() -> None:
    shape = replace(SHAPE, layers=5)
    stack = Stack("m", MiniCache(start=0.2), quant=FORMATS["kivi4"])
    formats, tokens = stack.formats(5), 60
    held = 0
    for format in formats:
        if not isinstance(format, PairFormat):
            assert format is not None
            held += format.store(*prompt(tokens)[0]).nbytes()
        elif format.side == "lower":
            held += sum(store.nbytes() for store in format.stores(*prompt(tokens)))
    assert [isinstance(format, PairFormat) for format in formats] == [False, True, True, True, True]
    assert stack.formula_bytes(tokens, shape) == held
    assert stack.problems(shape) == [] and all(yes for yes, _ in stack.acted(tokens, shape).values())


@pytest.mark.parametrize(
    "options, rule",
    [
        ({"start": 1.0}, "strategy.structure.start must be in [0, 1), got 1.0"),
        ({"start": -0.1}, "strategy.structure.start must be in [0, 1), got -0.1"),
        ({"start": 0.95}, "strategy.structure.start must leave two of the 8 layers to merge, got 0.95"),
        ({"t": 1.1}, "strategy.structure.t must be in [0, 1], got 1.1"),
        ({"retain": -1.0}, "strategy.structure.retain must be in [0, 1], got -1.0"),
        ({"retain": math.nan}, "strategy.structure.retain must be in [0, 1], got nan"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], rule: str) -> None:
    assert MiniCache(**options).problems(replace(SHAPE, layers=8)) == [rule]


def test_models_that_cannot_be_merged_are_refused() -> None:
    assert MiniCache().problems(SHAPE.at(2)) == [
        "strategy.structure.start must leave two of the 2 layers to merge, got 0.5"
    ]
    mixed = replace(SHAPE, layers=8, window=(None, 16) * 4)
    assert "without sliding windows: the layers of a pair must hold the same tokens" in MiniCache().problems(mixed)[0]
    narrow = Stack("m", MiniCache(), quant=KIVI(group=24)).problems(replace(SHAPE, layers=8))
    assert any("must divide the head dimension 32" in problem for problem in narrow)
