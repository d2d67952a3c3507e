"""Eviction in the engine against references that evict nothing: transformers' own cache and eager attention, and a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, eager_attention_forward

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import Batch, feed
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.joint import Bucket, JointCache
from harness.engines.hf.live import EvictingBucket
from harness.engines.hf.prefill import Prefilled, prefill
from harness.engines.hf.row import RowState
from harness.engines.hf.rows import FreeRows
from harness.engines.hf.sampling import Sampler
from harness.engines.hf.session import HFSession
from harness.types import Sample
from strategies.base import Evict, LayerView
from strategies.evict.adakv import AdaKV
from strategies.evict.expected_attention import ExpectedAttention
from strategies.evict.h2o import H2O
from strategies.evict.hybrid import Hybrid
from strategies.evict.keydiff import KeyDiff
from strategies.evict.knorm import Knorm
from strategies.evict.quest import Quest
from strategies.evict.random import Random
from strategies.evict.rkv import RKV
from strategies.evict.snapkv import SnapKV
from strategies.evict.tova import TOVA
from strategies.evict.two_phase import TwoPhase
from strategies.evict.window import Window
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from strategies.structure.lowrank import LowRank
from strategies.structure.minicache import MiniCache
from tests.engines.test_hf import FULL, fitted, open_session, run, sample, tokens
from tests.engines.test_observe import KV_HEADS, asked, grouped, question_of

LAYERS, DIM = 3, 32  # of the tiny model
MASKED = "masked_reference"
Kept = list[list[list[int]]]  # by layer and head, positions in order


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


# --- the reference: a cache that never shrinks, and a mask ---------------------------------------------------------------


class Masked:
    """One row by transformers' own cache and eager attention. What is dropped stays in the cache and is masked.

    ``mass`` is what each token of each head got from all queries so far, summed over the group; ``weights`` what the newest
    piece paid, by layer, ``[H, G, m, n]``.
    """

    def __init__(self, session: HFSession) -> None:
        self.model = session.model
        self.cache = DynamicCache(config=session.model.config)
        self.kept: Kept = [[[] for _ in range(KV_HEADS)] for _ in range(LAYERS)]
        self.mass = [[[0.0] * 1000 for _ in range(KV_HEADS)] for _ in range(LAYERS)]
        self.weights: dict[int, Tensor] = {}
        self.seen = 0

    @torch.inference_mode()
    def feed(self, piece: list[int]) -> int:
        """The next token after ``piece``."""
        places = list(range(self.seen, self.seen + len(piece)))
        self.seen += len(piece)
        for heads in self.kept:
            for held in heads:
                held.extend(places)
        with attention(self.model, MASKED):
            out = self.model(
                torch.tensor([piece]), past_key_values=self.cache, position_ids=torch.tensor([places]), masked=self
            )
        return int(out.logits[0, -1].argmax())

    def looks_at(self, layer: int, query: Tensor, key: Tensor) -> Kept:
        """What the newest query reads, by head."""
        return self.kept

    def mask(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        new, held = query.shape[2], key.shape[2]
        allowed = torch.zeros(KV_HEADS, 1, new, held, dtype=torch.bool)
        for head, places in enumerate(self.looks_at(layer, query, key)[layer]):
            allowed[head, :, :, places] = True
        allowed &= torch.ones(new, held, dtype=torch.bool).tril(held - new)
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
        return mask.expand(-1, query.shape[1] // KV_HEADS, -1, -1).flatten(0, 1)[None]

    def saw(self, layer: int, weights: Tensor) -> None:
        self.weights[layer] = grouped(weights[0])
        for head, paid in enumerate(self.weights[layer].sum(dim=(1, 2)).tolist()):
            for at, weight in enumerate(paid):
                self.mass[layer][head][at] += weight


def masked_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kw: Any
) -> tuple[Tensor, Tensor]:
    row: Masked = kw.pop("masked")
    layer: int = module.layer_idx  # type: ignore[assignment]
    out, weights = eager_attention_forward(module, query, key, value, row.mask(layer, query, key), kw["scaling"])
    row.saw(layer, weights)
    return out, weights


AttentionInterface.register(MASKED, masked_attention)

Drop = Callable[[Masked, int, int], list[list[int]]]  # of a row, a layer and the budget: what its heads keep


def decoded_by_hand(
    session: HFSession,
    one: Sample,
    drop: Drop | None,
    *,
    every: int = 0,
    first: Kept | None = None,
    budget: float = 0,
    compress: str = "prompt",
    row: Masked | None = None,
) -> tuple[tuple[int, ...], Masked, list[Kept]]:
    """The answer, the row and what it kept after the prompt and after each piece fed since.

    ``budget`` is a count, or a share of the tokens seen. ``first`` is what is kept of the prompt; without it ``drop`` decides
    that too.
    """
    row = row or Masked(session)
    ids, question = question_of(session, one, compress)

    def evict() -> None:
        assert drop is not None
        count = budget if isinstance(budget, int) else int(row.seen * budget)
        for layer in range(LAYERS):
            if len(row.kept[layer][0]) > count:
                row.kept[layer] = drop(row, layer, count)

    token = row.feed(ids)
    if first is not None:
        row.kept = [[list(head) for head in heads] for heads in first]
    elif drop:
        evict()
    due, said, history = every, [], [[[list(head) for head in heads] for heads in row.kept]]

    def feed(piece: list[int]) -> int:
        nonlocal due
        token = row.feed(piece)
        due -= len(piece)
        if every and due <= 0:
            evict()
            due = every
        history.append([[list(head) for head in heads] for heads in row.kept])
        return token

    if question:
        token = feed(question)
    while token not in session.tokenizer.stop_ids:
        said.append(token)
        if len(said) == one.max_new_tokens:
            break
        token = feed([token])
    return tuple(said), row, history


def share_of(policy: Evict) -> float:
    budget = policy.keep_tokens or policy.keep
    assert budget is not None
    return budget


def best(held: Sequence[int], scores: Sequence[float], count: int) -> list[int]:
    """The ``count`` of ``held`` with the highest scores, the later of equal ones, in order."""
    ranked = sorted(zip(scores, held, strict=True), reverse=True)
    return sorted(place for _, place in ranked[:count])


def h2o(row: Masked, layer: int, budget: int) -> list[list[int]]:
    recent = round(0.5 * budget)
    kept = []
    for head, held in enumerate(row.kept[layer]):
        older, newest = held[: len(held) - recent], held[len(held) - recent :]
        kept.append(best(older, [row.mass[layer][head][at] for at in older], budget - recent) + newest)
    return kept


def tova(row: Masked, layer: int, budget: int) -> list[list[int]]:
    newest = row.weights[layer][:, :, -1].mean(dim=(0, 1)).tolist()
    held = row.kept[layer][0]
    kept = best(held, [newest[at] for at in held], budget)
    return [list(kept) for _ in range(KV_HEADS)]


def window(row: Masked, layer: int, budget: int) -> list[list[int]]:
    return [held[:4] + held[4 - budget :] for held in row.kept[layer]]


def unfolded(
    session: HFSession, one: Sample, stacks: list[Stack], compress: str = "prompt"
) -> tuple[list[RowState], JointCache, Prefilled]:
    """The engine's rows after a decode of the whole prompt, with the cache to look into."""
    policies = [policy for stack in stacks if stack.evict for policy in stack.evict.phases() if policy]
    prompt = asked(session, one, policies, compress)
    cache = build(prompt, [FULL, *stacks], one.max_new_tokens + 100, watch=0)
    logits, sampler = prompt.logits.repeat(len(stacks) + 1, 1), Sampler.of(one, 0)
    most = one.max_new_tokens
    said = FreeRows(len(logits), prompt.tokens, one, session.tokenizer, sampler, most)
    batch = Batch(session.model)
    batch.join(said, cache, logits)
    batch.advance()
    return said.states, cache, prompt


