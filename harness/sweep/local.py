"""Shards on this machine: so many workers at once, each with its share of cores and GPUs, on the same progress bar."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import ClassVar

from harness.engines.base import Engine
from harness.provenance import cores
from harness.sweep.executor import Executor, Shard
from harness.sweep.progress import Progress
from harness.sweep.watch import Seat, watch, write_outcome


@dataclass(frozen=True, kw_only=True)
class LocalExecutor(Executor):
    """Workers on this machine. One that takes several shards of a load opens the model once."""

    name: ClassVar[str] = "local"

    def problems(self, engine: Engine) -> list[str]:
        there, each = gpus(), _gpus_each(self.workers, engine)
        if each and engine.gpus and not there:
            return [f"engine: a worker takes {engine.gpus} GPUs, and this machine has none that can be seen"]
        if there and self.workers * each > len(there):
            rule = f"executor.workers must be at most {len(there) // each}, for {each} of {len(there)} GPUs each"
            return [f"{rule}, got {self.workers}"]
        return []

    def run(self, shards: Sequence[Shard], progress: Progress) -> Mapping[int, str]:
        queue = _Queue(shards)
        count = min(self.workers, len(shards))
        seats = [Seat(environment) for environment in environments(count, progress.plan.engine)]
        with ThreadPoolExecutor(count) as pool:
            lanes = [pool.submit(_lane, seat, seats, queue, progress) for seat in seats]
            try:
                for lane in as_completed(lanes):
                    lane.result()
            except BaseException:  # also Ctrl-C: no worker outlives the run
                for seat in seats:
                    seat.stop()
                raise
        return {}


def _lane(seat: Seat, seats: Sequence[Seat], queue: _Queue, progress: Progress) -> None:
    """Run shards one after the other until none is left. Where nobody can open a load, what waits for it is given up at once."""
    with seat:
        while (shard := queue.take(seat.load)) is not None:
            problems = watch(shard, seat, progress.heard)
            progress.ended(shard)
            load = shard["load"]
            if problems and not any(load in other.opened for other in seats):
                for unopened in queue.drop(load):
                    write_outcome(unopened, problems)
                    progress.ended(unopened)


class _Queue:
    """Shards that nobody has begun."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._waiting: dict[str, list[Shard]] = {}
        for shard in shards:
            self._waiting.setdefault(shard["load"], []).append(shard)
        self._lock = Lock()

    def take(self, load: str | None) -> Shard | None:
        """The next shard of the load that is open; where there is none, of the load with the most left."""
        with self._lock:
            longest = max(self._waiting, key=lambda key: len(self._waiting[key]), default=None)
            mine = load if load in self._waiting else longest
            if mine is None:
                return None
            shard = self._waiting[mine].pop(0)
            if not self._waiting[mine]:
                del self._waiting[mine]
            return shard

    def drop(self, load: str) -> list[Shard]:
        """Take all that wait for this load."""
        with self._lock:
            return self._waiting.pop(load, [])


def environments(workers: int, engine: Engine) -> list[dict[str, str]]:
    """For each worker its threads and its GPUs. One that is alone has the machine; what the user has set stays."""
    there, each = gpus(), _gpus_each(workers, engine)
    threads = {"OMP_NUM_THREADS": str(max(1, cores() // workers))}
    common = threads if workers > 1 and "OMP_NUM_THREADS" not in os.environ else {}
    if not there or not each:
        return [dict(common) for _ in range(workers)]
    dealt = (there[first : first + each] for first in range(0, workers * each, each))
    return [{**common, "CUDA_VISIBLE_DEVICES": ",".join(mine)} for mine in dealt]


def _is_device(name: str) -> bool:
    """As CUDA reads it, -1 and whatever comes after it are none."""
    return bool(name) and not name.startswith("-")


def _gpus_each(workers: int, engine: Engine) -> int:
    """GPUs that are dealt to each worker; 0 where all of them see what there is."""
    if workers == 1:
        return engine.gpus_per_worker or 0
    return 1 if engine.gpus is None else engine.gpus


def gpus() -> list[str]:
    """The GPUs that workers may be given, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return list(takewhile(_is_device, (name.strip() for name in given.split(","))))
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index, line in enumerate(line for line in told.splitlines() if line.startswith("GPU "))]
