"""Early stop: a candidate that is shown harmful on a task is asked no more of its samples.

Whether it is follows from the gate and from the records, taken in the samples' fixed order. Nothing is noted down, so the
planner, a worker and the judge come to the same by themselves, whenever they look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from harness.pairs import pair_up
from harness.types import Gate, Record, Sample
from harness.verdict import harm_shown


@dataclass(frozen=True)
class Rule:
    """What decides in one group: the gate, the baseline, and the candidates. ``kept`` are those that are needed otherwise."""

    gate: Gate
    history: str
    baseline: str  # addresses
    candidates: tuple[str, ...]
    kept: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        gate = Gate(**{**data["gate"], "tasks": tuple(data["gate"]["tasks"])})
        return cls(gate, data["history"], data["baseline"], tuple(data["candidates"]), tuple(data["kept"]))


class Harm:
    """The candidates of one group and what is known of them so far."""

    def __init__(self, rule: Rule, samples: Sequence[Sample]) -> None:
        self.rule, self.samples = rule, samples
        self.stopped: dict[str, int] = {}  # by address, after how many units
        self._records: dict[str, dict[str, Record]] = defaultdict(dict)

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records[record.cell][record.sample_id] = record

    def look(self) -> dict[str, int]:
        """The candidates that are newly shown harmful, and after how many units each was."""
        baseline = self._records[self.rule.baseline]
        found = {}
        for cell in self.rule.candidates:
            if cell in self.stopped or cell in self.rule.kept:
                continue
            pairs = pair_up(self.samples, baseline, self._records[cell], self.rule.history)
            if (units := harm_shown(pairs, self.rule.gate)) is not None:
                found[cell] = units
        self.stopped |= found
        return found

    def asks(self, cells: Iterable[str]) -> list[str]:
        """Those of ``cells`` that a sample is still worth asking: none, when every candidate has been stopped."""
        if len(self.stopped) == len(set(self.rule.candidates)):
            return []
        return [cell for cell in cells if cell not in self.stopped]