def bucket_of(cache: JointCache, layer: int, row: int) -> tuple[Bucket, int]:
    """A whole row's bucket, and its place there."""
    for bucket in cache.layers[layer].buckets:
        if bucket.heads is None and row in bucket.rows.tolist():
            return bucket, bucket.rows.tolist().index(row)
    raise AssertionError(f"row {row} is not whole in layer {layer}")


def held_by(cache: JointCache, prompt: Prefilled, layer: int, row: int) -> list[list[int]]:
    """Prompt positions that each head of a row holds exact keys of."""
    exact = prompt.layers[layer].keys
    found: list[list[int]] = [[] for _ in exact]
    for bucket in cache.layers[layer].buckets:
        for at, owner in enumerate(bucket.rows.tolist()):
            if owner == row:
                for place in range(bucket.keys.shape[1]):
                    head = place if bucket.heads is None else int(bucket.heads[at])
                    mine = bucket.keys[at, place, : bucket.length]
                    same = (mine[:, None] == exact[head][None]).all(dim=-1)
                    found[head] = same.any(dim=0).nonzero().squeeze(1).tolist()
    return found


def kept_by(policy: Evict, prompt: Prefilled, layer: int, view: LayerView | None = None) -> list[list[int]]:
    """What the policy itself says of a prompt."""
    view = view or prompt.layers[layer]
    budget = policy.layer_budget(prompt.tokens, layer, LAYERS)
    return [head.tolist() for head in policy.chosen(policy.importance(view), budget)]


def facts_of(answer: Answer) -> dict[str, float]:
    return dict(answer.evidence[0].facts)


# --- policies that evict while they decode ------------------------------------------------------------------------------

LIVE = [
    pytest.param(H2O(keep_tokens=40, every=1), h2o, id="h2o every token"),
    pytest.param(H2O(keep_tokens=40, every=4), h2o, id="h2o every four"),
    pytest.param(H2O(keep_tokens=12, every=1), h2o, id="h2o twelve"),
    pytest.param(TOVA(keep_tokens=40, every=1), tova, id="tova every token"),
    pytest.param(TOVA(keep_tokens=40, every=4), tova, id="tova every four"),
    pytest.param(H2O(keep=0.2, every=3), h2o, id="h2o a share"),
    pytest.param(Window(keep_tokens=30, every=1), window, id="window every token"),
    pytest.param(Window(keep_tokens=190, every=1), window, id="window after a while"),
]


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("policy, drop", LIVE)
def test_an_evicting_row_is_a_full_cache_with_all_else_masked(
    session: HFSession, policy: Evict, drop: Drop, compress: str
) -> None:
    """Token for token; positions stay, so the mask alone makes the difference."""
    for index in range(3):
        one = sample(index, new=30)
        said, _, _ = decoded_by_hand(session, one, drop, every=policy.every, budget=share_of(policy), compress=compress)
        assert len(said) > 20
        assert tokens(run(session, one, [FULL, Stack("h", evict=policy)], compress)["h"]) == said


def test_a_long_answer_of_a_row_that_sums_up_attention(session: HFSession) -> None:
    """By its end the answer's own tokens compete on what they got, and on nothing that was there before them."""
    for index in range(3):
        one = sample(index, length=20, new=80)
        said, _, _ = decoded_by_hand(session, one, h2o, every=1, budget=16)
        assert len(said) > 40
        assert tokens(run(session, one, [FULL, Stack("h", evict=H2O(keep_tokens=16))])["h"]) == said


@pytest.mark.parametrize("policy, drop", LIVE)
def test_what_an_evicting_row_holds_is_what_the_reference_kept(session: HFSession, policy: Evict, drop: Drop) -> None:
    one = sample(0, new=30)
    _, row, _ = decoded_by_hand(session, one, drop, every=policy.every, budget=share_of(policy))
    _, cache, _ = unfolded(session, one, [Stack("h", evict=policy)])
    for layer in range(LAYERS):
        bucket, _ = bucket_of(cache, layer, 0 if len(cache.offsets) == 1 else 1)
        assert isinstance(bucket, EvictingBucket)
        assert bucket.original[:, : bucket.length].tolist() == row.kept[layer]
        if "mass" in policy.needs:
            expected = [[row.mass[layer][head][at] for at in held] for head, held in enumerate(row.kept[layer])]
            torch.testing.assert_close(bucket.mass[:, : bucket.length], torch.tensor(expected), rtol=1e-3, atol=1e-4)


def test_a_row_that_evicts_while_it_decodes_is_packed_anew_from_what_reads_back(session: HFSession) -> None:
    one = sample(1, new=30)
    stack = Stack("w", evict=Window(keep_tokens=40, every=3), quant=KIVI(bits=4, group=8, residual=8))
    _, cache, _ = unfolded(session, one, [stack])
    for layer in range(LAYERS):
        bucket, _ = bucket_of(cache, layer, 0 if len(cache.offsets) == 1 else 1)
        (group,) = bucket.groups
        assert group.store is not None
        for dense, read in zip((bucket.keys, bucket.values), group.store.read(), strict=True):
            torch.testing.assert_close(dense[:, :, : bucket.length], read, rtol=1e-5, atol=1e-6)
        assert 40 <= bucket.length < 43


