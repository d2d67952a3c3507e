"""What each load asks of an engine, whoever it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bench.loads.amid import Amid
from harness.bench.loads.arriving import Arriving
from harness.bench.loads.base import Load, Prose
from harness.bench.loads.closed import Closed
from harness.bench.loads.conversations import Conversations
from harness.bench.loads.points import points_of
from harness.bench.loads.shared import Shared
from harness.bench.loads.trace import Trace
from harness.engines.base import Prompt, Traffic
from harness.types import BadInput
from tests.conftest import tiny_tokenizer

LOADS: dict[str, Load] = {
    "closed": Closed(name="c", requests=5, prompt_tokens=40, output_tokens=6, in_flight=2),
    "mixed": Closed(name="m", requests=40, prompt_tokens=40, output_tokens=10, spread=0.5, in_flight=2),
    "arriving": Arriving(name="a", requests=5, prompt_tokens=40, output_tokens=6, rate_s=2.0),
    "shared": Shared(name="s", prefixes=3, rounds=2, prompt_tokens=40, hit_rate=0.75, output_tokens=4, in_flight=2),
    "amid": Amid(name="i", decoding=2, prompt_tokens=10, output_tokens=8, long_prompts=3, long_tokens=90, every_s=0.5),
    "conversations": Conversations(
        name="t", conversations=2, turns=3, first_tokens=20, turn_tokens=5, output_tokens=4, in_flight=2, think_s=0.1
    ),
}

TRACE = Path(__file__).parents[1] / "golden/mooncake.jsonl"
LOADS["trace"] = Trace(name="r", path=str(TRACE), form="mooncake", requests=20, time_scale=0.5, shrink=64)


@pytest.fixture(scope="module")
def prose() -> Prose:
    return Prose(tiny_tokenizer())


def whole(traffic: Traffic) -> dict[str, int]:
    """By request, the tokens of its prompt with all turns before it."""
    tokens: dict[str, int] = {}
    answers = {prompt.id: prompt.output_tokens for prompt in traffic.prompts}
    for prompt in traffic.prompts:
        before = tokens[prompt.after] + answers[prompt.after] if prompt.after else 0
        tokens[prompt.id] = before + len(prompt.token_ids)
    return tokens


@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_as_large_as_it_says_and_no_larger(prose: Prose, name: str) -> None:
    load = LOADS[name]
    traffic = load.traffic(prose, 0, 0)
    tokens = whole(traffic)
    assert load.problems(None) == [] and len(traffic.prompts) == load.num_requests == len(tokens)
    assert sum(prompt.output_tokens - 1 for prompt in traffic.prompts) >= load.num_gaps
    assert min(tokens.values()) >= load.shortest_tokens
    assert max(tokens[prompt.id] + prompt.output_tokens for prompt in traffic.prompts) <= load.longest_tokens
    assert load.problems(load.longest_tokens) == []
    assert "must leave room" in load.problems(load.longest_tokens - 1)[0]
    demands = load.demands()
    arrives = any(prompt.due_s or prompt.after for prompt in traffic.prompts)
    assert demands.arrives == arrives
    assert demands.returns == bool(traffic.prime or any(prompt.after for prompt in traffic.prompts))
    lengths = {(len(prompt.token_ids), prompt.output_tokens) for prompt in traffic.prompts}
    assert demands.mixed == (len(lengths) > 1)
    assert demands.output_tokens <= min(prompt.output_tokens for prompt in traffic.prompts)


@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_the_same_for_all_and_new_in_every_trial(prose: Prose, name: str) -> None:
    load = LOADS[name]
    one, same, later, other = (load.traffic(prose, seed, index) for seed, index in ((0, 0), (0, 0), (0, 1), (1, 0)))
    assert one == same
    assert not {prompt.id for prompt in one.prompts} & {prompt.id for t in (later, other) for prompt in t.prompts}
    assert len({prompt.id for prompt in one.prompts}) == len(one.prompts)
    warming = load.warming(prose, 0)
    assert len(warming.prompts) == 1 and warming.prompts[0].due_s == 0 and not warming.prime
    assert warming.prompts[0].id not in {prompt.id for prompt in one.prompts}


@pytest.mark.parametrize("name", LOADS)
def test_the_spec_is_of_the_numbers_and_not_of_the_name(name: str) -> None:
    load = LOADS[name]
    assert "name" not in load.spec() and load.spec()["kind"] == type(load).__name__.lower()
    assert load.describe().startswith(f"{load.name}: ")


@given(rate=st.floats(0.1, 50), burstiness=st.sampled_from([0.1, 0.5, 1.0, 4.0]))
def test_arrivals_come_at_their_rate_in_order_and_in_bursts(prose: Prose, rate: float, burstiness: float) -> None:
    load = Arriving(
        name="a", requests=4000, prompt_tokens=2, output_tokens=2, rate_s=rate, burstiness=burstiness, warmup=0
    )
    due = [prompt.due_s for prompt in load.traffic(prose, 0, 0).prompts]
    gaps = np.diff(due)
    assert due[0] == 0 and (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.25)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.25)


def test_lengths_are_spread_evenly_around_their_mean(prose: Prose) -> None:
    load = Closed(name="m", requests=800, prompt_tokens=40, output_tokens=20, spread=0.5, in_flight=1)
    prompts = load.traffic(prose, 0, 0).prompts
    for lengths, mean in (([len(p.token_ids) for p in prompts], 40), ([p.output_tokens for p in prompts], 20)):
        assert np.mean(lengths) == pytest.approx(mean, rel=0.05)
        assert min(lengths) == mean * 0.5 and max(lengths) == mean * 1.5


def test_beginnings_are_primed_and_then_asked_in_turn(prose: Prose) -> None:
    traffic = LOADS["shared"].traffic(prose, 0, 0)
    heads = [list(prompt.token_ids) for prompt in traffic.prime]
    assert [len(head) for head in heads] == [30] * 3 and all(prompt.output_tokens == 1 for prompt in traffic.prime)
    assert [list(prompt.token_ids[:30]) for prompt in traffic.prompts] == heads * 2
    assert len({tuple(prompt.token_ids[30:]) for prompt in traffic.prompts}) == 6


def test_turns_follow_each_other_and_long_prompts_come_amid(prose: Prose) -> None:
    talk = LOADS["conversations"].traffic(prose, 0, 0).prompts
    assert [(prompt.after, prompt.due_s) for prompt in talk[:3]] == [("", 0), (talk[0].id, 0.1), (talk[1].id, 0.1)]
    amid = LOADS["amid"].traffic(prose, 0, 0)
    assert [prompt.due_s for prompt in amid.prompts] == [0, 0, 0.5, 1.0, 1.5] and amid.in_flight is None
    assert [prompt.output_tokens for prompt in amid.prompts] == [8, 8, 1, 1, 1]


CLOSED = {
    **{"_target_": "harness.bench.loads.closed.Closed", "name": "c", "requests": 4, "prompt_tokens": 8},
    **{"output_tokens": 4, "in_flight": 1},
}


def test_a_list_in_one_option_is_a_load_for_each_value() -> None:
    points = points_of({**CLOSED, "in_flight": [1, 4]})
    assert [(point.label, point.value) for point in points] == [("in_flight=1", 1), ("in_flight=4", 4)]
    (alone,) = points_of({**CLOSED, "in_flight": 4})
    assert alone.label == "" and alone.load.spec() == points[1].load.spec(), "it shares its measurements"


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"in_flight": [1, 2], "requests": [1, 2]}, "a list in one option at most, got requests, in_flight"),
        ({"in_flight": []}, "load.in_flight must be a number or a list of different ones, got []"),
        ({"in_flight": [2, 2]}, "load.in_flight must be a number or a list of different ones, got [2, 2]"),
        ({"in_flight": [1, "many"]}, "load.in_flight must be a number or a list"),
        ({"_target_": "harness.bench.links.Links"}, "load._target_ must be a load that is served"),
    ],
)
def test_points_that_are_none_are_refused(changes: dict[str, Any], says: str) -> None:
    config = {**CLOSED, **changes}
    if "links" in str(config["_target_"]):
        config = {"_target_": config["_target_"], "name": "x"}
    with pytest.raises(BadInput, match="load") as refused:
        points_of(config)
    assert says in " ".join(refused.value.problems)


WRONG: Sequence[tuple[Load, str]] = [
    (
        Closed(name="c", requests=0, prompt_tokens=8, output_tokens=4, in_flight=1),
        "load.requests must be 1 or more, got 0",
    ),
    (Closed(name="c", requests=1, prompt_tokens=8, output_tokens=4, in_flight=1, spread=1.0), "load.spread must be 0"),
    (Arriving(name="a", requests=1, prompt_tokens=8, output_tokens=4, rate_s=0), "load.rate_s must be above 0, got 0"),
    (
        Shared(name="s", prefixes=1, rounds=1, prompt_tokens=8, hit_rate=1.0, output_tokens=2, in_flight=1),
        "load.hit_rate must leave some tokens in common and some apart, above 0 and below 1, got 1.0",
    ),
    (
        Amid(name="i", decoding=1, prompt_tokens=8, output_tokens=2, long_prompts=1, long_tokens=9, every_s=0),
        "load.every_s must be above 0, got 0",
    ),
    (
        Conversations(name="t", conversations=1, turns=1, first_tokens=8, turn_tokens=1, output_tokens=2, in_flight=1),
        "load.turns must be 2 or more, got 1",
    ),
]


@pytest.mark.parametrize("load, says", WRONG, ids=[says[:24] for _, says in WRONG])
def test_numbers_that_cannot_be_are_refused(load: Load, says: str) -> None:
    assert any(says in problem for problem in load.problems(4096))


def test_no_two_prompts_begin_alike(prose: Prose) -> None:
    prompts: list[Prompt] = [p for index in range(20) for p in LOADS["closed"].traffic(prose, 0, index).prompts]
    assert len({tuple(prompt.token_ids[:16]) for prompt in prompts}) == len(prompts)


def test_a_trace_is_replayed_with_its_beginnings_and_its_pace(prose: Prose, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 4000, "input_length": 1100, "output_length": 64, "hash_ids": [1, 2, 3]},
        {"timestamp": 6000, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]},
        {"timestamp": 7000, "input_length": 600, "output_length": 10, "hash_ids": [1, 9]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    load = Trace(name="r", path=str(path), form="mooncake", requests=3, time_scale=0.5, shrink=8)
    first, second, third = load.traffic(prose, 0, 0).prompts
    assert [prompt.due_s for prompt in (first, second, third)] == [0.0, 1.0, 1.5]
    assert [len(prompt.token_ids) for prompt in (first, second, third)] == [137, 128, 75]
    assert [prompt.output_tokens for prompt in (first, second, third)] == [8, 1, 1]
    assert first.token_ids[:127] == second.token_ids[:127] and first.token_ids[:64] == third.token_ids[:64]
    assert first.token_ids[64:75] != third.token_ids[64:75]
    moved = tmp_path / "moved.jsonl"
    moved.write_text(path.read_text())
    assert replace(load, path=str(moved)).spec() == load.spec() != replace(load, requests=2).spec()


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"path": None}, "load.path must be a trace"),
        ({"path": "/nowhere"}, "load.path: trace must be a file"),
        ({"form": "csv"}, "load.form must be one of mooncake, timed_trace, got 'csv'"),
        ({"requests": 10**9}, "load.requests must be at most the"),
        ({"shrink": 512}, "load.shrink must be below a block's 512 tokens, got 512"),
        ({"time_scale": 0.0}, "load.time_scale must be above 0"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(changes: dict[str, Any], says: str) -> None:
    load = replace(LOADS["trace"], **changes)
    assert says in " ".join(load.problems(None))


@pytest.mark.parametrize("name", LOADS)
def test_the_pace_of_a_load_is_known(prose: Prose, name: str) -> None:
    load = LOADS[name]
    due_s = [
        max(p.due_s for p in load.traffic(prose, 0, index).prompts) for index in range(200 if name == "arriving" else 1)
    ]
    assert (load.paced_s > 0) == any(due_s)
    assert np.mean(due_s) <= load.paced_s <= 2.5 * np.mean(due_s) or name == "conversations"
