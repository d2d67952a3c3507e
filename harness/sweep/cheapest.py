"""The cheapest of several strategies that passes every task: found on one seed, confirmed on fresh samples.

Strategies are tried from the cheapest upwards, and the first that is GO is the winner. No search can do with fewer answers: each
cheaper one has to be refused, and the winner has to pass; dearer ones are never run. What the search saw chose the winner, so it
is no evidence for it. The winner is run once more on samples that nobody has seen, and that verdict alone is the run's.

Where ``confirmations`` is m above 1, a winner that is not confirmed gives way to the next that passes, at most m times. Each
confirmation tests at alpha / m, so the chance that a strategy at the margin is confirmed stays below alpha (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from harness.plan import Job, Plan, plan, strategy_key
from harness.sweep.costs import COSTS
from harness.sweep.kinds import CarryOut, Outcome, Sweep
from harness.types import BadInput, Decision, digest


class Entrant(NamedTuple):
    """A strategy, the jobs that ask for it, and what it costs."""

    name: str
    jobs: list[Job]
    cost: str


@dataclass(frozen=True)
class Cheapest(Sweep):
    """``by`` says what is cheap; ``confirmations`` how many winners may be tried on fresh samples."""

    by: Literal["bytes", "throughput"]
    confirmations: int

    def expanded(self, jobs: Sequence[Job]) -> Sequence[Job]:
        problems = []
        if self.confirmations < 1:
            problems.append(f"sweep.confirmations must be 1 or more, got {self.confirmations}")
        seeds = sorted({job.config["seed"] for job in jobs})
        if len(seeds) > 1:
            problems.append(
                f"seed must be one for sweep=cheapest, which selects on it, got {', '.join(map(str, seeds))}"
            )
        if len({strategy_key(job.config["strategy"]) for job in jobs} - {strategy_key({})}) < 2:
            problems.append("strategy must name two or more for sweep=cheapest to choose from; -m strategy=fp8,kivi4")
        if any(job.config.get("compare") for job in jobs):
            problems.append("compare must be left out with sweep=cheapest, which does not run all strategies")
        if problems:
            raise BadInput(*problems)
        return jobs

    def told(self, plan: Plan, asked: Sequence[Job]) -> list[str]:
        order = ", ".join(f"{one.name} ({one.cost})" for one in self._entrants(plan, asked))
        return [f"selection from the cheapest upwards: {order}; dearer ones than the first that is GO are not run"]

    def run(self, jobs: Sequence[Job], asked: Sequence[Job], carry_out: CarryOut) -> Outcome:
        entrants = self._entrants(plan(jobs), jobs)
        tried: list[tuple[Entrant, str]] = []
        lost: list[str] = []
        confirmation: Outcome | None = None
        confirmed, failed = 0, list[str]()
        for outcome, entrant, decision in self._selected(entrants, carry_out):
            lost += outcome.lost
            tried.append((entrant, decision))
            if decision != Decision.GO:
                continue
            confirmed += 1
            confirmation = self._confirm(entrant, confirmed, carry_out, [*_selection(tried, entrants), *failed])
            lost += confirmation.lost
            verdict = confirmation.verdict["strategies"][0]["decision"]
            if verdict == Decision.GO or confirmed == self.confirmations:
                return replace(confirmation, lost=lost)
            failed.append(f"{entrant.name} was {verdict} on fresh samples, and gave way to the next that passes")
        print(f"no {'other ' * bool(failed)}strategy is GO on every task: nothing is confirmed")
        return replace(confirmation or outcome, lost=lost)

    def _entrants(self, plan: Plan, jobs: Sequence[Job]) -> list[Entrant]:
        """The strategies, cheapest first; those that cost the same in the order they were named."""
        price, words = COSTS[self.by]
        costs = price(plan)
        by_key = {
            strategy_key(cell.config): cell.strategy
            for group in plan.groups
            for cell in group.cells
            if cell.role == "candidate"
        }
        found = []
        for key, name in by_key.items():
            mine = [job for job in jobs if strategy_key(job.config["strategy"]) == key]
            found.append((costs[name], Entrant(name, mine, words.format(costs[name]))))
        return [entrant for _, entrant in sorted(found, key=lambda one: one[0])]

    def _selected(self, entrants: Sequence[Entrant], carry_out: CarryOut) -> Iterator[tuple[Outcome, Entrant, str]]:
        """One strategy more at each step, and what it came to beside those before, whose answers lie in the store."""
        name = f"{entrants[0].jobs[0].config['name']}-selection"
        for at, entrant in enumerate(entrants, start=1):
            jobs = [_with(job, name=name) for one in entrants[:at] for job in one.jobs]
            outcome = carry_out(jobs, notes=["this is a selection: its winner is judged anew, on fresh samples"])
            decision = outcome.verdict["strategies"][at - 1]["decision"]
            print(f"selection: {entrant.name} ({entrant.cost}) is {decision}")
            yield outcome, entrant, decision

    def _confirm(self, winner: Entrant, number: int, carry_out: CarryOut, notes: Sequence[str]) -> Outcome:
        """The winner alone, on samples of a seed that belongs to this confirmation and to nothing else."""
        config = winner.jobs[0].config
        seed = int(digest({"confirmation": number, "seed": config["seed"]}, 15), 16)
        gate = {**config["gate"], "alpha": config["gate"]["alpha"] / self.confirmations}
        share = f" at alpha {config['gate']['alpha']:g} / {self.confirmations}" if self.confirmations > 1 else ""
        told = f"this is confirmation {number} of {self.confirmations} that were promised, on fresh samples (seed {seed}){share}"
        jobs = [
            replace(_with(job, seed=seed, gate=gate), overrides=[*job.overrides, f"gate.alpha={gate['alpha']!r}"])
            for job in winner.jobs
        ]
        return carry_out(jobs, notes=[*notes, told])


def _selection(tried: Sequence[tuple[Entrant, str]], entrants: Sequence[Entrant]) -> list[str]:
    """What the selection saw, and what it did not have to run."""
    seed = entrants[0].jobs[0].config["seed"]
    seen = ", ".join(f"{one.name} ({one.cost}) {decision}" for one, decision in tried)
    left = entrants[len(tried) :]
    answers = sum(job.config["n"] for one in left for job in one.jobs)
    dearer = ", ".join(f"{one.name} ({one.cost})" for one in left)
    spared = f"not run, for they cost more: {dearer}, {answers} answers" if left else "there was none that costs more"
    return [f"selected on seed {seed}: {seen}; {spared}"]


def _with(job: Job, **changes: Any) -> Job:
    return replace(job, config={**job.config, **changes})
