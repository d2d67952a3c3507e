"""Prefixes of earlier prompts are reused, and answers are those of prompts computed as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf import reuse
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.prefill import prefill
from harness.engines.hf.reuse import PrefixCache
from harness.engines.hf.session import HFSession
from harness.types import Sample
from strategies.base import KVShape, Prefix
from strategies.evict.expected_attention import ExpectedAttention
from strategies.evict.h2o import H2O
from strategies.evict.snapkv import SnapKV
from strategies.evict.window import Window
from strategies.prefix.reuse import Reuse
from strategies.quant.fp8 import FP8
from strategies.stack import Stack
from tests.engines.test_hf import FULL, open_session, run, sample, tokens

BLOCK = 16
REUSE = Stack("reuse", prefix=Reuse(block=BLOCK))


@pytest.fixture
def session(tiny: Path) -> Iterator[HFSession]:
    """A new one for each test: what it keeps is what the test is about."""
    yield from open_session(tiny)


def hits(answer: Answer) -> float:
    return next(e.facts["hit_tokens"] for e in answer.evidence if e.layer == "prefix/reuse")


def acted(answer: Answer) -> bool:
    return next(e.acted for e in answer.evidence if e.layer == "prefix/reuse")


def about(context: Sample, index: int) -> Sample:
    """Another question about the same context."""
    return replace(context, id=f"{context.id}-{index}", question=f"and now number {index}?")


def test_questions_about_one_context_share_it_and_answers_are_the_same(session: HFSession) -> None:
    shared = sample(0, length=300)
    context = len(session.tokenizer.prompt(shared).context)
    for index in range(5):
        answers = run(session, about(shared, index), [FULL, REUSE])
        assert tokens(answers["reuse"]) == tokens(answers["full"])
        assert hits(answers["reuse"]) == (0 if index == 0 else (context + len("\nand now number ")) // BLOCK * BLOCK)
        assert acted(answers["reuse"]) == (index > 0)


def test_turns_of_a_conversation_reuse_all_turns_before(session: HFSession) -> None:
    text, longest = "system: be brief. ", 0
    for turn in range(5):
        text += f"user: what about {turn * 7919}? " + "and why is that so? " * turn
        one = Sample(f"t{turn}", text, "", ("x",), 8)
        answers = run(session, one, [FULL, REUSE])
        assert tokens(answers["reuse"]) == tokens(answers["full"])
        assert hits(answers["reuse"]) == longest // BLOCK * BLOCK
        prompt = session.tokenizer.prompt(one)
        longest = len(prompt.context)  # the next turn goes on where this context ended
        text += "assistant: because. "


def test_a_reused_prompt_is_the_computed_one_up_to_rounding(session: HFSession) -> None:
    shared = sample(4, length=300)
    cache = PrefixCache(Reuse(block=BLOCK))
    for index in range(3):
        prompt = session.tokenizer.prompt(about(shared, index))
        ids = prompt.context + prompt.rest
        facts = {"query_window": 8, "chunk": 40, "seed": 0}
        plain, reused = prefill(session.model, ids, **facts), cache.prefill(session.model, ids, **facts)
        assert reused.reused == (0 if index == 0 else (301 + len("\nand now number ")) // BLOCK * BLOCK)
        assert torch.allclose(plain.logits, reused.logits, atol=1e-4)
        for mine, theirs in zip(reused.layers, plain.layers, strict=True):
            assert torch.equal(mine.keys[:, : reused.reused], theirs.keys[:, : reused.reused])
            assert torch.allclose(mine.keys, theirs.keys, atol=1e-4)
            assert torch.allclose(mine.values, theirs.values, atol=1e-4)
            assert torch.allclose(mine.window_queries, theirs.window_queries, atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_prompt_that_was_asked_before_computes_one_token(session: HFSession, compress: str) -> None:
    rows = [Row("full", FULL), Row("reuse", REUSE)]
    one = sample(1, length=151)
    for _ in range(2):
        answers = {a.cell: a for a in session.run([Ask(one, [rows])], compress=compress, start="warm", seed=0)}  # type: ignore[arg-type]
        memory = answers["reuse"].memory
        assert memory is not None
        assert hits(answers["reuse"]) == (memory.prompt_tokens - 1) // BLOCK * BLOCK
        assert tokens(answers["reuse"]) == tokens(answers["full"])


@pytest.mark.parametrize(
    "other",
    [
        Stack("s", evict=SnapKV(keep=0.5, window=8)),
        Stack("s", evict=Window(keep=0.5), quant=FP8()),
        Stack("s", quant=FP8()),
    ],
    ids=["snapkv", "window+fp8", "fp8"],
)
def test_what_comes_after_works_on_a_reused_prompt(session: HFSession, other: Stack) -> None:
    both = replace(other, name="both", prefix=Reuse(block=BLOCK))
    shared = sample(2, length=250)
    for index in range(3):
        for compress in ("prompt", "context"):
            answers = run(session, about(shared, index), [FULL, other, both], compress)
            assert tokens(answers["both"]) == tokens(answers["s"])
            assert answers["both"].memory == answers["s"].memory
            kept = [
                {key: e.facts.get(key) for key in ("tokens_kept", "attention_kept")}
                for name in ("both", "s")
                for e in answers[name].evidence
                if e.layer.startswith("evict")
            ]
            assert kept[: len(kept) // 2] == [pytest.approx(facts, abs=1e-4) for facts in kept[len(kept) // 2 :]]
    assert hits(answers["both"]) > 0


def test_queries_that_a_policy_votes_with_are_always_computed(session: HFSession) -> None:
    stack = Stack("s", evict=SnapKV(keep=0.5, window=40), prefix=Reuse(block=BLOCK))
    one = sample(3, length=200)
    run(session, one, [FULL, stack])
    again = run(session, one, [FULL, stack])["s"]
    assert again.memory is not None
    assert hits(again) == (again.memory.prompt_tokens - 40) // BLOCK * BLOCK


def test_places_that_run_out_are_given_to_others_and_nothing_false_is_read(session: HFSession) -> None:
    small = Stack("small", prefix=Reuse(block=BLOCK, tokens=8 * BLOCK))
    contexts = [sample(index, length=100 + 30 * index) for index in range(4)]
    for turn in range(12):
        answers = run(session, about(contexts[turn * 3 % 4], turn), [FULL, small])
        assert tokens(answers["small"]) == tokens(answers["full"])


def test_a_wrong_block_is_noticed_by_these_tests(session: HFSession) -> None:
    """The control: values that are not those of the text change the answer."""
    shared = sample(0, length=300)
    run(session, about(shared, 0), [FULL, REUSE])
    (cache,) = session._prefixes.values()
    for block in cache.blocks.values():
        for keys, values in block:
            keys.neg_()
            values.neg_()
    answers = run(session, about(shared, 1), [FULL, REUSE])
    assert tokens(answers["reuse"]) != tokens(answers["full"])


@pytest.mark.parametrize(
    "start, where", [("cold", "joined"), ("cold", "prefill"), ("cold", "slice"), ("warm", "slice")]
)
def test_a_prompt_that_fails_leaves_nothing_for_others_to_find(
    session: HFSession, start: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places were promised to its blocks; another prompt's keys must not be read from there."""

    def fail(*args: object, **kw: object) -> None:
        raise MemoryError("out of memory")

    shared, rows = sample(0, length=300), [Row("full", FULL), Row("reuse", REUSE)]
    run(session, about(sample(7, length=300), 0), [FULL, REUSE])
    with monkeypatch.context() as patch:
        patch.setattr(reuse, where, fail, raising=False)  # ``slice`` is first used when blocks are to be kept
        answers = {a.cell: a for a in session.run([Ask(shared, [rows])], compress="prompt", start=start, seed=0)}  # type: ignore[arg-type]
        assert answers["full"].response is not None and "out of memory" in answers["reuse"].error
    for index in range(2):
        answers = run(session, about(shared, index), [FULL, REUSE])
        assert tokens(answers["reuse"]) == tokens(answers["full"])
    assert hits(answers["reuse"]) > 0


