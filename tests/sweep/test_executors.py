"""Grids on several workers, on Ray and on Slurm, with everything that breaks on the way: nothing is lost, nothing doubled, and
the verdict is that of one undisturbed worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.store import ResultStore
from harness.types import State
from tests import slurm_cluster
from tests.test_resume import GRID, finish, near, start, verdict, wait_for_records, workers_of

pytestmark = pytest.mark.slow

LOCAL = (*GRID, "executor.workers=2", "executor.shard=3")
RAY = (*GRID, "executor=ray", "executor.workers=2", "executor.shard=6")
SLURM = (*GRID, "hydra/launcher=slurm", "executor.workers=2", "executor.shard=3")


class Run(NamedTuple):
    verdict: dict[str, Any]
    records: dict[tuple[str, str], Any]


def said(results: Path) -> dict[tuple[str, str], Any]:
    """Every record, by cell and sample, without how long it took and how full the process was."""
    store = ResultStore(results)
    cells = [path.name for path in (results / "cells").glob("*")]
    found = {(cell, key): record for cell in cells for key, record in store.cell(cell).read()[0].items()}
    return {
        where: replace(record, seconds=0.0, memory=record.memory and replace(record.memory, peak_bytes=0)).to_json()
        for where, record in found.items()
    }


def lines(results: Path) -> int:
    """Lines of all part files: more than there are records where something was computed twice."""
    return sum(len(part.read_text().splitlines()) for part in results.glob("cells/*/part-*"))


def outcome(results: Path) -> Run:
    return Run(verdict(results), said(results))


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What one worker says, unsharded."""
    results = tmp_path_factory.mktemp("undisturbed")
    finish(start(results, tiny))
    return Run(*map(near, outcome(results)))


@pytest.fixture
def ray_env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which Ray asks for no token, writes none into the home folder, and calls nobody."""
    pytest.importorskip("ray")
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Mapping[str, str]]:
    pytest.importorskip("submitit")
    if why := slurm_cluster.install():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="sl") as folder, slurm_cluster.cluster(Path(folder)) as environment:
        yield environment


def test_shards_on_two_workers(tiny: Path, tmp_path: Path, undisturbed: Run) -> None:
    finish(start(tmp_path, tiny, LOCAL))
    assert outcome(tmp_path) == undisturbed
    assert lines(tmp_path) == len(undisturbed.records)
    assert not list(tmp_path.glob("jobs/*"))  # all was told


def test_worker_and_launcher_are_killed(tiny: Path, tmp_path: Path, undisturbed: Run) -> None:
    process = start(tmp_path, tiny, LOCAL)
    wait_for_records(tmp_path, 8)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    wait_for_records(tmp_path, 30)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(2)
    before = said(tmp_path)
    assert 0 < len(before) < len(undisturbed.records)
    finish(start(tmp_path, tiny, LOCAL))
    assert outcome(tmp_path) == undisturbed
    assert lines(tmp_path) == len(undisturbed.records)


def test_two_launchers_with_two_workers_each(tiny: Path, tmp_path: Path, undisturbed: Run) -> None:
    for process in [start(tmp_path, tiny, LOCAL), start(tmp_path, tiny, LOCAL)]:
        finish(process)
    assert outcome(tmp_path) == undisturbed


def test_a_run_that_nobody_watches_any_more_goes_on(tiny: Path, tmp_path: Path, undisturbed: Run) -> None:
    process = start(tmp_path, tiny, (*GRID, "executor.shard=3"))  # one worker, open when its first answer is there
    wait_for_records(tmp_path, 1)
    assert process.stderr
    process.stderr.close()  # as `| head` does
    assert process.wait(600) == 0
    assert outcome(tmp_path) == undisturbed


def test_ctrl_c_ends_all_workers(tiny: Path, tmp_path: Path) -> None:
    def heed() -> None:  # Ctrl-C, also where these tests run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = start(tmp_path, tiny, LOCAL, preexec_fn=heed)
    wait_for_records(tmp_path, 8)
    workers = workers_of(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


# --- Samples that are too much for their worker ---

BROKEN = """
import os, resource, time
from dataclasses import dataclass
from strategies.quant.fp8 import FP8

