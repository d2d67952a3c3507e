"""Eviction policies against slow references in loops, and what policies made of policies promise."""

from __future__ import annotations

import cmath
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from harness.types import canonical
from strategies.base import Evict, KVShape, LayerView, Moments
from strategies.evict.adakv import AdaKV
from strategies.evict.delayed import Delayed
from strategies.evict.expected_attention import ExpectedAttention
from strategies.evict.h2o import H2O
from strategies.evict.hybrid import Hybrid
from strategies.evict.keydiff import KeyDiff
from strategies.evict.knorm import Knorm
from strategies.evict.kvzip import KVzip
from strategies.evict.oracle import Oracle
from strategies.evict.pyramidkv import PyramidKV
from strategies.evict.quest import Quest
from strategies.evict.random import Random
from strategies.evict.rkv import RKV, redundancy
from strategies.evict.snapkv import SnapKV
from strategies.evict.tova import TOVA
from strategies.evict.two_phase import TwoPhase
from strategies.evict.window import Window

HEADS, GROUP, DIM, SCALING = 2, 3, 8, 0.35
SHAPE = KVShape(layers=4, kv_heads=HEADS, query_heads=HEADS * GROUP, head_dim=DIM, element_bytes=2)


class Turns:
    """Rotary positions in complex numbers: channels i and i + d / 2 turn together."""

    def turn(self, keys: Tensor, positions: Tensor) -> Tensor:
        return self._by(keys, positions, 1)

    def back(self, keys: Tensor, positions: Tensor) -> Tensor:
        return self._by(keys, positions, -1)

    def _by(self, keys: Tensor, positions: Tensor, sign: int) -> Tensor:
        half = keys.shape[-1] // 2
        angles = positions[..., None] * sign * 0.3 ** torch.arange(half)
        turned = torch.complex(keys[..., :half], keys[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=-1)


def view(tokens: int, seed: int = 3) -> LayerView:
    chance = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=chance)

    keys, values, queries = normal(HEADS, tokens, DIM), normal(HEADS, tokens, DIM), normal(HEADS * GROUP, tokens, DIM)
    mass, reread, future = (torch.rand(HEADS, tokens, generator=chance) for _ in range(3))
    root = normal(HEADS * GROUP, DIM, DIM)
    moments = Moments(normal(HEADS * GROUP, DIM), root @ root.transpose(1, 2) / DIM)
    return LayerView(
        keys, values, queries, SCALING, 0, 1, mass=mass, moments=moments, rotation=Turns(), reread=reread, future=future
    )


def kept(layer: Evict, facts: LayerView) -> list[list[int]]:
    chosen = layer.chosen(layer.importance(facts), layer.budget(facts.keys.shape[1]))
    return [head.tolist() for head in chosen]


def best(scores: list[float], count: int) -> list[int]:
    """Places of the highest scores; of equal ones the later wins."""
    return sorted(sorted(range(len(scores)), key=lambda t: (-scores[t], -t))[:count])


def pooled(scores: list[float], kernel: int, take: Callable[[list[float]], float]) -> list[float]:
    half = kernel // 2
    return [take(scores[max(0, t - half) : t + half + 1]) for t in range(len(scores))]


# --- one policy each ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recent, budget", [(0.5, 10), (0.5, 11), (0.0, 10), (1.0, 10), (0.2, 12)])
def test_h2o_keeps_the_newest_and_the_heavy_of_the_rest(recent: float, budget: int) -> None:
    facts = view(30)
    assert facts.mass is not None
    newest = round(recent * budget)
    expected = []
    for mass in facts.mass.tolist():
        heavy = best(mass[: 30 - newest], budget - newest)
        expected.append(heavy + list(range(30 - newest, 30)))
    assert kept(H2O(keep_tokens=budget, recent=recent), facts) == expected


def test_h2o_protects_instructions_before_its_newest_tokens() -> None:
    facts = view(30)._replace(spans=torch.tensor([0] * 8 + [-1] * 22))
    for head in kept(H2O(keep_tokens=10), facts):
        assert head == [*range(8), 28, 29]