def test_what_is_reused_does_not_depend_on_the_rows_beside(tiny: Path) -> None:
    wide = Stack("wide", evict=SnapKV(keep=0.5, window=100), prefix=Reuse(block=BLOCK))
    seen = []
    for stacks in ([FULL, REUSE], [FULL, wide, REUSE]):
        for fresh in open_session(tiny):
            for index in range(2):
                answers = run(fresh, about(sample(1, length=120), index), stacks)
            seen.append(hits(answers["reuse"]))
    assert seen[0] == seen[1] > 0


def test_samples_of_another_kind_find_nothing(session: HFSession) -> None:
    one = sample(1, length=120)
    run(session, one, [FULL, REUSE])
    session.forget()
    assert hits(run(session, one, [FULL, REUSE])["reuse"]) == 0


def test_each_setting_keeps_its_own_blocks(session: HFSession) -> None:
    coarse = Stack("coarse", prefix=Reuse(block=64))
    shared = sample(5, length=300)
    for index in range(2):
        answers = run(session, about(shared, index), [FULL, REUSE, coarse])
    assert hits(answers["reuse"]) > hits(answers["coarse"]) > 0
    assert hits(answers["coarse"]) % 64 == 0


SHAPE = KVShape(layers=2, kv_heads=2, query_heads=4, head_dim=32, element_bytes=4)


