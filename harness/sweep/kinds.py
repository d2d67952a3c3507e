"""What a run makes of its jobs: judge every point of the grid for itself, go down a ladder, find the cheapest that passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.make import make
from harness.places import Place
from harness.plan import Job, Plan
from harness.types import BadInput, Gate, canonical


@dataclass(frozen=True)
class Outcome:
    """What carrying out some jobs came to."""

    folder: Place
    verdict: Mapping[str, Any]
    gate: Gate
    lost: list[str] = field(default_factory=list)  # why units were given up


class CarryOut(Protocol):
    """Plans jobs, runs what is missing, judges, and writes the report."""

    def __call__(
        self,
        jobs: Sequence[Job],
        *,
        notes: Sequence[str] = (),
        facts: Callable[[Plan], Mapping[str, Any]] = ...,
    ) -> Outcome:
        """``notes`` go into the report, ``facts`` of the plan into the manifest."""


class Sweep(ABC):
    """One kind of sweep, from configuration."""

    @abstractmethod
    def expanded(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs that the planner is to see. Raises BadInput."""

    @abstractmethod
    def told(self, plan: Plan, asked: Sequence[Job]) -> list[str]:
        """What would be done with the plan of the expanded jobs, for ``dry_run``. Raises BadInput."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], asked: Sequence[Job], carry_out: CarryOut) -> Outcome:
        """Carry out the expanded jobs of those ``asked`` for; the outcome is the run's."""


@dataclass(frozen=True)
class Grid(Sweep):
    """Every point for itself."""

    def expanded(self, jobs: Sequence[Job]) -> Sequence[Job]:
        return jobs

    def told(self, plan: Plan, asked: Sequence[Job]) -> list[str]:
        return []

    def run(self, jobs: Sequence[Job], asked: Sequence[Job], carry_out: CarryOut) -> Outcome:
        return carry_out(jobs)


def sweep_of(jobs: Sequence[Job]) -> Sweep:
    """The sweep that the jobs ask for. Raises BadInput."""
    asked = {canonical(job.config["sweep"]): job.config["sweep"] for job in jobs}
    if len(asked) > 1:
        raise BadInput("sweep: one run is one sweep; start a run for each")
    (config,) = asked.values()
    sweep: Sweep = make(config, "sweep")
    budgets = [job.config["keep"] for job in jobs if job.config["keep"] is not None]
    if budgets and config.get("values") != budgets[0]:
        raise BadInput(
            f"keep must be left out without sweep=ladder, whose budgets it names, and beside sweep.values, got {budgets[0]}"
        )
    return sweep
