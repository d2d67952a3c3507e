"""A run that is killed at any moment, or whose disk or server is, and started again ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.places import Place, place
from harness.store import ResultStore
from tests.s3server import BUCKET, KEYS, serving

GRID = ("-m", "strategy=fp8,window", "task=needle_single,fidelity")


def start(
    results: Place, model: Path, words: Sequence[str] = GRID, stderr: Any = subprocess.PIPE, **options: Any
) -> subprocess.Popen[bytes]:
    where = ["model=hf", f"model.path={model}", f"results_dir={results}", "engine.threads=1"]
    command = [sys.executable, "-m", "harness.cli", "run", *words, *where, "task.lengths=[500]", "n=12", "name=r"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, **options)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()


def verdict(results: Place) -> dict[str, Any]:
    """What was decided, without when, how long, where and by whom it is asked for again."""
    whole: dict[str, Any] = json.loads((results / "runs" / "r" / "verdict.json").read_text())
    for cell in whole["cells"]:
        cell["memory"].pop("peak_bytes")
        cell.pop("command")
    return {key: whole[key] for key in ("strategies", "cells", "gate", "notes")}


def near(value: Any) -> Any:
    """The value with room for float32's rounding, which depends on the rows computed beside; of a KL near 0 it is much."""
    if isinstance(value, Mapping):
        return {key: near(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(near, value))
    return pytest.approx(value, rel=2e-3, abs=1e-6) if isinstance(value, float) else value


def answered(results: Place) -> dict[tuple[str, str], float]:
    """Seconds of every record: they tell one computation from another."""
    store = ResultStore(results)
    cells = [file.parent.name for file in (results / "cells").glob("*/ask.json")]
    return {(cell, key): record.seconds for cell in cells for key, record in store.cell(cell).read()[0].items()}


def workers_of(pid: int) -> list[int]:
    """The worker processes that a process, or one that it started, has started."""
    children = [int(c) for file in Path(f"/proc/{pid}/task").glob("*/children") for c in file.read_text().split()]
    mine = [child for child in children if b"harness.worker" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return mine + [worker for child in children for worker in workers_of(child)]


def wait_for_records(results: Place, count: int) -> None:
    until = time.monotonic() + 120
    while len(list(results.glob("cells/*/part-*"))) < count and time.monotonic() < until:
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    results = tmp_path_factory.mktemp("undisturbed")
    finish(start(results, tiny))
    return dict(near(verdict(results)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kill_and_start_again(seed: int, tiny: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    chance = random.Random(seed)
    kept: dict[tuple[str, str], float] = {}
    for _ in range(2):
        process = start(tmp_path, tiny)
        wait_for_records(tmp_path, len(kept) + chance.randrange(1, 40))
        os.kill(process.pid, signal.SIGKILL)  # the parent alone: its worker must end by itself
        process.wait()
        time.sleep(1.0)
        now = answered(tmp_path)
        assert kept.items() <= now.items()
        kept = now
    finish(start(tmp_path, tiny))
    after = answered(tmp_path)
    assert kept.items() <= after.items()  # finished samples were not run again
    assert verdict(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(tiny: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    process = start(tmp_path, tiny)
    wait_for_records(tmp_path, 8)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    finish(process)
    assert verdict(tmp_path) == undisturbed


@pytest.mark.slow
def test_two_runs_at_once_on_one_folder(tiny: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    both = [start(tmp_path, tiny), start(tmp_path, tiny)]
    for process in both:
        finish(process)
    assert verdict(tmp_path) == undisturbed
    assert not list(tmp_path.glob("cells/*/damaged"))


@pytest.mark.slow
def test_a_sample_on_which_workers_die_is_a_failed_record_and_the_rest_goes_on(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom dataclasses import dataclass\nfrom strategies.quant.fp8 import FP8\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Deadly(FP8):\n"
        "    def store(self, keys, values):\n"
        "        if int(keys.abs().sum() * 1e3) % 13 == 0:\n            os._exit(9)\n"
        "        return super().store(keys, values)\n"
    )
    folder = tmp_path / "conf" / "strategy" / "quant"
    folder.mkdir(parents=True)
    (folder / "deadly.yaml").write_text("_target_: deadly.Deadly\n")
    results = tmp_path / "results"
    words = ["--config-dir", str(tmp_path / "conf"), "strategy/quant=deadly"]
    finish(start(results, tiny, words, env={**os.environ, "PYTHONPATH": str(tmp_path)}))
    (cell,) = json.loads((results / "runs" / "r" / "verdict.json").read_text())["cells"]
    records = ResultStore(results).cell(cell["address"]).read()[0].values()
    failed = [record for record in records if record.state == "failed"]
    assert len(records) == 12 and 0 < len(failed) < 12
    assert all(r.fault == "infrastructure" and "died 2 times" in r.error for r in failed)
    assert cell["left_out"] == len(failed) and cell["n"] <= 12 - len(failed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    said = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, text=True)
    if said.returncode:
        pytest.skip(f"no small disk can be mounted here: {said.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Write until there is no room for another page."""
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


@pytest.mark.slow
def test_a_disk_that_is_full_is_told_and_the_run_goes_on_when_there_is_room(
    small_disk: Path, tiny: Path, undisturbed: dict[str, Any]
) -> None:
    results = small_disk / "results"
    process = start(results, tiny)
    wait_for_records(results, 8)
    fill(small_disk / "filler")
    _, err = process.communicate(timeout=300)
    last = err.decode().splitlines()[-1]
    assert process.returncode == 2 and "could not be written (No space left on device)" in last
    assert "start the run again" in last and b"died" not in err and b"Traceback" not in err
    kept = answered(results)
    assert kept and not [file for file in results.rglob(".*") if file.is_file()]  # nothing half-written is left
    (small_disk / "filler").unlink()
    finish(start(results, tiny))
    assert kept.items() <= answered(results).items()
    assert verdict(results) == undisturbed and not list(results.glob("cells/*/damaged"))


@pytest.mark.slow
def test_an_object_store_that_dies_and_returns(
    tiny: Path, tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with serving(tmp_path) as server, (tmp_path / "err").open("wb") as err:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        results = place(f"s3://{BUCKET}/results")
        process = start(results, tiny, stderr=err)
        wait_for_records(results, 8)
        server.kill()
        until = time.monotonic() + 60
        while b"trying again" not in (tmp_path / "err").read_bytes() and time.monotonic() < until:
            time.sleep(0.1)
        server.start()
        assert process.wait(timeout=300) == 0, (tmp_path / "err").read_text()
        said = (tmp_path / "err").read_text()
        assert "trying again for" in said and "answered after" in said
        assert verdict(results) == undisturbed
        before = answered(results)
        finish(start(results, tiny))  # nothing is left to do
        assert answered(results) == before and verdict(results) == undisturbed
        assert not list((results / "cells").glob("*/damaged/*"))
        words = [sys.executable, "-m", "harness.cli", "report", f"{results}/runs/r", "format=json"]
        said = subprocess.run(words, capture_output=True, text=True, check=True)
        assert json.loads(said.stdout)["strategies"] == undisturbed["strategies"]
        assert (results / "runs" / "r" / "report.html").exists()
