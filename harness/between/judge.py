"""From the stored facts of runs to comparison.json: what moved on the same samples, what differs, what cannot be compared.

The first run is the reference. This describes and decides nothing: the decisions are each run's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from harness.between.differences import differences
from harness.between.payoffs import payoffs
from harness.between.runs import Key, Run
from harness.between.shifts import Shift, effect, measure, shift
from harness.judge import CellRecords, GroupRecords
from harness.pairs import pair_up
from harness.report.outlook import fraction
from harness.types import BadInput, Pair, Sample
from harness.verdict import CellInput

Name = TypeVar("Name")
SCHEMA = "kvgate.comparison/1"
ADDRESSES = (
    "name",
    "path",
    "include_path",
)  # options of a task that say what it is called and where it lies, not how it scores
SIDE = (
    "decision",
    "n",
    "baseline",
    "score",
    "delta",
    "ci_low",
    "ci_high",
    "capacity_ratio",
    "output_tokens",
    "fidelity",
)


@dataclass(frozen=True)
class Uncompared:
    """Something that was not compared, and why. None stands for all of them."""

    strategy: str | None
    task: str | None
    mode: str | None
    why: str


def compare_runs(runs: Sequence[Run], rescore: bool, command: str) -> dict[str, Any]:
    """The content of comparison.json: every later run against the first. Raises BadInput where two have nothing in common."""
    reference, *others = runs
    if problems := [problem for other in others for problem in _strangers(reference, other)]:
        raise BadInput(*problems)
    return {
        "schema": SCHEMA,
        "name": "+".join(run.name for run in runs),
        "command": command,
        "runs": [_origin(run) for run in runs],
        "against": [_against(reference, other, rescore) for other in others],
    }


def _strangers(reference: Run, other: Run) -> list[str]:
    if _both(reference.groups, other.groups) or (reference.payoff and other.payoff):
        return []
    have = [
        ", ".join(f"{task} ({mode})" for task, mode in run.groups) or "a timed load only" for run in (reference, other)
    ]
    return [
        f"run must name runs with a task in common, got {reference.name} with {have[0]} and {other.name} with {have[1]}"
    ]


def _origin(run: Run) -> dict[str, Any]:
    told = run.verdict or run.manifest
    facts = {key: told[key] for key in ("created", "command", "kvgate", "git", "notes")}
    return {"name": run.name, "model": run.manifest["model"]["id"], "engine": run.manifest["engine"]["name"], **facts}


def _against(reference: Run, other: Run, rescore: bool) -> dict[str, Any]:
    untold: list[Uncompared] = [*_alone(reference, other), *_alone(other, reference)]
    tasks, cells = [], []
    for key in _both(reference.groups, other.groups):
        pairing = Pairing(reference, other, key, rescore)
        untold += pairing.left_out
        tasks.append(pairing.task(untold))
        cells += pairing.candidates(untold)
    timed, untimed = payoffs(reference, other)
    untold += [Uncompared(strategy, None, None, why) for strategy, why in untimed]
    return {
        "run": other.name,
        "differences": [asdict(one) for one in differences(reference, other)],
        "strategies": _strategies(reference, other),
        "tasks": tasks,
        "cells": cells,
        "payoffs": [asdict(one) for one in timed],
        "not_compared": [asdict(one) for one in untold],
    }


def _both(ours: Mapping[Name, Any], theirs: Mapping[Name, Any]) -> list[Name]:
    return [name for name in ours if name in theirs]


def _alone(run: Run, beside: Run) -> Iterator[Uncompared]:
    """Cells that one run has and the other has not."""
    for (task, mode), group in run.groups.items():
        if (task, mode) in beside.groups:
            mine = [name for name in group.candidates if name not in beside.groups[task, mode].candidates]
            why = f"only {run.name} has it"
        else:
            mine = list(group.candidates)
            modes = [there for name, there in beside.groups if name == task]
            why = f"only {run.name} has this task"
            why = f"{run.name} has it in this mode, {beside.name} in {', '.join(modes)}" if modes else why
        for name in mine:
            decision = run.cells[name, task, mode]["decision"]
            yield Uncompared(name, task, mode, f"{why}: {decision}")


def _strategies(reference: Run, other: Run) -> list[dict[str, Any]]:
    """The decision on each strategy in both runs; None where one has not judged it."""
    before, after = (
        {one["name"]: one["decision"] for one in run.verdict.get("strategies", ())} for run in (reference, other)
    )
    return [
        {"name": name, "reference": before.get(name), "other": after.get(name)}
        for name in dict.fromkeys((*before, *after))
    ]


class Pairing:
    """One task and mode of both runs: the samples that are the same, and what moved on them."""

    def __init__(self, reference: Run, other: Run, key: Key, rescore: bool) -> None:
        self.runs, self.key = (reference, other), key
        self.groups: tuple[GroupRecords, GroupRecords] = (reference.groups[key], other.groups[key])
        self.samples = _same(*self.groups)
        self.unlike = self._other_measure(rescore) or self._other_items()

    @property
    def names(self) -> tuple[str, str]:
        return self.runs[0].name, self.runs[1].name

    @property
    def left_out(self) -> list[Uncompared]:
        """Why nothing here is paired, or which samples are not."""
        if self.unlike:
            return [Uncompared(None, *self.key, self.unlike)]
        rest = (
            f"{len(group.samples) - len(self.samples)} of {len(group.samples)} samples of {name} are not those of "
            f"{beside}: the {len(self.samples)} that are the same are paired"
            for group, name, beside in zip(self.groups, self.names, self.names[::-1], strict=True)
            if len(group.samples) > len(self.samples)
        )
        return [Uncompared(None, *self.key, why) for why in rest]

    def _other_measure(self, rescore: bool) -> str | None:
        """Why equal answers may have other scores."""
        ours, theirs = (run.asked[self.key] for run in self.runs)
        a, b = self.names
        if self.groups[0].task.fidelity or self.groups[1].task.fidelity:
            return "fidelity is measured along each run's own baseline's words, so there are no pairs"
        if ours.get("class") != theirs.get("class"):
            return f"another task of this name: {ours.get('class')} in {a}, {theirs.get('class')} in {b}"
        if ours.get("version") != theirs.get("version") and not rescore:
            return (
                f"version {ours.get('version')} of the task in {a}, {theirs.get('version')} in {b}: another measure; "
                "rescore=true judges both with the scorer as it is now"
            )
        before, after = ours.get("options", {}), theirs.get("options", {})
        changed = [
            f"task.{option} is {before.get(option)!r} in {a}, {after.get(option)!r} in {b}"
            for option in dict.fromkeys((*before, *after))
            if option not in ADDRESSES and before.get(option) != after.get(option)
        ]
        return "; ".join(changed) or None

    def _other_items(self) -> str | None:
        """Why no sample of one is a sample of the other."""
        if self.samples:
            return None
        a, b = self.names
        seeds = [group.planned["seed"] for group in self.groups]
        tokenizers = [run.manifest["model"].get("tokenizer") for run in self.runs]
        texts = [run.asked[self.key].get("sources") for run in self.runs]
        gens = [run.manifest.get("gen") for run in self.runs]
        causes = [
            *([f"seed {seeds[0]} in {a}, {seeds[1]} in {b}"] if seeds[0] != seeds[1] else []),
            *(
                ["samples are sized by the model's tokenizer, which is another"]
                if tokenizers[0] != tokenizers[1]
                else []
            ),
            *(["the texts that samples are cut from are others"] if texts[0] != texts[1] else []),
            *(["answers are generated otherwise"] if gens[0] != gens[1] else []),
        ]
        return f"other items: no sample of {a} is one of {b}" + (f" ({'; '.join(causes)})" if causes else "")

    def task(self, untold: list[Uncompared]) -> dict[str, Any]:
        """Did the baseline itself move?"""
        moved = None if self.unlike else self._shift("full", *(group.baseline for group in self.groups), untold)
        return {
            "task": self.key[0],
            "mode": self.key[1],
            "n_reference": len(self.groups[0].samples),
            "n_other": len(self.groups[1].samples),
            "baseline": moved and asdict(moved),
        }

    def candidates(self, untold: list[Uncompared]) -> Iterator[dict[str, Any]]:
        """Each strategy that both have: its side of either run, and what moved."""
        for name in _both(*(group.candidates for group in self.groups)):
            cells = [group.candidates[name] for group in self.groups]
            moved = None if self.unlike else self._shift(name, *cells, untold)
            effects = effect(*self._effects(name)) if moved else None
            yield {
                "strategy": name,
                "task": self.key[0],
                "mode": self.key[1],
                "reference": _side(self.runs[0].cells[name, *self.key]),
                "other": _side(self.runs[1].cells[name, *self.key]),
                "shift": moved and asdict(moved),
                "effect": effects and asdict(effects),
            }

    def _shift(self, strategy: str, ours: CellRecords, theirs: CellRecords, untold: list[Uncompared]) -> Shift | None:
        moved = shift(self._measure(strategy, self._pairs(ours, theirs)), self.names)
        if isinstance(moved, Shift):
            return moved
        untold.append(Uncompared(strategy, *self.key, moved))
        return None

    def _effects(self, strategy: str) -> list[CellInput]:
        """Baseline and candidate as each run pairs them itself, on the samples that both runs have."""
        return [
            self._measure(strategy, self._pairs(group.baseline, group.candidates[strategy])) for group in self.groups
        ]

    def _pairs(self, ours: CellRecords, theirs: CellRecords) -> tuple[Pair, ...]:
        return pair_up(self.samples, ours.records, theirs.records, self.groups[0].planned.get("history", "reference"))

    def _measure(self, strategy: str, pairs: Sequence[Pair]) -> CellInput:
        group = self.groups[0]
        return measure(strategy, *self.key, pairs, chance=group.task.chance, graded=group.planned["graded"])


def _same(ours: GroupRecords, theirs: GroupRecords) -> list[Sample]:
    """The samples that both have: the same id, and all that the model sees and is judged by."""
    there = {(sample.id, sample.hash) for sample in theirs.samples}
    return [sample for sample in ours.samples if (sample.id, sample.hash) in there]


def _side(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What a run itself says of a cell. Bytes are those of a prompt token: as stored, and against the full cache as deployed."""
    memory = cell["memory"] or {}
    return {
        **{key: cell[key] for key in SIDE},
        "stored_bytes_per_token": memory.get("stored_bytes_per_token"),
        "kv_share": fraction(cell),
    }
