"""Samples that decode in one batch: each says what it says alone, whoever comes, goes or breaks down beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf import decode as decoding
from harness.engines.hf import device_memory
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.joint import JointCache
from harness.engines.hf.session import HFSession
from harness.types import Sample, Thinking
from strategies.evict.keydiff import KeyDiff
from strategies.evict.window import Window
from strategies.offload.disk import Disk
from strategies.offload.host import Host
from strategies.prefix.reuse import Reuse
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.minicache import MiniCache
from tests.contract.layers import STACKS
from tests.engines.test_attention_kinds import raise_it
from tests.engines.test_hf import FULL, fitted, open_session, sample, tokens

MANY = 10_000  # rows, more than any test has
FEW = [FULL, Stack("int8", quant=INT8()), Stack("window", evict=Window(keep=0.5, every=4))]


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    """In float64, so that rounding changes no token."""
    for session in open_session(tiny):
        session.model.double()
        yield session


def asked(
    session: HFSession, samples: Sequence[Sample], stacks: Sequence[Stack], rows: int, breaks: bool = False, **mode: Any
) -> dict[tuple[str, str], Answer]:
    """The answers, by sample and cell, where so many rows decode together; the baseline once more as a later batch.

    Where nothing is to break, what does is raised: answered apart, it would look as if it had not.
    """
    batches = [[Row(stack.name, fitted(session, stack)) for stack in stacks], [Row("again", FULL)]]
    session.forget()
    session.together = rows
    asks = [Ask(one, batches) for one in samples]
    with pytest.MonkeyPatch.context() as patch:
        if not breaks:
            raise_it(patch)
        answers = list(session.run(asks, seed=3, **{"compress": "prompt", **mode}))
    found = {(answer.sample_id, answer.cell): answer for answer in answers}
    assert len(found) == len(answers) == len(samples) * (len(stacks) + 1)
    return found


def same(one: Answer, other: Answer) -> None:
    """Two answers are equal but for rounding, seconds and peak."""
    assert tokens(one) == tokens(other)
    assert (
        one.response is not None and other.response is not None and one.memory is not None and other.memory is not None
    )
    plain, apart = (replace(answer.response, fidelity=None) for answer in (one, other))  # type: ignore[type-var]
    assert plain == apart and one.prompt_hash == other.prompt_hash
    assert (one.response.fidelity or {}) == pytest.approx(other.response.fidelity or {}, abs=1e-6)
    assert replace(one.memory, peak_bytes=0) == replace(other.memory, peak_bytes=0)
    for mine, theirs in zip(one.evidence, other.evidence, strict=True):
        assert (mine.layer, mine.acted, mine.why) == (theirs.layer, theirs.acted, theirs.why)
        facts = ({k: v for k, v in e.facts.items() if not k.endswith(("_s", "hidden_share"))} for e in (mine, theirs))
        assert next(facts) == pytest.approx(next(facts), abs=1e-6)


def mixed(count: int = 4, **changes: Any) -> list[Sample]:
    """Samples of different lengths and budgets."""
    return [sample(at, length=60 + 37 * at, new=4 + 5 * (at % 3), **changes) for at in range(count)]


MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the samples, of the run
    "prompt": ({}, {}),
    "context": ({}, {"compress": "context"}),
    "other": ({"other": "and which came before?"}, {"compress": "other"}),
    "sampled": ({"temperature": 1.0}, {}),
    "follow": ({"follow": True}, {}),
    "follow sampled context": ({"follow": True, "temperature": 0.8}, {"compress": "context"}),
    "think": ({"think": Thinking(6, "<think>\n", "\n</think>\n\n"), "temperature": 1.0}, {}),
}


@pytest.mark.parametrize("changes, mode", MODES.values(), ids=MODES)
def test_every_stack_says_beside_other_samples_what_it_says_alone(
    session: HFSession, changes: dict[str, Any], mode: dict[str, Any]
) -> None:
    samples = mixed(3, **changes)
    stacks = STACKS if mode or not changes else [FULL, *STACKS[1::5]]
    alone, together = (asked(session, samples, stacks, rows, **mode) for rows in (1, MANY))
    for key, answer in together.items():
        same(answer, alone[key])


@pytest.mark.parametrize("rows", [2, 5, 7, 12])
def test_samples_come_as_others_go(session: HFSession, rows: int, sizes: list[int]) -> None:
    """Never more rows at once than asked for, but for those of one sample; as many as that where there are samples enough."""
    samples = mixed(9)
    alone = asked(session, samples, FEW, 1)
    sizes.clear()
    for key, answer in asked(session, samples, FEW, rows).items():
        same(answer, alone[key])
    assert max(sizes) == max(len(FEW), rows // len(FEW) * len(FEW))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each step of decoding."""
    found: list[int] = []
    feed = decoding.feed

    def spy(model: Any, cache: JointCache, new: torch.Tensor, position: int) -> torch.Tensor:
        found.append(len(new))
        return feed(model, cache, new, position)

    monkeypatch.setattr(decoding, "feed", spy)
    return found


