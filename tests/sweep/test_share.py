"""Jobs that share shards: each is one job's, a job that comes back goes on with its own, and what one cannot open others can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from harness.sweep import ray, share
from harness.sweep.watch import Seat, Tell, outcome, write_outcome
from tests.s3server import BUCKET


@pytest.fixture(params=["folder", "s3"])
def job_dir(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "job")
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_server").endpoint)
    return f"s3://{BUCKET}/{tmp_path.name}"


class Watched:
    """Stands for ``watch``: notes who ran what, and says that some loads cannot be opened on some jobs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[int] = []
        self.closed: set[str] = set()
        self.dies_at: int | None = None
        self._lock = Lock()
        monkeypatch.setattr(share, "watch", self)

    def __call__(self, shard: Mapping[str, Any], seat: Seat, tell: Tell) -> list[str]:
        if shard["number"] == self.dies_at:
            raise KeyboardInterrupt
        with self._lock:
            self.ran.append(shard["number"])
        problems = ["engine: no room"] if shard["load"] in self.closed else []
        if not problems:
            seat.opened.add(shard["load"])
            seat.load = shard["load"]
        write_outcome(shard, problems)
        return problems


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    yield Watched(monkeypatch)


def shards(job_dir: str, loads: str) -> list[dict[str, Any]]:
    return [{"number": number, "load": load, "job_dir": job_dir, "groups": []} for number, load in enumerate(loads)]


class Ends:
    """Of ``Progress``, what tells which shards are open."""

    def __init__(self, asked: list[dict[str, Any]]) -> None:
        self.open = {shard["number"]: shard for shard in asked}

    def find_ended(self) -> None:
        self.open = {number: shard for number, shard in self.open.items() if outcome(shard) is None}

    def ended(self, shard: Mapping[str, Any]) -> None:
        del self.open[shard["number"]]


def left(asked: list[dict[str, Any]], died: Mapping[int, str] | None = None) -> dict[int, str]:
    return share.lost(Ends(asked), died or {})  # type: ignore[arg-type]


def test_each_shard_is_run_once_however_many_jobs_there_are(job_dir: str, watched: Watched) -> None:
    asked = shards(job_dir, "aabbbbaabb")
    folder = share.lay_out(asked)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: share.work(folder, job, 4), range(4)))
    assert sorted(watched.ran) == list(range(10)) and not left(asked)


def test_a_job_takes_shards_of_the_load_that_it_has_open_before_others(job_dir: str, watched: Watched) -> None:
    share.work(share.lay_out(shards(job_dir, "abab")), 0, 1)
    assert watched.ran == [0, 2, 1, 3]


def test_a_job_that_is_run_again_goes_on_with_what_it_had(job_dir: str, watched: Watched) -> None:
    asked = shards(job_dir, "aaaa")
    folder = share.lay_out(asked)
    watched.dies_at = 1
    with pytest.raises(KeyboardInterrupt):
        share.work(folder, 0, 2)
    share.work(folder, 1, 2)
    assert watched.ran == [0, 2, 3]
    assert left(asked, {0: "its node is gone"}) == {1: "its node is gone"}
    watched.dies_at = None
    share.work(folder, 0, 2)
    assert watched.ran == [0, 2, 3, 1] and not left(asked)


def test_a_load_that_one_job_cannot_open_is_left_to_others(job_dir: str, watched: Watched) -> None:
    asked = shards(job_dir, "aabb")
    folder = share.lay_out(asked)
    watched.closed = {"a"}
    share.work(folder, 0, 2)
    assert watched.ran == [0, 2, 3] and "no job could take it" in left(asked)[1]
    watched.closed = set()
    share.work(folder, 1, 2)
    assert watched.ran == [0, 2, 3, 1] and not left(asked)
    share.work(folder, 0, 2)
    assert watched.ran == [0, 2, 3, 1, 0], "what it gave up is its own to try again"


def test_a_task_that_ray_has_no_room_for_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "END_S", 0.1)
    crowded = SimpleNamespace(wait=lambda tasks, timeout: ([], tasks))
    all_ended = SimpleNamespace(open={}, look=lambda: None)
    assert ray.RayExecutor()._wait({"waiting": 0}, crowded, all_ended) == {}  # type: ignore[arg-type]
