"""Prompts with beginnings in common, each asked in turn: what reuse gains at a hit rate, and past what a cache holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.bench.loads.base import Load, Prose, named
from harness.engines.base import Demands, Prompt, Traffic


@dataclass(frozen=True, kw_only=True)
class Shared(Load):
    """Each beginning is asked once before the clock starts, then all in turn, round after round.

    In turn is the hardest order for a cache that forgets what was used longest ago: past its size it has nothing of what comes.

    Args:
        prefixes: beginnings; with their length they are the working set.
        rounds: how often each is asked.
        prompt_tokens: of each prompt.
        hit_rate: share of a prompt that was there before. Engines reuse whole blocks, so theirs is at most this.
        output_tokens: of each answer.
        in_flight: requests that are with the engine at a time.
    """

    LEAST: ClassVar[Mapping[str, float]] = {
        **{"prefixes": 1, "rounds": 1, "prompt_tokens": 4, "output_tokens": 2, "in_flight": 1}
    }

    prefixes: int
    rounds: int
    prompt_tokens: int
    hit_rate: float
    output_tokens: int
    in_flight: int

    @property
    def prefix_tokens(self) -> int:
        return round(self.hit_rate * self.prompt_tokens)

    def problems(self, max_tokens: int | None) -> list[str]:
        found = super().problems(max_tokens)
        if not found and not 1 <= self.prefix_tokens < self.prompt_tokens:
            rule = "must leave some tokens in common and some apart, above 0 and below 1"
            found.append(f"load.hit_rate {rule}, got {self.hit_rate}")
        return found

    def describe(self) -> str:
        common = f"{self.prefix_tokens} of {self.prompt_tokens} tokens in common with others"
        held = f"{self.prefixes} beginnings ({self.prefixes * self.prefix_tokens} tokens), {self.rounds} rounds"
        return f"{self.name}: {common}, {held}, {self.output_tokens} output tokens, {self.in_flight} at once"

    def demands(self) -> Demands:
        return Demands(returns=True, output_tokens=self.output_tokens)

    @property
    def num_requests(self) -> int:
        return self.prefixes * self.rounds

    @property
    def num_gaps(self) -> int:
        return self.num_requests * (self.output_tokens - 1)

    @property
    def shortest_tokens(self) -> int:
        return self.prompt_tokens

    @property
    def longest_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        heads = [prose.cut(named(seed, index, "prefix", at), self.prefix_tokens) for at in range(self.prefixes)]
        return Traffic(
            prompts=[
                self._prompt(prose, head, named(seed, index, turn, at))
                for turn in range(self.rounds)
                for at, head in enumerate(heads)
            ],
            in_flight=self.in_flight,
            prime=[Prompt(named(seed, index, "prime", at), head, 1) for at, head in enumerate(heads)],
        )

    def _prompt(self, prose: Prose, head: list[int], name: str) -> Prompt:
        return Prompt(name, head + prose.cut(name, self.prompt_tokens - len(head)), self.output_tokens)