def test_tova_keeps_what_the_newest_query_attends_to_on_average_over_all_heads() -> None:
    facts = view(25)
    assert facts.window_queries is not None
    mean = [0.0] * 25
    for head in range(HEADS):
        for member in range(GROUP):
            query = facts.window_queries[head * GROUP + member, -1]
            weights = [cmath.exp(SCALING * float(query @ key)).real for key in facts.keys[head]]
            for token in range(25):
                mean[token] += weights[token] / sum(weights)
    assert kept(TOVA(keep_tokens=9), facts) == [best(mean, 9)] * HEADS


def test_knorm_keeps_the_shortest_keys() -> None:
    facts = view(25)
    lengths = [[sum(x * x for x in key) ** 0.5 for key in head] for head in facts.keys.tolist()]
    assert kept(Knorm(keep_tokens=9), facts) == [best([-length for length in head], 9) for head in lengths]


def plain_votes(facts: LayerView, window: int, reduce: str) -> list[list[float]]:
    """By head: what the last queries pay to earlier tokens, summed over queries and reduced over the group."""
    assert facts.window_queries is not None
    tokens = facts.keys.shape[1]
    heads = []
    for head in range(HEADS):
        members = []
        for member in range(GROUP):
            votes = [0.0] * (tokens - window)
            for position in range(tokens - window, tokens):
                query = facts.window_queries[head * GROUP + member, position]
                weights = (facts.keys[head, : position + 1] @ query * SCALING).softmax(0).tolist()
                votes = [vote + weight for vote, weight in zip(votes, weights, strict=False)]
            members.append(votes)
        each = list(zip(*members, strict=True))
        heads.append([max(votes) if reduce == "max" else sum(votes) / GROUP for votes in each])
    return heads


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("pool", ["avg", "max"])
def test_snapkv_reduces_the_group_and_then_pools(pool: str, reduce: str) -> None:
    facts = view(40)
    scores = SnapKV(keep=0.5, window=6, kernel=3, pool=pool, reduce=reduce).scores(facts)
    for head, votes in enumerate(plain_votes(facts, 6, reduce)):
        expected = pooled(votes, 3, max if pool == "max" else lambda near: sum(near) / 3)
        assert torch.allclose(scores[head, :34], torch.tensor(expected), atol=1e-5)
        assert scores[head, 34:].isposinf().all()


@pytest.mark.parametrize("floor", [0.0, 0.2, 0.5, 1.0])
def test_adakv_budgets_are_the_formula_s_with_an_exact_sum(floor: float) -> None:
    """B_h = round((1 - a) * count_h + a * B) of what is left after the window: at most one token away from that."""
    facts = view(60)
    facts = facts._replace(keys=facts.keys * torch.tensor([0.7, 1.0])[:, None, None])
    window, budget = 5, 21
    layer = AdaKV(keep_tokens=budget, window=window, floor=floor)
    votes = [pooled(head, 7, max) for head in plain_votes(facts, window, "mean")]
    left = budget - window
    everyone = sorted(((score, head) for head in range(HEADS) for score in votes[head]), reverse=True)
    counts = [sum(head == owner for _, owner in everyone[: HEADS * left]) for head in range(HEADS)]
    formula = [round((1 - floor) * count + floor * left) for count in counts]
    heads = kept(layer, facts)
    assert sum(map(len, heads)) == HEADS * budget
    assert all(abs(len(head) - window - size) <= 1 for head, size in zip(heads, formula, strict=True))
    if floor == 0.2:
        assert counts == [7, 25] and formula == [9, 23] and [len(head) - window for head in heads] == formula
    for head, mine in enumerate(heads):
        assert mine[-window:] == list(range(60 - window, 60))
        lowest = min(votes[head][token] for token in mine[:-window])
        assert all(votes[head][token] <= lowest + 1e-6 for token in set(range(60 - window)) - set(mine))


