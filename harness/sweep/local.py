"""Work units on this machine: one worker process after another, watched, and replaced when it dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

from tqdm import tqdm

from harness.plan import Group, Plan
from harness.types import BadInput, Record, State

# Threads that spin while they wait for each other slow a run down many times where cores are shared with other work; those
# that sleep at once cost a fifth on a quiet machine. A short spin costs neither.
PATIENT = {"GOMP_SPINCOUNT": "1000"}
PATIENCE = 6  # deaths without an answer between them after which the unit is given up
TRIES = 2  # a sample on which the worker dies this often is recorded as failed and passed over


def execute(plan: Plan) -> None:
    """Run every sample that is missing, with a progress bar; finished cells are marked and printed as they come."""
    for group in plan.groups:
        for cell in group.cells:
            plan.store.note_ask(cell.ask)
    waiting = sum(len(set().union(*plan.missing(group).values())) for group in plan.groups)
    total = sum(len(group.samples) for group in plan.groups)
    with tqdm(total=total, initial=total - waiting, unit="sample", desc=plan.name, dynamic_ncols=True) as bar:
        if waiting:
            for unit in plan.units():
                _Watch(unit, plan, bar).run()
    for group in plan.groups:
        missing = plan.missing(group)
        for cell in group.cells:
            if not missing[cell.address]:
                plan.store.cell(cell.address).finish(group.samples_set)


class _Watch:
    """One unit and the worker processes that it takes."""

    def __init__(self, unit: dict[str, Any], plan: Plan, bar: tqdm[Any]) -> None:
        self.unit, self.plan, self.bar = unit, plan, bar
        self.groups = {group.id: group for group in plan.groups}
        self.deaths: Counter[tuple[str, str]] = Counter()  # by (group, sample)
        self.in_a_row = 0  # deaths since the last answer
        self.opened = False
        self.current: tuple[str, str, list[str]] | None = None  # group, sample and cells in work

    def run(self) -> None:
        while True:
            self._list_missing()
            if self._one_worker():
                return
            if not self.opened:
                raise BadInput("engine: the worker died before its first sample; its last words are above")
            group, sample, cells = self.current or ("", "", [])
            self.deaths[group, sample] += 1
            self.in_a_row += 1
            if self.in_a_row == PATIENCE or (not sample and self.deaths[group, sample] == TRIES):
                raise BadInput(
                    f"engine: the worker died {self.in_a_row} times without an answer; its last words are above"
                )
            if self.deaths[group, sample] == TRIES:
                self._give_up(self.groups[group], sample, cells)

    def _list_missing(self) -> None:
        """Tell the next worker what is left; samples that were given up are not tried again in this run."""
        for part in self.unit["groups"]:
            given_up = {s for (group, s), times in self.deaths.items() if group == part["id"] and times >= TRIES}
            missing = self.plan.missing(self.groups[part["id"]])
            part["missing"] = {cell: sorted(ids - given_up) for cell, ids in missing.items()}

    def _one_worker(self) -> bool:
        """True when the worker finished the unit, False when it died."""
        self.current, self.opened, done = None, False, False
        command = [sys.executable, "-P", "-m", "harness.worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, env={**PATIENT, **os.environ}, **pipes) as worker:
            assert worker.stdin is not None and worker.stdout is not None
            try:
                worker.stdin.write(json.dumps(self.unit) + "\n")
                worker.stdin.flush()  # and stays open: the worker ends when it closes
                for line in worker.stdout:
                    done = self._heard(line) or done
                return worker.wait() == 0 and done
            finally:
                worker.kill()

    def _heard(self, line: str) -> bool:
        """Take in one event; True for the last one of a finished unit."""
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError):  # something a library printed
            self.bar.write(line.rstrip())
            return False
        if kind == "refused":
            raise BadInput(*event["problems"])
        if kind == "opened":
            self.opened = True
        elif kind == "sample":
            self.current = (event["group"], event["sample"], event["cells"])
        elif kind == "answered":
            self.current, self.in_a_row = None, 0
            self.bar.update()
        elif kind == "group":
            self._print_cells(self.groups[event["group"]])
        return bool(kind == "done")

    def _print_cells(self, group: Group) -> None:
        for cell in group.cells:
            records, _ = self.plan.store.cell(cell.address).read()
            mine = [records[sample.id] for sample in group.samples if sample.id in records]
            scores = [record.score for record in mine if record.score is not None]
            mean = f"{sum(scores) / len(scores):.3f}" if scores else "none"
            failed = sum(record.state is State.FAILED for record in mine)
            name = cell.strategy if cell.role != "noise" else f"{cell.strategy} (alone)"
            self.bar.write(f"{group.label:20} {name:28} n={len(mine):<5} score {mean}  failed {failed}")

    def _give_up(self, group: Group, sample_id: str, cells: list[str]) -> None:
        """Record the sample on which workers keep dying as failed, in every cell that was waiting for it."""
        sample = next(sample for sample in group.samples if sample.id == sample_id)
        for cell in cells:
            crash = Record(
                cell=cell,
                sample_id=sample.id,
                sample_hash=sample.hash,
                prompt_hash="",
                state=State.FAILED,
                error=f"the worker died {TRIES} times on this sample",
                fault="infrastructure",
            )
            self.plan.store.cell(cell).append([crash])
        self.bar.update()
