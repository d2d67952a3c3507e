"""Several tasks as one, asked in turn: their mean gets one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

from harness.types import Response, Sample, Score
from tasks import checks
from tasks.base import Task, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Suite(Task):
    """Sample i is sample ``i // len(of)`` of member ``i % len(of)``; its ``meta["task"]`` is that member's name here.

    Every sample weighs the same, so with n a multiple of the number of members the score is the plain mean of theirs.

    Attributes:
        of: The members by the names that reports show. Each makes the samples that it makes alone.
        lengths: Tokens of prompt and answer of all members that are filled up to a length. None: each has its own.
    """

    of: Mapping[str, Task]
    lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.lengths is None:
            return
        lengths = tuple(self.lengths)  # YAML knows lists only
        members = {
            name: replace(task, lengths=lengths) if _sized(task) else task  # type: ignore[call-arg]
            for name, task in self.of.items()
        }
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "of", members)

    @property
    def family(self) -> str:
        """The members' own, if they share one."""
        families = {task.family for task in self.of.values()}
        return families.pop() if len(families) == 1 else super().family

    @property
    def graded(self) -> bool:  # type: ignore[override]
        return any(task.graded for task in self.of.values())

    @property
    def chance(self) -> float:  # type: ignore[override]
        return fmean(task.chance for task in self.of.values())

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        turns = -(-n // len(self.of))
        drawn = {name: task.samples(tokenizer, turns, seed) for name, task in self.of.items()}
        places = [(turn, name) for turn in range(turns) for name in self.of][:n]
        return [_member(drawn[name][turn], name) for turn, name in places if turn < len(drawn[name])]

    def score(self, sample: Sample, response: Response) -> Score:
        return self.of[sample.meta["task"]].score(sample, response)

    def spec(self) -> dict[str, Any]:
        """The members' own, in their order: a change of one of them is a change of the suite."""
        members = [[name, task.spec()] for name, task in self.of.items()]
        return {**super().spec(), "options": {"name": self.name, "of": members}}

    def sources(self) -> dict[str, str]:
        return {f"{name}.{text}": digest for name, task in self.of.items() for text, digest in task.sources().items()}

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        if not self.of:
            return ["task.of must name at least one task, got none"]
        found = [
            f"task.of.{name} must be a single task that is judged, got {type(task).__name__}"
            for name, task in self.of.items()
            if task.fidelity or isinstance(task, Suite)
        ]
        for name, task in self.of.items():
            for problem in task.problems(tokenizer):
                shared = self.lengths is not None and problem.startswith("task.lengths")
                found.append(problem if shared else checks.inside(problem, f"of.{name}"))
        return list(dict.fromkeys(found))


def _sized(task: Task) -> bool:
    return any(field.name == "lengths" for field in fields(task))


def _member(sample: Sample, name: str) -> Sample:
    """A member's sample as the suite's: two members may have numbered theirs alike, and named their clusters so."""
    cluster = f"{name}-{sample.cluster}" if sample.cluster else ""
    return replace(sample, id=f"{name}-{sample.id}", cluster=cluster, meta={**sample.meta, "task": name})
