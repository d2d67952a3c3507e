"""Early stop: a candidate that is shown harmful on a task is asked no more of its samples.

Whether it is follows from the gate and from the records, taken in the samples' fixed order. Nothing is noted down, so the
planner, every worker and the judge come to the same by themselves, whenever they look; workers learn from the store what others
have answered meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from harness.pairs import pair_up
from harness.store import ResultStore
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
        self._at = {sample.id: at for at, sample in enumerate(samples)}
        self._records: dict[str, dict[str, Record]] = defaultdict(dict)
        self._new: set[int] = set()  # places of samples with records that no pair has yet
        watched = [cell for cell in rule.candidates if cell not in rule.kept]
        self._pairs = {cell: list(pair_up(samples, {}, {}, rule.history)) for cell in watched}

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records[record.cell][record.sample_id] = record
            self._new.add(self._at[record.sample_id])

    def learn(self, store: ResultStore, but: Mapping[str, Collection[str]] | None = None) -> None:
        """Take in what the store has of samples that are not known yet, ``but`` those, by cell, that the caller notes itself."""
        for cell in dict.fromkeys((self.rule.baseline, *self.rule.candidates)):
            known = {sample for sample, record in self._records[cell].items() if record.final}
            known |= set((but or {}).get(cell, ()))
            if wanted := {sample.id: sample.hash for sample in self.samples if sample.id not in known}:
                self.note(store.cell(cell).read(wanted)[0].values())

    def look(self) -> dict[str, int]:
        """The candidates that are newly shown harmful, and after how many units each was."""
        new = [self.samples[at] for at in self._new]
        found = {}
        for cell in [cell for cell in self._pairs if cell not in self.stopped]:
            pairs = self._pairs[cell]
            for pair in pair_up(new, self._records[self.rule.baseline], self._records[cell], self.rule.history):
                pairs[self._at[pair.sample_id]] = pair
            if (units := harm_shown(pairs, self.rule.gate)) is not None:
                found[cell] = units
        self._new.clear()
        self.stopped |= found
        return found

    def asks(self, cells: Iterable[str]) -> list[str]:
        """Those of ``cells`` that a sample is still worth asking: none, when every candidate has been stopped."""
        if len(self.stopped) == len(set(self.rule.candidates)):
            return []
        return [cell for cell in cells if cell not in self.stopped]


def still_asked(
    missing: Mapping[str, set[str]], rule: Rule | None, samples: Sequence[Sample], store: ResultStore
) -> dict[str, set[str]]:
    """By cell address, what is missing of a group without what an early stop spares."""
    if rule is None:
        return dict(missing)
    harm = Harm(rule, samples)
    harm.learn(store)
    harm.look()
    asked = harm.asks(missing)
    return {cell: ids if cell in asked else set() for cell, ids in missing.items()}
