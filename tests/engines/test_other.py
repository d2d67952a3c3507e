"""``compress=other``: a context that was compressed while another question was asked about it, reused for this one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from harness.engines.hf.engine import HFEngine
from harness.engines.hf.prefill import prefill
from harness.engines.hf.session import HFSession
from harness.types import Sample
from strategies.base import Evict
from strategies.evict.h2o import H2O
from strategies.evict.keydiff import KeyDiff
from strategies.evict.snapkv import SnapKV
from strategies.quant.fp8 import FP8
from strategies.stack import Stack
from tests.contract.layers import STACKS
from tests.engines.test_hf import FULL, generated, open_session, run, sample, tokens

OTHER = "and which one came before it, and why?"


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


def reused(index: int = 0, **changes: object) -> Sample:
    return sample(index, other=OTHER, **changes)


def by_hand(session: HFSession, one: Sample, policy: Evict) -> tuple[int, ...]:
    """The context's tokens that the policy ranks highest after the other question, cut out of the library's own cache."""
    there = session.tokenizer.prompt(replace(one, question=OTHER, answer_prefix=""))
    context, ids = len(there.context), there.context + there.rest
    whole = prefill(session.model, ids, query_window=policy.query_window, chunk=40, seed=0, needs=policy.needs)
    cache = DynamicCache(config=session.model.config)
    with torch.inference_mode():
        session.model(torch.tensor([there.context]), past_key_values=cache)
        for layer, view in zip(cache.layers, whole.layers, strict=True):
            best = torch.stack(policy.chosen(policy.importance(view)[:, :context], policy.budget(context)))
            index = best[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[-1])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        said: list[int] = []
        feed, at = session.tokenizer.prompt(one).rest, context
        while len(said) < one.max_new_tokens:
            positions = torch.arange(at, at + len(feed))[None]
            for step, token in enumerate(feed):  # one by one: no mask of the library's fits a cut cache
                out = session.model(
                    torch.tensor([[token]]), past_key_values=cache, position_ids=positions[:, step : step + 1]
                )
            at += len(feed)
            token = int(out.logits[0, -1].argmax())
            if token in session.tokenizer.stop_ids:
                break
            said.append(token)
            feed = [token]
    return tuple(said)


@pytest.mark.parametrize(
    "policy", [SnapKV(keep=0.5, window=8), KeyDiff(keep=0.4), H2O(keep=0.5, every=0)], ids=lambda p: p.name
)
def test_the_context_is_ranked_with_the_other_question_in_view(session: HFSession, policy: Evict) -> None:
    for index in range(4):
        one = reused(index)
        answers = run(session, one, [FULL, Stack("s", evict=policy)], "other")
        assert tokens(answers["s"]) == by_hand(session, one, policy)
        assert answers["s"].memory is not None
        assert answers["s"].memory.prompt_tokens == len(session.tokenizer.prompt(one).context)


def test_what_is_not_compressed_does_not_care(session: HFSession) -> None:
    one = reused(1)
    assert tokens(run(session, one, [FULL], "other")["full"]) == generated(session, one)


def test_who_does_not_look_at_questions_does_as_with_the_context_alone(session: HFSession) -> None:
    for stack in (Stack("fp8", quant=FP8()), Stack("kivi2", quant=STACKS[-1].quant)):
        one = reused(2)
        answers = [run(session, one, [FULL, stack], compress)[stack.name] for compress in ("other", "context")]
        assert tokens(answers[0]) == tokens(answers[1]) and answers[0].memory == answers[1].memory


def test_which_question_it_was_matters(session: HFSession) -> None:
    stack = Stack("s", evict=SnapKV(keep=0.2, window=8))
    answers = {
        tokens(run(session, reused(3), [FULL, stack], "other")["s"]),
        tokens(run(session, replace(reused(3), other="x" * 40), [FULL, stack], "other")["s"]),
        tokens(run(session, reused(3), [FULL, stack], "context")["s"]),
    }
    assert len(answers) > 1


def test_every_stack_answers_and_weighs_what_its_formula_says(session: HFSession) -> None:
    for name, answer in run(session, reused(0), STACKS, "other").items():
        assert answer.response is not None, (name, answer.error)
        assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes, name


def test_evictions_while_decoding_hear_their_own_question_alone(session: HFSession) -> None:
    """The votes and the instructions of the other question are not of this conversation."""
    stack = Stack("s", evict=SnapKV(keep=0.3, window=30, every=4))
    one = reused(1, new=40, instructions=(OTHER[:12],))
    answer = run(session, one, [FULL, stack], "other")["s"]
    assert answer.response is not None, answer.error
    (facts,) = [e.facts for e in answer.evidence]
    assert facts["tokens_held_end"] < facts["tokens_kept"] + 40


def test_the_other_question_is_part_of_a_sample_and_its_absence_is_not() -> None:
    assert sample(0).hash == replace(sample(0), other="").hash != reused(0).hash


def test_a_model_that_does_not_keep_the_beginning_is_refused(session: HFSession) -> None:
    shape = session.about.shape
    for changed in (replace(shape, window=(None, 16, None)), replace(shape, linear_layers=2)):
        answer = HFEngine().compresses("other", changed)
        assert not answer.yes and "do not keep the beginning" in answer.why
        assert HFEngine().compresses("context", changed).yes
    assert HFEngine().compresses("other", shape).yes
