"""What happened in a small world, told in prose: people walk about, take things, drop them and hand them over.

    ... Mary picked up the apple. ... Mary went to the garden. ... Mary handed the apple to John. ...

    In which room is the apple at the end?  ->  The apple is in the [garden]

Each event is a sentence of its own, in order, with other text between. Questions take turns: where a thing is, who has it, how
many things somebody holds, and where a thing was before. Each needs several sentences, the early ones too.

After bAbI (https://arxiv.org/abs/1502.05698) in long text (BABILong, https://arxiv.org/abs/2406.10149), with an own world and
own sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Knob, Tokenizer
from tasks.reasoning.simulation import KINDS, PEOPLE, ROOMS, THINGS, Simulation
from tasks.sizing import Draft, SizedTask, insert


@dataclass(frozen=True, kw_only=True)
class World(SizedTask):
    """A sample is right when the first word of the answer is the one asked for.

    Attributes:
        ask: Kinds of questions that take turns: where, who, count, before.
        events: Things that happen after the first scene is set.
        people: Number of people.
        rooms: Number of rooms.
        things: Number of things.
    """

    ask: tuple[str, ...] = KINDS
    events: int = 8
    people: int = 3
    rooms: int = 4
    things: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ask", tuple(self.ask))  # YAML knows lists only

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Of a model that knows what kind of word is asked for and guesses one."""
        choices = {"where": self.rooms, "who": self.people, "count": self.things + 1, "before": self.rooms}
        return mean(1 / choices[kind] for kind in self.ask)

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        world = Simulation(rng, PEOPLE[: self.people], ROOMS[: self.rooms], THINGS[: self.things])
        for _ in range(self.events):
            world.step()
        if not (world.holder and world.carried):
            world.carry()
        kind = self.ask[index // len(self.lengths) % len(self.ask)]
        query = world.ask(kind)
        told = list(zip(sorted(rng.random() for _ in world.told), world.told, strict=True))
        filler = corpus.passage(corpus.prose(), rng)
        budget = max(len(tokenizer.encode(f" {answer}.")) for answer in query.answers) + 4

        def build(units: int) -> Sample:
            text = " ".join(insert(filler(units), told))
            return Sample(
                id="",
                context=f"Follow what the people in this text do; one question about them will be asked.\n\n{text}",
                question=query.question,
                answers=query.answers,
                max_new_tokens=budget,
                answer_prefix=query.begun,
                meta={"ask": kind, "events": self.events, "depth_first": round(told[0][0], 4)},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        word = scorers.first_word(response.text)
        right = any(scorers.first_word_is(response.text, answer) for answer in sample.answers)
        return Score(State.SCORED, float(right), word)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("events", (2, 4, 8, 16, 32))

    def sources(self) -> dict[str, str]:
        return corpus.sources("prose")

    def broken(self) -> list[str]:
        found = [problem for kind in self.ask for problem in checks.one_of("task.ask", kind, KINDS)]
        if not self.ask:
            found.append("task.ask must name at least one kind of question, got none")
        found += checks.whole("task.events", self.events)
        for field, names in (("people", PEOPLE), ("rooms", ROOMS), ("things", THINGS)):
            value = getattr(self, field)
            wrong = checks.whole(f"task.{field}", value, least=2)
            most = [f"task.{field} must be at most {len(names)}, got {value}"]
            found += wrong or (most if value > len(names) else [])
        return found
