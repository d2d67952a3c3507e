"""Who runs the shards of a plan: the contract.

What watches a worker runs beside it (``watch.py``), wherever that is: on this machine, in a Ray task, in a Slurm job. It writes
answers and, last, what came of its shard into the store; the driver (``drive.py``) believes the store and no exit code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from harness.engines.base import Engine
    from harness.plan import Plan
    from harness.sweep.progress import Progress

Shard = Mapping[str, Any]  # a unit of the plan, with those of its samples that are this shard's: see ``shards.py``


def gpus_of_job(engine: Engine) -> float:
    """GPUs that a job of a cluster takes for a worker: one where the engine leaves it open and is planned on a GPU."""
    if engine.gpus is not None:
        return engine.gpus
    return 0 if engine.spec().get("device", "cpu") == "cpu" else 1


@dataclass(frozen=True, kw_only=True)
class Executor(ABC):
    """Runs shards, several at once.

    Args:
        workers: shards that are in work at once, at most.
        shard: samples of a shard; None: so many that each takes a minute or more and all workers are busy.
    """

    name: ClassVar[str]

    workers: int = 1
    shard: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"executor.workers must be 1 or more, got {self.workers}")
        if self.shard is not None and self.shard < 1:
            raise ValueError(f"executor.shard must be 1 or more, or null, got {self.shard}")

    def problems(self, engine: Engine) -> list[str]:
        """What stands against running workers of this engine, as far as it can be told beforehand."""
        return []

    def settle(self, plan: Plan) -> None:
        """Let what an earlier start of this run still has in work come to its end; nothing where that ended with its launcher."""
        return None

    @abstractmethod
    def run(self, shards: Sequence[Shard], progress: Progress) -> Mapping[int, str]:
        """Run each shard to its end. Returns, by number, why some may have ended without saying what came of them."""
