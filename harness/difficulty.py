"""How hard a task must be for this model: ``task.calibrate=true``, settled before the run and on samples of its own.

A task that the baseline always or never gets right shows little of a cache. So the one option that makes a task harder is
turned until the baseline's mean score lies in a band. Only the baseline is run, on a seed that no run has: the samples
that choose the setting never judge a strategy. Answers lie in the store like all others, so the same command finds the same
setting again and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from harness.plan import Job, Plan, baseline_alone, plan
from harness.sweep.drive import execute
from harness.types import BadInput, Fault, State, digest
from tasks.base import Task, Tokenizer

SAMPLES = 16  # of each setting that is tried
OPTIONS = ("calibrate", "band")  # of any task's node; they are no part of the task itself


class Search(NamedTuple):
    """A task whose setting is to be found: the values of one option, from easy to hard, and the band to hit."""

    label: str
    job: Job  # the first that asks, without our options
    plan: Plan  # of the whole run as it is configured
    option: str
    values: tuple[Any, ...]
    band: tuple[float, float]
    seed: int

    def at(self, value: Any) -> Job:
        """The job with the option turned to ``value``, on the samples of this search."""
        config = {**self.job.config, "n": SAMPLES, "seed": self.seed}
        return _with_task(replace(self.job, config=config), {**self.job.config["task"], self.option: value})

    def __str__(self) -> str:
        values = ", ".join(map(_text, self.values))
        return (
            f"{self.label}: calibration would try {self.option} of {values}, halving, with the baseline alone (n={SAMPLES} each, "
            f"seed {self.seed}) until it scores within {_text(self.band)}; what follows is the run as it is configured"
        )


class Setting(NamedTuple):
    """What a search came to: the value, and the baseline's mean score by place of each value that was tried."""

    search: Search
    value: Any
    tried: Mapping[int, float]

    def __str__(self) -> str:
        found = f"{self.search.option}={_text(self.value)}"
        return f"{self.search.label}: calibrated on the baseline: {found} ({_told(self.search, self.tried)})"


def plain(jobs: Sequence[Job]) -> list[Job]:
    """The jobs as the planner takes them: without the options of this module."""
    return [_with_task(job, {k: v for k, v in job.config["task"].items() if k not in OPTIONS}) for job in jobs]


def searches(jobs: Sequence[Job]) -> list[Search]:
    """One search for each task that asks for one. Raises BadInput with every problem of the jobs, before anything is run."""
    problems = [problem for job in jobs for problem in _problems(job.config["task"])]
    if not problems and not any(job.config["task"].get("calibrate") for job in jobs):
        return []
    bare = plain(jobs)
    try:  # few samples will do to see what is wrong
        planned = plan([replace(job, config={**job.config, "n": min(job.config["n"], SAMPLES)}) for job in bare])
    except BadInput as error:
        raise BadInput(*dict.fromkeys([*problems, *error.problems])) from error
    seed = _seed(min(job.config["seed"] for job in bare))
    found: dict[str, Search] = {}
    for asking, job in zip(jobs, bare, strict=True):
        if not asking.config["task"].get("calibrate") or problems:
            continue
        group = next(group for group in planned.groups if group.task_config == job.config["task"])
        option, values = _ladder(group.task, planned.facts.tokenizer)
        band = tuple(asking.config["task"]["band"])
        found.setdefault(group.label, Search(group.label, job, planned, option, values, band, seed))
    problems += [_no_ladder(search) for search in found.values() if len(search.values) < 2]
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return list(found.values())


def find(search: Search) -> Setting:
    """Run the baseline on a few of the values and choose the one nearest to the middle of the band.

    Raises BadInput if none of them lies in the band.
    """
    low, high = search.band
    tried = bisect(len(search.values), (low + high) / 2, lambda at: _score(search, search.values[at]))
    within = {at: score for at, score in tried.items() if low <= score <= high}
    if not within:
        raise BadInput(
            f"task.calibrate: no {search.option} of {search.label} takes the baseline's score into task.band "
            f"{_text(search.band)}: {_told(search, tried)}; take another band, or change what else the task has"
        )
    best = min(sorted(within), key=lambda at: abs(within[at] - (low + high) / 2))
    return Setting(search, search.values[best], tried)


