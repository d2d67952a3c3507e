"""Graphs and paths: walked again from the list of edges alone."""

from __future__ import annotations

import re

import pytest

from harness.types import Response, Sample, State
from tests.tasks.task_doubles import Pieces, load


def said(text: str) -> Response:
    return Response(text, (), "length")


def edges(sample: Sample) -> list[tuple[str, str]]:
    return re.findall(r"^(\S+) -> (\S+)$", sample.context.partition("\n\n")[2], re.MULTILINE)


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (1, 3), (2, 3), (4, 2)])
def test_the_nodes_are_those_at_just_that_distance(steps: int, width: int) -> None:
    for sample in load("graph_walk", lengths=[1200], steps=steps, width=width).samples(Pieces(), 8, seed=0):
        listed = edges(sample)
        start = re.findall(r"from (\S+) in", sample.question)[0]
        reached, front = {start}, {start}
        for _ in range(steps):
            front = {target for source, target in listed if source in front} - reached
            reached |= front
        assert front == set(sample.answers)
        assert len(sample.answers) == width
        assert len(set(listed)) == len(listed) == sample.meta["edges"]
        assert all(source != target for source, target in listed)
        assert not {"nodes", "edges", "graph"} & {node for edge in listed for node in edge}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" {0}, {1}, {2}", 1.0),
        ("\n- {0}\n- {1}\n- {2}\n", 1.0),
        ("\n", 0.0),
        (" {2} and then {0}.", 0.8),
        (" {0}, {1}, {2}, {start}", 2 * 3 / 7),
        (" {0}, {0}, {0}", 0.5),
        (" {0}x, {1}-{2}", 0.0),
        (" the nodes that have an edge", 0.0),
    ],
)
def test_f1_of_the_nodes_named(text: str, value: float) -> None:
    task = load("graph_walk")
    sample = task.samples(Pieces(), 1, seed=0)[0]
    assert edges(sample)[0][0] not in sample.answers
    judged = task.score(sample, said(text.format(*sample.answers, start=edges(sample)[0][0])))
    assert (judged.state, judged.value) == (State.SCORED, pytest.approx(value))


@pytest.mark.parametrize("steps", [1, 8, 20])
def test_the_path_is_the_only_one(steps: int) -> None:
    for sample in load("path", lengths=[1200], steps=steps).samples(Pieces(), 6, seed=0):
        listed = edges(sample)
        links = dict(listed)
        assert len(links) == len(listed) == sample.meta["links"]  # one link onward from each place
        place = sample.answer_prefix.removesuffix(" ->")
        assert f"Start at {place} and" in sample.question
        stops = []
        for _ in range(steps):
            place = links[place]
            stops.append(place)
        assert tuple(stops) == sample.answers
        assert place not in links


def test_a_path_counts_up_to_its_first_wrong_line() -> None:
    task = load("path", steps=4)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    a, b, c, d = sample.answers
    right = f" {a}\n{a} -> {b}\n{b} -> {c}\n{c} -> {d}"
    cases = {
        right: (1.0, 1.0),
        right + "\nand so on": (1.0, 1.0),
        f" {a}\n  {a}  ->  {b}": (0.5, 0.5),
        f" {a}\n{a} -> {b}\n{b} -> {d}\n{c} -> {d}": (0.5, 0.5),
        f" {b}\n{a} -> {b}\n{b} -> {c}": (0.0, 0.0),
        f" {a} -> {b} -> {c} -> {d}": (0.0, 1.0),
        f" {a}\n{b}\n{c}": (0.25, 0.75),
        "": (0.0, 0.0),
    }
    for text, (strict, flexible) in cases.items():
        judged = task.score(sample, said(text))
        assert judged.state is State.SCORED
        assert (judged.value, judged.parts["strict"], judged.parts["flexible"]) == (strict, strict, flexible), text


def test_every_broken_option_is_named() -> None:
    assert load("graph_walk", steps=0, width=0).problems(Pieces()) == [
        "task.steps must be a whole number of 1 or more, got 0",
        "task.width must be a whole number of 1 or more, got 0",
    ]
    assert load("path", steps="far").problems(Pieces()) == ["task.steps must be a whole number of 1 or more, got 'far'"]
