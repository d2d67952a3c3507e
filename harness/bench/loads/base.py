"""What is asked of an engine when it is timed: which requests, how long, and when."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from harness.calibration import text_of
from harness.engines.base import Demands, Prompt, Traffic
from harness.types import digest
from tasks.base import Tokenizer


class Prose:
    """Running text as tokens. Cuts begin anywhere, so that no two have a beginning in common."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokens: Sequence[int] = tokenizer.encode(text_of(None))

    def cut(self, name: str, tokens: int) -> list[int]:
        """So many tokens, from a place that ``name`` decides."""
        start = random.Random(name).randrange(len(self._tokens))
        return [self._tokens[(start + at) % len(self._tokens)] for at in range(tokens)]


@dataclass(frozen=True, kw_only=True)
class Load(ABC):
    """Requests that are the same for every setting and new in every trial.

    Args:
        warmup: requests before the first measurement, stored apart.
    """

    LEAST: ClassVar[Mapping[str, float]] = {}  # by option, the least that it may be
    ABOVE: ClassVar[Mapping[str, float]] = {}  # by option, what it must be above

    name: str
    warmup: int = 1

    def problems(self, max_tokens: int | None) -> list[str]:
        """Every rule that this breaks, for a model of at most ``max_tokens`` tokens (None: unknown)."""
        rules = [
            *(
                (name, getattr(self, name) >= low, f"{low} or more")
                for name, low in {"warmup": 0, **self.LEAST}.items()
            ),
            *((name, getattr(self, name) > low, f"above {low}") for name, low in self.ABOVE.items()),
        ]
        found = [f"load.{name} must be {rule}, got {getattr(self, name)}" for name, kept, rule in rules if not kept]
        if not found and max_tokens is not None and self.longest_tokens > max_tokens:
            rule = f"must leave room for prompt and answer in the model's {max_tokens} tokens"
            found.append(f"load {rule}, got {self.longest_tokens} in all")
        return found

    def spec(self) -> dict[str, Any]:
        """What of this decides a measurement. A load of another name with the same numbers is the same."""
        options = {key: value for key, value in asdict(self).items() if key != "name"}
        return {"kind": type(self).__name__.lower(), **options}

    @abstractmethod
    def describe(self) -> str:
        """In words, for people."""

    @abstractmethod
    def demands(self) -> Demands:
        """What an engine must be able to do to serve this."""

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """Of one measurement."""

    @property
    @abstractmethod
    def num_gaps(self) -> int:
        """Between output tokens of one measurement, at least."""

    @property
    @abstractmethod
    def shortest_tokens(self) -> int:
        """Of the shortest prompt."""

    @property
    @abstractmethod
    def longest_tokens(self) -> int:
        """Of the longest prompt and its answer."""

    @property
    def paced_s(self) -> float:
        """Seconds that one measurement is expected to take at its own pace, however fast the answers come."""
        return 0.0

    @abstractmethod
    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        """The requests of the ``index``-th trial."""

    def warming(self, prose: Prose, seed: int) -> Traffic:
        """Requests of the same lengths before the first measurement, due at once."""
        whole = self.traffic(prose, seed, -1)
        first = [replace(prompt, due_s=0.0) for prompt in whole.prompts if not prompt.after][: self.warmup]
        return Traffic(first, whole.in_flight)


def named(seed: int, index: int, *what: Any) -> str:
    """The name of a request, or of what several have in common: it decides which text it is."""
    return digest([seed, index, *what])


@dataclass(frozen=True, kw_only=True)
class Unrelated(Load):
    """Requests that have nothing in common but how long they are: all alike, or evenly spread around a mean.

    Args:
        requests: of one measurement.
        prompt_tokens: of each prompt, or their mean.
        output_tokens: of each answer, or their mean; whatever they say, none ends sooner.
        spread: share of the mean by which lengths differ at most, to both sides.
    """

    LEAST: ClassVar[Mapping[str, float]] = {"requests": 1, "prompt_tokens": 2, "output_tokens": 2}

    requests: int
    prompt_tokens: int
    output_tokens: int
    spread: float = 0.0

    def problems(self, max_tokens: int | None) -> list[str]:
        wrong = [] if 0 <= self.spread < 1 else [f"load.spread must be 0 or more and below 1, got {self.spread}"]
        return [*super().problems(max_tokens), *wrong]

    @property
    def num_requests(self) -> int:
        return self.requests

    @property
    def num_gaps(self) -> int:
        return self.requests * (self.shortest_answer - 1)

    def drawn(self, name: str) -> tuple[int, int]:
        """Tokens of the prompt and of the answer of that name."""
        rng = random.Random(f"lengths {name}")
        return _within(self.prompt_tokens, self.spread, 2, rng), _within(self.output_tokens, self.spread, 2, rng)

    @property
    def shortest_tokens(self) -> int:
        return max(2, round(self.prompt_tokens * (1 - self.spread)))

    @property
    def shortest_answer(self) -> int:
        return max(2, round(self.output_tokens * (1 - self.spread)))

    @property
    def longest_tokens(self) -> int:
        return sum(round(mean * (1 + self.spread)) for mean in (self.prompt_tokens, self.output_tokens))

    def told(self) -> str:
        spread = f" (each {self.spread:.0%} more or less)" if self.spread else ""
        return f"{self.prompt_tokens} + {self.output_tokens} tokens{spread}"

    def prompts(self, prose: Prose, seed: int, index: int) -> list[Prompt]:
        """The requests, all due at the start."""
        names = [named(seed, index, at) for at in range(self.requests)]
        lengths = [self.drawn(name) for name in names]
        return [
            Prompt(name, prose.cut(name, asked), given) for name, (asked, given) in zip(names, lengths, strict=True)
        ]


def _within(mean: int, spread: float, least: int, rng: random.Random) -> int:
    return max(least, round(mean * (1 + spread * rng.uniform(-1, 1)))) if spread else mean
