"""transformers' quantized cache as a format: against the library's layers driven by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from strategies.base import KVShape
from strategies.quant import hf_cache
from strategies.quant.hf_cache import HFHQQ, HFCache, HFQuanto
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from tests.strategies.swapping import behave_alike

pytest.importorskip("optimum.quanto")
pytest.importorskip("hqq")
from transformers.cache_utils import HQQQuantizedLayer, QuantoQuantizedLayer

HEADS, DIM = 3, 64  # of SmolLM2-135M: an odd number of groups in a token
LAYERS = {
    "quanto4": HFQuanto(),
    "quanto2": HFQuanto(bits=2, group=32),
    "quanto tokens": HFQuanto(axis_key=-1, group=3),
    "hqq4": HFHQQ(),
    "hqq4 channels": HFHQQ(axis_key=1, axis_value=1, group=32),
    "hqq1": HFHQQ(bits=1),
    "hqq2": HFHQQ(bits=2),
    "hqq3": HFHQQ(bits=3),
    "hqq8": HFHQQ(bits=8, axis_value=1),
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())


def shape(element_bytes: int = 4, heads: int = HEADS, dim: int = DIM) -> KVShape:
    return KVShape(layers=2, kv_heads=heads, query_heads=heads, head_dim=dim, element_bytes=element_bytes)


def tokens(n: int, rows: int = 1, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(rows, HEADS, n, DIM, generator=chance).to(dtype) for _ in range(2))
    return keys, values


def library(layer: HFCache) -> QuantoQuantizedLayer | HQQQuantizedLayer:
    kind = QuantoQuantizedLayer if isinstance(layer, HFQuanto) else HQQQuantizedLayer
    return kind(layer.bits, layer.axis_key, layer.axis_value, layer.group, layer.residual)


class Dense:
    """An engine's dense copy of a store."""

    def __init__(self, layer: HFCache, keys: Tensor, values: Tensor) -> None:
        self.store = layer.store(keys, values)
        self.sides = list(self.store.read())

    def append(self, keys: Tensor, values: Tensor) -> None:
        for side, (new, patches) in enumerate(
            zip((keys, values), self.store.append(keys, values), strict=True),
        ):
            self.sides[side] = torch.cat([self.sides[side], new], dim=2)
            for patch in patches:
                self.sides[side][:, :, patch.start : patch.start + patch.dense.shape[2]] = patch.dense


@torch.inference_mode()
@layers
@pytest.mark.parametrize("prompt", [0, 37])
def test_a_store_whose_tensors_left_and_came_back_is_the_same(layer: HFCache, prompt: int) -> None:
    """With a flush on the way, and a residual when rows are selected."""
    layer = replace(layer, residual=20)
    first, *pieces = [tokens(size, rows=3, seed=size) for size in (prompt, 15, 1, 5, 2)]
    behave_alike([layer.store(*first)], [layer.store(*first)], pieces, torch.tensor([2, 0, 0]))


@torch.inference_mode()
@layers
@pytest.mark.parametrize("prompt", [0, 1, 37])
def test_every_step_attends_to_what_the_library_returns(layer: HFCache, prompt: int) -> None:
    layer = replace(layer, residual=128 if layer.bits == 4 else 20)
    keys, values = tokens(prompt + 300, dtype=torch.bfloat16 if layer.bits == 2 else torch.float32)
    theirs = library(layer)
    if prompt:
        theirs.update(keys[:, :, :prompt], values[:, :, :prompt])
    mine = Dense(layer, keys[:, :, :prompt].clone(), values[:, :, :prompt].clone())
    flushes = 0
    for at in range(prompt, prompt + 300):
        new = keys[:, :, at : at + 1], values[:, :, at : at + 1]
        returned = theirs.update(*new)
        mine.append(*new)
        flushes += not theirs.keys.numel()
        for dense, read, expected in zip(mine.sides, mine.store.read(), returned, strict=True):
            assert torch.equal(dense, expected) and torch.equal(read, expected)
    first = 0 if prompt else 1  # of an empty store: it quantizes, too
    assert flushes == first + (300 - first) // layer.residual


