"""What each worker of a machine is given, and which shard it takes next."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from harness import worker
from harness.engines.hf.engine import HFEngine
from harness.provenance import cores
from harness.sweep import local
from harness.sweep.executor import gpus_of_job
from harness.sweep.local import LocalExecutor, _lane, _Queue, environments, gpus
from harness.sweep.watch import Seat
from harness.types import BadInput
from tests.test_conf import composed


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``machine(gpus)``: a machine whose user sees these GPUs, and has said nothing of threads."""

    def make(visible: str) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    return make


def test_cores_are_split(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("")
    each = {"OMP_NUM_THREADS": str(max(1, cores() // 2))}
    assert environments(2, HFEngine()) == [each, each]
    assert environments(1, HFEngine()) == [{}]  # alone it has them all
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environments(2, HFEngine()) == [{}, {}]  # the user's word


@pytest.mark.parametrize(
    "workers, each, dealt",
    [
        (1, None, [None]),
        (2, None, ["4", "5"]),
        (2, 2, ["4,5", "6,GPU-7"]),
        (1, 3, ["4,5,6"]),
    ],
)
def test_gpus_are_dealt(machine: Any, workers: int, each: int | None, dealt: list[str | None]) -> None:
    machine("4,5,6,GPU-7")
    given = environments(workers, HFEngine(gpus_per_worker=each))
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in given] == dealt


def test_more_workers_than_gpus_are_refused(machine: Any) -> None:
    machine("0,1,2")
    (problem,) = LocalExecutor(workers=2).problems(HFEngine(gpus_per_worker=2))
    assert problem == "executor.workers must be at most 1, for 2 of 3 GPUs each, got 2"
    assert LocalExecutor(workers=4).problems(HFEngine()) == [
        "executor.workers must be at most 3, for 1 of 3 GPUs each, got 4"
    ]
    machine("")
    assert "has none" in LocalExecutor().problems(HFEngine(gpus_per_worker=1))[0]
    assert LocalExecutor(workers=4).problems(HFEngine()) == []


def test_gpus_are_those_that_the_driver_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H200 (UUID: GPU-3)\n"
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, listed))
    assert gpus() == ["0", "1"]


@pytest.mark.parametrize(
    ("given", "seen"), [("-1", []), ("0,1,-1,2", ["0", "1"]), ("", []), (" 2 , GPU-7", ["2", "GPU-7"])]
)
def test_hidden_gpus_are_none_as_cuda_reads_it(given: str, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert gpus() == seen


class Elsewhere(HFEngine):
    """Planned on a machine that has another device."""

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "device": "NVIDIA H200"}


def test_a_job_of_a_cluster_takes_a_gpu_where_results_are_a_gpu_s() -> None:
    assert gpus_of_job(HFEngine()) == 0 and gpus_of_job(Elsewhere()) == 1
    assert gpus_of_job(HFEngine(gpus_per_worker=2)) == 2


def test_a_worker_refuses_what_was_planned_on_another_device() -> None:
    worker._check_device(HFEngine(), "cpu")
    with pytest.raises(BadInput, match="planned on NVIDIA H200, and this worker has cpu"):
        worker._check_device(HFEngine(), "NVIDIA H200")


class Lane:
    """What shards come to on one machine, where each ends as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: set[int]) -> None:
        self.told: dict[int, list[str]] = {}
        self.fails = fails
        monkeypatch.setattr(local, "watch", self.watch)
        monkeypatch.setattr(
            local, "write_outcome", lambda shard, problems: self.told.update({shard["number"]: problems})
        )

    def watch(self, shard: Mapping[str, Any], seat: Seat, tell: object) -> list[str]:
        if shard["number"] in self.fails:
            return ["why"]
        seat.opened.add(shard["load"])
        return []

    def run(self, seats: list[Seat]) -> None:
        _lane(
            seats[0], seats, _Queue([shard("a", number) for number in range(4)]), SimpleNamespace(heard=None, ended=len)
        )


def test_what_nobody_can_open_is_given_up_at_once_and_what_another_has_open_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = Lane(monkeypatch, fails={0})
    lane.run([Seat()])
    assert lane.told == {1: ["why"], 2: ["why"], 3: ["why"]}
    other, lane = Seat(), Lane(monkeypatch, fails={0})
    other.opened.add("a")
    lane.run([Seat(), other])
    assert not lane.told
    lane = Lane(monkeypatch, fails={2})  # the load was opened before
    lane.run([Seat()])
    assert not lane.told


def shard(load: str, number: int) -> Mapping[str, Any]:
    return {"load": load, "number": number}


def test_a_worker_stays_with_its_load_and_then_helps_where_most_is_left() -> None:
    queue = _Queue([shard("a", 0), shard("b", 1), shard("b", 2), shard("b", 3), shard("a", 4)])
    taken = [queue.take(load) for load in (None, "b", "a", "a", "a", "b")]
    assert [one and one["number"] for one in taken] == [1, 2, 0, 4, 3, None]


def test_what_waits_for_a_load_that_fails_is_dropped_once() -> None:
    queue = _Queue([shard("a", 0), shard("b", 1), shard("a", 2)])
    assert [one["number"] for one in queue.drop("a")] == [0, 2] and queue.drop("a") == []
    assert queue.take("a") == shard("b", 1)


@pytest.mark.parametrize(
    "words, rule",
    [
        ("executor.workers=0", "executor.workers must be 1 or more, got 0"),
        ("executor.shard=0", "executor.shard must be 1 or more, or null, got 0"),
        ("executor.workers=many", "executor.workers"),
        ("executor=slurm executor.timeout_min=0", "executor.timeout_min must be 1 or more, got 0"),
        ("executor=ray executor.retries=-1", "executor.retries must be 0 or more, got -1"),
    ],
)
def test_a_wrong_option_is_refused_by_name(words: str, rule: str) -> None:
    from harness.make import make

    with pytest.raises(BadInput, match=rule):
        make(composed("run", *words.split())["executor"], "executor")
