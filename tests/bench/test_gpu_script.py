"""benchmarks/gpu.py, on a CPU with its tiny shape: that it needs torch and transformers alone, and what it writes."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from strategies.base import KVShape
from strategies.evict.snapkv import SnapKV
from strategies.quant.fp8 import FP8
from strategies.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
SETTINGS = ["full", "fp8", "int8", "kivi4", "kivi2", "turboquant4", "host", "snapkv", "snapkv+kivi4", "h2o"]
TIMES = {"ttft_s", "step_s", "host_s", "pack_s", "limit_s", "dense_limit_s", "ttft_ratio", "step_ratio", "gap"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the script defines; it is not run, and leaves nothing behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return runpy.run_path(str(SCRIPT), run_name="gpu")


def dry(out: Path, *words: str) -> list[str]:
    return [sys.executable, str(SCRIPT), "--dry", f"--out={out}", *words]


def ran(out: Path, *words: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(dry(out, *words), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


@pytest.mark.slow
def test_the_whole_grid_runs_where_only_torch_and_transformers_are(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    words = [sys.executable, "-m", "tests.bare", "torch,transformers", *dry(out)[1:]]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) < 12_000
    text = out.read_text()
    assert not any(str(place) in text for place in (ROOT, tmp_path, Path.home(), sys.prefix))
    record = json.loads(text)
    assert {"name", "cpu", "driver"} <= set(record["device"])
    assert {"torch", "transformers", "kvgate"} <= set(record["versions"])
    assert {"matvec_bytes_s", "copy_bytes_s", "memory_bytes_s", "matmul_flop_s", "attention_s"} <= set(record["peaks"])
    assert [cell["state"] for cell in record["prefills"]] == ["measured"] * 6
    for context in (640, 256):
        for batch in (3, 1):
            cells = {
                cell["setting"]: cell
                for cell in record["cells"]
                if (cell["context"], cell["batch"]) == (context, batch)
            }
            assert list(cells) == SETTINGS
            for name, cell in cells.items():
                assert cell["state"] == "measured", cell
                assert all(cell[time] > 0 for time in TIMES), cell
                assert cell["repeats"] == len(cell["step_ratios"]) >= 1
                assert cell["gap"] == pytest.approx(cell["step_s"] / cell["limit_s"])
                assert cell["limit_s"] <= cell["dense_limit_s"]
                assert (cell["working_bytes"] > 0) == (name not in ("full", "host", "snapkv", "h2o"))
                assert f"{context} x {batch} {name} " in done.stdout
            share = {name: cell["stored_share"] for name, cell in cells.items()}
            assert share["full"] == share["host"] == 1
            assert (
                share["fp8"] == share["int8"] == pytest.approx((64 + 4) / 128)
            )  # codes and a float32 scale to bfloat16
            assert share["kivi2"] < share["kivi4"] < 0.6
            assert share["snapkv"] == share["h2o"] == 0.25
            assert (share["snapkv+kivi4"] < 0.25) == (context == 640)  # 64 tokens stay exact
            assert cells["host"]["out_s"] > 0 and cells["host"]["first_step_s"] > 0


@pytest.mark.slow
def test_what_cannot_fit_or_come_to_its_turn_says_so_and_has_no_numbers(tmp_path: Path) -> None:
    large = 10_000_000
    record, said = ran(tmp_path / "large.json", "--contexts=160", f"--batches={large},1")
    for cell in record["cells"]:
        if cell["batch"] == large:
            assert set(cell) == {"context", "batch", "setting", "state", "reason"}
            assert cell["state"] == "not_run" and "are free" in cell["reason"]
        else:
            assert cell["state"] == "measured"
    assert "cells not_run: needs about" in said

    record, _ = ran(tmp_path / "short.json", "--minutes=0.0001")
    assert {cell["state"] for cell in record["cells"]} == {"not_run"}
    assert len(record["cells"]) == 4 * len(SETTINGS)
    assert {cell["reason"] for cell in record["cells"]} == {"out of time"}


@pytest.mark.slow
def test_what_was_measured_outlives_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    running = subprocess.Popen(dry(out), stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        while not (out.exists() and any(cell["state"] == "measured" for cell in json.loads(out.read_text())["cells"])):
            assert running.poll() is None
            time.sleep(0.02)
    finally:
        running.kill()
        running.wait()
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) == 4 * len(SETTINGS)
    assert {"state": "not_run", "reason": "the run ended before it"}.items() <= cells[-1].items()


def test_everything_wrong_is_told_at_once(script: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    words = "--dry --contexts=8,0 --batches=two --minutes=nan --profile=256x1:fp9 --out=."
    with pytest.raises(SystemExit):
        script["asked"](words.split())
    said = capsys.readouterr().err
    for got in ("got '8,0'", "got 'two'", "got nan", "got '256x1:fp9'", "got ."):
        assert got in said


@pytest.mark.parametrize(
    ("error", "state"),
    [(torch.OutOfMemoryError("CUDA out of memory.\nmore"), "out_of_memory"), (ValueError("no"), "failed")],
)
def test_what_breaks_a_cell_is_a_state_and_no_number(script: dict[str, Any], error: Exception, state: str) -> None:
    def work() -> dict[str, Any]:
        raise error

    found = script["attempt"](work)
    assert set(found) == {"state", "reason"} and found["state"] == state
    assert "more" not in found["reason"]


def test_memory_is_estimated_before_it_is_asked_for(script: dict[str, Any]) -> None:
    shape = KVShape(layers=32, kv_heads=8, query_heads=32, head_dim=128, element_bytes=2)
    free = 120 * 2**30
    bench = script["Bench"](None, shape, None, {}, script["Clock"](8), free)
    fp8, snapkv = Stack("fp8", quant=FP8()), Stack("snapkv", evict=SnapKV(keep=0.25))
    assert bench.needed_bytes(script["FULL"], 8192, 1) > 2 * 2**30  # the prompt, and the row that is made of it
    assert bench.unfit(fp8, 32768, 8) is None
    assert "needs about" in bench.unfit(script["FULL"], 32768, 32)
    assert bench.unfit(snapkv, 32768, 32) is None


def test_a_prefill_is_expected_to_take_no_longer_than_one_of_more_tokens(script: dict[str, Any]) -> None:
    asks = script["Asks"](0, frozenset())
    bench = script["Bench"](None, None, None, {}, script["Clock"](8), 0, took={asks: {1024: 0.1, 8192: 1.0}})
    assert bench.expected_s(asks, 2048) == pytest.approx(0.4)
    assert bench.expected_s(asks, 4096) == pytest.approx(1.0)
    assert bench.expected_s(asks, 32768) == pytest.approx(16.0)
