"""Long prompts that arrive while others decode: what a prefill does to the gaps between tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from harness.bench.loads.base import Load, Prose, named
from harness.engines.base import Demands, Prompt, Traffic


@dataclass(frozen=True, kw_only=True)
class Amid(Load):
    """Decoding requests, all due at the start, and long prompts of one output token each, due one after the other.

    Long prompts have no gaps between tokens, so all gaps are those of the others.

    Args:
        decoding: requests that decode.
        prompt_tokens: of the prompt of each.
        output_tokens: of the answer of each.
        long_prompts: that arrive meanwhile; 0 shows the gaps without any.
        long_tokens: of each of those.
        every_s: seconds between them; the first comes so long after the start.
    """

    LEAST: ClassVar[Mapping[str, float]] = {
        **{"decoding": 1, "prompt_tokens": 2, "output_tokens": 2, "long_prompts": 0, "long_tokens": 2}
    }
    ABOVE: ClassVar[Mapping[str, float]] = {"every_s": 0}

    decoding: int
    prompt_tokens: int
    output_tokens: int
    long_prompts: int
    long_tokens: int
    every_s: float

    def describe(self) -> str:
        decoding = f"{self.decoding} requests of {self.prompt_tokens} + {self.output_tokens} tokens at once"
        return (
            f"{self.name}: {decoding}, and {self.long_prompts} prompts of {self.long_tokens}, every {self.every_s:g} s"
        )

    def demands(self) -> Demands:
        return Demands(arrives=True, mixed=True, output_tokens=1 if self.long_prompts else self.output_tokens)

    @property
    def num_requests(self) -> int:
        return self.decoding + self.long_prompts

    @property
    def num_gaps(self) -> int:
        return self.decoding * (self.output_tokens - 1)

    @property
    def shortest_tokens(self) -> int:
        return min(self.prompt_tokens, self.long_tokens if self.long_prompts else self.prompt_tokens)

    @property
    def longest_tokens(self) -> int:
        return max(self.prompt_tokens + self.output_tokens, self.long_tokens + 1 if self.long_prompts else 0)

    @property
    def paced_s(self) -> float:
        return self.long_prompts * self.every_s

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        def request(kind: str, at: int, tokens: int, answer: int) -> Prompt:
            name = named(seed, index, kind, at)
            return Prompt(name, prose.cut(name, tokens), answer)

        decoding = [request("decoding", at, self.prompt_tokens, self.output_tokens) for at in range(self.decoding)]
        long = [request("long", at, self.long_tokens, 1) for at in range(self.long_prompts)]
        due = [replace(prompt, due_s=self.every_s * at) for at, prompt in enumerate(long, start=1)]
        return Traffic([*decoding, *due], None)
