"""Jobs of a Slurm array, which share the shards: Slurm queues them and runs them again, submitit asks it to before a time limit.

How they fare is read from the store, where they write what came of each shard, and from ``squeue``: accounting is not needed.
"""

from __future__ import annotations

import getpass
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from harness.engines.base import Engine
from harness.places import place
from harness.plan import Plan
from harness.sweep.executor import Executor, Shard, gpus_of_job
from harness.sweep.progress import Progress
from harness.sweep.share import lay_out, lost, work
from harness.types import BadInput, digest

POLL_S = 2.0
LATE_S = 15.0  # after which a file that a job wrote is seen on a network folder too
SILENT_S = 600.0  # for which Slurm may not answer
REQUEUES = 100  # times that a job may come to its time limit; finished samples are kept each time
NOTICE_S = 60  # before the time limit, when a job is asked to go back into the queue
COMMANDS = ("sbatch", "srun", "squeue")


@dataclass(frozen=True, kw_only=True)
class SlurmExecutor(Executor):
    """Each job watches a worker on the node where Slurm puts it. Nodes see the same results folder.

    Args:
        partition: None: the cluster's own default.
        timeout_min: time limit of a job; one that comes to it goes on in a new one.
        cpus: cores of each job.
        gpus: GPUs of each job; None: as many as the engine's worker takes.
        mem_gb: None: the cluster's own default.
        setup: lines of shell before each job, such as ``module load cuda``.
        options: further options of sbatch by name, such as ``account``.
        folder: that all nodes see, for the scripts and logs of the jobs; None: in the results folder.
    """

    name: ClassVar[str] = "slurm"

    partition: str | None = None
    timeout_min: int = 60
    cpus: int = 1
    gpus: int | None = None
    mem_gb: float | None = None
    setup: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("timeout_min", "cpus"):
            if getattr(self, name) < 1:
                raise ValueError(f"executor.{name} must be 1 or more, got {getattr(self, name)}")
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(f"executor.gpus must be 0 or more, or null, got {self.gpus}")
        if self.mem_gb is not None and self.mem_gb <= 0:
            raise ValueError(f"executor.mem_gb must be above 0, or null, got {self.mem_gb}")

    def problems(self, engine: Engine) -> list[str]:
        found = [] if find_spec("submitit") else ["executor: submitit is not installed: pip install 'kvgate[slurm]'"]
        absent = [command for command in COMMANDS if not shutil.which(command)]
        return found + [f"executor: no Slurm here, {', '.join(absent)} not found; start it on a login node"] * bool(
            absent
        )

    def settle(self, plan: Plan) -> None:
        """Wait for the jobs of an earlier start of this run, whose launcher is gone: what they answer need not be asked again."""
        if self.folder is None and not isinstance(plan.store.root, Path):
            rule = "must be a folder that all nodes see, for results lie in an object store"
            raise BadInput(f"executor.folder {rule}, got null")
        queue = _Queue(_job_name(plan))
        if waiting := queue.look():
            print(
                f"{plan.name}: jobs of an earlier start go on: {', '.join(sorted(waiting))}; waiting (scancel ends them)"
            )
        while (waiting := queue.look()) is None or waiting:
            time.sleep(POLL_S)

    def run(self, shards: Sequence[Shard], progress: Progress) -> Mapping[int, str]:
        from submitit import SlurmExecutor as Submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        job_dir = place(shards[0]["job_dir"])
        folder = Path(self.folder).expanduser() / job_dir.name if self.folder else Path(str(job_dir)) / "slurm"
        executor, count = Submitit(folder, max_num_timeout=REQUEUES), min(self.workers, len(shards))
        shared = lay_out(shards)
        try:
            executor.update_parameters(**self._parameters(progress.plan))
            jobs = executor.submit_array([Job(shared, number, count) for number in range(count)])
        except (FailedJobError, FailedSubmissionError, ValueError) as error:
            raise BadInput(f"executor: Slurm refuses the jobs: {' '.join(str(error).split())}") from error
        try:
            return lost(progress, _wait([job.job_id for job in jobs], folder, progress))
        except KeyboardInterrupt:
            subprocess.run(["scancel", *{job.job_id.split("_")[0] for job in jobs}], check=False)
            raise

    def _parameters(self, plan: Plan) -> dict[str, Any]:
        """What submitit is told, in its own words."""
        gpus = int(gpus_of_job(plan.engine)) if self.gpus is None else self.gpus
        optional = {
            "partition": self.partition,
            "gpus_per_node": gpus or None,
            "mem": f"{self.mem_gb * 1024:.0f}MB" if self.mem_gb else None,
            "setup": [f"export OMP_NUM_THREADS={self.cpus}", *self.setup],
            "additional_parameters": dict(self.options) or None,
        }
        return {
            "job_name": _job_name(plan),
            "time": self.timeout_min,
            "cpus_per_task": self.cpus,
            "signal_delay_s": NOTICE_S,
            **{name: value for name, value in optional.items() if value is not None},
        }


class Job:
    """As submitit carries it to its node; asked for a checkpoint it is simply submitted again."""

    def __init__(self, *asked: Any) -> None:
        self.asked = asked  # of ``work``

    def __call__(self) -> None:
        # Slurm's word before the end; a worker takes this over from here, so that its end is the job's and seems no death
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        work(*self.asked)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _wait(ids: Sequence[str], folder: Path, progress: Progress) -> dict[int, str]:
    """Until all jobs have left the queue, and what they wrote has had time to be seen here. Returns, by number, where each told
    what there is to know of it."""
    queue = _Queue(_job_name(progress.plan))
    out, gone = set(ids), dict[str, float]()  # when a job was first not in the queue
    while out:
        queued, now = queue.look(), time.monotonic()
        for job in list(out):
            if queued is None or job in queued:  # submitit writes files of its own after our last
                gone.pop(job, None)
            elif now - gone.setdefault(job, now) > LATE_S or not progress.open:
                out.discard(job)
        progress.look()
        if not progress.open:  # a job that has not begun has nothing left to do
            subprocess.run(["scancel", "--state=PENDING", ids[0].split("_")[0]], check=False)
        time.sleep(POLL_S if out else 0)
    word = "left the queue without a word; its log is in"
    return {number: f"Slurm job {job} {word} {folder}" for number, job in enumerate(ids)}


class _Queue:
    """The jobs of one name that wait or run."""

    def __init__(self, name: str) -> None:
        user = getpass.getuser()
        self.command = ["squeue", "--noheader", "--array", "--user", user, "--name", name, "--format", "%i"]
        self.answered = time.monotonic()

    def look(self) -> set[str] | None:
        """Their ids; None where Slurm does not answer, as it may for a while. Raises BadInput when that lasts."""
        told = subprocess.run(self.command, capture_output=True, text=True, check=False)
        now = time.monotonic()
        if told.returncode and now - self.answered > SILENT_S:
            why = " ".join(told.stderr.split())
            raise BadInput(
                f"executor: squeue has not answered for {now - self.answered:.0f} s ({why}); start the run again"
            )
        if told.returncode:
            return None
        self.answered = now
        return set(told.stdout.split())


def _job_name(plan: Plan) -> str:
    """One name for all starts of a run on this results folder."""
    return f"kvgate-{digest([plan.name, str(plan.store.root)], 12)}"