@dataclass(frozen=True, kw_only=True)
class Broken(FP8):
    how: str = "die"

    def store(self, keys, values):
        if int(keys.abs().sum() * 1e3) % 13 == 0:
            {"die": die, "hang": hang, "swell": swell}[self.how]()
        return super().store(keys, values)

def die():
    os._exit(9)

def hang():
    time.sleep(3600)

def swell():
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        hoard = []
        while True:
            hoard.append(bytearray(2**26))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
"""


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """An environment with a format that dies, hangs or runs out of memory on some samples."""
    (tmp_path / "broken.py").write_text(BROKEN)
    folder = tmp_path / "conf" / "strategy" / "quant"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("_target_: broken.Broken\nhow: die\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.parametrize(
    "how, words, told",
    [
        ("die", ["executor.workers=2", "executor.shard=4"], "died 2 times on this sample"),
        ("die", ["executor=ray", "executor.workers=2", "executor.shard=6"], "died 2 times on this sample"),
        ("hang", ["engine.silence_s=20"], "said nothing for 20 s and was ended 2 times on this sample"),
        ("swell", ["executor.workers=2", "executor.shard=4"], "MemoryError"),
    ],
    ids=["dies", "dies under ray", "hangs", "swells"],
)
def test_a_poison_sample_is_a_failed_record_and_the_rest_goes_on(
    how: str, words: list[str], told: str, tiny: Path, tmp_path: Path, broken: dict[str, str], request: Any
) -> None:
    if "executor=ray" in words:
        broken |= {name: value for name, value in request.getfixturevalue("ray_env").items() if name.startswith("RAY")}
    results = tmp_path / "results"
    run = ["--config-dir", str(tmp_path / "conf"), "strategy/quant=broken", f"strategy.quant.how={how}", *words]
    finish(start(results, tiny, run, env=broken))
    (cell,) = json.loads((results / "runs" / "r" / "verdict.json").read_text())["cells"]
    mine = [record for (address, _), record in said(results).items() if address == cell["address"]]
    failed = [record for record in mine if record["state"] == State.FAILED]
    assert len(mine) == 12 and 0 < len(failed) < 12
    assert all(told in record["error"] and record["score"] is None for record in failed)
    if how != "swell":
        assert all(record["fault"] == "infrastructure" for record in failed)
        assert cell["left_out"] == len(failed) and cell["n"] <= 12 - len(failed)
        page = (results / "runs" / "r" / "report.html").read_text()
        assert all(record["sample_id"] in page for record in failed[:5])


# --- Ray ---


def test_ray_of_this_machine(tiny: Path, tmp_path: Path, undisturbed: Run, ray_env: dict[str, str]) -> None:
    finish(start(tmp_path, tiny, RAY, env=ray_env))
    assert outcome(tmp_path) == undisturbed
    assert lines(tmp_path) == len(undisturbed.records)


CLUSTER = """
import os, sys
from pathlib import Path
from ray.cluster_utils import Cluster
small = dict(num_cpus=1, object_store_memory=100 * 2**20)
cluster = Cluster(initialize_head=True, head_node_args=dict(include_dashboard=False, **small))
second = cluster.add_node(**small)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(second, allow_graceful=False)
print("removed", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


def test_a_node_of_a_ray_cluster_is_lost(tiny: Path, tmp_path: Path, undisturbed: Run, ray_env: dict[str, str]) -> None:
    command, pipe = [os.sys.executable, "-c", CLUSTER], subprocess.PIPE  # type: ignore[attr-defined]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=ray_env) as two:
        assert two.stdin and two.stdout
        address = next(line.strip() for line in two.stdout if re.match(r"[\d.]+:\d+$", line.strip()))
        process = start(tmp_path, tiny, (*RAY, f"executor.address={address}"), env=ray_env)
        wait_for_records(tmp_path, 4)
        two.stdin.write("\n")
        two.stdin.flush()
        assert "removed" in (line.strip() for line in two.stdout)
        finish(process)
        two.stdin.write("\n")
        two.stdin.flush()
    assert outcome(tmp_path) == undisturbed


def test_no_ray_at_an_address_is_told(tiny: Path, tmp_path: Path, ray_env: dict[str, str]) -> None:
    process = start(tmp_path, tiny, (*RAY, "executor.address=127.0.0.1:1"), env=ray_env)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2 and b"executor.address must be" in err and b"Traceback" not in err


# --- Slurm ---


def queue(environment: Mapping[str, str], *states: str) -> list[str]:
    """Ids of the jobs in these states."""
    command = ["squeue", "-h", "-r", "-t", ",".join(states), "-o", "%i"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def running(environment: Mapping[str, str]) -> str:
    until = time.monotonic() + 120
    while not (jobs := queue(environment, "RUNNING")) and time.monotonic() < until:
        time.sleep(0.2)
    return jobs[0]


def in_work(results: Path) -> set[str]:
    """Numbers of the jobs that have a shard in work."""
    taken = (file for file in results.glob("jobs/*/*.taken") if not file.with_suffix(".json").exists())
    return {file.read_text() for file in taken}


def test_slurm_jobs_are_cancelled_and_requeued(
    tiny: Path, tmp_path: Path, undisturbed: Run, slurm: Mapping[str, str]
) -> None:
    process = start(tmp_path, tiny, SLURM, env=slurm)
    until = time.monotonic() + 120
    while len(in_work(tmp_path)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    requeued, cancelled = sorted(queue(slurm, "RUNNING"))
    subprocess.run(["scontrol", "requeue", requeued], env=slurm, check=True)
    subprocess.run(["scancel", cancelled], env=slurm, check=True)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2 and f"Slurm job {cancelled} left the queue" in err.decode(), err.decode()
    shown = subprocess.run(["scontrol", "show", "job", requeued], env=slurm, capture_output=True, text=True).stdout
    assert "Restarts=1" in shown and "JobState=COMPLETED" in shown
    before = said(tmp_path)
    assert before.items() <= undisturbed.records.items() and len(before) < len(undisturbed.records)
    finish(start(tmp_path, tiny, SLURM, env=slurm))
    assert outcome(tmp_path) == undisturbed
    assert lines(tmp_path) == len(undisturbed.records)


def test_a_launcher_that_comes_back_waits_for_its_slurm_jobs(
    tiny: Path, tmp_path: Path, undisturbed: Run, slurm: Mapping[str, str]
) -> None:
    process = start(tmp_path, tiny, SLURM, env=slurm)
    running(slurm)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert queue(slurm, "RUNNING", "PENDING")
    finish(start(tmp_path, tiny, SLURM, env=slurm))
    assert outcome(tmp_path) == undisturbed
    assert lines(tmp_path) == len(undisturbed.records)
    assert len(list(tmp_path.glob("jobs/*"))) == 1  # of the start that was killed; the second had nothing left to do


def test_a_job_that_slurm_has_no_room_for_is_not_waited_for(
    tiny: Path, tmp_path: Path, undisturbed: Run, slurm: Mapping[str, str]
) -> None:
    process = start(tmp_path, tiny, (*SLURM, "executor.cpus=2"), env=slurm)  # one at a time has room
    running(slurm)
    (waiting,) = queue(slurm, "PENDING")
    subprocess.run(["scontrol", "hold", waiting], env=slurm, check=True)
    finish(process)
    assert outcome(tmp_path) == undisturbed
    assert lines(tmp_path) == len(undisturbed.records)


def test_slurm_before_a_time_limit(tiny: Path, tmp_path: Path, undisturbed: Run, slurm: Mapping[str, str]) -> None:
    """submitit asks for a checkpoint and puts the job back; as its signal does, whenever it comes."""
    process = start(tmp_path, tiny, (*SLURM, "executor.shard=12"), env=slurm)
    job = running(slurm)
    wait_for_records(tmp_path, 4)
    subprocess.run(["scancel", "--signal", "USR2", job], env=slurm, check=True)
    finish(process)
    shown = subprocess.run(["scontrol", "show", "job", job], env=slurm, capture_output=True, text=True).stdout
    assert "Restarts=1" in shown
    assert outcome(tmp_path) == undisturbed


def test_what_slurm_refuses_is_told(tiny: Path, tmp_path: Path, slurm: Mapping[str, str]) -> None:
    process = start(tmp_path, tiny, (*SLURM, "executor.partition=nowhere"), env=slurm)
    _, err = process.communicate(timeout=300)
    assert (
        process.returncode == 2 and b"Slurm refuses the jobs" in err and b"nowhere" in err and b"Traceback" not in err
    )
