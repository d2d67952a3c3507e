"""Conversations: each turn comes back with all that was said before, some time after the last answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.bench.loads.base import Load, Prose, named
from harness.engines.base import Demands, Prompt, Traffic


@dataclass(frozen=True, kw_only=True)
class Conversations(Load):
    """Turns follow the engine's own answers, which have a fixed length, so that every setting reads as many tokens.

    Args:
        conversations: that begin at the start, or when there is room.
        turns: of each.
        first_tokens: of the first question.
        turn_tokens: of each later one.
        output_tokens: of each answer.
        think_s: seconds from an answer's end to the next question.
        in_flight: requests that are with the engine at a time.
    """

    LEAST: ClassVar[Mapping[str, float]] = {
        **{"conversations": 1, "turns": 2, "first_tokens": 2, "turn_tokens": 1, "output_tokens": 2},
        **{"think_s": 0, "in_flight": 1},
    }

    conversations: int
    turns: int
    first_tokens: int
    turn_tokens: int
    output_tokens: int
    in_flight: int
    think_s: float = 0.0

    def describe(self) -> str:
        asked = (
            f"{self.first_tokens} tokens first and {self.turn_tokens} more a turn, {self.output_tokens} output tokens"
        )
        pace = f"{self.think_s:g} s between turns, {self.in_flight} at once"
        return f"{self.name}: {self.conversations} conversations of {self.turns} turns, {asked}, {pace}"

    def demands(self) -> Demands:
        return Demands(arrives=True, mixed=True, returns=True, output_tokens=self.output_tokens)

    @property
    def num_requests(self) -> int:
        return self.conversations * self.turns

    @property
    def num_gaps(self) -> int:
        return self.num_requests * (self.output_tokens - 1)

    @property
    def shortest_tokens(self) -> int:
        return self.first_tokens

    @property
    def longest_tokens(self) -> int:
        return self.first_tokens + (self.turns - 1) * self.turn_tokens + self.turns * self.output_tokens

    @property
    def paced_s(self) -> float:
        return self.conversations * (self.turns - 1) * self.think_s  # one after the other at worst

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        prompts = []
        for conversation in range(self.conversations):
            before = ""
            for turn in range(self.turns):
                name = named(seed, index, conversation, turn)
                asked = prose.cut(name, self.turn_tokens if turn else self.first_tokens)
                prompts.append(Prompt(name, asked, self.output_tokens, self.think_s if turn else 0.0, before))
                before = name
        return Traffic(prompts, self.in_flight)
