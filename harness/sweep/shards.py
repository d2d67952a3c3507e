"""Units cut into shards, by sample: enough of them that all workers are busy, none so short that opening the model outweighs it.

A shard is a unit with, in each of its groups, the ids of the samples that are its ``own``. Samples of one cluster (the turns of
a conversation, questions about one text) stay together. Answers do not depend on the cut: records go into the same cells.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.plan import Group, Plan
from harness.sweep.experience import Experience
from harness.sweep.watch import addresses

MINUTE_S = 60.0  # a shard takes about so long or longer, where that is known
PER_WORKER = 4  # shards that each worker gets, so that no worker waits long for the last one


class Atom(NamedTuple):
    """Samples of one group that stay together, and how long they take: seconds where these are known, else how many."""

    part: int  # place of the group in its unit
    samples: list[str]
    weight: float


def cut(plan: Plan, job: str = "") -> list[dict[str, Any]]:
    """The work that is missing, as shards; each is plain data that can be sent to another process or machine.

    ``job`` names the folder in the store where what comes of them is written; "" makes a name up.
    """
    job_dir = str(plan.store.job(job or uuid.uuid4().hex))
    missing = {group.id: plan.to_run(group) for group in plan.groups}
    units = plan.units()
    anything = any(ids for cells in missing.values() for ids in cells.values())
    timed = anything and plan.executor.workers > 1 and not plan.executor.shard
    seconds = _seconds(plan) if timed else None
    atoms = [list(_atoms(unit, plan, missing, seconds)) for unit in units]
    most = _most(plan, sum(atom.weight for mine in atoms for atom in mine), timed=seconds is not None)
    pieces = [(unit, piece) for unit, mine in zip(units, atoms, strict=True) for piece in _pieces(mine, most)]
    return [
        {**_shard(unit, piece), "number": number, "job_dir": job_dir} for number, (unit, piece) in enumerate(pieces)
    ]


def _seconds(plan: Plan) -> Mapping[str, float] | None:
    """Seconds that a sample takes, by group; None unless all are known."""
    experience = Experience(plan)
    known = {group.id: experience.seconds(group) for group in plan.groups}
    return {group: value for group, value in known.items() if value} if all(known.values()) else None


def _most(plan: Plan, total: float, *, timed: bool) -> float:
    """The weight at which a shard is full."""
    executor = plan.executor
    if executor.shard:
        return executor.shard
    pieces = PER_WORKER * executor.workers if executor.workers > 1 else 1
    return total / max(1, min(pieces, math.ceil(total / MINUTE_S))) if timed else max(1, total / pieces)


def _atoms(
    unit: Mapping[str, Any],
    plan: Plan,
    missing: Mapping[str, Mapping[str, set[str]]],
    seconds: Mapping[str, float] | None,
) -> Iterator[Atom]:
    groups = {group.id: group for group in plan.groups}
    for place, part in enumerate(unit["groups"]):
        waiting = set().union(*(missing[part["id"]][cell] for cell in addresses(part)))
        each = seconds[part["id"]] if seconds else 1
        for together in _together(groups[part["id"]], whole=part["whole"]):
            own = [sample for sample in together if sample in waiting]
            if own:
                yield Atom(place, own, each * len(own))


def _together(group: Group, *, whole: bool) -> list[list[str]]:
    """Ids of the samples that stay together, in the order of their first ones."""
    if whole:
        return [[sample.id for sample in group.samples]]
    clusters: dict[tuple[str, str], list[str]] = {}
    for sample in group.samples:
        clusters.setdefault((sample.cluster, "" if sample.cluster else sample.id), []).append(sample.id)
    return list(clusters.values())


def _pieces(atoms: Sequence[Atom], most: float) -> Iterator[list[Atom]]:
    """The atoms in their order, parted where a piece would weigh more than ``most``; one that does so by itself is alone."""
    piece: list[Atom] = []
    weight = 0.0
    for atom in atoms:
        if piece and weight + atom.weight > most * (1 + 1e-9):  # a sum of floats may be off in its last digits
            yield piece
            piece, weight = [], 0.0
        piece.append(atom)
        weight += atom.weight
    if piece:
        yield piece


def _shard(unit: Mapping[str, Any], piece: Sequence[Atom]) -> dict[str, Any]:
    own: dict[int, list[str]] = {}
    for atom in piece:
        own.setdefault(atom.part, []).extend(atom.samples)
    return {**unit, "groups": [{**unit["groups"][place], "own": samples} for place, samples in own.items()]}
