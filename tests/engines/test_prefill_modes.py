"""The chunked prefill: what each chunk reads, against transformers' own attention over a hand-made cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from harness.engines.base import Ask, Row
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.session import HFSession
from strategies.base import Format
from strategies.evict.keydiff import KeyDiff
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.lowrank import LowRank
from tests.contract.layers import STACKS
from tests.engines.test_hf import FULL, fitted, open_session, run, sample, tokens

PACKING = [stack for stack in STACKS if stack.packs and not stack.evict]


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


class Coded(DynamicLayer):
    """A library cache layer whose every token is coded as it arrives, and read back so at once."""

    def __init__(self, format: Format) -> None:
        super().__init__()
        self.format = format

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kw: object) -> tuple[Tensor, Tensor]:
        return super().update(*self.format.store(key_states, value_states).read())


@pytest.mark.parametrize("quant", [FP8(), INT8()], ids=["fp8", "int8"])
def test_each_chunk_reads_the_stored_past(session: HFSession, quant: FP8 | INT8) -> None:
    """Scales of a token's own make coding chunk by chunk the same as coding each update alone."""
    for index in range(4):
        one = sample(index)
        prompt = session.tokenizer.prompt(one)
        cache = DynamicCache(config=session.model.config)
        cache.layers = [Coded(quant) for _ in cache.layers]
        ids = torch.tensor([prompt.context + prompt.rest])
        said: list[int] = []
        with torch.inference_mode():
            for chunk in ids.split(session.chunk, dim=1):
                logits = session.model(chunk, past_key_values=cache, logits_to_keep=1).logits
            for _ in range(one.max_new_tokens):
                said.append(int(logits[0, -1].argmax()))
                logits = session.model(torch.tensor([[said[-1]]]), past_key_values=cache, logits_to_keep=1).logits
        assert tokens(run(session, one, [FULL, Stack("q", quant=quant)], prefill="chunked")["q"]) == tuple(said)


def test_a_format_that_keeps_everything_exact_changes_nothing(session: HFSession) -> None:
    one = sample(3)
    idle = Stack("idle", quant=KIVI(bits=2, group=8, residual=800))
    for compress in ("prompt", "context"):
        answers = run(session, one, [FULL, idle], compress, "chunked")
        assert tokens(answers["idle"]) == tokens(answers["full"])


def test_a_lossy_format_differs_between_the_two_ways(session: HFSession) -> None:
    """Coarse keys are read by the prompt's own later chunks only if it is chunked."""
    harsh = Stack("harsh", quant=KIVI(bits=2, group=16, residual=16))
    pairs = [[run(session, sample(i), [FULL, harsh], prefill=p) for p in ("exact", "chunked")] for i in range(4)]
    assert any(tokens(exact["harsh"]) != tokens(chunked["harsh"]) for exact, chunked in pairs)
    assert all(tokens(exact["full"]) == tokens(chunked["full"]) for exact, chunked in pairs)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_rows_are_the_same_alone_and_their_bytes_are_the_formula_s(session: HFSession, compress: str) -> None:
    one = sample(1, length=200)
    evicting = Stack("keydiff", evict=KeyDiff(keep=0.5))
    joint = run(session, one, [FULL, *PACKING, evicting], compress, "chunked")
    assert tokens(joint["keydiff"]) == tokens(run(session, one, [evicting], compress)["keydiff"])
    for stack in PACKING:
        answer = joint[stack.name]
        assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes, stack.name
        assert tokens(answer) == tokens(run(session, one, [FULL, stack], compress, "chunked")[stack.name]), stack.name


def test_a_row_that_followed_is_measured_from_its_first_step(session: HFSession) -> None:
    """The first logits of a chunked row came through its own store."""
    one = sample(0, follow=True)
    rows = [Row(s.name, s) for s in (FULL, Stack("q", quant=FP8()))]
    for prefill, steps in (("exact", one.max_new_tokens - 1), ("chunked", one.max_new_tokens)):
        answers = {a.cell: a for a in session.run([Ask(one, [rows])], compress="prompt", prefill=prefill, seed=0)}  # type: ignore[arg-type]
        response = answers["q"].response
        assert response is not None and response.fidelity is not None and response.fidelity["steps"] == steps


def test_what_cannot_be_prefilled_in_chunks_is_refused_with_the_reason(session: HFSession) -> None:
    from dataclasses import replace

    engine, shape = HFEngine(), session.about.shape
    both = Stack("b", evict=KeyDiff(keep=0.5), quant=FP8())
    assert "ranks exact keys" in engine.prefills(both, "chunked", shape).why
    assert engine.prefills(both, "exact", shape).yes
    sliding = replace(shape, window=(None, 16, 16))
    assert "sliding window" in engine.prefills(Stack("q", quant=FP8()), "chunked", sliding).why
    assert engine.prefills(Stack("e", evict=KeyDiff(keep=0.5)), "chunked", sliding).yes


def test_stacks_that_learn_the_same_share_what_they_learnt(session: HFSession) -> None:
    text = "one two three four five six seven. " * 40
    stacks = [Stack("a", LowRank(rank=64), quant=INT8()), Stack("b", LowRank(rank=64), quant=INT8())]
    a, b = (session.fit(stack, text, 200) for stack in stacks)
    assert a.fitted is b.fitted and a.fitted is not session.fit(a, text, 150).fitted
    with pytest.raises(RuntimeError, match="calibration text"):
        stacks[0].formats(3)


def test_a_calibrated_scale_is_that_of_the_text(session: HFSession) -> None:
    """The largest element of the text's cache, computed by the library, over the largest code."""
    stack = Stack("t", quant=FP8(scale="tensor", scale_from="text"))
    cache = DynamicCache(config=session.model.config)
    ids = session.tokenizer.encode("the quick brown fox jumps over the lazy dog. " * 20)[:300]
    with torch.inference_mode():
        session.model(torch.tensor([ids]), past_key_values=cache)
    for format, layer in zip(fitted(session, stack).formats(3), cache.layers, strict=True):
        for side, exact in (("key_scale", layer.keys), ("value_scale", layer.values)):
            torch.testing.assert_close(getattr(format, side).squeeze(), exact.abs().max() / 448, rtol=1e-4, atol=0)
