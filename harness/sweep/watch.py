"""Watches the workers of one shard, beside them: replaces those that die, ends those that hang, gives up what they die of."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import Any

from harness import samples as sample_files
from harness.early import Rule, still_asked
from harness.places import Place, place, read_all, write_atomic
from harness.store import ResultStore, told
from harness.sweep.process import Process
from harness.types import BadInput, Record, Sample, State

PATIENCE = 6  # deaths without an answer between them after which the shard is given up
TRIES = 2  # a sample on which the worker dies this often is recorded as failed and passed over

Tell = Callable[[Mapping[str, Any]], None]
"""Takes the events of a shard as they happen."""


class Stopped(Exception):
    """The run ends; no more workers are started."""


class Seat:
    """A seat for one worker process at a time, from ``with`` on. A worker stays for the next shard that needs the same load.

    Args:
        environment: what its workers find in theirs, beside ours.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = environment or {}
        self.load: str | None = None  # of the worker that is here and open
        self.opened = set[str]()  # loads that were ever open here
        self.stopped = False
        self._worker: Process | None = None
        self._lock = Lock()

    def __enter__(self) -> Seat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.stop()

    def worker(self, shard: Mapping[str, Any]) -> Process:
        """A worker that has the shard's load open, or is to open it. Raises Stopped."""
        if self._worker is not None and self.load == shard["load"]:
            return self._worker
        self.finish()
        with self._lock:
            if self.stopped:
                raise Stopped
            self._worker = Process("harness.worker", **shard["process"], environment=self.environment).__enter__()
            return self._worker

    def dismiss(self) -> None:
        """End the worker, if there is one, with everything that it started."""
        with self._lock:
            worker, self._worker, self.load = self._worker, None, None
        if worker is not None:
            worker.__exit__(None, None, None)

    def finish(self) -> None:
        """Let the worker close what it has open, and end."""
        if self._worker is not None:
            self._worker.dismiss()
        self.dismiss()

    def stop(self) -> None:
        """End the worker, and start no other."""
        with self._lock:
            self.stopped = True
        self.dismiss()


def watch(shard: Mapping[str, Any], seat: Seat, tell: Tell) -> list[str]:
    """Run a shard to its end, and write what came of it into the store, last of all. Returns why it was given up.

    Raises BadInput where nothing can be written any more.
    """
    began, problems = time.monotonic(), list[str]()
    try:
        _Watch(shard, seat, tell).run()
    except BadInput as error:
        problems = error.problems
    try:
        with told(place(shard["job_dir"])):
            write_outcome(shard, problems, seconds=time.monotonic() - began)
    except BadInput as error:  # what ended the shard keeps this from being written, too
        raise BadInput(*(problems or error.problems)) from error
    return problems


def write_outcome(shard: Mapping[str, Any], problems: Sequence[str], seconds: float = 0.0) -> None:
    facts = {"problems": list(problems), "seconds": seconds, "host": platform.node()}
    write_atomic(_outcome_file(shard), json.dumps(facts))


