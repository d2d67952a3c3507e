"""A batch that is all there at the start; a new request is sent when one has ended: throughput, and latency by concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.bench.loads.base import Lengths, Load, Prose, named
from harness.engines.base import Demands, Traffic


@dataclass(frozen=True, kw_only=True)
class Closed(Lengths, Load):
    """Requests that are all due at once.

    Args:
        requests: of one measurement.
        in_flight: requests that are with the engine at a time.
    """

    LEAST: ClassVar[Mapping[str, float]] = {"requests": 1, "prompt_tokens": 2, "output_tokens": 2, "in_flight": 1}

    requests: int
    in_flight: int

    def problems(self, max_tokens: int | None) -> list[str]:
        return [*super().problems(max_tokens), *self.spread_problems()]

    def describe(self) -> str:
        at_once = min(self.in_flight, self.requests)
        return f"{self.name}: {self.requests} requests of {self.told()}, {at_once} at once"

    def demands(self) -> Demands:
        return Demands(mixed=self.spread > 0, output_tokens=self.shortest_answer)

    @property
    def num_requests(self) -> int:
        return self.requests

    @property
    def num_gaps(self) -> int:
        return self.requests * (self.shortest_answer - 1)

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        return Traffic(self.prompts(prose, [named(seed, index, at) for at in range(self.requests)]), self.in_flight)
