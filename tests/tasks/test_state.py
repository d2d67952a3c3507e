"""Worlds, accounts and programs: replayed from the text by readers of their own."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from harness.types import Response, Sample, State
from tasks.reasoning.simulation import NUMBERS
from tasks.reasoning.world import World
from tests.tasks.task_doubles import Pieces, load

EVENTS = re.compile(
    r"(?P<who>[A-Z]\w+) (?:is in|went to) the (?P<room>\w+)\."
    r"|The (?P<laid>\w+) is in the (?P<at>\w+)\."
    r"|(?P<taker>[A-Z]\w+) picked up the (?P<taken>\w+)\."
    r"|(?P<dropper>[A-Z]\w+) put down the (?P<dropped>\w+)\."
    r"|(?P<giver>[A-Z]\w+) handed the (?P<given>\w+) to (?P<getter>\w+)\."
)
PEOPLE = {"Mary", "John", "Sandra", "Daniel", "Emma", "Peter"}


def said(text: str) -> Response:
    return Response(text, (), "length")


def replayed(sample: Sample) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Rooms of each thing in order, and who holds what, by reading; every event must be possible."""
    place: dict[str, str] = {}
    trail: dict[str, list[str]] = {}
    holder: dict[str, str] = {}
    for event in EVENTS.finditer(sample.context):
        match event.groupdict():
            case {"laid": str(thing), "at": str(room)}:
                trail[thing] = [room]
            case {"who": str(person), "room": str(room)} if person in PEOPLE:
                assert place.get(person) != room
                place[person] = room
                for thing in (thing for thing, owner in holder.items() if owner == person):
                    trail[thing].append(room)
            case {"taker": str(person), "taken": str(thing)}:
                assert thing not in holder and place[person] == trail[thing][-1]
                holder[thing] = person
            case {"dropper": str(person), "dropped": str(thing)}:
                assert holder.pop(thing) == person
            case {"giver": str(person), "given": str(thing), "getter": str(other)}:
                assert holder[thing] == person and place[person] == place[other] and person != other
                holder[thing] = other
    return trail, holder


@pytest.mark.parametrize("events", [1, 8, 25])
@pytest.mark.parametrize("kind", ["where", "who", "count", "before"])
def test_the_world_is_as_the_text_tells(kind: str, events: int) -> None:
    answers = set()
    for sample in load("world", lengths=[1200], ask=[kind], events=events).samples(Pieces(), 20, seed=0):
        trail, holder = replayed(sample)
        asked = set(re.findall(r"\w+", sample.question))
        thing = next((thing for thing in trail if thing in asked), "")
        match kind:
            case "where":
                assert sample.answers == (trail[thing][-1],)
            case "who":
                assert sample.answers == (holder[thing],)
            case "count":
                (person,) = asked & PEOPLE
                assert sample.answers == NUMBERS[Counter(holder.values())[person]]
            case "before":
                assert sample.answers == (trail[thing][-2],)
                assert trail[thing][-2] != trail[thing][-1]
        answers.add(sample.answers)
    assert len(answers) >= 2


def test_kinds_of_questions_take_turns_at_each_length() -> None:
    samples = load("world", lengths=[700, 800]).samples(Pieces(), 16, seed=0)
    cells = Counter((sample.meta["length"], sample.meta["ask"]) for sample in samples)
    assert len(cells) == 8 and set(cells.values()) == {2}


def test_guesses_of_a_world() -> None:
    assert World(name="demo", ask=("who",), people=4).chance == 0.25
    assert World(name="demo", ask=("where", "count"), rooms=5, things=3).chance == pytest.approx((0.2 + 0.25) / 2)


def test_number_words_and_figures_are_one_answer() -> None:
    task = load("world", ask=["count"])
    sample = task.samples(Pieces(), 1, seed=0)[0]
    word, figure = sample.answers
    for text, right in [(f" {word}.", 1.0), (f" {figure}", 1.0), (f" {word.title()} things", 1.0), (f"{figure}0", 0.0)]:
        assert task.score(sample, said(text)).value == right


@pytest.mark.parametrize(("steps", "people"), [(1, 2), (2, 3), (12, 6)])
def test_the_balance_is_the_sum_of_the_payments(steps: int, people: int) -> None:
    for sample in load("ledger", lengths=[1500], steps=steps, people=people).samples(Pieces(), 10, seed=0):
        coins = {name: int(count) for name, count in re.findall(r"(\w+) begins with (\d+) coins\.", sample.context)}
        (asked,) = PEOPLE & set(re.findall(r"\w+", sample.question))
        touched = 0
        for giver, count, taker in re.findall(r"(\w+) pays (\d+) coins to (\w+)\.", sample.context):
            coins[giver] -= int(count)
            coins[taker] += int(count)
            touched += asked in (giver, taker)
            assert giver != taker and coins[giver] >= 0
        assert len(coins) == people
        assert touched == steps
        assert sample.answers == (str(coins[asked]),)
        assert sample.context.index("begins") < sample.context.index("pays")


@pytest.mark.parametrize(("steps", "variables"), [(1, 2), (2, 6), (15, 10)])
def test_the_program_gives_the_value(steps: int, variables: int) -> None:
    for sample in load("registers", lengths=[1200], steps=steps, variables=variables).samples(Pieces(), 10, seed=0):
        values: dict[str, int] = {}
        for line in sample.context.split("```")[1].strip().splitlines():
            name, source, sign, number = re.fullmatch(r"(\w+) = (\w+)(?: ([+-]) (\d+))?", line).groups()  # type: ignore[union-attr]
            value = int(source) if source.isdigit() else values[source]  # each is set before it is read
            values[name] = value + int(f"{sign}{number}") if sign else value
        asked = sample.answer_prefix.removesuffix(" =")
        assert sample.answers == (str(values[asked]),)
        assert f"value of {asked} at" in sample.question


@pytest.mark.parametrize("name", ["ledger", "registers"])
def test_strict_and_flexible_stand_side_by_side(name: str) -> None:
    task = load(name)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    (answer,) = sample.answers
    for text, strict in [(f" {answer} coins.", 1.0), (f" 7 + 5 = {answer}", 0.0), (f" {answer}1", 0.0), ("", 0.0)]:
        judged = task.score(sample, said(text))
        assert (judged.state, judged.value) == (State.SCORED, strict)
    assert task.score(sample, said(f" 7 + 5 = {answer}")).parts == {"strict": 0.0, "flexible": 1.0}


def test_every_broken_option_is_named() -> None:
    assert load("world", ask=["why"], events=0, people=1, rooms=9).problems(Pieces()) == [
        "task.ask must be one of where, who, count, before, got 'why'",
        "task.events must be a whole number of 1 or more, got 0",
        "task.people must be a whole number of 2 or more, got 1",
        "task.rooms must be at most 6, got 9",
    ]
    assert load("world", ask=[]).problems(Pieces()) == ["task.ask must name at least one kind of question, got none"]
    assert load("ledger", steps=0, people=7).problems(Pieces()) == [
        "task.steps must be a whole number of 1 or more, got 0",
        "task.people must be at most 6, got 7",
    ]
    assert load("registers", steps=9999).problems(Pieces()) == [
        "task.steps must be at most 708 with 6 variables, got 9999"
    ]
