"""A run as the store holds it: its groups, each with the samples of a task and what every cell answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness import samples as sample_files
from harness.make import make
from harness.pairs import pair_up
from harness.store import Damage, ResultStore
from harness.types import Pair, Record, Sample
from harness.verdict import even
from tasks.base import Task


@dataclass(frozen=True)
class CellRecords:
    """One planned cell with what the store holds for it, by sample id."""

    planned: Mapping[str, Any]
    records: Mapping[str, Record]
    loaded: Mapping[str, Any] = field(default_factory=dict)  # what the engine was found to be


@dataclass(frozen=True)
class GroupRecords:
    """One group of the manifest with its samples and records."""

    planned: Mapping[str, Any]
    mode: str
    task: Task
    samples: Sequence[Sample]
    cells: Sequence[CellRecords]

    def role(self, role: str) -> CellRecords | None:
        return next((cell for cell in self.cells if cell.planned["role"] == role), None)

    @property
    def candidates(self) -> dict[str, CellRecords]:
        return {cell.planned["strategy"]: cell for cell in self.cells if cell.planned["role"] == "candidate"}

    @cached_property
    def baseline(self) -> CellRecords:
        baseline = self.role("baseline")
        assert baseline is not None
        return baseline

    @cached_property
    def noise(self) -> tuple[Pair, ...]:
        """The baseline against itself in another batch composition."""
        return even(self._reference("noise"))

    @cached_property
    def control(self) -> tuple[Pair, ...]:
        """The baseline against what must hurt."""
        return self._reference("control")

    def pairs(self, other: CellRecords, against: CellRecords | None = None) -> tuple[Pair, ...]:
        """Each sample as the baseline, or the cell that stands in its place, and another cell saw it."""
        history = self.planned.get("history", "reference")
        return pair_up(self.samples, (against or self.baseline).records, other.records, history)

    def kernel(self, cell: CellRecords) -> tuple[Pair, ...]:
        """The baseline against itself on the kernels that ``cell`` was computed with, if it was run so."""
        mine = (one for one in self.cells if one.planned["role"] == "kernel")
        same = next((one for one in mine if one.loaded.get("attention") == cell.loaded.get("attention")), None)
        return self._against(same)

    def _reference(self, role: str) -> tuple[Pair, ...]:
        return self._against(self.role(role))

    def _against(self, other: CellRecords | None) -> tuple[Pair, ...]:
        """Pairs whose two sides saw the same prompt; others say nothing about noise or harm."""
        return tuple(pair for pair in self.pairs(other) if pair.prompts_agree) if other else ()


@dataclass(frozen=True)
class RunRecords:
    """One run: what was planned, and what there is of it."""

    store: ResultStore
    manifest: Mapping[str, Any]  # run.json
    groups: Sequence[GroupRecords]
    damaged: Sequence[Damage]
    rescored: bool = False  # the stored responses were judged again


def read_run(store: ResultStore, manifest: Mapping[str, Any], *, rescore: bool = False) -> RunRecords:
    """What the store holds of a run, and the records that were damaged.

    Args:
        store: Where the cells are.
        manifest: The run's ``run.json``.
        rescore: Judge the stored responses again with the tasks' scorers as they are now.
    """
    damaged: list[Damage] = []
    several_seeds = len({group["seed"] for group in manifest["groups"]}) > 1
    groups = [_group(store, group, several_seeds, rescore, damaged) for group in manifest["groups"]]
    return RunRecords(store, manifest, groups, damaged, rescore)


def _group(
    store: ResultStore, planned: Mapping[str, Any], several_seeds: bool, rescore: bool, damaged: list[Damage]
) -> GroupRecords:
    task: Task = make(planned["task"], "task")
    file = store.root / "samples" / planned["samples_file"]
    samples = sample_files.load(file)
    wanted = {sample.id: sample for sample in samples}
    hashes = {sample.id: sample.hash for sample in samples}
    cells = []
    for cell in planned["cells"]:
        mine, lines = store.cell(cell["address"]).read(hashes)
        damaged += lines
        if rescore:
            mine = {key: _rescored(task, wanted[key], record) for key, record in mine.items()}
        cells.append(CellRecords(cell, mine, store.cell(cell["address"]).loaded()))
    chunked = " chunked" if planned["prefill"] == "chunked" else ""
    begun = planned.get("start", "cold")  # runs of before there was a choice
    mode = (
        planned["compress"]
        + chunked
        + ("" if begun == "cold" else f" {begun}")
        + (" own history" if planned.get("history") == "own" else "")
        + (f" seed={planned['seed']}" if several_seeds else "")
    )
    return GroupRecords(planned, mode, task, samples, cells)


def _rescored(task: Task, sample: Sample, record: Record) -> Record:
    if record.response is None:
        return record
    score = task.score(sample, record.response)
    return replace(record, state=score.state, score=score.value, answer=score.answer, parts=score.parts)
