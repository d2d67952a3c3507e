"""Where a sample's answer stands in its context, and where nothing may be said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.excerpts import AROUND, excerpt
from harness.types import Sample


def sample(context: str, *answers: str, turns: tuple[tuple[str, str], ...] = ()) -> Sample:
    return Sample("1", context, "?", answers, 4, turns=turns)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (sample("the key is 4711 here", "4711"), "the key is 4711 here"),
        (sample("the key is 4711 here", "none", "4711"), "the key is 4711 here"),
        (sample("4711 or 4711", "4711"), ""),  # which of the two was meant?
        (sample("the key is 47112", "4711"), ""),
        (sample("nothing", "4711"), ""),
        (sample("nothing", ""), ""),
        (sample("a.c and abc", "a.c"), "a.c and abc"),
        (sample("begin", "red", turns=(("the door is red", "noted"), ("and?", "red"))), "begin\nthe door is red\nand?"),
    ],
)
def test_the_place_of_an_answer(made: Sample, said: str) -> None:
    assert excerpt(made) == said


@given(st.text("ab \n", max_size=600), st.text("ab \n", max_size=600))
def test_an_excerpt_is_short_holds_the_answer_and_is_of_the_context(before: str, after: str) -> None:
    found = excerpt(sample(f"{before} 4711 {after}", "4711"))
    assert "4711" in found and len(found) <= 2 * AROUND + len("4711") + 4
    assert found.removeprefix("… ").removesuffix(" …") in f"{before} 4711 {after}"
