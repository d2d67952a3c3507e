"""Sampling and thinking in the engine, against plain forward passes of transformers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf import decode as decoding
from harness.engines.hf.decode import Batch
from harness.engines.hf.rows import Rows
from harness.engines.hf.sampling import Sampler
from harness.engines.hf.session import HFSession
from harness.generation import drawn
from harness.types import Generation, Response, Sample, Thinking
from strategies.evict.delayed import Delayed
from strategies.evict.keydiff import KeyDiff
from strategies.evict.oracle import Oracle
from strategies.offload.host import Host
from strategies.prefix.reuse import Reuse
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from tests.contract.layers import STACKS
from tests.engines.test_hf import FULL, fitted, open_session, run, sample, tokens
from tests.engines.test_turns import prompts

THINK = Thinking(9, "<hm>", "\n</hm>\n")


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


# --- the draw itself ---


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_distribution_of_the_softmax(temperature: float) -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, 1.0, 0.5, -0.5, 1.5, 0.2]])
    expected = (logits[0].double() / temperature).softmax(-1) * 6000
    samplers = [Sampler(temperature, 0, f"s{i}") for i in range(6)]
    said = Counter(int(one.draw(logits, step)) for one in samplers for step in range(1000))
    assert chisquare([said[token] for token in range(8)], expected.numpy()).pvalue > 0.001


@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30, unique=True), st.integers(0, 10**6))
def test_the_limit_of_a_low_temperature_is_greedy(values: list[float], step: int) -> None:
    logits = torch.tensor([values], dtype=torch.float64)
    cold, greedy = (Sampler(temperature, 1, "s").draw(logits, step) for temperature in (1e-300, 0.0))
    assert cold.tolist() == greedy.tolist() == [max(range(len(values)), key=values.__getitem__)]


def test_the_noise_is_that_of_seed_sample_and_step_alone() -> None:
    noise = [Sampler(1.0, *who).gumbel(50, step) for *who, step in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))]
    assert len({tuple(one.tolist()) for one in noise}) == 4
    assert noise[0].equal(Sampler(0.3, 0, "a").gumbel(50, 0))
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    together = Sampler(1.0, 0, "a").draw(logits, 3)
    alone = [Sampler(1.0, 0, "a").draw(row[None], 3) for row in logits]
    assert together.tolist() == torch.cat(alone).tolist()


# --- sampled answers ---


def by_hand(session: HFSession, ids: Sequence[int], steps: int, sampler: Sampler, first: int = 0) -> list[int]:
    """What the model says after ``ids``, each token from a forward pass over the whole text. Stops at the end of text."""
    said: list[int] = []
    with torch.inference_mode():
        for step in range(first, first + steps):
            logits = session.model(torch.tensor([[*ids, *said]])).logits[:, -1]
            token = int(sampler.draw(logits, step))
            if token in session.tokenizer.stop_ids:
                break
            said.append(token)
    return said


def prompt_of(session: HFSession, one: Sample) -> list[int]:
    prompt = session.tokenizer.prompt(one)
    return prompt.context + prompt.rest


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_full_draws_what_plain_forward_passes_draw(session: HFSession, compress: str) -> None:
    for index in range(6):
        one = sample(index, length=60 + 17 * index, temperature=0.9)
        expected = by_hand(session, prompt_of(session, one), one.max_new_tokens, Sampler.of(one, 0))
        assert list(tokens(run(session, one, [FULL], compress)["full"])) == expected
        assert expected != by_hand(session, prompt_of(session, one), one.max_new_tokens, Sampler(0.0, 0, ""))


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_sampled_answer_does_not_depend_on_the_rows_beside_it(session: HFSession, compress: str) -> None:
    one = sample(1, temperature=0.8)
    joint = run(session, one, STACKS, compress)
    for stack in STACKS:
        assert tokens(joint[stack.name]) == tokens(run(session, one, [stack], compress)[stack.name]), stack.name


def test_draws_differ_and_come_again(session: HFSession) -> None:
    draws = drawn([sample(2)], 6, Generation(1.0, 6))
    said = [tokens(run(session, one, [FULL])["full"]) for one in draws]
    assert len(set(said)) == 6
    assert said == [tokens(run(session, one, [FULL])["full"]) for one in draws]


def test_equal_caches_say_the_same(session: HFSession) -> None:
    """Common random numbers: what parts two rows is the setting alone."""
    one = sample(3, temperature=1.0, new=20)
    answers = run(session, one, [FULL, Stack("again"), Stack("int8", quant=INT8())])
    assert tokens(answers["full"]) == tokens(answers["again"])


def test_rows_that_follow_are_fed_the_baseline_s_draws(session: HFSession) -> None:
    one = sample(1, new=10, follow=True, temperature=1.0)
    answers = run(session, one, [FULL, Stack("kivi2", quant=KIVI(bits=2, group=8, residual=16))])
    expected = by_hand(session, prompt_of(session, one), 10, Sampler.of(one, 0))
    for answer in answers.values():
        assert [token for token in tokens(answer) if token not in session.tokenizer.stop_ids] == expected
        assert answer.response is not None and answer.response.fidelity is not None
    assert answers["full"].response.fidelity["kl_mean"] == pytest.approx(0, abs=1e-6)  # type: ignore[union-attr, index]


@pytest.mark.parametrize("think", [None, replace(THINK, tokens=3)], ids=["at once", "thinking"])
def test_who_looks_ahead_sees_what_the_full_cache_will_say(
    session: HFSession, think: Thinking | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sample(2, new=6, temperature=1.0, think=think)
    decoded: list[Rows] = []
    advance = Batch.advance

    def spy(self: Batch) -> list[Rows]:
        done = advance(self)
        decoded.extend(done)
        return done

    monkeypatch.setattr(Batch, "advance", spy)
    few, all_of_it = Delayed(keep=0.5, late=4), Oracle(keep=0.5)
    rows = [Row(one.name, one) for one in (FULL, Stack("few", evict=few), Stack("all", evict=all_of_it))]
    list(session.run([Ask(one, [rows])], compress="prompt", seed=5))
    ahead, whole, real = ([rows.states[0].thought, rows.states[0].tokens] for rows in decoded)
    assert whole == real
    assert ahead == ([[], real[1][:5]] if think is None else [real[0], []])  # 4 looks, and the token not fed


# --- thinking ---


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that the first row is fed while it decodes."""
    tokens: list[int] = []
    feed = decoding.feed

    def spy(model: object, cache: object, new: torch.Tensor, position: int) -> torch.Tensor:
        tokens.append(int(new[0, 0]))
        return feed(model, cache, new, position)  # type: ignore[arg-type]

    monkeypatch.setattr(decoding, "feed", spy)
    return tokens


