"""A needle that shares no word with its question: what joins them is known to everybody and stands nowhere in the text.

    ... From the kitchen window Mira sees the Eiffel Tower. ... From the kitchen window Hugo sees the Colosseum. ...

    Who lives in Paris?  ->  The person who lives in Paris is [Mira]

An eviction that keeps what looks like the question keeps nothing here. The other people of the text have facts of the same
kind, so a name alone is a guess.

After the idea of NoLiMa (https://arxiv.org/abs/2502.05167), with own facts and wording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Knob, Tokenizer
from tasks.retrieval.facts import GIVEN
from tasks.sizing import Draft, SizedTask, depth_level, insert


class Kind(NamedTuple):
    """Facts of one form: how they are told, how they are asked for, and which clue stands for what."""

    told: str
    asked: str
    begun: str
    pairs: tuple[tuple[str, str], ...]  # clue in the text, what the question names


KINDS = (
    Kind(
        "From the kitchen window {name} sees {clue}.",
        "Who lives in {thing}?",
        "The name of the person who lives in {thing} is",
        (
            ("the Eiffel Tower", "Paris"),
            ("the Colosseum", "Rome"),
            ("Big Ben", "London"),
            ("the Brandenburg Gate", "Berlin"),
            ("the Statue of Liberty", "New York"),
            ("the Golden Gate Bridge", "San Francisco"),
            ("the Kremlin", "Moscow"),
            ("the Acropolis", "Athens"),
            ("the Taj Mahal", "India"),
            ("the Sphinx", "Egypt"),
            ("the Sagrada Familia", "Barcelona"),
            ("the Burj Khalifa", "Dubai"),
            ("the Little Mermaid statue", "Copenhagen"),
            ("Christ the Redeemer", "Rio de Janeiro"),
            ("Machu Picchu", "Peru"),
            ("Mount Fuji", "Japan"),
            ("Table Mountain", "Cape Town"),
            ("the Forbidden City", "Beijing"),
            ("the Hagia Sophia", "Istanbul"),
            ("the Charles Bridge", "Prague"),
            ("Angkor Wat", "Cambodia"),
            ("the White House", "Washington"),
            ("the Rialto Bridge", "Venice"),
            ("the Leaning Tower", "Pisa"),
        ),
    ),
    Kind(
        "{name} never sets out without {clue}.",
        "Who works as a {thing}?",
        "The name of the person who works as a {thing} is",
        (
            ("a stethoscope", "doctor"),
            ("a trowel, mortar and a spirit level", "bricklayer"),
            ("chalk and the homework of thirty children", "teacher"),
            ("flour, yeast and a rolling pin", "baker"),
            ("an axe, a hose and a helmet against smoke", "firefighter"),
            ("the papers for the cockpit", "pilot"),
            ("handcuffs and a badge", "police officer"),
            ("a drill and a mirror for molars", "dentist"),
            ("seed for the fields and fodder for the cows", "farmer"),
            ("a wrench for leaking pipes", "plumber"),
            ("a comb, curlers and a dryer", "hairdresser"),
            ("a gavel and a black robe", "judge"),
            ("a saw, a plane and planks of oak", "carpenter"),
            ("a needle, thread and cloth for suits", "tailor"),
        ),
    ),
    Kind(
        "{name} sends every plate back that holds {clue}.",
        "Who cannot eat {thing}?",
        "The name of the person who cannot eat {thing} is",
        (
            ("prawns, crabs or lobsters", "shellfish"),
            ("bacon or ham", "pork"),
            ("omelettes or meringue", "eggs"),
            ("almonds, cashews or pistachios", "nuts"),
            ("cheddar or mozzarella", "cheese"),
            ("salmon, trout or tuna", "fish"),
        ),
    ),
    Kind(
        "Last week {name} bought {clue}.",
        "Who plays the {thing}?",
        "The name of the person who plays the {thing} is",
        (
            ("a bow and rosin", "violin"),
            ("two sticks and a cymbal", "drums"),
            ("a plectrum and six strings", "guitar"),
            ("a stool to reach the eighty-eight keys and three pedals", "piano"),
            ("a mouthpiece with three valves and a mute, all of brass", "trumpet"),
        ),
    ),
    Kind(
        "In the rooms of {name} something {clue}.",
        "Who keeps a {thing}?",
        "The name of the person who keeps a {thing} is",
        (
            ("purrs on the sofa and hunts mice", "cat"),
            ("barks at the postman and chews bones", "dog"),
            ("in green feathers repeats what visitors say", "parrot"),
            ("with long ears nibbles carrots in a hutch", "rabbit"),
            ("orange swims in circles behind glass", "goldfish"),
            ("spins webs and has eight legs", "spider"),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Association(SizedTask):
    """A sample is right when the first word of the answer is the person's name.

    Attributes:
        people: People with a fact of the kind asked for, the right one among them.
        depths: Number of depth levels of the fact asked for, from the start (0) to the end (1) of the text.
    """

    people: int = 4
    depths: int = 10

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Of a model that knows the names and guesses among them."""
        return 1 / self.people

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        kind = rng.choices(KINDS, [len(kind.pairs) for kind in KINDS])[0]
        names = rng.sample(GIVEN, self.people)
        pairs = rng.sample(kind.pairs, self.people)
        facts = [kind.told.format(name=name, clue=clue) for name, (clue, _) in zip(names, pairs, strict=True)]
        depth = self.depth(index)
        told = list(zip([depth, *(rng.random() for _ in facts[1:])], facts, strict=True))
        filler = corpus.passage(corpus.prose(), rng)
        things = [thing for _, thing in pairs]
        budget = len(tokenizer.encode(f" {names[0]}.")) + 4

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=f"Some people are told about in the text below.\n\n{' '.join(insert(filler(units), told))}",
                question=f"{kind.asked.format(thing=things[0])} Answer with a name.",
                answers=(names[0],),
                max_new_tokens=budget,
                answer_prefix=kind.begun.format(thing=things[0]),
                meta={"depth": depth},
                other=f"{kind.asked.format(thing=things[1])} Answer with a name." if self.people > 1 else "",
            )

        return build

    def depth(self, index: int) -> float:
        """Where the fact asked for stands in sample ``index``: 0 is the start of the text, 1 its end."""
        return depth_level(index // len(self.lengths), self.depths)

    def score(self, sample: Sample, response: Response) -> Score:
        word = scorers.first_word(response.text)
        return Score(State.SCORED, float(scorers.first_word_is(response.text, sample.answers[0])), word)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("people", (2, 3, 4, 5))

    def sources(self) -> dict[str, str]:
        return corpus.sources("prose")

    def broken(self) -> list[str]:
        found = checks.whole("task.people", self.people) + checks.whole("task.depths", self.depths)
        most = min(len(kind.pairs) for kind in KINDS)
        if not found and self.people > most:
            found.append(f"task.people must be at most {most}, got {self.people}")
        return found
