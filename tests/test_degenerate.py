"""Answers whose form alone says that something is broken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.degenerate import FEW, SHARE, TIMES, degenerate
from harness.groups import CellRecords, GroupRecords
from harness.judge import _comparison_inputs
from harness.types import Gate, Pair, Record, Response, Sample, State
from harness.verdict import CellInput, deciding_test, sort_pairs

WORDS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def answer(tokens: list[int], text: str = "some text", finish: str = "length") -> Response:
    return Response(text, tuple(tokens), finish)  # type: ignore[arg-type]


CASES = {
    "nothing": (answer([], "  \n"), "empty"),
    "a speaker": (answer([1, 2, 3], "42\nuser\nWhat else?"), "several turns"),
    "a speaker's name in a line": (answer([1, 2, 3], "the user said"), ""),
    "one token": (answer([7, 8, *[5] * 40]), "one token"),
    "a passage": (answer([7, 8, *[1, 2, 3] * 12]), "a loop"),
    "too short to tell": (answer([5] * (FEW - 1)), ""),
    "a list": (answer([1, 9, 1, 8, 1, 7, 1, 6, 1, 5, 1, 4, 1, 3, 1, 2]), ""),
    "most of it is text": (answer([*range(60), *[5] * 8]), ""),
    "followed": (answer([5] * 40, "", "followed"), ""),
}


@pytest.mark.parametrize(("response", "kind"), CASES.values(), ids=CASES.keys())
def test_what_is_wrong_is_named(response: Response, kind: str) -> None:
    assert degenerate(response) == kind


@given(start=st.lists(st.integers(0, 5), max_size=20), passage=WORDS, times=st.integers(TIMES, 30))
def test_a_passage_that_fills_half_is_found_wherever_it_begins(
    start: list[int], passage: list[int], times: int
) -> None:
    tokens = start + passage * times
    found = degenerate(answer(tokens))
    if len(tokens) >= FEW and len(passage) * times >= SHARE * len(tokens):
        assert found in ("a loop", "one token")


@given(st.lists(st.integers(0, 3), max_size=60))
def test_what_is_found_is_there(tokens: list[int]) -> None:
    """By trying every passage at the end, one repetition after another."""
    loops = [
        times * length
        for length in range(1, len(tokens) + 1)
        for times in range(TIMES, len(tokens) // length + 1)
        if tokens[-times * length :] == tokens[-length:] * times
    ]
    assert bool(degenerate(answer(tokens))) == (len(tokens) >= FEW and max(loops, default=0) >= SHARE * len(tokens))


def test_a_degenerate_answer_of_the_candidate_alone_is_lost() -> None:
    def pair(name: str, candidate: float, *broken: bool) -> Pair:
        states = (State.SCORED, State.SCORED)
        return Pair(name, "", 1.0, candidate, *states, baseline_degenerate=broken[0], candidate_degenerate=broken[1])

    pairs = (pair("fine", 1.0, False, False), pair("broken", 1.0, False, True), pair("both", 1.0, True, True))
    cell = CellInput("s", "t", "m", pairs, (), (), 3, 1, 0.0, graded=False, fidelity=False, fidelity_measures={})
    test = deciding_test(cell, sort_pairs(pairs).used)
    assert test.candidate.tolist() == [1.0, 0.0, 1.0] and test.baseline.tolist() == [1.0] * 3


@pytest.mark.parametrize("broken", ["first", "second"])
def test_two_sides_neither_of_which_is_on_trial_are_judged_alike(broken: str) -> None:
    """All answers are right. Those of one side hold another speaker's turn: it is that side which loses, whichever it is."""
    samples = [Sample(f"s{at}", "", "q", ("42",), 8) for at in range(3)]

    def cell(role: str, strategy: str, text: str) -> CellRecords:
        said = Response(text, (1, 2), "stop")
        records = {one.id: Record("c", one.id, one.hash, "p", State.SCORED, 1.0, response=said) for one in samples}
        return CellRecords({"role": role, "strategy": strategy, "address": strategy}, records)

    texts = ("42\nuser\n", "42") if broken == "first" else ("42", "42\nuser\n")
    cells = [cell(*who, text) for who, text in zip((("baseline", "full"), ("noise", "full")), texts, strict=True)]
    cells += [cell("candidate", name, text) for name, text in zip(("b", "a"), texts, strict=True)]
    task = SimpleNamespace(fidelity=False, chance=0.0)
    planned = {"label": "t", "n": 3, "graded": False}
    group = GroupRecords(planned, "m", task, samples, cells)  # type: ignore[arg-type]
    looks = dict.fromkeys("ab", (1, Gate()))
    (asked,) = _comparison_inputs(group, ("a", "b"), looks)
    for pairs in (group.noise, asked.cell.pairs):
        test = deciding_test(asked.cell, pairs)
        sides = [test.baseline.tolist(), test.candidate.tolist()]
        assert sides == ([[0.0] * 3, [1.0] * 3] if broken == "first" else [[1.0] * 3, [0.0] * 3])