def outcome(shard: Mapping[str, Any]) -> dict[str, Any] | None:
    """What came of a shard; None while it has not ended."""
    try:
        return dict(json.loads(_outcome_file(shard).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def given_up(job: Place) -> list[str]:
    """Why shards of this job that have ended were given up, as far as it has not been told and cleared away."""
    try:
        outcomes = [json.loads(content) for content in read_all(sorted(job.glob("*.json"), key=str))]
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(problem for came in outcomes for problem in came["problems"]))


def _outcome_file(shard: Mapping[str, Any]) -> Place:
    return place(shard["job_dir"]) / f"{shard['number']}.json"


def addresses(part: Mapping[str, Any]) -> list[str]:
    """Of the cells of a unit's part of a group."""
    return [row["cell"] for batch in part["batches"] for row in batch]


class _Watch:
    """One shard and the worker processes that it takes."""

    def __init__(self, shard: Mapping[str, Any], seat: Seat, tell: Tell) -> None:
        self.shard, self.seat, self.tell = shard, seat, tell
        self.store = ResultStore(shard["results_dir"])
        self.groups = {part["id"]: _samples(part) for part in shard["groups"]}
        self.samples = {part["id"]: _own(self.groups[part["id"]], part) for part in shard["groups"]}
        self.left = {(group, sample) for group, samples in self.samples.items() for sample in samples}  # not told of
        self.deaths: Counter[tuple[str, str]] = Counter()  # by (group, sample)
        self.in_a_row = 0  # deaths since the last answer
        self.careful = False
        self.opened = False
        self.hung = False
        self.current: dict[tuple[str, str], list[str]] = {}  # cells in work, by group and sample

    def run(self) -> None:
        while (groups := self._waiting()) and not self._one_worker(groups):
            if self.seat.stopped:  # it did not die by itself
                raise Stopped
            silence_s = self.shard["process"]["silence_s"]
            how = f"said nothing for {silence_s:g} s and was ended" if self.hung else "died"
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
                self.careful = True
                self.deaths.subtract(at_work.keys())
            for (group, sample), cells in self.current.items():
                if self.deaths[group, sample] == TRIES:
                    self._give_up(
                        group, self.samples[group][sample], cells, f"the worker {how} {TRIES} times on this sample"
                    )
        for group, sample in sorted(self.left):  # nobody has to answer it any more
            self._tell_answered(group, sample)

    def _waiting(self) -> list[dict[str, Any]]:
        """The shard's groups with what is missing, or none where nothing is; a sample that was given up is not tried again."""
        groups = []
        for part in self.shard["groups"]:
            hashes = {id: sample.hash for id, sample in self.samples[part["id"]].items() if not self._dead(part, id)}
            missing = {}
            for cell in addresses(part):
                records, _ = self.store.cell(cell).read(hashes)
                missing[cell] = set(hashes) - {id for id, record in records.items() if record.final}
            rule = Rule.from_json(part["early_stop"]) if part["early_stop"] else None
            asked = still_asked(missing, rule, self.groups[part["id"]], self.store)
            if any(asked.values()):
                groups.append({**part, "missing": {cell: sorted(ids) for cell, ids in asked.items()}})
        return groups

    def _dead(self, part: Mapping[str, Any], sample: str) -> bool:
        return self.deaths[part["id"], sample] >= TRIES

    def _one_worker(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """True when a worker finished the shard, False when it died."""
        worker = self.seat.worker(self.shard)
        self.current, self.opened, self.hung = {}, self.seat.load is not None, False
        try:
            worker.tell({**self.shard, "groups": groups, "careful": self.careful})
            if any(
                self._heard(event) for event in worker.events(lambda text: self.tell({"event": "said", "text": text}))
            ):
                return True
        except BrokenPipeError:
            pass
        except BaseException:
            self.seat.dismiss()
            raise
        self.hung = worker.hung
        self.seat.dismiss()
        return False

    def _heard(self, event: Mapping[str, Any]) -> bool:
        """Take in one event; True for the last one of a finished shard."""
        kind = event["event"]
        if kind == "opened":
            self.opened, self.seat.load = True, self.shard["load"]
            self.seat.opened.add(self.shard["load"])
        elif kind == "sample":
            self.current[event["group"], event["sample"]] = event["cells"]
        elif kind == "answered":
            self.current.pop((event["group"], event["sample"]), None)
            self.in_a_row = 0
            self._tell_answered(event["group"], event["sample"])
        elif kind == "stopped":
            self.tell(event)
        return bool(kind == "done")

    def _tell_answered(self, group: str, sample: str) -> None:
        if (group, sample) in self.left:
            self.left.remove((group, sample))
            self.tell({"event": "answered", "group": group, "sample": sample})

    def _give_up(self, group: str, sample: Sample, cells: Sequence[str], why: str) -> None:
        """Record the sample on which workers keep dying as failed, in every cell that was waiting for it."""
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
            self.store.cell(cell).append([crash])
        self._tell_answered(group, sample.id)


def _samples(part: Mapping[str, Any]) -> list[Sample]:
    """All samples of a group, in their order."""
    return sample_files.load(place(part["samples_file"]), part["n"])


def _own(samples: Sequence[Sample], part: Mapping[str, Any]) -> dict[str, Sample]:
    """The samples of a group that are this shard's, by id."""
    own = set(part["own"])
    return {sample.id: sample for sample in samples if sample.id in own}