@torch.inference_mode()
@layers
@pytest.mark.parametrize("added", [[3, 1, 0, 40, 1], [200, 1, 1], [0, 1]])
def test_chunks_go_through_an_empty_store_as_through_the_library(layer: HFCache, added: list[int]) -> None:
    theirs, mine = library(layer), Dense(layer, *tokens(0))
    for seed, n in enumerate(added):
        new = tokens(n, seed=seed)
        if n:
            expected = theirs.update(*new)
        mine.append(*new)
        if n:  # the first chunk attends to itself exactly, the next ones to what was made of it
            assert all(torch.equal(a, b) for a, b in zip(mine.sides, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(mine.sides, mine.store.read(), strict=True))


@layers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prompt_weighs_what_the_formula_says(layer: HFCache, dtype: torch.dtype) -> None:
    for n in (*range(12), 33, 64, 101):
        store = layer.store(*tokens(n, rows=2, dtype=dtype))
        assert store.nbytes() == 2 * layer.layer_bytes(n, shape(dtype.itemsize))
        assert all(len(tensor) == 2 for tensor in store.tensors())


def test_a_lone_group_of_quanto_has_a_scale_for_each_element() -> None:
    layer, one = HFQuanto(), shape(4, heads=1)
    store = layer.store(torch.randn(1, 1, 1, 64), torch.randn(1, 1, 1, 64))
    assert store.nbytes() == layer.layer_bytes(1, one) == 2 * (64 + 2 * 64 * 4)
    assert layer.layer_bytes(2, one) == 2 * (64 + 2 * 2 * 4)


def test_bytes_of_a_thousand_tokens() -> None:
    """3 heads of 64 at bfloat16: 4 bits and two of 16 for 64 elements are 4.5 bits an element."""
    for layer in (HFQuanto(), HFHQQ()):
        assert layer.layer_bytes(1000, shape(2)) == 2 * 1000 * HEADS * DIM * 4.5 / 8
    assert HFHQQ(bits=3).layer_bytes(1000, shape(2)) == 2 * 1000 * HEADS * (7 * 4 + 4)  # 64 codes in seven int32


@layers
def test_a_store_grows_by_exact_tokens_and_shrinks_when_it_packs_them(layer: HFCache) -> None:
    layer, facts = replace(layer, residual=8), shape()
    store = layer.store(*tokens(20))
    packed = 20
    for step in range(1, 30):
        store.append(*tokens(1, seed=step))
        if 20 + step - packed == 8:
            packed = 20 + step
        assert store.nbytes() == layer.layer_bytes(packed, facts) + facts.exact_bytes(20 + step - packed)
    assert packed == 44


@layers
def test_rows_are_independent_and_can_be_selected(layer: HFCache) -> None:
    layer = replace(layer, residual=4)
    keys, values = tokens(30, rows=4)
    for steps in (0, 3, 4):  # after the prompt, before and in a flush
        store = layer.store(keys, values)
        alone = layer.store(keys[2:3], values[2:3])
        new = tokens(steps + 1, rows=4, seed=1)
        for at in range(steps):
            store.append(*(side[:, :, at : at + 1] for side in new))
            alone.append(*(side[2:3, :, at : at + 1] for side in new))
        assert all(torch.equal(all_rows[2:3], one) for all_rows, one in zip(store.read(), alone.read(), strict=True))
        before, weight = store.read(), store.nbytes()
        store.select(torch.tensor([2, 0, 2]))
        assert all(torch.equal(new, old[[2, 0, 2]]) for new, old in zip(store.read(), before, strict=True))
        assert store.nbytes() == weight * 3 // 4
        last = [side[:, :, steps:] for side in new]
        alone.append(last[0][2:3], last[1][2:3])
        store.append(last[0][[2, 0, 1]], last[1][[2, 0, 1]])  # the two copies of a row part ways
        read = store.read()[0]
        assert torch.equal(read[:1], alone.read()[0]) and not torch.equal(read[0], read[2])


def test_a_store_does_not_write_into_the_prompt() -> None:
    keys, values = tokens(10)
    for layer in LAYERS.values():
        layer.store(keys, values).append(*tokens(1, seed=1))
    assert torch.equal(keys, tokens(10)[0]) and torch.equal(values, tokens(10)[1])


@pytest.mark.parametrize("layer", [HFQuanto(), HFHQQ(axis_key=1, axis_value=1, group=32)], ids=["quanto", "hqq"])
def test_it_is_not_kivi(layer: HFCache) -> None:
    """It changes the newest tokens of a prompt, which KIVI keeps; it packs decoded tokens of any age at once."""
    keys, values = tokens(300)
    for exact, theirs, kivi in zip(
        (keys, values), layer.store(keys, values).read(), KIVI(bits=4).format.store(keys, values).read(), strict=True
    ):
        assert not torch.equal(theirs[:, :, -32:], exact[:, :, -32:])
        assert torch.equal(kivi[:, :, -32:], exact[:, :, -32:])
    assert layer.quantized_tokens(300) == 300 and KIVI(bits=4).format.quantized_tokens(300) == 256


@pytest.mark.parametrize(
    "layer, grows",
    [
        (HFQuanto(), False),
        (HFQuanto(axis_key=-1, group=3), True),
        (HFHQQ(), True),
        (HFHQQ(axis_key=1, group=32), False),
    ],
)
def test_a_flush_quantizes_the_past_once_more(layer: HFCache, grows: bool) -> None:
    """That adds error to old tokens where groups shift with the length, and none where they stay."""
    exact = tokens(64)[0]
    store = replace(layer, residual=4).store(*tokens(64))

    def error() -> float:
        return float((store.read()[0][:, :, :64] - exact).norm() / exact.norm())

    first = error()
    for step in range(20):
        store.append(*tokens(1, seed=step + 1))
        assert step > 3 or error() == pytest.approx(first)  # the step that flushes, too, reads the old values
    assert error() > 1.3 * first if grows else error() == pytest.approx(first, rel=1e-3)


SIZES = [
    (HFQuanto(bits=3), "bits must be one of (2, 4), got 3"),
    (HFHQQ(bits=5), "bits must be one of (1, 2, 3, 4, 8), got 5"),
    (HFQuanto(axis_key=1), "axis_key must be one of (0, -1), got 1"),
    (HFHQQ(axis_value=-1), "axis_value must be one of (0, 1), got -1"),
    (HFQuanto(group=40), "group must divide the 3 heads of 64 elements of every token, got 40"),
    (HFHQQ(group=0), "group must divide the 3 heads of 64 elements of every token, got 0"),
    (HFQuanto(residual=0), "residual must be 1 or more, got 0"),
    (HFQuanto(skip=3), "skip"),
]


@pytest.mark.parametrize("layer, rule", SIZES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_bad_option_is_named_with_its_rule_and_value(layer: HFCache, rule: str) -> None:
    if rule == "skip":
        layer = replace(layer, skip=(9,))
    assert any(problem.startswith(f"strategy.quant.{rule}") for problem in layer.problems(shape()))


def works(layer: HFCache, heads: int, dim: int, n: int) -> bool:
    """Whether the library packs n tokens and reads them back with an error that its steps explain."""
    chance = torch.Generator().manual_seed(n)
    x = torch.randn(1, heads, n, dim, generator=chance)
    try:
        theirs = library(layer)
        theirs.update(x, x)
        read = torch.cat([theirs.update(x[:, :, :1], x[:, :, :1])[0]])[:, :, :n]
    except Exception:
        return False
    return bool((read - x).abs().max() <= float(x.max() - x.min()) / (2**layer.bits - 1) * 1.5 + 1e-4)


@pytest.mark.parametrize("kind", [HFQuanto, HFHQQ])
@pytest.mark.parametrize("heads, dim", [(3, 64), (8, 64), (1, 64), (2, 80)])
def test_what_does_not_work_for_every_length_is_refused_and_nothing_else(
    kind: type[HFCache], heads: int, dim: int
) -> None:
    """Axis -1 of quanto and small groups of hqq work for some numbers of tokens only; hqq misreads others without a word."""
    refused = 0
    for axis in kind.axes:
        for bits in kind.widths:
            for group in (3, 6, 8, 20, 32, 64):
                if heads * dim % group:
                    continue
                layer = kind(bits=bits, axis_key=axis, axis_value=axis, group=group)
                problems = layer.problems(shape(4, heads, dim))
                works_always = all(works(layer, heads, dim, n) for n in (*range(1, 8), 20, 33, 63))
                assert works_always == (not problems), (layer, problems)
                refused += bool(problems)
                assert all("strategy.quant.axis_" in problem and "group" in problem for problem in problems)
    assert refused


def test_the_library_refuses_models_with_sliding_windows() -> None:
    sliding = replace(shape(), window=(None, 16))
    assert any("sliding windows" in problem for problem in Stack("s", quant=HFQuanto()).problems(sliding))


@pytest.mark.parametrize("kind, package", [(HFQuanto, "optimum-quanto"), (HFHQQ, "hqq")])
@pytest.mark.parametrize("missing", [("optimum", "hqq"), ("optimum.quanto", "hqq")])
def test_a_package_that_is_not_installed_is_named(
    kind: type[HFCache], package: str, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Callable[[str], object] = lambda name: None if name in missing else object()  # noqa: E731
    monkeypatch.setattr(hf_cache, "find_spec", found)
    problem = next(p for p in kind().problems(shape()) if "not installed" in p)
    assert f"package {package}" in problem and "kvgate[hf-cache]" in problem


def test_quanto_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_cache.shutil, "which", lambda tool, path=None: None if tool == "ninja" else tool)
    assert any("needs ninja" in problem for problem in HFQuanto().problems(shape()))
    assert HFHQQ().problems(shape()) == []


def test_the_library_is_imported_when_it_runs() -> None:
    code = "import sys, strategies.quant.hf_cache; print([m for m in ('transformers', 'optimum', 'hqq') if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"