def thought_by_hand(session: HFSession, one: Sample) -> tuple[list[int], list[int], list[int], bool]:
    """Thinking tokens, what is told, answer tokens and whether the thinking was cut, decoding anew after each phase."""
    assert one.think is not None
    sampler, ids, end = Sampler.of(one, 0), prompt_of(session, one), session.tokenizer
    free = by_hand(session, ids, one.think.tokens, sampler)
    whole, prefix = one.think.close, one.answer_prefix
    for count in range(1, len(free) + 1):  # bytes, so what closes it ends a token
        if end.verbatim(free[:count]).endswith(one.think.close.strip()):
            free, due, cut = free[:count], whole[whole.rindex(whole.strip()) + len(whole.strip()) :] + prefix, False
            break
    else:
        cut, due = len(free) == one.think.tokens, whole + prefix
    told = end.encode(due)
    first = len(free) + len(told)
    said = by_hand(session, [*ids, *free, *told], one.max_new_tokens, sampler, first)
    return free, told, said, cut


def response(answer: Answer) -> Response:
    assert answer.response is not None, answer.error
    return answer.response


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prefix", ["", "it is"])
def test_a_thinking_that_is_cut(
    session: HFSession, fed: list[int], compress: str, temperature: float, prefix: str
) -> None:
    for index in range(3):
        one = sample(index, think=THINK, temperature=temperature, answer_prefix=prefix)
        free, told, said, cut = thought_by_hand(session, one)
        fed.clear()
        found = response(run(session, one, [FULL], compress)["full"])
        assert fed == [*free, *told, *said][: len(fed)] and len(fed) >= len(free) + len(told) + len(said) - 1
        assert (found.thinking_tokens, list(found.token_ids), found.thinking_cut) == (len(free), said, cut)
        assert cut and found.text == session.tokenizer.decode(said)


@pytest.mark.parametrize("after", ["", "\n\n"])
@pytest.mark.parametrize("prefix", ["", "it is"])
def test_a_thinking_that_the_model_closes(session: HFSession, fed: list[int], after: str, prefix: str) -> None:
    """Only what is missing is fed: what the model has said of the mark itself is not said again."""
    for index in range(3):
        open_ended = sample(index, think=Thinking(9, "<hm>", "\ue000"), answer_prefix=prefix)
        words = session.tokenizer.verbatim(thought_by_hand(session, open_ended)[0])
        mark = words[4:6].strip() or words[3]
        one = replace(open_ended, think=Thinking(9, "<hm>", f"\n{mark}{after}"))
        free, told, said, cut = thought_by_hand(session, one)
        fed.clear()
        found = response(run(session, one, [FULL])["full"])
        assert fed == [*free, *told, *said][: len(fed)] and len(fed) >= len(free) + len(told) + len(said) - 1
        assert (found.thinking_tokens, list(found.token_ids), found.thinking_cut) == (len(free), said, False)
        assert not cut and len(free) < 9


