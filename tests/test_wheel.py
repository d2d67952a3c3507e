"""The wheel, installed elsewhere, runs from another folder with everything it needs in it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def said(*command: object, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=cwd, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_runs_from_another_folder(tmp_path: Path, tiny: Path) -> None:
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    said(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("kvgate-*.whl")
    said(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    said(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # the libraries come from this environment, kvgate from the wheel: site-packages come first
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "conf").mkdir(parents=True)
    (elsewhere / "strategies.py").write_text("raise RuntimeError('a file of the user shadows ours')")
    kvgate = tmp_path / "env" / "bin" / "kvgate"
    where = said(python, "-P", "-c", "import harness; print(harness.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(site)
    assert "strategies.quant.fp8.FP8" in said(kvgate, "run", "strategy=fp8", "--cfg", "job", cwd=elsewhere)
    assert str(site / "conf") in said(kvgate, "run", "--info", "searchpath", cwd=elsewhere)
    words = ["-m", "strategy=fp8,window", "n=2", "task.lengths=[420]", "name=r", "engine.threads=1"]
    out = said(kvgate, "run", *words, "model=hf", f"model.path={tiny}", cwd=elsewhere)
    assert "report.html" in out
    assert (elsewhere / "results" / "runs" / "r" / "report.html").stat().st_size > 10_000
    assert "fp8" in said(kvgate, "report", "r", cwd=elsewhere)
