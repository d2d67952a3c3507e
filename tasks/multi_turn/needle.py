"""A conversation about one text: every turn asks for another fact that is hidden in it.

    ... The locker number of quiet-harbor is 4827193. ... The locker number of green-lantern is 1180045. ...

    What is the locker number of green-lantern?  ->  The locker number of green-lantern is 1180045.
    What is the locker number of quiet-harbor?   ->  The locker number of quiet-harbor is [4827193]

Each turn is a sample, with the turns before it as they should have been answered, so that all strategies see the same words
and a turn can be judged by itself. With ``compress=context`` the text is compressed before anything is asked, as a cache that
serves a whole conversation is; with ``compress=other`` it was compressed for another question; as separate requests the turns
share a prefix (``strategy/prefix=reuse``).

After SCBench's shared contexts (arXiv 2412.10319), with own wording and texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

from harness.types import Response, Sample, Score, State, digest
from tasks import checks, corpus, scorers
from tasks.base import Tokenizer
from tasks.sizing import Draft, SizedTask, fill, insert

FILLERS = {"prose": corpus.prose, "noise": corpus.noise}


class Fact(NamedTuple):
    """One hidden fact and the words that ask for it."""

    owner: str
    number: str

    @property
    def sentence(self) -> str:
        return f"{self.prefix} {self.number}."

    @property
    def question(self) -> str:
        return f"What is the locker number of {self.owner}?"

    @property
    def prefix(self) -> str:
        return f"The locker number of {self.owner} is"


@dataclass(frozen=True, kw_only=True)
class NeedleTurns(SizedTask):
    """Sample i is turn ``i % turns`` of conversation ``i // turns``. All turns of one share its text, which is filled so that
    the last turn has the length asked for.

    Attributes:
        turns: Turns of a conversation.
        distractors: Facts that are never asked for.
        haystack: The filler: prose, or noise (bland sentences).
    """

    turns: int = 4
    distractors: int = 2
    haystack: Literal["prose", "noise"] = "prose"

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        talks = -(-n // self.turns)
        return [sample for talk in range(talks) for sample in self._talk(tokenizer, seed, talk)][:n]

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        """The last turn of conversation ``index``, which is the longest."""
        rng = self.rng(seed, index)
        facts = self._facts(seed, index)
        places = [rng.random() for _ in facts]
        filler = corpus.passage(FILLERS[self.haystack](), rng)
        budget = max(len(tokenizer.encode(f" {fact.number}.\n")) for fact in facts) + 8

        def build(units: int) -> Sample:
            text = " ".join(insert(filler(units), zip(places, (fact.sentence for fact in facts), strict=True)))
            about = "Some locker numbers are hidden in the text below. Remember them; you will be asked."
            whole = Sample("", f"{about}\n\n{text}", "", (), budget)
            return _turn(whole, facts, self.turns - 1)

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        number = scorers.first_number(response.text)
        return Score(State.SCORED, float(number == sample.answers[0]), number)

    def sources(self) -> dict[str, str]:
        return corpus.sources("words", self.haystack)

    def broken(self) -> list[str]:
        found = [*checks.whole("task.turns", self.turns), *checks.whole("task.distractors", self.distractors)]
        return found + checks.one_of("task.haystack", self.haystack, FILLERS)

    def _talk(self, tokenizer: Tokenizer, seed: int, talk: int) -> Iterator[Sample]:
        """All turns of one conversation, cut from its last."""
        whole = fill(self.draft(tokenizer, seed, talk), tokenizer, self.length(talk), "task.lengths")
        hidden = self._facts(seed, talk)
        name = f"{self.name}-{digest({'options': asdict(self), 'seed': seed}, 8)}-{talk:05d}"
        for at in range(self.turns):
            sample = replace(_turn(whole, hidden, at), id=f"{name}-turn{at + 1}", cluster=name)
            facts = {"turn": at + 1, "turns": self.turns, "prompt_tokens": tokenizer.prompt_tokens(sample)}
            yield replace(sample, meta={**whole.meta, **facts})

    def _facts(self, seed: int, talk: int) -> list[Fact]:
        """Those that are asked for, in this order, and those that distract."""
        rng = self.rng(seed, -1 - talk)
        count = self.turns + self.distractors
        owners = corpus.distinct(corpus.name, rng, count)
        numbers = corpus.distinct(lambda drawn: str(drawn.randrange(10**6, 10**7)), rng, count)
        return [Fact(*both) for both in zip(owners, numbers, strict=True)]


def _turn(talk: Sample, facts: list[Fact], at: int) -> Sample:
    """Turn ``at``, from 0, of a conversation; the others are before it, or are the question that was asked instead."""
    fact = facts[at]
    return replace(
        talk,
        question=fact.question,
        answers=(fact.number,),
        answer_prefix=fact.prefix,
        turns=tuple((before.question, before.sentence) for before in facts[:at]),
        other=facts[at + 1].question,
    )
