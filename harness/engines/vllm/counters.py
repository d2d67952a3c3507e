"""What vLLM counts while it serves, as differences: its counters only ever rise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SOURCES = "vllm:prompt_tokens_cached_by_source"
OFFLOADED = {"vllm:kv_offload_store_bytes": "out", "vllm:kv_offload_load_bytes": "in"}


@dataclass(frozen=True)
class Counters:
    """Sums over everything that was served.

    ``cached`` are prompt tokens that were not computed, by the source they came from (device, host, disk, ...); ``moved`` are
    bytes to (out) and from (in) a tier.
    """

    preemptions: float = 0.0
    cached: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Any) -> Counters:
        """As they stand now, of anything that has ``get_metrics()``."""
        return cls.read(engine.get_metrics())

    @classmethod
    def read(cls, metrics: Iterable[Any]) -> Counters:
        preemptions, cached, moved = 0.0, dict[str, float](), dict[str, float]()
        for metric in metrics:
            if metric.name == "vllm:num_preemptions":
                preemptions += metric.value
            elif metric.name == SOURCES:
                source = metric.labels["source"]
                cached[source] = cached.get(source, 0.0) + metric.value
            elif metric.name in OFFLOADED:
                way = OFFLOADED[metric.name]
                moved[way] = moved.get(way, 0.0) + metric.value
        return cls(preemptions, cached, moved)

    @property
    def external_tokens(self) -> float:
        """Prompt tokens that came from anywhere but the device's own cache."""
        return sum(tokens for source, tokens in self.cached.items() if source != "device")

    def facts(self) -> dict[str, float]:
        """Numbers for the evidence: cached tokens by the source they came from."""
        return {f"cached_tokens_{source}": tokens for source, tokens in self.cached.items() if tokens}

    def __sub__(self, before: Counters) -> Counters:
        return Counters(
            self.preemptions - before.preemptions,
            {key: value - before.cached.get(key, 0.0) for key, value in self.cached.items()},
            {key: value - before.moved.get(key, 0.0) for key, value in self.moved.items()},
        )