def test_chunks_read_the_stored_past_of_their_own_sample(session: HFSession) -> None:
    stacks = [FULL, *(Stack(f"kivi{bits}", quant=KIVI(bits=bits, group=8, residual=16)) for bits in (4, 2))]
    alone, together = (asked(session, mixed(), stacks, rows, prefill="chunked") for rows in (1, MANY))
    for key, answer in together.items():
        same(answer, alone[key])


@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_tiers_and_reused_prefixes_are_each_sample_s_own(
    session: HFSession, start: str, compress: str, tmp_path: Path
) -> None:
    stacks = [
        FULL,
        Stack("host", offload=Host()),
        Stack("int8+disk", quant=INT8(), offload=Disk(path=str(tmp_path))),
        Stack("window+host", evict=Window(keep=0.5, every=4), offload=Host()),
        Stack("reuse", prefix=Reuse(block=16), evict=KeyDiff(keep=0.5)),
        Stack("pairs", structure=MiniCache(start=0.0)),
    ]
    samples = [*mixed(), sample(9, length=80, new=1)]  # an answer of one token never reads what is away
    alone, together = (asked(session, samples, stacks, rows, start=start, compress=compress) for rows in (1, MANY))
    for key, answer in together.items():
        same(answer, alone[key])
    assert not list(tmp_path.rglob("*layer*"))  # nothing is left behind that is for nobody


