"""One task and mode of two runs: the samples that are the same, and what moved on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.between.runs import Key, Run
from harness.between.shifts import Shift, effect, measure, shift
from harness.groups import CellRecords, GroupRecords
from harness.pairs import pair_up
from harness.report.outlook import fraction
from harness.types import Pair, Sample
from harness.verdict import CellInput

# what a task's options say of its name and place, and not of how it scores
ADDRESSES = ("name", "path", "include_path")
SAME_ANSWERS = "both runs read the same stored answers, so nothing can have moved"
VERDICT = ("decision", "n", "baseline", "score", "delta", "ci_low", "ci_high")
OWN = (*VERDICT, "capacity_ratio", "output_tokens", "fidelity")


@dataclass(frozen=True)
class Uncompared:
    """Something that was not compared, and why. None stands for all of them."""

    strategy: str | None
    task: str | None
    mode: str | None
    why: str


class Pairing:
    """One task and mode of both runs: the samples that are the same, and what moved on them."""

    def __init__(self, reference: Run, other: Run, key: Key, rescore: bool) -> None:
        self.runs, self.key = (reference, other), key
        self.groups: tuple[GroupRecords, GroupRecords] = (reference.groups[key], other.groups[key])
        self.samples = _same(*self.groups)
        self.unlike = self._fidelity() or _other_measure(self.runs, key, rescore) or self._other_items()

    @property
    def names(self) -> tuple[str, str]:
        return self.runs[0].name, self.runs[1].name

    @property
    def left_out(self) -> list[Uncompared]:
        """Why nothing here is paired, or which samples are not."""
        if self.unlike:
            return [Uncompared(None, *self.key, self.unlike)]
        rest = (
            f"{len(group.samples) - len(self.samples)} of {len(group.samples)} samples of {name} are not those of "
            f"{beside}: the {len(self.samples)} that are the same are paired"
            for group, name, beside in zip(self.groups, self.names, self.names[::-1], strict=True)
            if len(group.samples) > len(self.samples)
        )
        return [Uncompared(None, *self.key, why) for why in rest]

    def _fidelity(self) -> str | None:
        if not any(group.task.fidelity for group in self.groups):
            return None
        return "fidelity is measured along each run's own baseline's words, so there are no pairs"

    def _other_items(self) -> str | None:
        return None if self.samples else _other_items(self.runs, self.key)

    def task(self, untold: list[Uncompared]) -> dict[str, Any]:
        """Did the baseline itself move?"""
        moved = None if self.unlike else self._shift("full", *(group.baseline for group in self.groups), untold)
        return {
            "task": self.key[0],
            "mode": self.key[1],
            "n_reference": len(self.groups[0].samples),
            "n_other": len(self.groups[1].samples),
            "baseline": moved and asdict(moved),
        }

    def candidates(self, untold: list[Uncompared]) -> Iterator[dict[str, Any]]:
        """Each strategy that both have: its side of either run, and what moved."""
        ours, theirs = (group.candidates for group in self.groups)
        for name in (name for name in ours if name in theirs):
            moved = None if self.unlike else self._shift(name, ours[name], theirs[name], untold)
            effects = effect(*self._effects(name)) if moved else None
            yield {
                "strategy": name,
                "task": self.key[0],
                "mode": self.key[1],
                "reference": _side(self.runs[0].cells[name, *self.key]),
                "other": _side(self.runs[1].cells[name, *self.key]),
                "shift": moved and asdict(moved),
                "effect": effects and asdict(effects),
            }

    def _shift(self, strategy: str, ours: CellRecords, theirs: CellRecords, untold: list[Uncompared]) -> Shift | None:
        if self.runs[0].store == self.runs[1].store and ours.planned["address"] == theirs.planned["address"]:
            untold.append(Uncompared(strategy, *self.key, SAME_ANSWERS))
            return None
        moved = shift(self._measure(strategy, self._pairs(ours, theirs)), self.names)
        if isinstance(moved, Shift):
            return moved
        untold.append(Uncompared(strategy, *self.key, moved))
        return None

    def _effects(self, strategy: str) -> list[CellInput]:
        """Baseline and candidate as each run pairs them itself, on the samples that both runs have."""
        return [
            self._measure(strategy, self._pairs(group.baseline, group.candidates[strategy])) for group in self.groups
        ]

    def _pairs(self, ours: CellRecords, theirs: CellRecords) -> tuple[Pair, ...]:
        return pair_up(self.samples, ours.records, theirs.records, self.groups[0].planned.get("history", "reference"))

    def _measure(self, strategy: str, pairs: Sequence[Pair]) -> CellInput:
        group = self.groups[0]
        return measure(strategy, *self.key, pairs, chance=group.task.chance, graded=group.planned["graded"])


def _other_measure(runs: tuple[Run, Run], key: Key, rescore: bool) -> str | None:
    """Why equal answers may have other scores."""
    ours, theirs = (run.asked[key] for run in runs)
    a, b = (run.name for run in runs)
    if ours.get("class") != theirs.get("class"):
        return f"another task of this name: {ours.get('class')} in {a}, {theirs.get('class')} in {b}"
    if ours.get("version") != theirs.get("version") and not rescore:
        return (
            f"version {ours.get('version')} of the task in {a}, {theirs.get('version')} in {b}: another measure; "
            "rescore=true judges both with the scorer as it is now"
        )
    before, after = ours.get("options", {}), theirs.get("options", {})
    changed = [
        f"task.{option} is {_told(before.get(option), after.get(option), a, b)}"
        for option in dict.fromkeys((*before, *after))
        if option not in ADDRESSES and before.get(option) != after.get(option)
    ]
    return "; ".join(changed) or None


def _told(before: Any, after: Any, a: str, b: str) -> str:
    """Numbers as they are. An option's words may be a user's own text, which a redacted report must not show."""
    if _numbers(before) and _numbers(after):
        return f"{before} in {a}, {after} in {b}"
    return f"another in {b}"


def _numbers(value: Any) -> bool:
    return all(map(_numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


def _other_items(runs: tuple[Run, Run], key: Key) -> str:
    """That no sample of one is a sample of the other, with what may be why."""
    a, b = runs
    seeds = [run.groups[key].planned["seed"] for run in runs]
    causes = (
        (seeds[0] != seeds[1], f"seed {seeds[0]} in {a.name}, {seeds[1]} in {b.name}"),
        (
            a.manifest["model"].get("tokenizer") != b.manifest["model"].get("tokenizer"),
            "samples are sized by the model's tokenizer, which is another",
        ),
        (a.asked[key].get("sources") != b.asked[key].get("sources"), "the texts that samples are cut from are others"),
        (a.manifest.get("gen") != b.manifest.get("gen"), "answers are generated otherwise"),
    )
    told = "; ".join(why for differs, why in causes if differs)
    return f"other items: no sample of {a.name} is one of {b.name}" + (f" ({told})" if told else "")


def _same(ours: GroupRecords, theirs: GroupRecords) -> list[Sample]:
    """The samples that both have: the same id, and all that the model sees and is judged by."""
    there = {(sample.id, sample.hash) for sample in theirs.samples}
    return [sample for sample in ours.samples if (sample.id, sample.hash) in there]


def _side(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What a run itself says of a cell. Bytes are those of a prompt token: as stored, and against the full cache as deployed."""
    memory = cell["memory"] or {}
    return {
        **{key: cell[key] for key in OWN},
        "stored_bytes_per_token": memory.get("stored_bytes_per_token"),
        "kv_share": fraction(cell),
    }
