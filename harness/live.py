"""``kvgate watch``: a run that goes on in another shell or on a cluster, seen through its store alone.

A verdict is shown when all of its group is in, or harm has stopped the candidate. Seeing it is the look that the run itself
counts on ending: the same samples, the same look.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from harness import manifest as manifests
from harness.groups import CellRecords, read_run
from harness.judge import judge, report_gate, results_of
from harness.places import Place, place
from harness.report.format import number, signed
from harness.report.tables import Table
from harness.report.terminal import safe_line, table_text
from harness.store import ResultStore
from harness.sweep.watch import given_up
from harness.types import BadInput, State

CLEAR = "\x1b[H\x1b[J"
SHARE = 10  # a look may take so small a part of the time between two


@dataclass(frozen=True)
class Line:
    """One candidate on one task."""

    task: str
    strategy: str
    answers: int
    n: int
    baseline: float | None
    score: float | None
    delta: float | None
    decision: str  # "" until there is one

    def __str__(self) -> str:
        return f"{self.task}: {self.strategy} is {self.decision}, {signed(self.delta)} over {self.answers} of {self.n}"


@dataclass(frozen=True)
class View:
    """A run at one moment."""

    name: str
    done: int  # answers in the store, of all cells
    total: int  # those that will be there in the end, as far as is known now
    groups: int
    groups_done: int
    lines: tuple[Line, ...]
    ended: bool
    lost: tuple[str, ...] = ()  # why parts of the work were given up


def watch(config: Mapping[str, Any]) -> int:
    """Show a run until it ends. Returns the exit code; raises BadInput."""
    if not config["every_s"] > 0:
        raise BadInput(f"every_s must be above 0, got {config['every_s']}")
    show = _screens(config["every_s"]) if sys.stdout.isatty() and not config["once"] else _plain_lines()
    next(show)
    try:
        while True:
            began = time.monotonic()
            view = look(config["run"], place(config["results_dir"]))
            show.send(view)
            if view.ended or config["once"]:
                return 0
            time.sleep(max(config["every_s"], SHARE * (time.monotonic() - began)))
    except KeyboardInterrupt:  # the watcher goes, the run does not
        return 0


def look(run: str, results_dir: Place) -> View:
    """The run as it stands in the store. Raises BadInput if there is no such run."""
    folder, manifest = manifests.load(run, results_dir)
    store = ResultStore(results_of(folder))
    stored = read_run(store, manifest)
    verdict = judge(stored, report_gate(manifest["gate"], {}))
    judged = {cell["address"]: cell for cell in verdict["cells"]}
    answers = [{cell.planned["address"]: _answered(cell) for cell in group.cells} for group in stored.groups]
    whole = [_is_whole(group, mine, judged) for group, mine in zip(manifest["groups"], answers, strict=True)]
    lines = [
        _line(group, cell["strategy"], mine[cell["address"]], judged[cell["address"]], shown)
        for group, mine, shown in zip(manifest["groups"], answers, whole, strict=True)
        for cell in group["cells"]
        if cell["role"] == "candidate"
    ]
    done = sum(sum(mine.values()) for mine in answers)
    total = sum(
        sum(mine.values()) if shown else group["n"] * len(mine) - sum(_spared(judged.get(cell)) for cell in mine)
        for group, mine, shown in zip(manifest["groups"], answers, whole, strict=True)
    )
    job = manifest.get("job")  # none of a run of before there were jobs
    lost = manifest.get("lost") or (given_up(store.job(job)) if job else ())
    ended = _ended(folder, manifest)
    return View(manifest["name"], done, total, len(whole), sum(whole), tuple(lines), ended, tuple(lost))


def _answered(cell: CellRecords) -> int:
    return sum(record.state is not State.NOT_RUN for record in cell.records.values())


def _is_whole(group: Mapping[str, Any], answers: Mapping[str, int], judged: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether nothing more will be asked: every cell is full, or every candidate was stopped."""
    mine = [judged[cell["address"]] for cell in group["cells"] if cell["role"] == "candidate"]
    full = all(count == group["n"] or _spared(judged.get(cell)) for cell, count in answers.items())
    return full or all(map(_spared, mine))


def _spared(cell: Mapping[str, Any] | None) -> int:
    """Samples that an early stop spares a candidate."""
    return int(cell["saved"]) if cell else 0


def _line(group: Mapping[str, Any], name: str, answers: int, cell: Mapping[str, Any], whole: bool) -> Line:
    scores = (cell["baseline"], cell["score"], cell["delta"])
    decided = whole or (cell["stopped_at"] is not None and cell["decision"] == "NO-GO")
    return Line(group["label"], name, answers, group["n"], *scores, str(cell["decision"]) if decided else "")


def _ended(folder: Place, manifest: Mapping[str, Any]) -> bool:
    """Whether the verdict of this very run is written."""
    try:
        return bool(json.loads((folder / "verdict.json").read_text(encoding="utf-8"))["created"] == manifest["created"])
    except (OSError, ValueError):
        return False


# --- Showing ---


def _screens(every_s: float) -> Generator[None, View, None]:
    """Draws each view that it is sent over the one before."""
    pace = _Pace()
    while True:
        view = yield
        print(f"{CLEAR}{_head(view, pace)}\n\n{_table(view.lines)}\n\n{_foot(view, every_s)}", flush=True)


def _plain_lines() -> Generator[None, View, None]:
    """Prints a line where something moved, and one for each verdict that is new."""
    pace, said = _Pace(), set[str]()
    while True:
        view = yield
        lines = [_head(view, pace), *(safe_line(str(line)) for line in view.lines if line.decision), *_lost(view)]
        for line in (line for line in lines if line not in said):
            print(line, flush=True)
        said |= set(lines)


class _Pace:
    """Answers a second since the first view."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def answers_s(self, done: int) -> float:
        now = time.monotonic()
        self.first = self.first or (now, done)
        began, before = self.first
        return (done - before) / (now - began) if now > began else 0.0


def _head(view: View, pace: _Pace) -> str:
    rate = pace.answers_s(view.done)
    text = f"{view.name}: {view.done} of {view.total} answers, {view.groups_done} of {view.groups} tasks"
    if view.ended:
        return safe_line(f"{text}, ended")
    left = timedelta(seconds=round((view.total - view.done) / rate)) if rate else None
    return safe_line(f"{text}, {rate:.2g} a second, {left} left" if left is not None else text)


def _table(lines: Iterable[Line]) -> str:
    rows = tuple(
        (
            line.task,
            line.strategy,
            f"{line.answers} of {line.n}",
            number(line.baseline),
            number(line.score),
            signed(line.delta),
            line.decision or "going on",
        )
        for line in lines
    )
    return table_text(Table("So far", ("task", "strategy", "answers", "full", "score", "d", "verdict"), rows))


def _lost(view: View) -> list[str]:
    return [safe_line(f"given up: {problem}") for problem in view.lost]


def _foot(view: View, every_s: float) -> str:
    return "\n".join([*_lost(view), _hint(view, every_s)])


def _hint(view: View, every_s: float) -> str:
    if view.ended:
        return f"kvgate report {view.name} shows the verdicts with their reasons."
    return f"Looked at every {every_s:g} s. What has no verdict yet is no evidence either way. Ctrl-C ends the watching only."