@pytest.mark.parametrize(
    "stack, shape, says",
    [
        (Stack("s", prefix=Reuse(), evict=H2O(keep=0.5)), SHAPE, "evict/h2o asks for the mass of all queries"),
        (Stack("s", prefix=Reuse(), evict=ExpectedAttention(keep=0.5)), SHAPE, "asks for the moments of all queries"),
        (Stack("s", prefix=Reuse()), replace(SHAPE, window=(16, None)), "sliding window"),
        (Stack("s", prefix=Reuse()), replace(SHAPE, linear_layers=3), "linear attention"),
        (Stack("s", prefix=Reuse(block=0)), SHAPE, "strategy.prefix.block must be 1 or more, got 0"),
    ],
)
def test_what_cannot_be_reused_is_refused(stack: Stack, shape: KVShape, says: str) -> None:
    (problem,) = stack.problems(shape)
    assert says in problem and "strategy.prefix" in problem


def test_blocks_are_exact_so_a_packed_past_is_not_read_from_them(session: HFSession) -> None:
    stack = Stack("s", prefix=Reuse(), quant=FP8())
    answer = HFEngine().prefills(stack, "chunked", session.about.shape)
    assert not answer.yes and "prefix/reuse keeps exact blocks" in answer.why
    assert HFEngine().prefills(REUSE, "chunked", session.about.shape).yes


def test_no_engine_needs_to_know_the_layer(session: HFSession) -> None:
    """A prefix layer of the user's own: it keeps the first block of every prompt and no more."""

    class First(Reuse):
        def index(self):  # type: ignore[no-untyped-def]
            inner = super().index()
            take = inner.take
            inner.take = lambda tokens, most: take(tokens[: inner.block], min(most, inner.block))  # type: ignore[method-assign]
            return inner

    shared = sample(6, length=200)
    for index in range(2):
        answers = run(session, about(shared, index), [FULL, Stack("reuse", prefix=First(block=BLOCK))])
        assert tokens(answers["reuse"]) == tokens(answers["full"])
    assert hits(answers["reuse"]) == BLOCK
    assert isinstance(First(), Prefix) and torch.is_tensor(next(iter(session._prefixes.values())).blocks[0][0][0])
