"""A small world that changes: people walk between rooms, take things, drop them and hand them over.

Every event is one sentence, and all that is true follows from the sentences in their order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

NUMBERS = (("zero", "0"), ("one", "1"), ("two", "2"), ("three", "3"), ("four", "4"), ("five", "5"), ("six", "6"))
PEOPLE = ("Mary", "John", "Sandra", "Daniel", "Emma", "Peter")
ROOMS = ("kitchen", "garden", "office", "bedroom", "hallway", "cellar")
THINGS = ("apple", "football", "lamp", "hammer", "newspaper", "umbrella")
KINDS = ("where", "who", "count", "before")


@dataclass(frozen=True)
class Query:
    """A question, the words that begin its answer, and the answers that count as right."""

    question: str
    begun: str
    answers: tuple[str, ...]


@dataclass
class Simulation:
    """People, rooms and things, and what happened to them so far."""

    rng: random.Random
    people: tuple[str, ...]
    rooms: tuple[str, ...]
    things: tuple[str, ...]
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = {person: self.rng.choice(self.rooms) for person in self.people}
        self.holder: dict[str, str] = {}
        self.trail = {thing: [self.rng.choice(self.rooms)] for thing in self.things}  # rooms of a thing, in order
        self.told += [f"{person} is in the {room}." for person, room in self.place.items()]
        self.told += [f"The {thing} is in the {trail[0]}." for thing, trail in self.trail.items()]

    def step(self) -> None:
        """One event that is possible, of a kind drawn evenly from the kinds that are."""
        person = self.rng.choice(self.people)
        held = self.held(person)
        lying = [thing for thing in self.things if thing not in self.holder and self.at(thing) == self.place[person]]
        company = [other for other in self.people if other != person and self.place[other] == self.place[person]]
        able = {"go": True, "take": bool(lying), "drop": bool(held), "give": bool(held and company)}
        match self.rng.choice([kind for kind, possible in able.items() if possible]):
            case "go":
                self.go(person, self.rng.choice([room for room in self.rooms if room != self.place[person]]))
            case "take":
                self.take(person, self.rng.choice(lying))
            case "drop":
                thing = self.rng.choice(held)
                del self.holder[thing]
                self.told.append(f"{person} put down the {thing}.")
            case "give":
                thing, other = self.rng.choice(held), self.rng.choice(company)
                self.holder[thing] = other
                self.told.append(f"{person} handed the {thing} to {other}.")

    def go(self, person: str, room: str) -> None:
        """What a person holds goes along."""
        self.place[person] = room
        for thing in self.held(person):
            self.trail[thing].append(room)
        self.told.append(f"{person} went to the {room}.")

    def take(self, person: str, thing: str) -> None:
        self.holder[thing] = person
        self.told.append(f"{person} picked up the {thing}.")

    def at(self, thing: str) -> str:
        """The room that a thing is in, lying there or held by somebody."""
        return self.trail[thing][-1]

    def held(self, person: str) -> list[str]:
        return [thing for thing in self.things if self.holder.get(thing) == person]

    def carry(self) -> None:
        """Somebody takes a thing, or has it already, and goes to another room."""
        thing = self.rng.choice(self.things)
        person = self.holder.get(thing) or self.rng.choice(self.people)
        if thing not in self.holder:
            if self.place[person] != self.at(thing):
                self.go(person, self.at(thing))
            self.take(person, thing)
        self.go(person, self.rng.choice([room for room in self.rooms if room != self.place[person]]))

    @property
    def carried(self) -> list[str]:
        """Things that were in more than one room."""
        return [thing for thing, trail in self.trail.items() if len(trail) > 1]

    def ask(self, kind: str) -> Query:
        """A question of a kind about the end; needs that something is held and something was carried."""
        match kind:
            case "where":
                thing = self.rng.choice(self.carried)
                return Query(f"In which room is the {thing} at the end?", f"The {thing} is in the", (self.at(thing),))
            case "who":
                thing = self.rng.choice(list(self.holder))
                return Query(f"Who has the {thing} at the end?", f"The {thing} is held by", (self.holder[thing],))
            case "count":
                counts = {person: len(self.held(person)) for person in self.people}
                number = self.rng.choice(sorted(set(counts.values())))  # else nearly all answers would be small
                person = self.rng.choice([person for person in self.people if counts[person] == number])
                question = f"How many things does {person} hold at the end?"
                return Query(question, f"At the end the number of things that {person} holds is", NUMBERS[number])
            case _:
                thing = self.rng.choice(self.carried)
                question = f"In which room was the {thing} before it came to the room where it is at the end?"
                return Query(question, f"Before that, the {thing} was in the", (self.trail[thing][-2],))
