"""Takes the measurements: trial after trial, in each the settings one after the other, in turned order every second time.

Settings that share a load of the engine share a process; others have one each. All stay open, and one works at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

from tqdm import tqdm

from harness.bench import trials
from harness.bench.loads.points import Point
from harness.bench.plan import BenchPlan, BenchPoint
from harness.plan import PlannedCell
from harness.sweep.process import Process
from harness.types import BadInput

DEATHS = 2  # of its process while it was measured, after which a setting is left out


def execute(plan: BenchPlan) -> list[str]:
    """Measure what is missing, with a progress bar. Returns which settings were given up and why.

    Raises BadInput if the baseline was.
    """
    for arm in (arm for at in plan.points for arm in at.arms):
        plan.store.note_ask(arm.ask, "loads")
    missing = plan.missing()
    rounds = [(at, _waiting(at, missing, number), number) for number in range(plan.pairs) for at in plan.points]
    rounds = [(at, waiting, number) for at, waiting, number in rounds if waiting]
    total = sum(len(waiting) + 2 for _, waiting, _ in rounds)
    with ExitStack() as stays, tqdm(total=total, unit="load", desc=plan.name, dynamic_ncols=True) as bar:
        driver = _Driver(plan, stays, bar)
        for at, waiting, number in rounds:
            driver.trial(at.point, [*at.arms[:2], *waiting], number)
        driver.finish()
        return driver.problems


def _waiting(at: BenchPoint, missing: Mapping[str, Sequence[int]], number: int) -> list[PlannedCell]:
    """Candidates that lack the trial with that number."""
    return [arm for arm in at.candidates if number in missing[arm.address]]


class _Driver:
    """The open processes and what befell them."""

    def __init__(self, plan: BenchPlan, stays: ExitStack, bar: tqdm[Any]) -> None:
        self.plan, self.stays, self.bar = plan, stays, bar
        self.session = uuid4().hex[:12]
        self.open: dict[str, Process] = {}
        self.deaths: Counter[str] = Counter()  # by strategy
        self.given_up: set[str] = set()  # strategies
        self.problems: list[str] = []

    def trial(self, point: Point, arms: Sequence[PlannedCell], index: int) -> None:
        """Measure the arms once each. One that is lost breaks no other: the trial then pairs without it."""
        for arm in arms:  # all are warm before the first is measured
            self._process(arm)
        name = trials.name(self.session, index)
        for place, arm in enumerate(arms if index % 2 == 0 else list(reversed(arms))):
            if process := self._process(arm):
                self._measure(point, arm, process, {"trial": name, "place": place, "index": index})
            self.bar.update()

    def finish(self) -> None:
        for process in self.open.values():
            process.finish()

    def _measure(self, point: Point, arm: PlannedCell, process: Process, asked: dict[str, Any]) -> None:
        if (patience := self.plan.engine.silence_s) is not None:  # nothing is said while a load takes its time
            process.silence_s = patience + 2 * point.load.paced_s
        with suppress(BrokenPipeError):
            process.tell({"address": arm.address, "strategy": arm.strategy, "load": point.config, **asked})
            for event in process.events(self.bar.write):
                if event["event"] == "measured":
                    told = (
                        f"{event['tokens_s']:.1f} tok/s"
                        if event["tokens_s"]
                        else event["error"] or "no request came through"
                    )
                    again = " (again)" if arm.role == "noise" else ""
                    self.bar.write(f"{asked['index']:<3} {point.label:16} {arm.strategy + again:28} {told}")
                    return
        how = f"said nothing for {process.silence_s:g} s and was ended" if process.hung else "died"
        self.bar.write(f"{arm.strategy}: the worker {how}; its last words are above")
        del self.open[self.plan.load_key(arm)]
        self.deaths[arm.strategy] += 1
        if self.deaths[arm.strategy] == DEATHS:
            self._give_up([arm], [f"the worker {how} {DEATHS} times while it was measured"])

    def _process(self, arm: PlannedCell) -> Process | None:
        """The process that serves this arm, open and warm; None if the arm was given up."""
        key = self.plan.load_key(arm)
        if key not in self.open and arm.strategy not in self.given_up:
            sharing = [one for one in self.plan.settings if self.plan.load_key(one) == key and one.role != "noise"]
            arms = [one for one in sharing if one.strategy not in self.given_up]
            try:
                self.open[key] = self._opened(arms)
            except BadInput as error:
                self._give_up(arms, error.problems)
        return None if arm.strategy in self.given_up else self.open[key]

    def _opened(self, arms: Sequence[PlannedCell]) -> Process:
        engine = self.plan.engine
        process = self.stays.enter_context(Process("harness.bench.worker", engine.python, engine.silence_s))
        process.tell(self._unit(arms))
        if not any(event["event"] == "ready" for event in process.events(self.bar.write)):
            how = "hung" if process.hung else "died"
            raise BadInput(f"the worker {how} before it was warm; its last words are above")
        return process

    def _unit(self, arms: Sequence[PlannedCell]) -> dict[str, Any]:
        plan = self.plan
        return {
            "model": plan.model_config,
            "engine": plan.engine_config,
            "calibration": plan.calibration,
            "load": plan.points[0].point.config,
            "seed": plan.seed,
            "session": self.session,
            "results_dir": str(plan.store.root),
            "arms": [
                {"addresses": self._addresses(arm.strategy), "strategy": arm.strategy, "stack": dict(arm.config)}
                for arm in arms
            ],
        }

    def _addresses(self, strategy: str) -> list[str]:
        """Where this setting's measurements go, load by load; of the baseline also those that are taken once more."""
        return [arm.address for at in self.plan.points for arm in at.arms if arm.strategy == strategy]

    def _give_up(self, arms: Sequence[PlannedCell], why: Sequence[str]) -> None:
        """Go on without these settings. Raises BadInput if the baseline is among them."""
        problems = [f"{', '.join(dict.fromkeys(arm.strategy for arm in arms))}: {reason}" for reason in why]
        if any(arm.role != "candidate" for arm in arms):
            raise BadInput(*problems)
        self.given_up |= {arm.strategy for arm in arms}
        self.problems += problems
