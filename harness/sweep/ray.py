"""Jobs as Ray tasks, which share the shards: Ray places them and, when a node is lost, runs them again elsewhere."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from harness.engines.base import Engine
from harness.sweep.executor import Executor, Shard, gpus_of_job
from harness.sweep.progress import Progress
from harness.sweep.share import lay_out, lost, work
from harness.types import BadInput

POLL_S = 1.0
REACH_S = 10.0  # for a cluster's head to be reached
END_S = 15.0  # for jobs to close what they have open
OBJECTS_BYTES = 100 * 2**20  # of a Ray of our own: its store holds no more than what tasks are told


@dataclass(frozen=True, kw_only=True)
class RayExecutor(Executor):
    """Each job is a task that watches a worker on the node where Ray puts it. Nodes see the same results folder.

    Args:
        address: of the cluster, ``auto`` for the one that this machine belongs to; None: a Ray of this machine's own.
        cpus: cores of each task.
        gpus: GPUs of each task; None: as many as the engine's worker takes.
        retries: times that Ray runs a task anew whose process or node was lost.
    """

    name: ClassVar[str] = "ray"

    address: str | None = None
    cpus: float = 1
    gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cpus < 0 or (self.gpus or 0) < 0:
            raise ValueError(f"executor.cpus and executor.gpus must be 0 or more, got {self.cpus} and {self.gpus}")
        if self.retries < 0:
            raise ValueError(f"executor.retries must be 0 or more, got {self.retries}")

    def problems(self, engine: Engine) -> list[str]:
        found = [] if find_spec("ray") else ["executor: Ray is not installed: pip install 'kvgate[ray]'"]
        host, _, port = (self.address or "").rpartition(":")
        if host and "/" not in host and port.isdigit():
            try:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), REACH_S).close()
            except OSError as error:
                found.append(f"executor.address must be that of a Ray cluster, got {self.address!r} ({error})")
        return found

    def run(self, shards: Sequence[Shard], progress: Progress) -> Mapping[int, str]:
        with self._connected() as ray:
            gpus = gpus_of_job(progress.plan.engine) if self.gpus is None else self.gpus
            self._room(ray.nodes(), gpus, progress)
            resources = {"num_cpus": self.cpus, "num_gpus": gpus, "max_retries": self.retries}
            task = ray.remote(work).options(**resources)
            folder, jobs = lay_out(shards), min(self.workers, len(shards))
            out = {task.remote(folder, job, jobs): job for job in range(jobs)}
            return lost(progress, self._wait(out, ray, progress))

    def _wait(self, out: dict[Any, int], ray: Any, progress: Progress) -> dict[int, str]:
        """Until all jobs have ended, but for those that Ray never had room for. Returns, by number, why some ended early."""
        died: dict[int, str] = {}
        over = math.inf  # when all shards had ended
        while out and time.monotonic() < over + END_S:
            for ended in ray.wait(list(out), timeout=POLL_S)[0]:
                job = out.pop(ended)
                try:
                    ray.get(ended)
                except ray.exceptions.RayError as error:
                    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
                    died[job] = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
            progress.look()
            over = over if progress.open else min(over, time.monotonic())
        return died

    def _room(self, nodes: Sequence[Mapping[str, Any]], gpus: float, progress: Progress) -> None:
        """Tell where no node has room for a task: a cluster may grow, a machine does not."""
        wanted = {"CPU": self.cpus, "GPU": gpus}
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        if any(all(node.get(kind, 0) >= number for kind, number in wanted.items()) for node in alive):
            return
        told = f"no node has {self.cpus:g} cores and {gpus:g} GPUs for a task"
        if self.address is None:
            raise BadInput(f"executor.cpus and executor.gpus must be there: {told}")
        progress.heard({"event": "said", "text": f"Ray: {told}; waiting until one has"})

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECTS_BYTES}
        options = {} if self.address else own
        try:
            ray.init(self.address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            reason = " ".join(str(error).split())
            rule = "executor.address must be that of a Ray cluster, auto, or null for one of its own"
            raise BadInput(f"{rule}, got {self.address!r} ({reason})") from error
        try:
            yield ray
        finally:
            ray.shutdown()
