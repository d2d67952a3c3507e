"""What a server tells of itself at ``/metrics``, in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from harness.engines.vllm.counters import SOURCES, Counters

LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>.*)\})?\s+(?P<value>\S+)", re.MULTILINE)
LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
CONFIG = "vllm:cache_config_info"
# labels that tell how much room there is, or where it was counted: they differ from start to start and decide no answer
ROOM = {
    *("engine", "gpu_memory_utilization", "kv_cache_memory_bytes", "kv_cache_size_tokens", "kv_cache_max_concurrency"),
    *("num_gpu_blocks", "num_cpu_blocks", "num_gpu_blocks_override"),
}
SAME = {"sglang:load_back_tokens": (SOURCES, {"source": "host"})}  # another server's name for something of vLLM's


class Metric(NamedTuple):
    """One number. ``name`` is without the ``_total`` of a counter."""

    name: str
    labels: dict[str, str]
    value: float


def parsed(text: str) -> Iterator[Metric]:
    for line in LINE.finditer(text):
        labels = {label["name"]: label["value"] for label in LABEL.finditer(line["labels"] or "")}
        yield Metric(line["name"].removesuffix("_total"), labels, float(line["value"]))


def settings(text: str) -> dict[str, str]:
    """How the cache was set up, as far as it decides answers; empty where the server does not tell."""
    labels = next((metric.labels for metric in parsed(text) if metric.name == CONFIG), {})
    return {name: value for name, value in sorted(labels.items()) if name not in ROOM}


def kv_bytes_per_token(text: str) -> float | None:
    """As allocated; None where the server does not tell both how much memory its cache has and how many tokens fit."""
    labels = next((metric.labels for metric in parsed(text) if metric.name == CONFIG), {})
    nbytes, tokens = (labels.get(name, "") for name in ("kv_cache_memory_bytes", "kv_cache_size_tokens"))
    return int(nbytes) / int(tokens) if nbytes.isdecimal() and tokens.isdecimal() and int(tokens) else None


def counters(text: str) -> Counters | None:
    """What was served from where; None where the server does not count it."""
    known = [Metric(*SAME[m.name], m.value) if m.name in SAME else m for m in parsed(text)]
    return Counters.read(known) if any(metric.name == SOURCES for metric in known) else None
