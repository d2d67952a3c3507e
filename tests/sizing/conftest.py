"""A planner of the command line, and the pieces of one that need no configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.bench.metrics import SLO
from harness.sizing.case import Case, Simulated, Workload
from harness.sizing.hardware import Hardware, Tier
from harness.sizing.holding import Holding
from harness.sizing.shapes import ModelShape, Parameters, shape_of
from harness.sizing.stored import Stored
from tests.cli import Kvgate, Said

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
LOAD = Workload(
    context=32768,
    output_tokens=512,
    requests_s=1.0,
    in_flight=8,
    hit_share=None,
    kept_requests=1000,
    devices=1,
    utilization=0.9,
    weight_bits=None,
    kv_gib=None,
    prefill_tokens_s=None,
    sites=1,
    site_bytes_s=1.25e9,
)

SIMULATED = Simulated(
    requests=40,
    replicas=2,
    chunks_tokens=(512, 2048),
    link_bytes_s=None,
    slo=SLO(ttft_s=5.0, itl_s=0.05),
    policies=("lru", "vllm"),
)


def exact(model: ModelShape) -> Holding:
    """The full cache, by the shape alone."""

    def by_layer(tokens: int) -> tuple[int, ...]:
        return tuple(layer.exact_bytes(tokens, model.element_bytes) for layer in model.layers)

    return Holding("full", "full", by_layer, by_layer)


def case(**changes: Any) -> Case:
    """Llama-3.1-8B on a device of round numbers, with one tier."""
    model = changes.pop("model", None) or shape_of("m", LLAMA_8B, 2)
    facts = {
        "model": ModelShape(**{**vars(model), "parameters": Parameters(8_030_000_000, 6_980_000_000, 525_000_000)}),
        "hardware": Hardware(
            "box", 80e9, 3e12, 1e15, host_bytes_s=50e9, tiers=(Tier("nvme", 10e9, 5e9, drive_bytes_s=5e9),)
        ),
        "holdings": (exact(model),),
        "load": LOAD,
        "stored": Stored(),
        "simulated": SIMULATED,
    }
    return Case(**{**facts, **changes})


class Planner:
    """``plan(*words)`` for one results folder: what it printed, as JSON."""

    def __init__(self, kvgate: Kvgate) -> None:
        self.kvgate = kvgate

    def said(self, *words: str) -> Said:
        return self.kvgate("plan", *words, f"results_dir={self.kvgate.results}")

    def __call__(self, *words: str) -> dict[str, Any]:
        said = self.said(*words, "format=json")
        assert said.code == 0, said.err
        found = json.loads(said.out)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def plan(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Planner:
    return Planner(Kvgate(tmp_path / "results", tiny, capsys, monkeypatch))


def rows(told: dict[str, Any], section: str, **where: Any) -> list[dict[str, Any]]:
    """Rows of a section in which these columns have these values."""
    found: list[dict[str, Any]] = told["sections"][section]["rows"]
    return [row for row in found if all(row[key] == value for key, value in where.items())]


def row(told: dict[str, Any], section: str, **where: Any) -> dict[str, Any]:
    (found,) = rows(told, section, **where)
    return found
