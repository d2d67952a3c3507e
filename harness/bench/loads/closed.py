"""A batch that is all there at the start; a new request is sent when one has ended: throughput, and latency by concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.bench.loads.base import Prose, Unrelated
from harness.engines.base import Demands, Traffic


@dataclass(frozen=True, kw_only=True)
class Closed(Unrelated):
    """Requests that are all due at once.

    Args:
        in_flight: requests that are with the engine at a time.
    """

    LEAST: ClassVar[Mapping[str, float]] = {**Unrelated.LEAST, "in_flight": 1}

    in_flight: int

    def describe(self) -> str:
        at_once = min(self.in_flight, self.requests)
        return f"{self.name}: {self.requests} requests of {self.told()}, {at_once} at once"

    def demands(self) -> Demands:
        return Demands(mixed=self.spread > 0, output_tokens=self.shortest_answer)

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        return Traffic(self.prompts(prose, seed, index), self.in_flight)