def settled(jobs: Sequence[Job], settings: Sequence[Setting]) -> list[Job]:
    """The jobs with every setting that was found, ready for the planner."""
    return [_settled(job, settings) for job in plain(jobs)]


def bisect(count: int, goal: float, score: Callable[[int], float]) -> dict[int, float]:
    """Scores of those places, of ``count``, that tell where scores fall from above ``goal`` to it or below.

    Both places beside the fall are among them, where there are such; scores need to fall only roughly.
    """
    tried: dict[int, float] = {}
    first, end = 0, count  # the first place at or below the goal lies in [first, end]
    while first < end:
        middle = (first + end) // 2
        tried[middle] = score(middle)
        first, end = (middle + 1, end) if tried[middle] > goal else (first, middle)
    return tried


def _settled(job: Job, settings: Sequence[Setting]) -> Job:
    task = dict(job.config["task"])
    for setting in settings:
        if setting.search.job.config["task"] == job.config["task"]:
            task[setting.search.option] = setting.value
    return _with_task(job, task)


def _with_task(job: Job, task: Mapping[str, Any]) -> Job:
    return replace(job, config={**job.config, "task": task})


def _problems(task: Mapping[str, Any]) -> list[str]:
    found = []
    calibrate, band = task.get("calibrate", False), task.get("band", (0.0, 1.0))
    if not isinstance(calibrate, bool):
        found.append(f"task.calibrate must be true or false, got {calibrate!r}")
    numbers = isinstance(band, list | tuple) and all(isinstance(end, int | float) for end in band) and len(band) == 2
    if not numbers or not 0 <= band[0] < band[1] <= 1:
        found.append(f"task.band must be two scores in [0, 1], the lower first, got {band!r}")
    return found


def _ladder(task: Task, tokenizer: Tokenizer) -> tuple[str, tuple[Any, ...]]:
    """The task's knob, with those values that go with its other options and this model; none if it has no knob."""
    knob = task.knob(tokenizer)
    if knob is None:
        return "", ()
    fit = (value for value in knob.values if not replace(task, **{knob.option: value}).problems(tokenizer))
    return knob.option, tuple(fit)


def _no_ladder(search: Search) -> str:
    if not search.option:
        return f"task.calibrate: {search.label} has no option that makes it harder step by step; set it up by hand"
    return (
        f"task.calibrate: {search.label} has nothing to choose from, for its other options and this model allow "
        f"{_text(list(search.values))} of {search.option}"
    )


def _seed(seed: int) -> int:
    """A seed of 60 bits that belongs to the run's, so that nobody's samples are drawn with it."""
    return int(digest({"calibration of difficulty": seed}, 15), 16)


def _score(search: Search, value: Any) -> float:
    """The baseline's mean score; an answer that was not finished is not right."""
    alone = replace(
        baseline_alone(search.plan, search.at(value)), name=f"{search.label} {search.option}={_text(value)}"
    )
    execute(alone)
    (group,) = alone.groups
    records, _ = alone.store.cell(group.cells[0].address).read({sample.id: sample.hash for sample in group.samples})
    scores = [record.score or 0.0 for record in records.values() if not _is_infrastructure(record.state, record.fault)]
    if not scores:
        raise BadInput(
            f"task.calibrate: the baseline gave no answer to {search.label} with {search.option}={_text(value)}"
        )
    return fmean(scores)


def _is_infrastructure(state: State, fault: Fault | None) -> bool:
    return state is State.FAILED and fault != "model"


def _told(search: Search, tried: Mapping[int, float]) -> str:
    scores = ", ".join(f"{_text(search.values[at])}: {tried[at]:.2f}" for at in sorted(tried))
    return f"tried {scores}; n={SAMPLES}, seed {search.seed}"


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