def test_adakv_rounds_so_that_the_sum_stays() -> None:
    """The formula alone would lose a token of six here."""
    importance = torch.tensor([[9.0, 8.0, 7.0], [6.0, 5.0, 4.0], [3.0, 2.0, 1.0]])
    assert [round(0.5 * count + 0.5 * 2) for count in (3, 3, 0)] == [2, 2, 1]
    assert AdaKV(keep_tokens=2, floor=0.5).head_counts(importance, 2) == [3, 2, 1]


@pytest.mark.parametrize("budget, tokens", [(1, 50), (8, 50), (9, 50), (20, 50), (45, 50), (50, 50), (300, 1000)])
@pytest.mark.parametrize("layers", [1, 2, 5, 32])
def test_pyramid_budgets_fall_around_the_window_and_keep_their_sum(budget: int, tokens: int, layers: int) -> None:
    layer = PyramidKV(keep_tokens=budget, window=8)
    budgets = [layer.layer_budget(tokens, at, layers) for at in range(layers)]
    assert sum(budgets) == layers * budget
    assert all(min(8, budget) <= size <= tokens for size in budgets)
    assert all(later <= earlier + 1 for earlier, later in pairwise(budgets))  # rounding
    if (budget, layers) == (300, 32):  # the code: from 2 * (B - w) - (B - w) // beta down to (B - w) // beta, plus w
        assert abs(budgets[0] - (2 * 292 - 292 // 20 + 8)) <= 1 and abs(budgets[-1] - (292 // 20 + 8)) <= 1
    assert replace(layer, spread="uniform").layer_budget(tokens, 0, layers) == budget


def plain_expected_attention(facts: LayerView, future: int, sinks: int, start: int | None) -> list[list[float]]:
    """The exponent of every query head and token, with rotations averaged position by position."""
    assert facts.moments is not None
    tokens, half = facts.keys.shape[1], DIM // 2
    turn = [[0.0] * DIM for _ in range(DIM)]
    for position in range(start, start + future) if start is not None else ():
        for channel in range(half):
            angle = cmath.rect(1, position * 0.3**channel)
            turn[channel][channel] += angle.real / future
            turn[channel][channel + half] -= angle.imag / future
            turn[channel + half][channel] += angle.imag / future
            turn[channel + half][channel + half] += angle.real / future
    matrix = torch.tensor(turn) if start is not None else torch.eye(DIM)
    heads = []
    for head in range(HEADS):
        expected = [0.0] * (tokens - sinks)
        for member in range(head * GROUP, (head + 1) * GROUP):
            exponents = []
            for token in range(sinks, tokens):
                seen = matrix.T @ facts.keys[head, token]  # k @ R m = (R^T k) @ m
                linear = float(seen @ facts.moments.mean[member])
                square = float(seen @ facts.moments.covariance[member] @ seen)
                exponents.append(SCALING * linear + SCALING**2 * square / 2)
            weights = torch.tensor(exponents).softmax(0).tolist()
            expected = [total + weight / GROUP for total, weight in zip(expected, weights, strict=True)]
        heads.append(expected)
    return heads


@pytest.mark.parametrize("future", [1, 7, 130])
def test_expected_attention_averages_the_turns_to_come(future: int) -> None:
    facts = view(20)
    plain = torch.tensor(plain_expected_attention(facts, future, 3, start=20))
    layer = ExpectedAttention(keep=0.5, future=future, sinks=3, use_vnorm=False)
    assert torch.allclose(layer.scores(facts)[:, 3:], plain, atol=1e-5)
    assert layer.scores(facts)[:, :3].isposinf().all()
    by_value = (plain + 0.01) * facts.values[:, 3:].norm(dim=-1)
    assert torch.allclose(replace(layer, use_vnorm=True, epsilon=0.01).scores(facts)[:, 3:], by_value, atol=1e-5)


def test_expected_attention_looks_on_from_the_newest_position_that_is_left() -> None:
    places = torch.stack([torch.arange(20) * 2, torch.arange(20) * 2 + 1])  # 39 is the newest
    facts = view(20)._replace(positions=places)
    plain = torch.tensor(plain_expected_attention(facts, 9, 0, start=40))
    assert torch.allclose(
        ExpectedAttention(keep=0.5, future=9, sinks=0, use_vnorm=False).scores(facts), plain, atol=1e-5
    )
    facts = facts._replace(rotation=None)
    plain = torch.tensor(plain_expected_attention(facts, 9, 0, start=None))
    assert torch.allclose(ExpectedAttention(keep=0.5, sinks=0, use_vnorm=False).scores(facts), plain, atol=1e-5)


def test_expected_attention_is_the_mean_over_gaussian_queries_where_nothing_turns() -> None:
    """Against drawn queries: the formula is an expectation, not only a convention."""
    facts = view(6)._replace(rotation=None)
    assert facts.moments is not None
    chance = torch.Generator().manual_seed(0)
    for head in range(HEADS):
        expected = torch.zeros(6)
        for member in range(head * GROUP, (head + 1) * GROUP):
            root = torch.linalg.cholesky(facts.moments.covariance[member].double() + 1e-9 * torch.eye(DIM))
            drawn = torch.randn(400_000, DIM, generator=chance, dtype=torch.float64) @ root.T
            drawn += facts.moments.mean[member]
            mean = (SCALING * drawn @ facts.keys[head].double().T).exp().mean(0)
            expected += (mean / mean.sum() / GROUP).float()
        scores = ExpectedAttention(keep=0.5, sinks=0, use_vnorm=False).scores(facts)[head]
        assert torch.allclose(scores, expected, atol=0.02)


def test_kvzip_keeps_sinks_and_what_was_reread() -> None:
    facts = view(25)
    assert facts.reread is not None
    before = facts.reread.clone()
    expected = [[0, 1, *(t + 2 for t in best(head[2:], 7))] for head in before.tolist()]
    assert kept(KVzip(keep_tokens=9, sinks=2), facts) == expected
    assert torch.equal(facts.reread, before)


@pytest.mark.parametrize("layer", [Oracle(keep_tokens=9), Delayed(keep_tokens=9)], ids=["oracle", "delayed"])
def test_the_future_is_kept(layer: Evict) -> None:
    facts = view(25)
    assert facts.future is not None
    assert kept(layer, facts) == [best(head, 9) for head in facts.future.tolist()]


def test_the_oracle_sees_the_whole_answer_and_delayed_its_beginning() -> None:
    assert Oracle(keep=0.5).future_steps > 10**6
    assert Oracle(keep=0.5, steps=20).future_steps == 20
    assert Delayed(keep=0.5, late=3).future_steps == 3


def plain_redundancy(keys: Tensor, threshold: float) -> list[float]:
    tokens = len(keys)
    similar = [[float(torch.cosine_similarity(a, b, dim=0)) for b in keys] for a in keys]
    for i in range(tokens):
        similar[i][i] = 0.0
    for row in similar:
        duplicates = [j for j in range(tokens) if row[j] > threshold]
        row[duplicates[-1] if duplicates else 0] = 0.0
    means = [sum(similar[i][j] for i in range(tokens)) / tokens for j in range(tokens)]
    total = sum(cmath.exp(mean).real for mean in means)
    return [cmath.exp(mean).real / total for mean in means]


@pytest.mark.parametrize("lam", [0.0, 0.07, 1.0])
def test_rkv_is_the_published_code(lam: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.evict.rkv.AT_ONCE", 7)  # so that rows come in pieces
    facts, window = view(30), 4
    assert facts.window_queries is not None
    facts.keys[0, 9] = facts.keys[0, 5] + 0.05  # near-duplicates
    facts.keys[0, 20] = facts.keys[0, 5] - 0.05
    scores = RKV(keep=0.5, lam=lam, window=window, kernel=5).scores(facts)
    assert scores[:, 26:].isposinf().all()
    for head in range(HEADS):
        attention = [0.0] * 26
        for position in range(26, 30):
            logits = [
                max(
                    SCALING * float(facts.window_queries[head * GROUP + member, position] @ facts.keys[head, token])
                    for member in range(GROUP)
                )
                for token in range(26)
            ]
            weights = torch.tensor(logits).softmax(0).tolist()
            attention = [total + weight / window for total, weight in zip(attention, weights, strict=True)]
        redundant = plain_redundancy(facts.keys[head], 0.5)
        both = zip(pooled(attention, 5, max), redundant, strict=False)
        expected = [lam * paid - (1 - lam) * alike for paid, alike in both]
        assert torch.allclose(scores[head, :26], torch.tensor(expected), atol=1e-6)


def test_of_equal_tokens_the_newest_is_not_redundant() -> None:
    keys = torch.eye(6)[None].repeat(1, 1, 1)
    keys[0, 4] = keys[0, 1] = keys[0, 3]
    first, *_ = redundancy(keys, 0.5).tolist()
    assert first[4] < first[1] and first[4] < first[3]


# --- policies made of policies ------------------------------------------------------------------------------------------

PARTS = [SnapKV(window=6), KeyDiff(), Knorm(), TOVA(), KVzip(), RKV(window=4), Oracle(), ExpectedAttention(future=9)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_hybrid_of_one_part_is_that_part(part: Evict) -> None:
    facts = view(40)
    for budget in (3, 20):
        alone = replace(part, keep_tokens=budget)
        assert kept(Hybrid(keep_tokens=budget, parts=(part,), weights=(0.3,)), facts) == kept(alone, facts)


def test_a_hybrid_adds_ranks_and_asks_for_what_its_parts_need() -> None:
    facts = view(20)
    assert facts.mass is not None and facts.reread is not None
    layer = Hybrid(
        keep_tokens=7, parts=(H2O(), KVzip(sinks=2), SnapKV(window=5), Delayed(late=4)), weights=(3, 1, 1, 1)
    )
    assert layer.needs == {"mass", "reread", "future"}
    assert layer.query_window == 5 and layer.future_steps == 4 and layer.per_head
    two = Hybrid(keep_tokens=7, parts=(H2O(), KVzip(sinks=2)), weights=(3.0, 1.0))
    for head, chosen in enumerate(kept(two, facts)):
        columns = [facts.mass[head].tolist(), facts.reread[head].tolist()]
        columns[1][:2] = [9.0, 9.1]
        totals = [sum(w * sorted(c).index(c[t]) for w, c in zip((3, 1), columns, strict=True)) for t in range(20)]
        assert chosen == [0, 1, *(t + 2 for t in best(totals[2:], 5))]
    assert not Hybrid(keep=0.5, parts=(TOVA(), Window()), weights=(1, 1)).per_head


def test_two_phases_are_two_policies_and_act_as_the_first_after_the_prompt() -> None:
    first, second = SnapKV(keep=0.25, window=6), H2O(keep_tokens=9, every=4)
    layer, facts = TwoPhase(prefill=first, decode=second), view(40)
    assert layer.phases() == (first, second)
    assert layer.needs == {"mass"} and layer.query_window == 6 and layer.per_head
    assert layer.budget(40) == 10 and layer.layer_budget(40, 1, 4) == 10
    assert layer.ranking == first.ranking and kept(layer, facts) == kept(first, facts)
    assert layer.problems(SHAPE) == []


COMPOSITES = [
    Hybrid(keep=0.5, parts=(SnapKV(window=6), KeyDiff()), weights=(0.7, 0.3)),
    TwoPhase(prefill=SnapKV(keep=0.25), decode=Window(keep=0.5, every=16)),
]


@pytest.mark.parametrize("layer", COMPOSITES, ids=lambda layer: layer.name)
def test_a_composite_is_described_with_all_that_is_in_it(layer: Hybrid | TwoPhase) -> None:
    spec = canonical(layer.spec())
    assert "strategies.evict.snapkv.SnapKV" in spec and spec == canonical(layer.spec())
    assert {layer: 1}[replace(layer)] and isinstance(hash(layer.ranking), int)
    words = dict(layer.shown())
    assert any("snapkv(" in str(value) for value in words.values())


def test_composites_differ_by_what_is_in_them() -> None:
    one, other = (Hybrid(keep=0.5, parts=(part,), weights=(1.0,)) for part in (KeyDiff(), Knorm()))
    assert one != other and one.spec() != other.spec() and one.ranking != other.ranking
    assert one.ranking == replace(one, keep=0.1).ranking
    assert dict(COMPOSITES[0].shown())["parts"] == "snapkv(window=6 kernel=5 pool=avg reduce=mean)+keydiff"
    assert dict(COMPOSITES[1].shown())["decode"] == "window(keep=0.5 every=16 sinks=4)"


# --- what holds of all --------------------------------------------------------------------------------------------------

EVERY = [
    Window(keep=0.5),
    Random(keep=0.5, first=2, last=3),
    KeyDiff(keep=0.5),
    SnapKV(keep=0.5, window=4),
    H2O(keep=0.5, recent=0.0),
    TOVA(keep=0.5),
    Knorm(keep=0.5),
    ExpectedAttention(keep=0.5, future=5),
    KVzip(keep=0.5),
    RKV(keep=0.5, window=4),
    Oracle(keep=0.5),
    Delayed(keep=0.5),
    Hybrid(keep=0.5, parts=(SnapKV(window=4), Knorm()), weights=(1.0, 2.0)),
]
SPANS = torch.tensor([0] * 7 + [-1] * 20 + [1] * 12 + [-1] * 21)
every = pytest.mark.parametrize("layer", EVERY, ids=lambda layer: layer.name)


@every
def test_fair_spans_keep_one_share_within_a_token(layer: Evict) -> None:
    layer, facts = replace(layer, spans="fair"), view(60)._replace(spans=SPANS)
    assert layer.problems(SHAPE) == []
    for budget in (10, 30, 47):
        for head in kept(replace(layer, keep=None, keep_tokens=budget), facts):
            sizes = [SPANS.tolist().count(span) for span in (-1, 0, 1)]
            held = [SPANS[head].tolist().count(span) for span in (-1, 0, 1)]
            lowest = max((here - 1) / size for here, size in zip(held, sizes, strict=True))
            highest = min((here + 1) / size for here, size in zip(held, sizes, strict=True))
            assert lowest <= highest + 1e-9  # there is a share that all keep, give or take a token


@every
def test_marked_spans_stay_while_the_budget_allows(layer: Evict) -> None:
    facts = view(60)._replace(spans=SPANS)
    marked = {token for token in range(60) if SPANS[token] >= 0}
    for head in kept(replace(layer, keep=None, keep_tokens=24), facts):  # 19 marked and what a policy protects itself
        assert marked <= set(head)


@every
def test_a_policy_goes_on_with_what_it_kept(layer: Evict) -> None:
    """At a later step a row holds other tokens in each head, and their positions have gaps."""
    facts = view(40)
    chosen = torch.tensor(kept(layer, facts))
    rows = torch.arange(HEADS)[:, None]
    assert facts.mass is not None and facts.reread is not None and facts.future is not None
    later = facts._replace(
        keys=facts.keys[rows, chosen],
        values=facts.values[rows, chosen],
        positions=chosen,
        mass=facts.mass[rows, chosen],
        reread=facts.reread[rows, chosen],
        future=facts.future[rows, chosen],
        step=4,
    )
    importance = layer.importance(later)
    assert importance.shape == chosen.shape and not importance.isnan().any()
    assert all(len(head) == 10 for head in layer.chosen(importance, 10))


BAD = [
    (H2O(keep=0.5, recent=1.5), "recent must be in [0, 1], got 1.5"),
    (H2O(keep=0.5, spans="fair"), "recent must be 0 with spans=fair"),
    (SnapKV(keep=0.5, pool="min"), "pool must be one of avg, max, got 'min'"),
    (AdaKV(keep=0.5, reduce="sum"), "reduce must be one of mean, max, got 'sum'"),
    (AdaKV(keep=0.5, every=8), "every must be 0 with spread=heads"),
    (ExpectedAttention(keep=0.5, future=0), "future must be 1 or more, got 0"),
    (ExpectedAttention(keep=0.5, epsilon=-1.0), "epsilon must be 0 or more, got -1.0"),
    (ExpectedAttention(keep=0.5, sinks=-1), "sinks must be 0 or more, got -1"),
    (KVzip(keep=0.5, sinks=-1), "sinks must be 0 or more, got -1"),
    (KVzip(keep=0.5, every=1), "every must be 0: only the prompt"),
    (RKV(keep=0.5, lam=2.0), "lam must be in [0, 1], got 2.0"),
    (RKV(keep=0.5, window=0), "window must be 1 or more, got 0"),
    (RKV(keep=0.5, kernel=2), "kernel must be odd"),
    (RKV(keep=0.5, threshold=-0.1), "threshold must be in [0, 1], got -0.1"),
    (Oracle(keep=0.5, steps=-1), "steps must be 0 or more, got -1"),
    (Oracle(keep=0.5, every=1), "every must be 0: the future"),
    (Delayed(keep=0.5, late=0), "late must be 1 or more, got 0"),
    (Delayed(keep=0.5, every=1), "every must be 0: the future"),
    (Hybrid(keep=0.5), "parts must hold a policy or more"),
    (Hybrid(parts=(KeyDiff(),), weights=(1.0,)), "exactly one"),
    (Hybrid(keep=0.5, parts=(KeyDiff(),), weights=()), "weights must hold a positive number for each of 1 parts"),
    (Hybrid(keep=0.5, parts=(KeyDiff(),), weights=(-1.0,)), "positive number"),
    (Hybrid(keep=0.5, parts=(KeyDiff(),), weights=(1.0,), spread="heads"), "spread must not be heads"),
    (Hybrid(keep=0.5, parts=(KeyDiff(keep=0.5),), weights=(1.0,)), "parts.0.keep must be set on the hybrid"),
    (Hybrid(keep=0.5, parts=(KeyDiff(), SnapKV(window=0)), weights=(1, 1)), "parts.1.window must be 1 or more, got 0"),
    (Hybrid(keep=0.5, every=4, parts=(KVzip(),), weights=(1.0,)), "parts.0.every must be 0: only the prompt"),
    (Hybrid(keep=0.5, parts=(Quest(),), weights=(1.0,)), "parts.0 must hold a policy that evicts, got quest"),
    (Hybrid(keep=0.5, parts=(Oracle(), Delayed()), weights=(1, 1)), "must look equally far into the future"),
    (TwoPhase(decode=Window(keep=0.5, every=4)), "prefill must hold a policy"),
    (TwoPhase(prefill=Window(keep=0.5)), "decode must hold a policy"),
    (TwoPhase(keep=0.5, prefill=Window(keep=0.5), decode=H2O(keep=0.5)), "keep must be set on prefill or decode"),
    (TwoPhase(prefill=Window(keep=0.5), decode=Window(keep=0.5)), "decode.every must be 1 or more, got 0"),
    (TwoPhase(prefill=Window(), decode=H2O(keep=0.5)), "prefill.keep: give exactly one"),
    (TwoPhase(prefill=AdaKV(keep=0.5), decode=H2O(keep=0.5)), "prefill.spread must not be heads"),
]


@pytest.mark.parametrize("layer, words", BAD, ids=str)
def test_a_bad_option_is_named_with_its_rule_and_value(layer: Evict, words: str) -> None:
    assert any(words in problem and "strategy.evict." in problem for problem in layer.problems(SHAPE))


def test_a_part_or_phase_needs_no_more_than_it_uses() -> None:
    """Parts have no budget, and a part's own rhythm or spread says nothing."""
    parts = (H2O(), AdaKV(), PyramidKV(), RKV())
    assert Hybrid(keep=0.5, every=4, parts=parts, weights=(1, 1, 1, 1)).problems(SHAPE) == []
    assert TwoPhase(prefill=H2O(keep=0.5), decode=TOVA(keep_tokens=64)).problems(SHAPE) == []
