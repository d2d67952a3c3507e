"""What is asked of an engine when it is timed: how many requests of which lengths, and how many at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.calibration import text_of
from harness.engines.base import Prompt
from harness.types import digest
from tasks.base import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Offline:
    """Requests of one length each, all due at once; a new one is sent when one has ended. Answers have a fixed length.

    Prompts are running prose that begins anywhere, so that no two have a beginning in common.

    Args:
        requests: of one measurement.
        prompt_tokens: of each.
        output_tokens: of each; whatever they are, none ends an answer sooner.
        in_flight: requests that are with the engine at a time.
        warmup: requests before the first measurement, of the same lengths; stored apart.
    """

    name: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    in_flight: int
    warmup: int = 1

    def problems(self, max_tokens: int | None) -> list[str]:
        """Every rule that this breaks, for a model of at most ``max_tokens`` tokens (None: unknown)."""
        least = {"requests": 1, "prompt_tokens": 2, "output_tokens": 2, "in_flight": 1, "warmup": 0}
        found = [
            f"load.{name} must be {low} or more, got {getattr(self, name)}"
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        whole = self.prompt_tokens + self.output_tokens
        if max_tokens is not None and whole > max_tokens:
            rule = f"must leave room for prompt and answer in the model's {max_tokens} tokens"
            found.append(f"load.prompt_tokens {rule}, got {self.prompt_tokens} and {self.output_tokens}")
        return found

    def spec(self) -> dict[str, Any]:
        """What of this decides a measurement. A load of another name with the same numbers is the same."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    def describe(self) -> str:
        """In words, for people."""
        return (
            f"{self.name}: {self.requests} requests of {self.prompt_tokens} + {self.output_tokens} tokens, "
            f"{min(self.in_flight, self.requests)} at once"
        )

    def prompts(self, tokenizer: Tokenizer, seed: int, index: int) -> list[Prompt]:
        """The requests of the ``index``-th trial, the same for every setting; of the warm-up at -1."""
        count = self.warmup if index < 0 else self.requests
        prose = tokenizer.encode(text_of(None))
        return [self._prompt(prose, digest([seed, index, number])) for number in range(count)]

    def _prompt(self, prose: Sequence[int], name: str) -> Prompt:
        start = random.Random(name).randrange(len(prose))
        whole = [prose[(start + at) % len(prose)] for at in range(self.prompt_tokens)]
        return Prompt(name, whole, self.output_tokens)