# --- heads of different lengths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_ragged_row_is_a_full_cache_with_a_mask_for_each_head(session: HFSession, compress: str) -> None:
    policy = AdaKV(keep=0.25, window=8)
    single = replace(session.about.shape, kv_heads=1)
    for index in range(3):
        one = sample(index, new=20)
        prompt = asked(session, one, [policy], compress)
        kept = [kept_by(policy, prompt, layer) for layer in range(LAYERS)]
        lengths = [len(head) for heads in kept for head in heads]
        assert any(len(heads[0]) != len(heads[1]) for heads in kept)
        assert sum(lengths) == LAYERS * KV_HEADS * policy.budget(prompt.tokens)
        said, _, _ = decoded_by_hand(session, one, None, first=kept, compress=compress)
        stacks = [FULL, Stack("a", evict=policy), Stack("b", evict=policy, quant=FP8())]
        answers = run(session, one, [*stacks, Stack("s", evict=SnapKV(keep=0.25, window=8))], compress)
        assert tokens(answers["a"]) == said
        plain, packed = answers["a"].memory, answers["b"].memory
        assert plain is not None and packed is not None
        assert plain.stored_bytes == sum(2 * DIM * 4 * held for held in lengths) == plain.formula_bytes
        assert packed.stored_bytes == sum(FP8().layer_bytes(held, single) for held in lengths)
        assert packed.stored_bytes == sum(2 * (DIM + 4) * held for held in lengths) == packed.formula_bytes
        assert plain.kept_fraction == pytest.approx(sum(lengths) / (LAYERS * KV_HEADS * prompt.tokens))


@pytest.mark.parametrize("policy", [KeyDiff(keep=0.3, spread="heads"), KeyDiff(keep=0.3, spread="layers")])
def test_budgets_may_be_spread_for_any_policy(session: HFSession, policy: Evict) -> None:
    one = sample(1, new=20)
    prompt = asked(session, one, [policy])
    kept = [kept_by(policy, prompt, layer) for layer in range(LAYERS)]
    assert len({len(head) for heads in kept for head in heads}) > 1
    said, _, _ = decoded_by_hand(session, one, None, first=kept)
    assert tokens(run(session, one, [FULL, Stack("k", evict=policy)])["k"]) == said


# --- keys that move together --------------------------------------------------------------------------------------------


