"""Runs what a plan misses: cuts it into shards, hands them to the executor, and tells what came of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.places import Place, place, remove
from harness.plan import Plan
from harness.sweep.executor import Shard
from harness.sweep.progress import Progress
from harness.sweep.shards import cut
from harness.sweep.watch import outcome
from harness.types import BadInput


def execute(plan: Plan, job: str = "") -> list[str]:
    """Run every sample that is missing, with a progress bar; finished cells are marked and printed as they come.

    What comes of each shard is in the store's folder of ``job`` meanwhile. Returns why shards were given up; the others were
    run. Raises BadInput if nothing is answered, now or before.
    """
    for group in plan.groups:
        for cell in group.cells:
            plan.store.note_ask(cell.ask)
    plan.executor.settle(plan)
    shards = cut(plan, job)
    with Progress(plan, shards) as progress:
        lost = plan.executor.run(shards, progress) if shards else {}
    answered = 0
    for group in plan.groups:
        missing = plan.missing(group)
        for cell in group.cells:
            answered += len(group.samples) - len(missing[cell.address])
            if not missing[cell.address]:
                plan.store.cell(cell.address).finish(group.samples_set)
    told = [(shard, _problems(shard, lost)) for shard in shards]
    given_up = [_named(shard, problems, plan) for shard, problems in told if problems]
    if shards and not given_up:
        _clear(place(shards[0]["job_dir"]))  # said all it had to say
    problems = list(dict.fromkeys(problem for problems in given_up for problem in problems))
    if given_up and not answered:
        raise BadInput(*problems)
    return problems


def _clear(job_dir: Place) -> None:
    if isinstance(job_dir, Path):
        shutil.rmtree(job_dir, ignore_errors=True)
    else:
        remove(job_dir.glob("*"))


def _problems(shard: Shard, lost: Mapping[int, str]) -> list[str]:
    """Why a shard was given up, by its own word, or by the executor's where it could say none."""
    came = outcome(shard)
    if came is not None:
        return list(came["problems"])
    why = lost.get(shard["number"], "no reason is known")
    return [f"executor: a job ended before its samples were answered ({why}); start the run again to go on"]


def _named(shard: Shard, problems: Sequence[str], plan: Plan) -> list[str]:
    """The problems with the strategies that they are about, where there are other loads."""
    if len(plan.units()) == 1:
        return list(problems)
    rows = [row for part in shard["groups"] for batch in part["batches"] for row in batch]
    names = ", ".join(dict.fromkeys(row["strategy"] for row in rows))
    return [f"{names}: {problem}" for problem in problems]
