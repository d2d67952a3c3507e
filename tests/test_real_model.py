"""What only a trained model can show: a harmless format is let through, a harsh eviction is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli import Kvgate
from tests.conftest import CONF


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


@pytest.mark.slow
def test_sampled_answers_pair_draw_by_draw(kvgate: Kvgate, smollm2: Path) -> None:
    """FP8 draws with the baseline's noise, so most draws come out alike although they differ among themselves."""
    words = ("strategy=fp8", "task=needle_single", "task.lengths=[512]", "gen.temperature=0.7", "gen.k=4", "n=16")
    said = kvgate.run(*words, "model=smollm2", f"model.path={smollm2}", "engine.threads=0")
    assert said.code == 0, said.err
    folder = kvgate.results / "runs" / "r"
    verdict = json.loads((folder / "verdict.json").read_text())
    (cell,) = verdict["cells"]
    assert (cell["clusters"], cell["samples"], cell["failed"]) == (4, 16, 0)
    assert 0.3 < cell["baseline"] < 1.0 and abs(cell["delta"]) < 0.2 and cell["noise_flip_rate"] == 0.0
    for row in verdict["pass_at_k"]:
        assert row["items"] == 4 and row["pass_at"] == sorted(row["pass_at"]) and row["pass_at"][3] > row["pass_at"][0]


@pytest.mark.slow
def test_a_thought_comes_before_the_answer(kvgate: Kvgate, smollm2: Path) -> None:
    """What is told after it is read: the needle's answer goes on from the prefix, as without a thought."""
    think = (
        "gen.think_tokens=24",
        r"gen.think_open=Let me think step by step.\n",
        r"gen.think_close=\nSo the answer is:\n",
    )
    words = ("strategy=fp8", "task=needle_single", "task.lengths=[512]", "n=4", *think)
    said = kvgate.run(*words, "model=smollm2", f"model.path={smollm2}", "engine.threads=0")
    assert said.code == 0, said.err
    (cell,) = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["cells"]
    assert cell["failed"] == 0 and cell["baseline"] >= 0.75 and cell["score"] >= 0.75
    assert cell["output_tokens"] > 24 and cell["thinking_cut"] > 0


FREE_NOTHING = ("quest", "static", "dynamic", "paged", "prefix_reuse")
PRESETS = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml") if path.stem != "full")


@pytest.mark.slow
@pytest.mark.parametrize("prefill", ["exact", "chunked"])
def test_every_preset_runs_and_proves_that_it_acted(kvgate: Kvgate, smollm2: Path, prefill: str) -> None:
    """What is stored is the formula's to the byte, in the dtype of the run and of the deployment."""
    names = PRESETS if prefill == "exact" else [name for name in PRESETS if alone(name) and "minicache" not in name]
    grid = [
        "-m",
        f"strategy={','.join(names)}",
        "task=needle_single",
        "task.lengths=[330]",
        "n=1",
        f"prefill={prefill}",
        "start=warm",  # what reuses prefixes has seen this one
    ]
    said = kvgate.run(*grid, "model=smollm2", f"model.path={smollm2}", "engine.threads=0", "calibration.tokens=600")
    assert said.code == 0, said.err
    verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    assert {s["name"] for s in verdict["strategies"]} == set(names)
    for cell in verdict["cells"]:
        memory = cell["memory"]
        assert cell["failed"] == 0 and memory is not None, (cell["strategy"], cell["reasons"])
        assert all(one["acted"] for one in cell["evidence"]), (cell["strategy"], cell["evidence"])
        if not (cell["strategy"].startswith("hf_") and prefill == "chunked"):  # the library requantizes as it grows
            assert memory["stored_bytes_per_token"] == memory["formula_bytes_per_token"], cell["strategy"]
        smaller = memory["deploy_bytes_per_token"] < memory["deploy_full_bytes_per_token"]
        assert smaller == (cell["strategy"] not in FREE_NOTHING), cell["strategy"]


def alone(name: str) -> bool:
    """Whether a preset holds an eviction or something that packs, not both: only then can its prefill be chunked."""
    slots = {
        slot: option
        for node in yaml.safe_load((CONF / "strategy" / f"{name}.yaml").read_text())["defaults"]
        if isinstance(node, dict)
        for slot, option in node.items()
    }
    return "none" in (slots["evict"], slots["quant"]) and (slots["evict"] == "none" or slots["structure"] == "none")
