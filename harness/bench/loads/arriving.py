"""Requests that come when they come, whether earlier ones have ended or not: where queues build up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from harness.bench.loads.base import Prose, Unrelated, named
from harness.engines.base import Demands, Traffic


@dataclass(frozen=True, kw_only=True)
class Arriving(Unrelated):
    """Requests at a mean rate. Every setting meets the same moments of arrival.

    Gaps between arrivals follow a gamma distribution, as ``vllm bench serve --burstiness`` draws them.

    Args:
        rate_s: requests a second, in the mean.
        burstiness: 1 is a Poisson process; below, they come in bursts; far above, evenly.
    """

    ABOVE: ClassVar[Mapping[str, float]] = {"rate_s": 0, "burstiness": 0}

    rate_s: float
    burstiness: float = 1.0

    def describe(self) -> str:
        bursts = f", burstiness {self.burstiness:g}" if self.burstiness != 1 else ""
        return f"{self.name}: {self.requests} requests of {self.told()}, {self.rate_s:g} a second{bursts}"

    def demands(self) -> Demands:
        return Demands(arrives=True, mixed=self.spread > 0, output_tokens=self.shortest_answer)

    @property
    def paced_s(self) -> float:
        return self.requests / self.rate_s

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        prompts = self.prompts(prose, seed, index)
        rng = np.random.default_rng(int(named(seed, index, "arrivals"), 16))
        gaps = rng.gamma(self.burstiness, 1 / (self.rate_s * self.burstiness), len(prompts))
        due = (gaps.cumsum() - gaps[0]).tolist()  # the first is due at the start
        return Traffic([replace(prompt, due_s=at) for prompt, at in zip(prompts, due, strict=True)], None)