class Together:
    """StreamingLLM by hand: keys are held as they were before rotation and turned to 0 .. m - 1 for every piece anew."""

    def __init__(self, session: HFSession) -> None:
        self.model = session.model
        self.plain: list[Tensor] = [torch.zeros(1, KV_HEADS, 0, DIM)] * LAYERS
        self.values: list[Tensor] = [torch.zeros(1, KV_HEADS, 0, DIM)] * LAYERS

    @torch.inference_mode()
    def feed(self, piece: list[int]) -> int:
        """The next token after ``piece``, which stands right behind what is held."""
        held, caught = self.plain[0].shape[2], []
        cache = DynamicCache(config=self.model.config)
        if held:
            cos, sin = self.model.base_model.rotary_emb(self.plain[0], torch.arange(held)[None])
            for layer in range(LAYERS):
                _, keys = apply_rotary_pos_emb(self.plain[layer], self.plain[layer], cos, sin)
                cache.update(keys, self.values[layer], layer)

        def catch(module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
            caught.append(output.unflatten(-1, (KV_HEADS, DIM)).transpose(1, 2))

        modules = [module.k_proj for module in self.model.modules() if hasattr(module, "k_proj")]
        handles = [module.register_forward_hook(catch) for module in modules]
        places = torch.arange(held, held + len(piece))[None]
        out = self.model(torch.tensor([piece]), past_key_values=cache, position_ids=places)
        for handle in handles:
            handle.remove()
        self.plain = [torch.cat([old, new], dim=2) for old, new in zip(self.plain, caught, strict=True)]
        self.values = [layer.values for layer in cache.layers]  # type: ignore[misc]
        return int(out.logits[0, -1].argmax())

    def keep(self, places: list[int]) -> None:
        self.plain = [keys[:, :, places] for keys in self.plain]
        self.values = [values[:, :, places] for values in self.values]


def streamed(
    session: HFSession, one: Sample, budget: int, every: int, compress: str
) -> tuple[tuple[int, ...], Together]:
    row = Together(session)
    ids, question = question_of(session, one, compress)

    def evict() -> None:
        held = row.plain[0].shape[2]
        if held > budget:
            row.keep([0, 1, 2, 3, *range(held - budget + 4, held)])

    token = row.feed(ids)
    evict()
    said: list[int] = []
    due = every
    while True:
        if question:
            token, due, question = row.feed(question), due - len(question), []
        else:
            if token in session.tokenizer.stop_ids:
                break
            said.append(token)
            if len(said) == one.max_new_tokens:
                break
            token, due = row.feed([token]), due - 1
        if every and due <= 0:
            evict()
            due = every
    return tuple(said), row


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("budget, every", [(40, 0), (40, 1), (40, 3), (190, 1)])
def test_keys_that_move_together_are_those_of_streaming_attention(
    session: HFSession, budget: int, every: int, compress: str
) -> None:
    for index in range(3):
        one = sample(index, new=50 if every else 20)
        said, _ = streamed(session, one, budget, every, compress)
        assert len(said) > 15
        stacks = [
            FULL,
            Stack("w", evict=Window(keep_tokens=budget, every=every, rerotate=True)),
            Stack("f", quant=FP8()),
        ]
        assert tokens(run(session, one, stacks, compress)["w"]) == said


def test_positions_are_right_after_forty_evictions(session: HFSession) -> None:
    one = sample(1, new=50)
    said, row = streamed(session, one, 40, 1, "prompt")
    assert len(said) == 50
    states, cache, prompt = unfolded(session, one, [Stack("w", evict=Window(keep_tokens=40, every=1, rerotate=True))])
    assert tuple(states[1].tokens) == said
    mine = 0 if len(cache.offsets) == 1 else 1
    assert int(cache.offsets[mine]) == prompt.tokens + 49 - 40
    cos, sin = session.model.base_model.rotary_emb(row.plain[0], torch.arange(40)[None])
    for layer in range(LAYERS):
        bucket, at = bucket_of(cache, layer, mine)
        assert isinstance(bucket, EvictingBucket) and bucket.length == 40
        _, keys = apply_rotary_pos_emb(row.plain[layer], row.plain[layer], cos, sin)
        torch.testing.assert_close(bucket.keys[at, :, :40], keys[0], rtol=1e-3, atol=1e-3)
        newest = prompt.tokens + 49
        assert bucket.original[0, :40].tolist() == [0, 1, 2, 3, *range(newest - 36, newest)]


def test_heads_that_keep_different_tokens_move_together_too(session: HFSession) -> None:
    """Each head's keys stand at 0 .. m - 1, whichever tokens they are of."""
    one = sample(2)
    policy = KeyDiff(keep_tokens=40, rerotate=True)
    prompt = asked(session, one, [policy])
    cache = build(prompt, [FULL, Stack("k", evict=policy)], 10)
    assert cache.offsets.tolist() == [0, prompt.tokens - 40]
    for layer in range(LAYERS):
        bucket, at = bucket_of(cache, layer, 1)
        plain = prompt.unrotated()[layer].keys
        cos, sin = session.model.base_model.rotary_emb(plain, torch.arange(40)[None])
        for head, places in enumerate(kept_by(policy, prompt, layer)):
            keys = plain[head, places][None, None]
            _, turned = apply_rotary_pos_emb(keys, keys, cos, sin)
            torch.testing.assert_close(bucket.keys[at, head, :40], turned[0, 0], rtol=1e-3, atol=1e-3)


def test_a_structure_under_keys_that_move_together_is_told_where_they_stand(session: HFSession) -> None:
    """The directions of a latent are those of keys before rotation: where keys stand makes no difference to its error."""
    prompt = asked(session, sample(2), [])
    errors = []
    for moves in (False, True):
        kept = Window(keep_tokens=40, rerotate=moves)
        latent = fitted(session, Stack("l", LowRank(rank=96), kept))
        if latent.problems(session.about.shape):
            return
        cache = build(prompt, [FULL, Stack("w", evict=kept), latent], 10)
        for layer in range(LAYERS):
            (exact, a), (packed, b) = bucket_of(cache, layer, 1), bucket_of(cache, layer, 2)
            errors.append(float((exact.keys[a] - packed.keys[b])[:, :40].norm()))
    assert errors[LAYERS:] == pytest.approx(errors[:LAYERS], rel=1e-2, abs=1e-2)


def test_layers_that_share_their_tokens_move_together(session: HFSession) -> None:
    prompt = asked(session, sample(2), [])
    moving = Window(keep_tokens=40, rerotate=True)
    stacks = [FULL, Stack("w", evict=moving), Stack("m", MiniCache(start=0.0, retain=1.0), moving)]
    if stacks[2].problems(session.about.shape):
        return
    cache = build(prompt, stacks, 10)
    for layer in range(LAYERS):
        (exact, a), (shared, b) = bucket_of(cache, layer, 1), bucket_of(cache, layer, 2)
        torch.testing.assert_close(exact.keys[a, :, :40], shared.keys[b, :, :40], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("both", [True, False], ids=["both", "decode"])
def test_phases_that_move_keys_do_so_or_are_refused(session: HFSession, both: bool) -> None:
    one = sample(1, new=20)
    moving = TwoPhase(
        prefill=Window(keep_tokens=40, rerotate=both), decode=Window(keep_tokens=40, every=1, rerotate=True)
    )
    if moving.problems(session.about.shape):
        return
    said, _ = streamed(session, one, 40, 1, "prompt")
    plain = tokens(run(session, one, [FULL, Stack("w", evict=Window(keep_tokens=40, every=1, rerotate=True))])["w"])
    assert plain == said
    assert tokens(run(session, one, [FULL, Stack("t", evict=moving)])["t"]) == said


def test_a_policy_that_asks_where_keys_stand_is_told_where_they_stand(
    session: HFSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rotates the queries to come must start right behind the newest key."""
    policy = ExpectedAttention(keep_tokens=40, future=4, every=4, rerotate=True)
    asked_for: list[tuple[int, LayerView]] = []
    scores = ExpectedAttention.scores

    def spy(self: ExpectedAttention, view: LayerView) -> Tensor:
        asked_for.append((view.step, view))
        return scores(self, view)

    monkeypatch.setattr(ExpectedAttention, "scores", spy)
    run(session, sample(1, new=12), [FULL, Stack("e", evict=policy)])
    later = [view for step, view in asked_for if step]
    assert later
    for view in later:
        assert view.positions is not None
        assert int(view.positions.max()) + 1 == view.keys.shape[1]


# --- quest --------------------------------------------------------------------------------------------------------------


class Paged(Masked):
    """Reads, of each head, the pages with the largest bounds, all counted out."""

    def __init__(self, session: HFSession, share: float, page: int, exact: int) -> None:
        super().__init__(session)
        self.share, self.page, self.exact = share, page, exact
        self.read = self.readable = 0

    def looks_at(self, layer: int, query: Tensor, key: Tensor) -> Kept:
        total = key.shape[2]
        if query.shape[2] > 1:
            return self.kept
        self.readable += KV_HEADS * total
        chosen: list[list[int]] = []
        for head in range(KV_HEADS):
            pages = [list(range(at, min(total, at + self.page))) for at in range(0, total, self.page)]
            wanted = -(-int(total * self.share) // self.page)
            if layer >= self.exact and wanted < len(pages):
                bounds = []
                for page in pages[:-1]:
                    columns = list(zip(*key[0, head, page].tolist(), strict=True))
                    queries = grouped(query[0])[head, :, 0].tolist()
                    bounds.append(
                        max(
                            sum(max(q * min(c), q * max(c)) for q, c in zip(one, columns, strict=True))
                            for one in queries
                        )
                    )
                pages = [pages[at] for at in best(range(len(bounds)), bounds, wanted - 1)] + pages[-1:]
            chosen.append([at for page in pages for at in page])
        self.read += sum(map(len, chosen))
        return [chosen] * LAYERS


def test_quest_that_reads_everything_is_full(session: HFSession) -> None:
    for compress in ("prompt", "context"):
        one = sample(2, new=20)
        answers = run(session, one, [FULL, Stack("q", evict=Quest(keep=1.0, exact=0))], compress)
        assert tokens(answers["q"]) == tokens(answers["full"])
        facts = facts_of(answers["q"])
        assert facts["tokens_read"] == facts["tokens_readable"] > 0
        assert not answers["q"].evidence[0].acted


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("page, exact", [(8, 0), (16, 2)])
def test_quest_reads_the_pages_with_the_largest_bounds(
    session: HFSession, page: int, exact: int, compress: str
) -> None:
    for index in range(2):
        one = sample(index, new=15)
        row = Paged(session, 0.3, page, exact)
        said, _, _ = decoded_by_hand(session, one, None, compress=compress, row=row)
        answers = run(session, one, [FULL, Stack("q", evict=Quest(keep=0.3, page=page, exact=exact))], compress)
        answer, full = answers["q"], answers["full"]
        assert tokens(answer) == said and len(said) > 5
        facts = facts_of(answer)
        assert (facts["tokens_read"], facts["tokens_readable"]) == (row.read, row.readable)
        assert row.read < row.readable
        assert answer.memory is not None and full.memory is not None
        assert answer.memory.stored_bytes == full.memory.stored_bytes == answer.memory.formula_bytes
        assert answer.memory.kept_fraction == 1.0 and facts["bytes_freed"] == 0
        assert answer.evidence[0].acted and "frees nothing" in answer.evidence[0].why
        assert "attention_kept" not in facts


def test_quest_reads_packed_keys(session: HFSession) -> None:
    one = sample(1)
    stacks = [Stack("f", quant=FP8()), Stack("qf", evict=Quest(keep=1.0), quant=FP8())]
    answers = run(session, one, [FULL, *stacks])
    assert tokens(answers["f"]) == tokens(answers["qf"])
    assert answers["f"].memory is not None and answers["qf"].memory is not None
    assert answers["f"].memory.stored_bytes == answers["qf"].memory.stored_bytes


# --- evidence -----------------------------------------------------------------------------------------------------------


class Watched(Masked):
    """The full cache; what each token got from each piece fed after the prompt, ``[H, 1000]``, mean over the group."""

    def __init__(self, session: HFSession) -> None:
        super().__init__(session)
        self.pieces: list[list[Tensor]] = []

    def feed(self, piece: list[int]) -> int:
        token = super().feed(piece)
        got = [torch.zeros(KV_HEADS, 1000) for _ in range(LAYERS)]
        for layer, mine in enumerate(got):
            weights = self.weights[layer].mean(dim=1).sum(dim=1)
            mine[:, : weights.shape[1]] = weights
        self.pieces.append(got)
        return token


def cost(row: Watched, history: list[Kept], seen: list[int]) -> tuple[float, int]:
    """attention_kept and missed_tokens, given what was kept, and how many had been seen, after the prompt and each piece."""
    lost = paid = 0.0
    missed = 0
    pieces = row.pieces[1:]
    for layer in range(LAYERS):
        for head in range(KV_HEADS):
            total = sum(piece[layer][head] for piece in pieces)
            assert isinstance(total, Tensor)
            paid += float(total.sum())
            share = (seen[-1] - seen[0]) / int((total > 0).sum())
            for at in range(row.seen):
                drop = next((n for n, kept in enumerate(history) if at not in kept[layer][head] and at < seen[n]), None)
                if drop is not None:
                    later = float(sum(piece[layer][head][at] for piece in pieces[drop:]))
                    lost += later
                    missed += later > share
    return 1 - lost / paid, missed


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("which", ["window", "keydiff", "h2o", "window every token"])
def test_evidence_is_what_a_plain_decode_of_full_tells(session: HFSession, which: str, compress: str) -> None:
    policies: dict[str, tuple[Evict, Drop | None]] = {
        "window": (Window(keep_tokens=40), None),
        "keydiff": (KeyDiff(keep_tokens=40), None),
        "h2o": (H2O(keep_tokens=40, every=1), h2o),
        "window every token": (Window(keep_tokens=40, every=1), window),
    }
    policy, drop = policies[which]
    one = sample(1, new=20)
    full = Watched(session)
    said, _, _ = decoded_by_hand(session, one, None, compress=compress, row=full)
    prompt = asked(session, one, [policy], compress)
    first = None if drop else [kept_by(policy, prompt, layer) for layer in range(LAYERS)]
    evicted, _, history = decoded_by_hand(
        session, one, drop, every=policy.every, budget=40, first=first, compress=compress
    )
    answers = run(session, one, [FULL, Stack("e", evict=policy)], compress)
    assert tokens(answers["full"]) == said and tokens(answers["e"]) == evicted
    assert len(said) == len(evicted) == 20  # the two rows decode side by side to their ends
    seen = [prompt.tokens]
    for piece in [len(question_of(session, one, compress)[1]), *[1] * 19][compress == "prompt" :]:
        seen.append(seen[-1] + piece)
    kept, missed = cost(full, history, seen)
    facts = facts_of(answers["e"])
    assert facts["attention_kept"] == pytest.approx(kept, abs=1e-4) and 0 < kept < 1
    assert facts["missed_tokens"] == missed
    memory, whole = answers["e"].memory, answers["full"].memory
    assert memory is not None and whole is not None
    assert facts["bytes_freed"] == whole.stored_bytes - memory.stored_bytes > 0
    assert facts["tokens_kept"] == 40


def test_keeping_everything_loses_no_attention(session: HFSession) -> None:
    facts = facts_of(run(session, sample(1), [FULL, Stack("w", evict=Window(keep=1.0))])["w"])
    assert facts["attention_kept"] == 1.0 and facts["missed_tokens"] == 0 and facts["bytes_freed"] == 0


def test_evidence_does_not_depend_on_the_rows_beside(session: HFSession) -> None:
    """A baseline that has stopped stays in the batch for a while, and what it is fed there must not count."""
    few = [FULL, Stack("w", evict=Window(keep_tokens=40))]
    more = [*few, *(Stack(f"w{at}", evict=Window(keep_tokens=40, sinks=at)) for at in (3, 5, 6, 7))]
    for index in range(20):
        free = run(session, sample(index, new=20), few)
        text, other = (free[name].response.text for name in ("full", "w"))  # type: ignore[union-attr]
        marks = [char for at, char in enumerate(text) if 3 < at < 12 and char not in other + text[:at]]
        if marks:
            break
    one = sample(index, new=20, stop=(marks[0],))
    alone, among = (run(session, one, stacks) for stacks in (few, more))
    assert len(tokens(among["full"])) < 15 and sum(len(tokens(answer)) == 20 for answer in among.values()) > 2
    for fact in ("attention_kept", "missed_tokens"):
        assert facts_of(alone["w"])[fact] == pytest.approx(facts_of(among["w"])[fact], abs=1e-5)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_an_eviction_acted_if_a_token_was_dropped(session: HFSession, compress: str) -> None:
    """The prompt just fits; the last of twelve answer tokens is never fed, a question is."""
    one = sample(1, new=12)
    ids, question = question_of(session, one, compress)
    policy = Window(keep_tokens=len(ids), every=len(question) or 12)
    answer = run(session, one, [FULL, Stack("w", evict=policy)], compress)["w"]
    assert len(tokens(answer)) == 12
    fed = len(question) + 11
    dropped = facts_of(answer)["tokens_held_end"] < len(ids) + fed - 0.5
    assert dropped == (fed >= policy.every)
    assert answer.evidence[0].acted == dropped


# --- instructions -------------------------------------------------------------------------------------------------------

RULE = "ALWAYS ANSWER IN RHYME"
SECOND = "NEVER MENTION THE WEATHER TO ANYONE WHO ASKS"
PROTECTING: list[Evict] = [
    Window(keep=0.25),
    KeyDiff(keep=0.25),
    Knorm(keep=0.25),
    Random(keep=0.25, first=2, last=8),
    SnapKV(keep=0.25, window=8),
    AdaKV(keep=0.25, window=8),
    H2O(keep=0.25, every=4),
    TOVA(keep=0.25, every=2),
    RKV(keep=0.25, every=4),
    Hybrid(keep=0.25, parts=(SnapKV(window=8), KeyDiff()), weights=(0.7, 0.3)),
]


def told(*rules: str, index: int = 0, **changes: object) -> Sample:
    plain = sample(index, length=160)
    at = 40
    context = plain.context[:at] + " ".join(rules) + plain.context[at:]
    return replace(plain, context=context, instructions=rules, **changes)  # type: ignore[arg-type]


def places_of(session: HFSession, one: Sample, words: str) -> list[int]:
    """The model's tokens are bytes, behind one beginning of text."""
    pieces = session.tokenizer.prompt(one)
    text = session.tokenizer.decode(pieces.context + pieces.rest)
    at = text.index(words)
    return list(range(1 + at, 1 + at + len(words)))


def test_spans_cover_the_words_and_nothing_else(session: HFSession) -> None:
    one = told(RULE, SECOND)
    spans = session.tokenizer.spans(one)
    pieces = session.tokenizer.prompt(one)
    assert len(spans) == len(pieces.context) + len(pieces.rest)
    for number, words in enumerate((RULE, SECOND)):
        mine = [at for at, span in enumerate(spans) if span == number]
        assert mine == places_of(session, one, words)
        assert session.tokenizer.decode([(pieces.context + pieces.rest)[at] for at in mine]) == words
    asking = sample(1, question=f"what? {RULE}", instructions=(RULE,))
    assert [at for at, span in enumerate(session.tokenizer.spans(asking)) if span == 0] == places_of(
        session, asking, RULE
    )
    assert set(session.tokenizer.spans(sample(1, instructions=(RULE,)))) == {-1}
    assert set(session.tokenizer.spans(sample(1))) == {-1}


def test_spans_cover_every_byte_of_words_that_are_not_ascii(session: HFSession) -> None:
    words = "répondez « oui »"
    one = told(words)
    pieces = session.tokenizer.prompt(one)
    mine = [token for token, span in zip(pieces.context, session.tokenizer.spans(one), strict=False) if span == 0]
    assert session.tokenizer.decode(mine) == words


@pytest.mark.parametrize("policy", PROTECTING, ids=lambda policy: policy.name)
def test_protected_tokens_stay_in_every_layer_and_head(session: HFSession, policy: Evict) -> None:
    for one in (told(RULE, index=1), sample(1, length=160, question=f"what? {RULE}", instructions=(RULE,))):
        prompt = asked(session, one, [policy])
        free = asked(session, replace(one, instructions=()), [policy])
        cache = build(prompt, [FULL, Stack("p", evict=policy), Stack("i", evict=replace(policy, spans="ignore"))], 10)
        without = build(free, [FULL, Stack("p", evict=policy)], 10)
        must = set(places_of(session, one, RULE))
        assert free.layers[0].spans is None
        for layer in range(LAYERS):
            held = held_by(cache, prompt, layer, 1)
            assert all(must <= set(head) for head in held)
            assert sum(map(len, held)) == KV_HEADS * policy.budget(prompt.tokens)
            assert held_by(cache, prompt, layer, 2) == held_by(without, free, layer, 1)


def test_an_instruction_in_a_question_that_is_not_compressed_marks_nothing(session: HFSession) -> None:
    one = sample(1, question=f"what? {RULE}", instructions=(RULE,))
    prompt = asked(session, one, [KeyDiff(keep=0.25)], "context")
    spans = prompt.layers[0].spans
    assert spans is not None and len(spans) == prompt.tokens and bool((spans == -1).all())


@pytest.mark.parametrize("policy", [SnapKV(keep_tokens=40, window=32), Random(keep_tokens=40), RKV(keep_tokens=40)])
def test_protected_tokens_come_before_what_a_policy_keeps_of_its_own(session: HFSession, policy: Evict) -> None:
    one = told(RULE)
    prompt = asked(session, one, [policy])
    for layer in range(LAYERS):
        for head in kept_by(policy, prompt, layer):
            assert set(places_of(session, one, RULE)) <= set(head)


@pytest.mark.parametrize(
    "policy",
    [
        KeyDiff(keep=0.25, every=4),
        H2O(keep=0.25, every=1),
        Window(keep=0.25, every=1),
        TOVA(keep=0.25),
        Knorm(keep_tokens=40, every=2),
    ],
    ids=lambda policy: policy.name,
)
def test_protected_tokens_stay_while_decoding(session: HFSession, policy: Evict) -> None:
    for index in range(3):
        one = told(RULE, index=index, max_new_tokens=30)
        _, cache, _ = unfolded(session, one, [Stack("p", evict=policy)])
        must = set(places_of(session, one, RULE))
        for layer in range(LAYERS):
            bucket, _ = bucket_of(cache, layer, 0 if len(cache.offsets) == 1 else 1)
            assert isinstance(bucket, EvictingBucket)
            for head in bucket.original[:, : bucket.length].tolist():
                assert must <= set(head), (index, layer)


@pytest.mark.parametrize(
    "policy", [KeyDiff(keep=0.25), Window(keep=0.25), SnapKV(keep=0.25, window=8), H2O(keep=0.25, recent=0.0)]
)
def test_fair_keeps_the_same_share_of_every_span(session: HFSession, policy: Evict) -> None:
    one = told(RULE, SECOND, index=2)
    fair = replace(policy, spans="fair")
    prompt = asked(session, one, [fair])
    cache = build(prompt, [FULL, Stack("p", evict=fair)], 10)
    spans = session.tokenizer.spans(one)
    for layer in range(LAYERS):
        for head in held_by(cache, prompt, layer, 1):
            for number in (-1, 0, 1):
                mine = [at for at, span in enumerate(spans) if span == number]
                assert abs(len(set(mine) & set(head)) - 0.25 * len(mine)) <= 1


def test_fair_keeps_the_same_share_while_decoding(session: HFSession) -> None:
    for index in range(3):
        one = told(RULE, SECOND, index=index, max_new_tokens=24)
        policy = KeyDiff(keep=0.3, every=4, spans="fair")
        states, cache, _ = unfolded(session, one, [Stack("p", evict=policy)])
        assert len(states[1].tokens) == 24
        spans = session.tokenizer.spans(one)
        for layer in range(LAYERS):
            bucket, _ = bucket_of(cache, layer, 0 if len(cache.offsets) == 1 else 1)
            assert isinstance(bucket, EvictingBucket)
            for head in bucket.original[:, : bucket.length].tolist():
                shares = []
                for number in (0, 1):
                    mine = [at for at, span in enumerate(spans) if span == number]
                    shares.append(len(set(mine) & set(head)) - 0.3 * len(mine))
                assert max(map(abs, shares)) <= 3, (index, layer, shares)


# --- ranking what is stored ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [KeyDiff(keep=0.3), SnapKV(keep=0.3, window=8), AdaKV(keep=0.3, window=8)])
def test_a_policy_may_rank_keys_as_they_are_read_back(session: HFSession, policy: Evict) -> None:
    quant = KIVI(bits=2, group=8, residual=16)
    formats = quant.formats(LAYERS, None)
    stored = replace(policy, score_on="stored")
    prompt = asked(session, sample(2), [policy])
    stacks = [FULL, Stack("s", evict=stored, quant=quant), Stack("f", evict=policy, quant=quant)]
    cache = build(prompt, stacks, 10)
    different = 0
    for index, layer in enumerate(prompt.layers):
        keys, values = formats[index].store(layer.keys[None], layer.values[None]).read()
        view = layer._replace(keys=keys[0], values=values[0])
        kept = kept_by(stored, prompt, index, view)
        different += kept != kept_by(policy, prompt, index)
        for bucket in cache.layers[index].buckets:
            for at, row in enumerate(bucket.rows.tolist()):
                if row != 1:
                    continue
                heads = range(KV_HEADS) if bucket.heads is None else [int(bucket.heads[at])]
                twice = [torch.stack([x[0, head, kept[head]] for head in heads])[None] for x in (keys, values)]
                assert bucket.length == twice[0].shape[2]
                expected = formats[index].store(*twice).read()
                for dense, read in zip((bucket.keys, bucket.values), expected, strict=True):
                    torch.testing.assert_close(dense[at, :, : bucket.length], read[0], rtol=1e-5, atol=1e-6)
    assert different


def test_ranking_what_is_stored_in_full_precision_changes_nothing(session: HFSession) -> None:
    one = sample(1)
    stacks = [Stack(score, evict=KeyDiff(keep=0.3, score_on=score)) for score in ("full", "stored")]
    answers = run(session, one, [Stack("base"), *stacks])
    assert tokens(answers["full"]) == tokens(answers["stored"])


# --- policies made of policies ------------------------------------------------------------------------------------------


def test_two_phases_are_the_one_after_the_prompt_and_the_other_while_decoding(session: HFSession) -> None:
    first, then = SnapKV(keep_tokens=80, window=8), Window(keep_tokens=40, every=4)
    both = TwoPhase(prefill=first, decode=then)
    for index in range(3):
        one = sample(index, new=20)
        prompt = asked(session, one, [both])
        cache = build(prompt, [FULL, Stack("p", evict=first), Stack("t", evict=both)], 10)
        kept = [kept_by(first, prompt, layer) for layer in range(LAYERS)]
        for layer in range(LAYERS):
            (alone, a), (mine, b) = bucket_of(cache, layer, 1), bucket_of(cache, layer, 2)
            assert mine.length == alone.length == 80
            assert torch.equal(mine.keys[b, :, :80], alone.keys[a, :, :80])
            assert torch.equal(mine.values[b, :, :80], alone.values[a, :, :80])
        said, _, history = decoded_by_hand(session, one, window, every=4, budget=40, first=kept)
        assert {len(head) for kept in history[4::4] for heads in kept for head in heads} == {40}
        answer = run(session, one, [FULL, Stack("t", evict=both)])["t"]
        assert tokens(answer) == said and len(said) > 8
        assert answer.memory is not None
        assert answer.memory.kept_fraction == pytest.approx(80 / prompt.tokens)
        assert answer.memory.stored_bytes == answer.memory.formula_bytes
        (end,) = {len(head) for heads in history[-1] for head in heads}
        assert facts_of(answer)["tokens_held_end"] == pytest.approx(end)


def test_a_decode_policy_that_needs_mass_starts_with_the_prompt_s(session: HFSession) -> None:
    first, then = KeyDiff(keep_tokens=60), H2O(keep_tokens=40, every=8)
    for index in range(2):
        one = sample(index, new=20)
        prompt = asked(session, one, [first])
        kept = [kept_by(first, prompt, layer) for layer in range(LAYERS)]
        said, _, _ = decoded_by_hand(session, one, h2o, every=8, budget=40, first=kept)
        answer = run(session, one, [FULL, Stack("t", evict=TwoPhase(prefill=first, decode=then))])["t"]
        assert tokens(answer) == said


def test_a_hybrid_answers_and_keeps_what_it_says(session: HFSession) -> None:
    policy = Hybrid(keep_tokens=40, every=4, parts=(H2O(recent=0.0), KeyDiff(), TOVA()), weights=(1.0, 0.5, 0.5))
    one = sample(1, new=20)
    assert not Stack("h", evict=policy).problems(session.about.shape)
    prompt = asked(session, one, [policy])
    cache = build(prompt, [FULL, Stack("h", evict=policy)], 10)
    for layer in range(LAYERS):
        assert held_by(cache, prompt, layer, 1) == kept_by(policy, prompt, layer)
    answer = run(session, one, [FULL, Stack("h", evict=policy)])["h"]
    assert len(tokens(answer)) > 8
    assert 39.99 < facts_of(answer)["tokens_held_end"] < 43.01


# --- layers that share their tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("start", [0.0, 0.34])
def test_layers_that_merge_nothing_are_full(session: HFSession, start: float, compress: str) -> None:
    for index in range(3):
        one = sample(index, new=20)
        stacks = [
            FULL,
            Stack("m", MiniCache(start=start, retain=1.0)),
            Stack("w", evict=Window(keep=0.4)),
            Stack("mw", MiniCache(start=start, retain=1.0), Window(keep=0.4)),
        ]
        answers = run(session, one, stacks, compress)
        assert tokens(answers["m"]) == tokens(answers["full"])
        assert tokens(answers["mw"]) == tokens(answers["w"])


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_merged_layers_weigh_what_the_formula_says_beside_all_others(session: HFSession, compress: str) -> None:
    stacks = [
        Stack("m", MiniCache(start=0.0)),
        Stack("m2", MiniCache(start=0.34, retain=0.2)),
        Stack("mw", MiniCache(start=0.0), Window(keep=0.4)),
        Stack("mw8", MiniCache(start=0.0), Window(keep=0.4), INT8()),
        Stack("mk", MiniCache(start=0.0), quant=KIVI(bits=4, group=8, residual=16)),
        Stack("w", evict=Window(keep=0.4)),
    ]
    one = sample(1)
    answers = run(session, one, [FULL, *stacks], compress)
    for stack in stacks:
        answer = answers[stack.name]
        assert answer.response is not None, answer.error
        assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes, stack.name
        assert tokens(answer) == tokens(run(session, one, [FULL, stack], compress)[stack.name]), stack.name
        assert facts_of(answer)["bytes_freed"] > 0
    kept = Window(keep=0.4).budget(answers["mw"].memory.prompt_tokens)  # type: ignore[union-attr]
    unmerged = -(-kept // 20)
    exact = 2 * KV_HEADS * DIM * 4
    pair = kept * exact + 2 * (2 * KV_HEADS * 2 * kept + unmerged * exact) + 2 * KV_HEADS * 4 * unmerged
    assert answers["mw"].memory is not None and answers["mw"].memory.stored_bytes == pair + kept * exact


def test_what_does_not_go_with_merged_layers_is_refused(session: HFSession) -> None:
    shape = session.about.shape
    merged = Stack("m", MiniCache(start=0.0))
    assert not merged.problems(shape)
    refused = HFEngine().prefills(merged, "chunked", shape)
    assert not refused.yes and "whole prompt" in refused.why
    assert HFEngine().prefills(merged, "exact", shape).yes
    for policy in (SnapKV(keep=0.5), Window(keep=0.5, every=2), Window(keep=0.5, score_on="stored"), Quest(keep=0.5)):
        (problem, *_) = Stack("m", MiniCache(start=0.0), policy).problems(shape)
        assert "same tokens" in problem
    assert not Stack("m", MiniCache(start=0.0), Window(keep=0.5)).problems(shape)


# --- rows that leave ----------------------------------------------------------------------------------------------------

CROWD = [
    FULL,
    Stack("window", evict=Window(keep_tokens=40, every=1)),
    Stack("moving", evict=Window(keep_tokens=40, every=3, rerotate=True)),
    Stack("h2o", evict=H2O(keep_tokens=40, every=2)),
    Stack("tova", evict=TOVA(keep_tokens=40), quant=FP8()),
    Stack("keydiff", evict=KeyDiff(keep=0.3, every=4), quant=KIVI(bits=4, group=8, residual=8)),
    Stack("adakv", evict=AdaKV(keep=0.25, window=8)),
    Stack("adakv8", evict=AdaKV(keep=0.25, window=8), quant=INT8()),
    Stack("quest", evict=Quest(keep=0.3, page=8, exact=0)),
    Stack("two", evict=TwoPhase(prefill=SnapKV(keep=0.4, window=8), decode=Window(keep_tokens=40, every=4))),
    Stack("merged", MiniCache(start=0.0), Window(keep=0.4)),
    Stack("int8", quant=INT8()),
]


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_rows_that_stay_answer_as_alone_when_others_leave(
    session: HFSession, monkeypatch: pytest.MonkeyPatch, compress: str
) -> None:
    leaving: list[tuple[int, int, int]] = []
    select = JointCache.select

    def spy(self: JointCache, keep: list[int], rows: int) -> None:
        select(self, keep, rows)
        live = sum(isinstance(bucket, EvictingBucket) for bucket in self.layers[0].buckets)
        leaving.append((rows, len(keep), live))

    monkeypatch.setattr(JointCache, "select", spy)
    staying = 0
    for index in range(3):
        free = run(session, sample(index, new=30), CROWD, compress)
        texts = {name: answer.response.text for name, answer in free.items() if answer.response}

        def spread(mark: str, texts: dict[str, str] = texts) -> int:
            ends = [text.find(mark) for text in texts.values()]
            return min(sum(0 <= end < 12 for end in ends), sum(end < 0 or end > 20 for end in ends))

        one = sample(index, new=30, stop=(max(sorted(set("".join(texts.values()))), key=spread),))
        leaving.clear()
        joint = run(session, one, CROWD, compress)
        staying += sum(live for _, _, live in leaving)
        for stack in CROWD[1:]:
            alone = run(session, one, [FULL, stack], compress)[stack.name]
            answer = joint[stack.name]
            assert tokens(answer) == tokens(alone), (stack.name, one.stop)
            assert answer.memory is not None and alone.memory is not None
            assert answer.memory.stored_bytes_end == alone.memory.stored_bytes_end, stack.name
            one_by_one, together = facts_of(alone), facts_of(answer)
            assert one_by_one.get("tokens_held_end") == together.get("tokens_held_end")
    assert staying  # some evicting row was still there when others left


@pytest.mark.parametrize("keep", [[0, 2, 4, 7, 9], [1, 3, 5, 6, 8, 10, 11], [4, 7], [11, 6, 2]])
def test_a_cache_that_loses_rows_is_that_of_the_others(session: HFSession, keep: list[int]) -> None:
    """The same tokens fed before and after: logits, positions, bytes and evidence are those of a cache that lost none."""
    stacks = [*CROWD[1:5], FULL, *CROWD[5:]]
    policies = [policy for stack in stacks if stack.evict for policy in stack.evict.phases() if policy]
    prompt = asked(session, sample(1), policies)
    whole, fewer = (build(prompt, stacks, 30, watch=4) for _ in range(2))
    at = prompt.tokens
    with attention(session.model, DECODE):
        for token in range(70, 76):
            for cache in (whole, fewer):
                feed(session.model, cache, torch.full((len(stacks), 1), token), at)
            at += 1
        fewer.select(keep, len(stacks))
        for token in range(80, 92):
            expected = feed(session.model, whole, torch.full((len(stacks), 1), token), at)
            logits = feed(session.model, fewer, torch.full((len(keep), 1), token), at)
            torch.testing.assert_close(logits, expected[keep], rtol=1e-3, atol=1e-3)
            at += 1
    assert fewer.offsets.tolist() == whole.offsets[keep].tolist()
    assert fewer.stored_bytes(len(keep)) == [whole.stored_bytes(len(stacks))[row] for row in keep]
    everything = whole.facts(len(stacks))
    for mine, row in zip(fewer.facts(len(keep)), keep, strict=True):
        if 4 not in keep:  # nobody watches any longer
            mine.pop("attention_kept", None), mine.pop("missed_tokens", None)
            everything[row].pop("attention_kept", None), everything[row].pop("missed_tokens", None)
        assert mine == pytest.approx(everything[row], rel=1e-3), stacks[row].name


def test_the_order_of_rows_changes_nothing_when_some_leave(session: HFSession) -> None:
    one = sample(1, new=30, stop=("e", "t"))
    forward, backward = run(session, one, CROWD), run(session, one, [FULL, *CROWD[:0:-1]])
    assert {name: tokens(a) for name, a in forward.items()} == {name: tokens(a) for name, a in backward.items()}


def test_a_crowd_that_follows_is_measured_row_by_row_as_alone(session: HFSession) -> None:
    one = sample(1, new=12, follow=True)
    rows = [Row(stack.name, stack) for stack in CROWD]
    joint = {a.cell: a for a in session.run([Ask(one, [rows])], compress="prompt", seed=0)}
    for row in rows[1:]:
        alone = {a.cell: a for a in session.run([Ask(one, [[rows[0], row]])], compress="prompt", seed=0)}[row.cell]
        mine = joint[row.cell]
        assert mine.response is not None and mine.response.fidelity is not None
        assert alone.response is not None and alone.response.fidelity is not None
        assert mine.response.fidelity["kl_mean"] == pytest.approx(
            alone.response.fidelity["kl_mean"], rel=1e-2, abs=1e-5
        )
        for fact in ("attention_kept", "missed_tokens"):
            assert facts_of(mine).get(fact) == pytest.approx(facts_of(alone).get(fact), abs=1e-4), (row.cell, fact)


@pytest.mark.parametrize(
    "policy", [KeyDiff(keep=0.3, spread="heads"), Knorm(keep=0.3, spread="heads"), AdaKV(keep=0.3, window=8)]
)
def test_tokens_kept_are_told_head_by_head(session: HFSession, policy: Evict) -> None:
    """In the order of the heads, however long each is: a layer's heads changed over are told changed over."""
    prompt = prefill(session.model, list(range(2, 150)), query_window=16, chunk=64, seed=0)
    swapped = [
        view._replace(
            keys=view.keys.flip(0),
            values=view.values.flip(0),
            window_queries=grouped(view.window_queries).flip(0).flatten(0, 1),
        )
        for view in prompt.layers
    ]
    for layers in (prompt.layers, swapped):
        cache = build(replace(prompt, layers=tuple(layers)), [FULL, Stack("a", evict=policy)], 4)
        expected = [
            tuple(len(head) for head in policy.chosen(policy.importance(layer), policy.budget(prompt.tokens)))
            for layer in layers
        ]
        assert cache.counts[1] == expected
