"""How far a run is: one bar over all workers, and a line for each cell when all its shards have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any

from tqdm import tqdm

from harness.pace import paced
from harness.plan import Group, Plan
from harness.sweep.watch import addresses, outcome
from harness.types import State

LOOK_S = 2.0  # between two looks into the store, at least
SHARE = 0.05  # of the driver's time that looking may take


class Progress:
    """Told by those who watch workers on this machine; looks into the store where they are far away."""

    def __init__(self, plan: Plan, shards: Sequence[Mapping[str, Any]]) -> None:
        self.plan, self.shards = plan, shards
        self.open = {shard["number"]: shard for shard in shards}  # those that are not known to have ended
        self.groups = {group.id: group for group in plan.groups}
        self.left = Counter((shard["load"], part["id"]) for shard in shards for part in shard["groups"])
        self.total = sum(part["n"] for unit in plan.units() for part in unit["groups"])
        self.waiting = sum(len(part["own"]) for shard in shards for part in shard["groups"])
        self.told = set[str]()
        self._lock = Lock()
        self._find = paced(self.find_ended, share=SHARE, least_s=LOOK_S)
        self._count = paced(self._count_answers, share=SHARE, least_s=LOOK_S)

    def __enter__(self) -> Progress:
        done = self.total - self.waiting
        self.bar = tqdm(total=self.total, initial=done, unit="sample", desc=self.plan.name, dynamic_ncols=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(self.bar.close)

    def heard(self, event: Mapping[str, Any]) -> None:
        """An event of a shard on this machine."""
        if event["event"] == "answered":
            self._show(self.bar.update)
        elif event["event"] == "stopped":
            self._tell_once(event["text"])
        elif event["event"] == "said":
            self._show(partial(self.bar.write, event["text"]))

    def ended(self, shard: Mapping[str, Any]) -> None:
        """A shard has ended, well or not."""
        with self._lock:
            del self.open[shard["number"]]
        for part in shard["groups"]:
            with self._lock:
                self.left[shard["load"], part["id"]] -= 1
                over = not self.left[shard["load"], part["id"]]
            if over:
                self._print_cells(self.groups[part["id"]], addresses(part))

    def find_ended(self) -> None:
        """Tell of the shards of which the store says that they have ended."""
        for shard in [shard for shard in self.open.values() if outcome(shard) is not None]:
            self.ended(shard)

    def look(self) -> None:
        """See in the store how far the workers are, if it was not done a moment ago."""
        self._find()
        self._count()

    def _count_answers(self) -> None:
        missing = {group.id: self.plan.to_run(group) for group in self.plan.groups}
        waiting = 0
        for part in (part for shard in self.shards for part in shard["groups"]):
            unanswered = set().union(*(missing[part["id"]][cell] for cell in addresses(part)))
            waiting += len(unanswered.intersection(part["own"]))
        self.bar.n = self.total - waiting
        self._show(self.bar.refresh)

    def _tell_once(self, text: str) -> None:
        """What several workers find out, each by itself."""
        with self._lock:
            known = text in self.told
            self.told.add(text)
        if not known:
            self._show(partial(self.bar.write, text))

    def _print_cells(self, group: Group, mine: Sequence[str]) -> None:
        for cell in (cell for cell in group.cells if cell.address in mine):
            records, _ = self.plan.store.cell(cell.address).read()
            answered = [records[sample.id] for sample in group.samples if sample.id in records]
            if not answered:
                continue
            scores = [record.score for record in answered if record.score is not None]
            mean = f"{sum(scores) / len(scores):.3f}" if scores else "none"
            failed = sum(record.state is State.FAILED for record in answered)
            name = cell.strategy if cell.role != "noise" else f"{cell.strategy} (alone)"
            line = f"{group.label:20} {name:28} n={len(answered):<5} score {mean}  failed {failed}"
            self._show(partial(self.bar.write, line))

    def _show(self, draw: Callable[[], object]) -> None:
        """Draw, one thread at a time. Where nobody sees it any more, as a pipe was closed, the run goes on without."""
        with self._lock:
            if self.bar.disable:
                return
            try:
                draw()
            except OSError:
                self.bar.disable = True  # or it would wait for its own lock, which it has kept
