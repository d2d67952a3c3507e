"""kvgate bench on the tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.store import ResultStore
from harness.types import Measurement
from tests.cli import Kvgate, Own, Said

DEFAULTS = {
    "model": "hf",
    "engine.threads": "1",
    "load": "offline_tiny",
    "calibration.tokens": "64",
    "name": "b",
}


class Bench:
    """``bench(*words)``, and what it left behind."""

    def __init__(self, kvgate: Kvgate) -> None:
        self.kvgate, self.results = kvgate, kvgate.results

    def __call__(self, *words: str) -> Said:
        given = {word.lstrip("+").split("=")[0] for word in words}
        usual = {**DEFAULTS, "model.path": str(self.kvgate.model), "results_dir": str(self.results)}
        return self.kvgate("bench", *words, *(f"{key}={value}" for key, value in usual.items() if key not in given))

    def file(self, name: str, run: str = "b") -> Any:
        return json.loads((self.results / "runs" / run / name).read_text())

    def candidate(self, strategy: str, run: str = "b") -> Any:
        """A setting under the first load, with the decision and reasons of all."""
        one = next(one for one in self.file("payoff.json", run)["candidates"] if one["strategy"] == strategy)
        return {**one["points"][0], **one}

    def measurements(self, role: str, run: str = "b", point: int = 0) -> dict[str, Measurement]:
        arms = self.file("bench.json", run)["points"][point]["arms"]
        address = next(arm["address"] for arm in arms if arm["role"] == role)
        return ResultStore(self.results).load(address).read()[0]


@pytest.fixture
def bench(kvgate: Kvgate) -> Bench:
    return Bench(kvgate)


@pytest.fixture
def layer(tmp_path: Path, own: Own) -> Callable[[str], list[str]]:
    """A user's own layer that does something first when it packs; returns the words that choose it."""

    def make(first: str) -> list[str]:
        own(
            "mine",
            "import os\nfrom dataclasses import dataclass\nfrom pathlib import Path\nfrom strategies.quant.fp8 import FP8\n"
            f"HERE = Path({str(tmp_path)!r})\n"
            "@dataclass(frozen=True, kw_only=True)\nclass Mine(FP8):\n    name = 'mine'\n"
            f"    def encode(self, x):\n        {first}\n        return super().encode(x)\n",
        )
        return ["strategy=full", "++strategy.quant._target_=mine.Mine", "++strategy.name=mine"]

    return make
