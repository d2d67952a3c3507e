"""Work units on this machine: one worker process after another, watched, and replaced when it dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from harness.plan import Group, Plan
from harness.sweep.process import Process
from harness.types import BadInput, Record, State

PATIENCE = 6  # deaths without an answer between them after which the unit is given up
TRIES = 2  # a sample on which the worker dies this often is recorded as failed and passed over


def execute(plan: Plan) -> list[str]:
    """Run every sample that is missing, with a progress bar; finished cells are marked and printed as they come.

    Returns why units were given up; the others were run. Raises BadInput if none could be.
    """
    for group in plan.groups:
        for cell in group.cells:
            plan.store.note_ask(cell.ask)
    units = plan.units()
    parts = [(part, _cells(part)) for unit in units for part in unit["groups"]]
    missing = {group.id: plan.to_run(group) for group in plan.groups}
    waiting = sum(len(set().union(*(missing[part["id"]][cell] for cell in cells))) for part, cells in parts)
    total = sum(part["n"] for part, _ in parts)
    with tqdm(total=total, initial=total - waiting, unit="sample", desc=plan.name, dynamic_ncols=True) as bar:
        given_up: list[list[str]] = []
        for unit in units:
            try:
                _Watch(unit, plan, bar).run()
            except BadInput as error:
                given_up.append(_told(unit, error, alone=len(units) == 1))
    for group in plan.groups:
        missing = plan.missing(group)
        for cell in group.cells:
            if not missing[cell.address]:
                plan.store.cell(cell.address).finish(group.samples_set)
    problems = [problem for problems in given_up for problem in problems]
    if given_up and len(given_up) == len(units):
        raise BadInput(*dict.fromkeys(problems))
    return problems


def _told(unit: Mapping[str, Any], error: BadInput, *, alone: bool) -> list[str]:
    """The problems of a unit, with the strategies that it is about where there are other units."""
    rows = [row for part in unit["groups"] for batch in part["batches"] for row in batch]
    names = ", ".join(dict.fromkeys(row["strategy"] for row in rows))
    return [problem if alone else f"{names}: {problem}" for problem in error.problems]


def _cells(part: Mapping[str, Any]) -> list[str]:
    """Addresses of the cells of a unit's part of a group."""
    return [row["cell"] for batch in part["batches"] for row in batch]


class _Watch:
    """One unit and the worker processes that it takes."""

    def __init__(self, unit: dict[str, Any], plan: Plan, bar: tqdm[Any]) -> None:
        self.unit, self.plan, self.bar = unit, plan, bar
        self.groups = {group.id: group for group in plan.groups}
        self.deaths: Counter[tuple[str, str]] = Counter()  # by (group, sample)
        self.in_a_row = 0  # deaths since the last answer
        self.opened = False
        self.hung = False
        self.current: dict[tuple[str, str], list[str]] = {}  # cells in work, by group and sample

    def run(self) -> None:
        while self._list_missing() and not self._one_worker():
            how = f"said nothing for {self.plan.engine.silence_s:g} s and was ended" if self.hung else "died"
            if not self.opened:
                raise BadInput(f"engine: the worker {how} before its first sample; its last words are above")
            self.in_a_row += 1
            at_work = self.current or {("", ""): []}
            self.deaths.update(at_work.keys())
            idle = not self.current and self.deaths["", ""] == TRIES
            if self.in_a_row == PATIENCE or idle:
                raise BadInput(
                    f"engine: the worker {how} {self.in_a_row} times without an answer; its last words are above"
                )
            if len(at_work) > 1:  # which of them it was shows when they are asked one by one
                self.unit["careful"] = True
                self.deaths.subtract(at_work.keys())
            for (group, sample), cells in self.current.items():
                if self.deaths[group, sample] == TRIES:
                    self._give_up(self.groups[group], sample, cells, f"the worker {how} {TRIES} times on this sample")

    def _list_missing(self) -> bool:
        """Tell the next worker what is left, if anything is; samples that were given up are not tried again in this run."""
        for part in self.unit["groups"]:
            given_up = {s for (group, s), times in self.deaths.items() if group == part["id"] and times >= TRIES}
            missing = self.plan.to_run(self.groups[part["id"]])
            part["missing"] = {cell: sorted(missing[cell] - given_up) for cell in _cells(part)}
        return any(ids for part in self.unit["groups"] for ids in part["missing"].values())

    def _one_worker(self) -> bool:
        """True when the worker finished the unit, False when it died."""
        self.current, self.opened, self.hung, done = {}, False, False, False
        with Process("harness.worker", self.plan.engine.python, self.plan.engine.silence_s) as worker:
            try:
                worker.tell(self.unit)
                for event in worker.events(self.bar.write):
                    done = self._heard(event) or done
                return worker.wait() == 0 and done
            except BrokenPipeError:
                return False
            finally:
                self.hung = worker.hung

    def _heard(self, event: Mapping[str, Any]) -> bool:
        """Take in one event; True for the last one of a finished unit."""
        kind = event["event"]
        if kind == "opened":
            self.opened = True
        elif kind == "sample":
            self.current[event["group"], event["sample"]] = event["cells"]
        elif kind == "answered":
            self.current.pop((event["group"], event["sample"]), None)
            self.in_a_row = 0
            self.bar.update()
        elif kind == "stopped":
            self.bar.write(event["text"])
        elif kind == "group":
            self._print_cells(event["group"])
        return bool(kind == "done")

    def _print_cells(self, name: str) -> None:
        group = self.groups[name]
        mine = next(_cells(part) for part in self.unit["groups"] if part["id"] == name)
        for cell in (cell for cell in group.cells if cell.address in mine):
            records, _ = self.plan.store.cell(cell.address).read()
            answered = [records[sample.id] for sample in group.samples if sample.id in records]
            scores = [record.score for record in answered if record.score is not None]
            mean = f"{sum(scores) / len(scores):.3f}" if scores else "none"
            failed = sum(record.state is State.FAILED for record in answered)
            name = cell.strategy if cell.role != "noise" else f"{cell.strategy} (alone)"
            self.bar.write(f"{group.label:20} {name:28} n={len(answered):<5} score {mean}  failed {failed}")

    def _give_up(self, group: Group, sample_id: str, cells: list[str], why: str) -> None:
        """Record the sample on which workers keep dying as failed, in every cell that was waiting for it."""
        sample = next(sample for sample in group.samples if sample.id == sample_id)
        for cell in cells:
            crash = Record(
                cell=cell,
                sample_id=sample.id,
                sample_hash=sample.hash,
                prompt_hash="",
                state=State.FAILED,
                error=why,
                fault="infrastructure",
            )
            self.plan.store.cell(cell).append([crash])
        self.bar.update()
