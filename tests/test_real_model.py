"""What only a trained model can show: a harmless format is let through, a harsh eviction is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import Kvgate


@pytest.mark.slow
def test_fp8_is_go_and_a_harsh_window_is_no_go(kvgate: Kvgate, smollm2: Path) -> None:
    grid = ["-m", "strategy=fp8,window", "task=needle_single", "task.lengths=[512]", "n=48", "gate.margin=0.1"]
    said = kvgate.run(*grid, "model=smollm2", f"model.path={smollm2}", "engine.threads=0", "gate.strict=true")
    assert said.code == 1, said.err  # some NO-GO
    verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    assert {s["name"]: s["decision"] for s in verdict["strategies"]} == {"fp8": "GO", "window": "NO-GO"}
    cells = {cell["strategy"]: cell for cell in verdict["cells"]}
    assert cells["fp8"]["baseline"] >= 0.9
    assert cells["fp8"]["ci_low"] > -0.1 > cells["window"]["ci_high"]
    assert cells["fp8"]["control_delta"] < -0.5
    share = cells["fp8"]["memory"]["deploy_bytes_per_token"] / cells["fp8"]["memory"]["deploy_full_bytes_per_token"]
    assert share == pytest.approx(0.53125)  # (64 + 4) / 128 bytes a token and head
    assert 0.49 < cells["window"]["memory"]["kept_fraction"] <= 0.5