def test_a_sample_that_breaks_in_the_middle_spares_the_others(
    session: HFSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row fails; its other rows, and all samples beside it, answer as ever, also those that follow."""
    store, made = INT8.store, []

    def explode_later(self: INT8, keys: torch.Tensor, values: torch.Tensor) -> Any:
        one = store(self, keys, values)
        if values.shape[2] == len(
            session.tokenizer.prompt(samples[1]).context + session.tokenizer.prompt(samples[1]).rest
        ):
            made.append(one)
            monkeypatch.setattr(one, "append", lambda *new: [][0])
        return one

    for follow in (False, True):
        samples = mixed(follow=follow)
        well = asked(session, samples, FEW, 1)
        with monkeypatch.context() as patch:
            patch.setattr(INT8, "store", explode_later)
            answers = asked(session, samples, FEW, MANY, breaks=True)
        assert made
        for key, answer in answers.items():
            if key == ("s1", "int8"):
                assert answer.response is None and answer.fault == "infrastructure" and "IndexError" in answer.error
            elif key[0] == "s1":  # one by one: nobody watches what an eviction costs
                assert tokens(answer) == tokens(well[key])
            else:
                same(answer, well[key])


def test_a_sample_that_cannot_be_prefilled_or_built_spares_the_others(
    session: HFSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = mixed()
    well = asked(session, samples, FEW, 1)
    real, store = session._prefill, INT8.store

    def refuse(asked: Any, *rest: Any) -> Any:
        if asked.hash == session.tokenizer.prompt(samples[2]).hash:
            raise RuntimeError("out of memory, say")
        return real(asked, *rest)

    def explode(self: INT8, keys: torch.Tensor, values: torch.Tensor) -> Any:
        if values.shape[2] == len(
            session.tokenizer.prompt(samples[0]).context + session.tokenizer.prompt(samples[0]).rest
        ):
            raise RuntimeError("no room, say")
        return store(self, keys, values)

    monkeypatch.setattr(session, "_prefill", refuse)
    monkeypatch.setattr(INT8, "store", explode)
    for key, answer in asked(session, samples, FEW, MANY, breaks=True).items():
        if key[0] == "s2" or key == ("s0", "int8"):
            assert answer.response is None and answer.fault == "infrastructure" and "say" in answer.error
        elif key[0] == "s0":  # one by one: nobody watches what an eviction costs
            assert tokens(answer) == tokens(well[key])
        else:
            same(answer, well[key])


def test_logits_that_are_not_finite_are_one_row_s(session: HFSession, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, stacks = mixed(), [FULL, Stack("bad", evict=KeyDiff(keep=0.5))]
    well = asked(session, samples, stacks, 1)
    scores = KeyDiff.scores

    def poison(self: KeyDiff, prompt: Any) -> torch.Tensor:
        if prompt.keys.shape[1] == len(
            session.tokenizer.prompt(samples[1]).context + session.tokenizer.prompt(samples[1]).rest
        ):
            prompt.values.fill_(torch.nan)
        return scores(self, prompt)

    monkeypatch.setattr(KeyDiff, "scores", poison)
    for key, answer in asked(session, samples, stacks, MANY).items():
        if key[0] == "s1":  # its values are the prompt's, so its later rows see them too
            continue
        same(answer, well[key])


def test_samples_wait_where_memory_is_short(
    session: HFSession, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """One more joins only while half of what is free would take all that it may need."""
    one = sample(0, length=100)
    samples = [replace(one, id=f"m{at}") for at in range(4)]
    length = session.tokenizer.prompt_tokens(one) + session.tokenizer.new_tokens(one)
    exact, *stored = (stack.formula_bytes(length, session.about.shape) for stack in (FULL, *FEW))
    needed = (1 + len(FEW)) * exact + sum(stored)
    for free, most in ((2 * needed - 1, 1), (2 * needed, 4), (0, 1)):
        monkeypatch.setattr(device_memory, "free_bytes", lambda device, free=free: free)
        sizes.clear()
        asked(session, samples, FEW, MANY)
        assert max(sizes) == most * len(FEW)


def test_what_is_needed_bounds_what_is_held(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores and copies of every stack weigh at most what a sample is expected to take."""
    held: list[tuple[int, int]] = []
    join = decoding.Batch.join

    def weigh(self: Any, rows: Any, cache: JointCache, logits: torch.Tensor) -> None:
        stored, working = cache.stored_bytes(len(logits)), cache.working_bytes(len(logits))
        held.append((sum(stored) + sum(working), len(logits)))
        join(self, rows, cache, logits)

    monkeypatch.setattr(decoding.Batch, "join", weigh)
    one = sample(0, length=150, new=1)
    for session in open_session(tiny):
        shape = session.about.shape
        length = session.tokenizer.prompt_tokens(one) + session.tokenizer.new_tokens(one)
        for stack in STACKS[1:]:
            held.clear()
            asked(session, [one], [FULL, stack], 1)
            size, rows = held[-2]  # the last is the baseline once more
            exact, most = (each.formula_bytes(length, shape) for each in (FULL, fitted(session, stack)))
            assert rows == 2 and size <= 3 * exact + most, stack.name


def test_who_stops_listening_leaves_nothing_in_a_tier(session: HFSession, tmp_path: Path) -> None:
    stack = Stack("disk", offload=Disk(path=str(tmp_path)))
    session.together = MANY
    asks = [Ask(one, [[Row("full", FULL), Row("disk", stack)]]) for one in mixed(4)]
    answers = session.run(asks, compress="prompt", seed=0)
    next(answers)
    assert list(tmp_path.rglob("*layer*"))
    answers.close()
    assert not list(tmp_path.rglob("*layer*"))


def test_the_number_of_rows_is_checked_and_decides_no_address() -> None:
    with pytest.raises(ValueError, match=r"engine\.rows must be 1 or more, got 0"):
        HFEngine(rows=0)
    assert HFEngine(rows=1).spec() == HFEngine().spec()