def test_a_thinking_that_the_end_of_text_ends(
    session: HFSession, fed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sample(1, think=THINK)
    free, *_ = thought_by_hand(session, one)
    monkeypatch.setattr(session.tokenizer, "stop_ids", frozenset({free[4]}))
    free, told, said, cut = thought_by_hand(session, one)
    fed.clear()
    found = response(run(session, one, [FULL])["full"])
    assert fed == [*free, *told, *said][: len(fed)] and len(fed) >= len(free) + len(told) + len(said) - 1
    assert (found.thinking_tokens, list(found.token_ids), found.thinking_cut) == (len(free), said, cut)
    assert len(free) <= 4 and not cut


def test_stop_strings_end_the_answer_and_not_the_thinking(session: HFSession) -> None:
    one = sample(1, think=THINK, new=12)
    free = response(run(session, one, [FULL])["full"])
    thought = session.tokenizer.verbatim(thought_by_hand(session, one)[0])
    mark = free.text[3:5]
    stopped = response(run(session, replace(one, stop=(thought[2:4], mark)), [FULL])["full"])
    assert stopped.thinking_tokens == free.thinking_tokens == 9
    ends = [free.text.find(stop) for stop in (thought[2:4], mark) if stop in free.text]
    assert (stopped.text, stopped.finish) == (free.text[: min(ends)], "stop")


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_every_stack_thinks_beside_others_as_alone(session: HFSession, compress: str) -> None:
    """Rows in different phases stand at one position; whatever is fed fits into the room that was set aside."""
    open_ended = sample(3, think=THINK)
    mark = session.tokenizer.verbatim(thought_by_hand(session, open_ended)[0])[3:5].strip()
    one = replace(open_ended, think=replace(THINK, close=mark), temperature=0.7)
    joint = run(session, one, STACKS, compress)
    for stack in STACKS:
        found = response(joint[stack.name])
        alone = response(run(session, one, [stack], compress)[stack.name])
        assert (found.thinking_tokens, found.token_ids) == (alone.thinking_tokens, alone.token_ids), stack.name
        memory = joint[stack.name].memory
        assert memory is not None and memory.stored_bytes == memory.formula_bytes, stack.name


def test_layers_that_lose_nothing_lose_no_thought(session: HFSession) -> None:
    one = sample(4, think=THINK, temperature=0.7)
    stacks = [FULL, Stack("reuse", prefix=Reuse(block=16)), Stack("host", offload=Host())]
    for start in ("cold", "warm"):
        rows = [Row(stack.name, stack) for stack in stacks]
        answers = list(session.run([Ask(one, [rows])], compress="prompt", start=start, seed=0))  # type: ignore[arg-type]
        assert len({(response(a).thinking_tokens, response(a).token_ids) for a in answers}) == 1


def test_chunked_prefill_and_live_evictions_think_too(session: HFSession) -> None:
    one = sample(5, think=THINK)
    chunked = run(session, one, [FULL, Stack("int8", quant=INT8())], prefill="chunked")
    assert response(chunked["full"]) == response(run(session, one, [FULL])["full"])
    assert response(chunked["int8"]).thinking_tokens == 9
    every = Stack("live", evict=KeyDiff(keep=0.5, every=4))
    assert response(run(session, one, [FULL, fitted(session, every)])["live"]).thinking_tokens == 9


def test_the_prompt_ends_where_the_thinking_begins(session: HFSession) -> None:
    plain, thinking = sample(0), sample(0, think=THINK)
    texts = [session.tokenizer.decode(session.tokenizer.prompt(one).rest) for one in (plain, thinking)]
    assert texts[0].endswith("it is") and texts[1] == texts[0].removesuffix("it is") + "<hm>"
    opened = prompts("{{ messages[0]['content'] + '[hm]<hm>\\n' }}")
    assert opened.decode(opened.prompt(thinking).rest).endswith("what is 0?[hm]<hm>\n")
    closing = len(session.tokenizer.encode("\n</hm>\nit is"))
    assert session.tokenizer.new_tokens(thinking) == 9 + closing + thinking.max_new_tokens
    assert session.tokenizer.new_tokens(plain) == plain.max_new_tokens
