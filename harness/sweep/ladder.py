"""A budget ladder: one strategy at several values of one option, which the judge goes down from mild to harsh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from harness.plan import Job, Plan, strategy_key
from harness.sweep.kinds import CarryOut, Outcome, Sweep
from harness.types import BadInput, canonical


@dataclass(frozen=True)
class Ladder(Sweep):
    """``option`` of a strategy, by its path in the configuration, and the values it takes, from mild to harsh."""

    option: str
    values: tuple[Any, ...] | None

    def expanded(self, jobs: Sequence[Job]) -> list[Job]:
        """A job for each value in the place of each job. Raises BadInput."""
        if problems := [*self._problems(), *dict.fromkeys(p for job in jobs for p in self._misses(job))]:
            raise BadInput(*problems)
        return [self._at(job, value) for job in jobs for value in self.values or ()]

    def told(self, plan: Plan, asked: Sequence[Job]) -> list[str]:
        return [
            f"ladder over {ladder['option']}, from mild to harsh: {', '.join(name for _, name in ladder['rungs'])}"
            for ladder in self.described(plan, asked)
        ]

    def run(self, jobs: Sequence[Job], asked: Sequence[Job], carry_out: CarryOut) -> Outcome:
        return carry_out(jobs, facts=lambda plan: {"ladders": self.described(plan, asked)})

    def described(self, plan: Plan, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """The ladders of a plan, as plain data: of each the option and its rungs, value and strategy, from mild to harsh.

        Raises BadInput if a rung stores more than the one before.
        """
        cells = {strategy_key(cell.config): cell for group in plan.groups for cell in group.cells}
        tokens = max(max(group.tokens) for group in plan.groups)
        ladders, problems = [], []
        for strategy in _strategies(jobs):
            rungs = [(value, cells[strategy_key(self._with(strategy, value))]) for value in self.values or ()]
            stored = [
                (value, cell.stack.formula_bytes(tokens, plan.facts.shape))
                for value, cell in rungs
                if not cell.stack.calibrates
            ]
            problems += [
                f"sweep.values must go from mild to harsh, each storing no more than the one before; {self.option}={value} "
                f"stores {more} bytes of {tokens} tokens, {before} stores {less}"
                for (before, less), (value, more) in pairwise(stored)
                if more > less
            ]
            ladders.append({"option": self.option, "rungs": [[value, cell.strategy] for value, cell in rungs]})
        if problems:
            raise BadInput(*dict.fromkeys(problems))
        return ladders

    def _problems(self) -> list[str]:
        found = []
        if not self.option.startswith("strategy."):
            found.append(
                f"sweep.option must be an option of the strategy, such as strategy.evict.keep, got {self.option!r}"
            )
        values = list(self.values or ())
        if len({canonical(value) for value in values}) < max(2, len(values)):
            given = list(values) if self.values is not None else "none"
            found.append(f"sweep.values (keep=[...]) must be two values or more, each once, got {given}")
        return found

    def _misses(self, job: Job) -> list[str]:
        """Whether the job's strategy lacks the option."""
        node: Any = job.config
        for name in self.option.split("."):
            if not isinstance(node, Mapping) or name not in node:
                name_of = job.config["strategy"].get("name") or "the strategy"
                return [f"sweep.option must be an option of the strategy; {name_of} has no {self.option}"]
            node = node[name]
        return []

    def _at(self, job: Job, value: Any) -> Job:
        config = {**job.config, "strategy": self._with(job.config["strategy"], value)}
        return replace(job, config=config, overrides=[*job.overrides, f"{self.option}={value}"])

    def _with(self, strategy: Mapping[str, Any], value: Any) -> dict[str, Any]:
        return _put(strategy, self.option.split(".")[1:], value)


def _put(node: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The node with the value at ``path``."""
    first, *rest = path
    return {**node, first: _put(node[first], rest, value) if rest else value}


def _strategies(jobs: Sequence[Job]) -> list[Mapping[str, Any]]:
    """The distinct strategies of jobs before they were expanded."""
    return list({strategy_key(job.config["strategy"]): job.config["strategy"] for job in jobs}.values())
