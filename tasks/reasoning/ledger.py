"""A balance after a row of payments that stand scattered in prose.

    Mary begins with 40 coins. ... Mary pays 12 coins to John. ... Sandra pays 5 coins to Mary. ...

    How many coins does Mary have at the end?  ->  At the end Mary has [33]

Every payment counts: a cache that lost one gives a wrong number, however well it holds the others. More steps, harder.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.types import Response, Sample, Score
from tasks import checks, corpus
from tasks.base import Knob, Tokenizer
from tasks.reasoning import result
from tasks.reasoning.simulation import PEOPLE
from tasks.sizing import Draft, SizedTask, insert

MOST = 9  # coins of a payment


@dataclass(frozen=True, kw_only=True)
class Ledger(SizedTask):
    """A sample is right when the first number of the answer is the balance; the last number is its part "flexible".

    Attributes:
        steps: Payments from or to the person asked for. The others pay each other as often, if there are two of them.
        people: Number of people, the one asked for among them.
    """

    steps: int = 2
    people: int = 3

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        asked, *others = rng.sample(PEOPLE, self.people)
        least = 2 * self.steps * MOST  # nobody pays more than that, so no balance falls below zero
        coins = {person: least + rng.randrange(10, 60) for person in (asked, *others)}
        opening = [f"{person} begins with {count} coins." for person, count in coins.items()]
        payments = []

        def pay(giver: str, taker: str) -> None:
            amount = rng.randrange(2, MOST + 1)
            coins[giver] -= amount
            coins[taker] += amount
            payments.append(f"{giver} pays {amount} coins to {taker}.")

        for _ in range(self.steps):
            pay(*rng.sample([asked, rng.choice(others)], 2))
            if len(others) > 1:
                pay(*rng.sample(others, 2))
        facts = [*rng.sample(opening, len(opening)), *payments]
        told = list(zip(sorted(rng.random() for _ in facts), facts, strict=True))
        filler = corpus.passage(corpus.prose(), rng)
        answer = str(coins[asked])
        budget = len(tokenizer.encode(f" {answer} coins.")) + 4

        def build(units: int) -> Sample:
            text = " ".join(insert(filler(units), told))
            return Sample(
                id="",
                context=f"Keep the accounts of the people in this text; you will be asked for one of them.\n\n{text}",
                question=f"How many coins does {asked} have at the end?",
                answers=(answer,),
                max_new_tokens=budget,
                answer_prefix=f"At the end {asked} has",
                meta={"steps": self.steps, "depth_first": round(told[0][0], 4)},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        return result.score(sample, response)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("steps", (1, 2, 4, 8, 16, 32))

    def sources(self) -> dict[str, str]:
        return corpus.sources("prose")

    def broken(self) -> list[str]:
        found = checks.whole("task.steps", self.steps)
        wrong = checks.whole("task.people", self.people, least=2)
        most = [f"task.people must be at most {len(PEOPLE)}, got {self.people}"]
        return found + (wrong or (most if self.people > len(PEOPLE) else []))
