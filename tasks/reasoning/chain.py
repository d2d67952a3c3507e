"""Two facts that depend on each other, far apart in prose: who holds which word, and which number the word has.

    ... The secret word of quiet-harbor is lemon. ... The secret number of lemon is 48271. ...

    What is the secret word of quiet-harbor, and what is the secret number of that word?
    ->  The secret word of quiet-harbor is [lemon, and the secret number of lemon is 48271.]

The answer is begun with a worked example about another name of the same text, so that the model writes the first fact
before it looks up the second. A cache that lost either fact fails: without the first, the words are left to guess among;
without the second, the number is nowhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Tokenizer
from tasks.sizing import Draft, SizedTask, insert

PANTRY = """
apple banana bread butter carrot cheese cherry garlic honey lemon mango melon mushroom olive onion peach pepper plum
potato pumpkin rice salt spinach sugar tomato vinegar walnut wheat
"""
WORDS = tuple(PANTRY.split())
INSTRUCTION = "Some secret words and numbers are hidden in the text below. Remember them; you will be asked."


class Link(NamedTuple):
    """One name, its word, and the number of that word."""

    name: str
    word: str
    number: str

    @property
    def first(self) -> str:
        return f"The secret word of {self.name} is {self.word}."

    @property
    def second(self) -> str:
        return f"The secret number of {self.word} is {self.number}."

    @property
    def both(self) -> str:
        """The two facts in one sentence: in two, small models stop after the first."""
        return f"The secret word of {self.name} is {self.word}, and the secret number of {self.word} is {self.number}."


class World(NamedTuple):
    """The links of one sample. What is told of them is decided in ``facts``."""

    asked: Link
    others: tuple[Link, ...]
    examples: tuple[Link, ...]
    named: int  # how many of the others have their first fact told

    def facts(self) -> list[str]:
        """Every fact that the text holds; the two that are asked for come first."""
        told = [link.first for link in self.others[: self.named]] + [link.second for link in self.others]
        shown = [fact for link in self.examples for fact in (link.first, link.second)]
        return [self.asked.first, self.asked.second, *told, *shown]


@dataclass(frozen=True, kw_only=True)
class Chain(SizedTask):
    """A sample is right when the first number of the answer is the one at the end of the chain.

    Attributes:
        names: Names with a secret word, the one asked for among them.
        numbers: Words with a secret number, the right one among them; a model that lost the first fact guesses one.
        examples: Further names of the same text, worked out in front of the answer.
    """

    steps: ClassVar[int] = 2

    names: int = 2
    numbers: int = 3
    examples: int = 1

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Of a model that lost the first fact and guesses among the numbers."""
        return 1 / self.numbers

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        return self.draft_without(None, tokenizer, seed, index)

    def draft_without(
        self, lost: Literal["first", "second"] | None, tokenizer: Tokenizer, seed: int, index: int
    ) -> Draft:
        """The draft of a sample whose text never tells one of the two facts; all else is as in the whole sample."""
        rng = self.rng(seed, index)
        world = self._world(rng)
        facts = {fact: round(rng.random(), 4) for fact in world.facts()}
        filler = corpus.passage(corpus.prose(), rng)
        asked = world.asked
        depths = {"depth_first": facts[asked.first], "depth_second": facts[asked.second]}
        if lost:
            del facts[asked.first if lost == "first" else asked.second]
        told = [(depth, fact) for fact, depth in facts.items()]

        begun, word, rest = asked.both.partition(f" {asked.word},")
        budget = len(tokenizer.encode(word + rest)) + 6
        question = (
            f"What are the secret words of {corpus.listed([link.name for link in (*world.examples, asked)])}, "
            "and what is the secret number of each of these words?"
        )

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n{' '.join(insert(filler(units), told))}",
                question=question,
                answers=(asked.number,),
                max_new_tokens=budget,
                answer_prefix="".join(f"{link.both}\n" for link in world.examples) + begun,
                stop=("\n",),
                meta={"steps": self.steps, **depths},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        number = scorers.first_number(response.text)
        return Score(State.SCORED, float(number == sample.answers[0]), number)

    def sources(self) -> dict[str, str]:
        return corpus.sources("words", "prose")

    def broken(self) -> list[str]:
        found = checks.whole("task.names", self.names) + checks.whole("task.numbers", self.numbers)
        found += checks.whole("task.examples", self.examples, least=0)
        if found:
            return found
        if self.numbers < self.names:
            found.append(f"task.numbers must be at least names ({self.names}), got {self.numbers}")
        if self.numbers + self.examples > len(WORDS):
            most = len(WORDS) - self.examples
            found.append(f"task.numbers must be at most {most} with {self.examples} examples, got {self.numbers}")
        return found

    def _world(self, rng: random.Random) -> World:
        count = self.numbers + self.examples
        names = corpus.distinct(corpus.name, rng, count)
        numbers = corpus.distinct(lambda rng: str(rng.randrange(10**4, 10**5)), rng, count)
        links = tuple(map(Link, names, rng.sample(WORDS, count), numbers))
        return World(links[0], links[1 : self.numbers], links[self.numbers :], self.names - 1)
