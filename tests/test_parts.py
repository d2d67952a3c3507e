"""What happens inside a task: facets of samples and parts of scores, paired as the verdict pairs them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parts import Part, parts
from harness.types import Evidence, Pair, Record, Sample, State
from harness.verdict import CellInput


def inside(rows: list[dict[str, Any]], graded: bool = False) -> dict[str, Part]:
    """Parts of a task, a row a sample: ``a`` and ``b`` are the two sides' scores, or states; ``pa`` and ``pb`` their parts."""
    samples, pairs, sides = [], [], ({}, {})
    for at, row in enumerate(rows):
        sample = Sample(f"s{at}", "", "", (), 1, cluster=row.get("cluster", ""), meta=row.get("meta", {}))
        scores = []
        for side, score, own in zip(sides, (row["a"], row["b"]), (row.get("pa", {}), row.get("pb", {})), strict=True):
            state, value = (score, None) if isinstance(score, State) else (State.SCORED, score)
            told = (Evidence("prefix/reuse", True, "", row["facts"]),) if "facts" in row else ()
            side[sample.id] = Record("c", sample.id, "h", "p", state, value, parts=own, evidence=told)
            scores.append((value, state))
        (a, a_state), (b, b_state) = scores
        fault = row.get("fault", "model")
        faults = {"baseline_fault": fault if a is None else None, "candidate_fault": fault if b is None else None}
        samples.append(sample)
        pairs.append(Pair(sample.id, sample.cluster, a, b, a_state, b_state, **faults))
    cell = CellInput("s", "t", "m", tuple(pairs), (), (), len(pairs), 1, 0.0, graded, False, {})
    return {": ".join(filter(None, (part.group, part.name))): part for part in parts(cell, samples, *sides)}


def test_facets_part_the_samples_and_a_facet_of_one_value_is_left_out() -> None:
    rows = [{"a": 1.0, "b": float(turn == 1), "meta": {"turn": turn, "length": 512}} for turn in (1, 10, 2) * 4]
    found = inside(rows)
    assert list(found) == ["turn: 1", "turn: 2", "turn: 10"]
    assert [(part.n, part.baseline, part.delta) for part in found.values()] == [(4, 1, 0), (4, 1, -1), (4, 1, -1)]
    assert all(part.ci_low <= part.delta <= part.ci_high for part in found.values())


def test_answers_are_parted_by_where_their_prompt_was_found() -> None:
    device, host, none = {"hit_tokens": 128.0}, {"hit_tokens": 128.0, "cached_tokens_host": 128.0}, {"hit_tokens": 0.0}
    rows = [{"a": 1.0, "b": float(facts is not host), "facts": facts} for facts in (device, host, none) * 3]
    found = inside(rows)
    assert {name: part.delta for name, part in found.items()} == {
        "prompt from: computed": 0.0,
        "prompt from: device": 0.0,
        "prompt from: host": -1.0,
    }
    assert not inside([{"a": 1.0, "b": 1.0, "facts": device}] * 3)


def test_turns_of_a_conversation_are_one_unit_together_and_units_of_their_own_apart() -> None:
    rows = [
        {
            "a": 1.0,
            "b": float(talk > 1),
            "cluster": f"c{talk}",
            "pa": {"strict": 1.0},
            "pb": {"strict": 0.0},
            "meta": {"turn": turn},
        }
        for talk in range(4)
        for turn in (1, 2)
    ]
    found = inside(rows)
    assert (found["strict"].n, found["turn: 1"].n, found["turn: 2"].n) == (4, 4, 4)


def test_parts_are_of_the_samples_that_have_them_and_group_before_the_colon() -> None:
    rows = [
        {"a": 1.0, "b": 1.0, "pa": {"leak": 0.0, "defence": 1.0}, "pb": {"leak": 1.0, "defence": 0.0}},
        {"a": 1.0, "b": 1.0, "pa": {"leak": 0.0, "kind: ends": 1.0}, "pb": {"leak": 0.0, "kind: ends": 0.5}},
    ]
    found = inside(rows, graded=True)
    assert {name: (part.group, part.name, part.n, part.delta) for name, part in found.items()} == {
        "defence": ("", "defence", 1, -1.0),
        "leak": ("", "leak", 2, 0.5),
        "kind: ends": ("kind", "ends", 1, -0.5),
    }


def test_what_the_model_did_not_finish_is_not_right_and_what_the_machine_lost_is_left_out() -> None:
    whole = {"a": 1.0, "pa": {"strict": 1.0}}
    rows = [
        {**whole, "b": 1.0, "pb": {"strict": 1.0}},
        {**whole, "b": State.TRUNCATED},
        {**whole, "b": State.FAILED},
        {**whole, "b": State.FAILED, "fault": "infrastructure"},
        {**whole, "b": State.NOT_RUN},
        {**whole, "b": 1.0, "pb": {}},  # scored, and without this part
    ]
    assert inside(rows)["strict"].n == 3
    assert inside(rows)["strict"].score == pytest.approx(1 / 3)
    assert inside([{"a": State.FAILED, "b": State.FAILED}]) == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=40))
def test_the_values_of_a_facet_add_up_to_the_whole(scores: list[tuple[int, float, float]]) -> None:
    rows = [{"a": a, "b": b, "meta": {"kind": kind}, "pa": {"whole": a}, "pb": {"whole": b}} for kind, a, b in scores]
    found = inside(rows, graded=True)
    whole, kinds = found.pop("whole"), list(found.values())
    assert whole.n == len(scores)
    if kinds:
        assert sum(part.n for part in kinds) == len(scores)
        assert sum(part.n * part.delta for part in kinds) / len(scores) == pytest.approx(whole.delta)
    assert all(
        -1 <= part.ci_low <= part.delta + 1e-6 and part.delta - 1e-6 <= part.ci_high <= 1 for part in [whole, *kinds]
    )
