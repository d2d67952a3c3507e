"""A small invented world in prose: people, towns and firms, a paragraph each, and questions that one or two of them answer.

    Mira Picket was born in Quiet Harbor. Mira trained as a baker and works for Lemon Foods. ...
    Lemon Foods makes jars. Its head office stands in Early Meadow. ...

    one hop:   For which firm does Mira Picket work?                                 ->  Lemon Foods
    two hops:  In which town is the head office of the firm that Mira Picket works for?  ->  Early Meadow

Nothing in it is known outside the text, so no model answers by heart. No two paragraphs are about the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from tasks import corpus


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIVEN = _listed("Ada Bela Carl Dora Edda Finn Gesa Hugo Inga Jory Kira Lars Mira Nils Olga Piet Rika Sven Tove Ulla")
FIRMS = _listed("Foods Mills Motors Press Textiles Tools Trading Works")
TRADES = _listed("baker carpenter chemist gardener joiner nurse printer tailor teacher translator welder weaver")
HOBBIES = _listed("birdwatching chess fencing juggling pottery rowing singing sketching swimming")
PRODUCTS = _listed("bags bicycles blankets candles clocks combs jam jars lamps maps paper ropes soap violins wool")
DISHES = ("almond cake", "barley soup", "cheese pie", "fish stew", "onion bread", "pear dumplings", "plum pudding")
KINDS = _listed("person town firm river")
DAYS = _listed("Monday Tuesday Wednesday Thursday Friday Saturday")


class Item(NamedTuple):
    """A question about the world, its answer and the paragraphs that are needed."""

    question: str
    begun: str  # the words that begin the answer
    answer: str
    gold: list[str]


class World:
    """Paragraphs and questions drawn from ``rng``; names are used once as the subject of a paragraph."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._names = {kind: _names(kind, rng) for kind in KINDS}

    def item(self, hops: int) -> Item:
        """A question that needs ``hops`` paragraphs: one or two."""
        ways: dict[int, tuple[Callable[[], Item], ...]] = {
            1: (self._birth, self._employer, self._seat, self._river),
            2: (self._employer_seat, self._birth_river, self._seat_river),
        }
        return self._rng.choice(ways[hops])()

    def paragraphs(self) -> Iterator[str]:
        """Paragraphs about further people, towns and firms in turn, until no names are left (some 16,000)."""
        for person, town, firm in zip(*(self._names[kind] for kind in ("person", "town", "firm")), strict=False):
            yield from (self._person(person), self._town(town), self._firm(firm))

    def _person(self, name: str, town: str = "", firm: str = "") -> str:
        rng = self._rng
        town, firm = town or self._some("town"), firm or self._some("firm")
        return (
            f"{name} was born in {town}. {name.split()[0]} trained as a {rng.choice(TRADES)} and works for {firm}. "
            f"The evenings are for {rng.choice(HOBBIES)}."
        )

    def _town(self, town: str, river: str = "") -> str:
        rng = self._rng
        return (
            f"{town} lies on the river {river or self._some('river')}. Visitors come for its {rng.choice(DISHES)}. "
            f"The market is held on {rng.choice(DAYS)}."
        )

    def _firm(self, firm: str, town: str = "") -> str:
        rng = self._rng
        return (
            f"{firm} makes {rng.choice(PRODUCTS)}. Its head office stands in {town or self._some('town')}. "
            f"It was founded in {rng.randrange(1850, 1990)} by {self._some('person')}."
        )

    def _birth(self) -> Item:
        name, town = self._new("person"), self._new("town")
        return Item(f"In which town was {name} born?", f"{name} was born in", town, [self._person(name, town)])

    def _employer(self) -> Item:
        name, firm = self._new("person"), self._new("firm")
        return Item(f"For which firm does {name} work?", f"{name} works for", firm, [self._person(name, firm=firm)])

    def _seat(self) -> Item:
        firm, town = self._new("firm"), self._new("town")
        question = f"In which town is the head office of {firm}?"
        return Item(question, f"The head office of {firm} is in", town, [self._firm(firm, town)])

    def _river(self) -> Item:
        town, river = self._new("town"), self._new("river")
        return Item(f"On which river does {town} lie?", f"{town} lies on the river", river, [self._town(town, river)])

    def _employer_seat(self) -> Item:
        name, firm, town = self._new("person"), self._new("firm"), self._new("town")
        question = f"In which town is the head office of the firm that {name} works for?"
        gold = [self._person(name, firm=firm), self._firm(firm, town)]
        return Item(question, "The head office of that firm is in", town, gold)

    def _birth_river(self) -> Item:
        name, town, river = self._new("person"), self._new("town"), self._new("river")
        question = f"On which river lies the town where {name} was born?"
        return Item(question, "That town lies on the river", river, [self._person(name, town), self._town(town, river)])

    def _seat_river(self) -> Item:
        firm, town, river = self._new("firm"), self._new("town"), self._new("river")
        question = f"On which river lies the town with the head office of {firm}?"
        return Item(question, "That town lies on the river", river, [self._firm(firm, town), self._town(town, river)])

    def _new(self, kind: str) -> str:
        """A name that no other paragraph is about."""
        return next(self._names[kind])

    def _some(self, kind: str) -> str:
        """A name that is only mentioned; it may come up again."""
        return _name(kind, self._rng.choice(corpus.words("noun")), self._rng)


def _names(kind: str, rng: Random) -> Iterator[str]:
    """Names of a kind in random order, no noun twice. Plain words, so that a model reads them as it reads others."""
    nouns = corpus.words("noun")
    return (_name(kind, noun, rng) for noun in rng.sample(nouns, len(nouns)))


def _name(kind: str, noun: str, rng: Random) -> str:
    noun = noun.capitalize()
    match kind:
        case "person":
            return f"{rng.choice(GIVEN)} {noun}"
        case "town":
            return f"{rng.choice(corpus.words('adjective')).capitalize()} {noun}"
        case "firm":
            return f"{noun} {rng.choice(FIRMS)}"
        case _:
            return noun
