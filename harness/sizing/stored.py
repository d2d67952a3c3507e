"""What a results folder knows already: verdicts of runs, and how far measured steps lay from the roofline. Reads files only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.places import Place
from harness.store import ResultStore
from harness.types import canonical


@dataclass(frozen=True)
class Judged:
    """What a run decided of a stack on one model."""

    decision: str
    layer: str  # in words
    options: Mapping[str, Any]
    run: str
    engine: str
    tasks: tuple[str, ...]
    created: str

    def describe(self) -> str:
        return f"{self.decision} of {self.layer} in run {self.run} ({self.engine}; {', '.join(self.tasks)})"


@dataclass(frozen=True)
class Gap:
    """By how many times measured steps exceed the roofline: the median of so many measurements."""

    times: float
    measurements: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Stored:
    """Every run of a results folder, whole ones only: a damaged or unfinished one decides nothing here."""

    verdicts: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = ()  # run.json and verdict.json
    payoffs: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = ()  # bench.json and payoff.json

    def judged(self, model: str, slot: str, layer: str | None = None) -> Judged | None:
        """The newest verdict on this model of a stack of one layer: of this slot, and of this name if one is given."""
        found = [
            Judged(
                decision=entry["decision"],
                layer=cell["describe"],
                options=cell["stack"][slot].get("options", {}),
                run=run["name"],
                engine=run["engine"]["name"],
                tasks=tuple(_tasks(run)),
                created=run["created"],
            )
            for run, verdict in self.verdicts
            if run["model"]["id"] == model
            for cell in _alone(_cells(run), slot, layer)
            for entry in verdict["strategies"]
            if entry["name"] == cell["strategy"]
        ]
        return max(found, key=lambda one: one.created, default=None)

    def gap(self, what: str, hardware: str) -> Gap | None:
        """Of the full cache's prefill or decode on this hardware, whatever the model."""
        found = [
            (one["gap"], bench["name"])
            for bench, payoff in self.payoffs
            if bench["hardware"].get("name") == hardware
            for at in payoff["baseline"]["points"]
            for one in at["roofline"]
            if one["what"] == what
        ]
        return _median(found)

    def realized(self, hardware: str, stacks: Collection[str]) -> Gap | None:
        """The share of its predicted gain of a decode step that a stack has reached: its gap beside the full cache's."""
        found = [
            (full / gap, bench["name"])
            for bench, payoff in self.payoffs
            if bench["hardware"].get("name") == hardware
            for one in payoff["candidates"]
            if one["strategy"] in _named(bench["points"][0]["arms"], stacks)
            for base, mine in zip(payoff["baseline"]["points"], one["points"], strict=True)
            if (full := _decode(base)) and (gap := _decode(mine))
        ]
        return _median(found)


def read(results_dir: str | Place) -> Stored:
    """All runs that are stored there."""
    store = ResultStore(results_dir)
    return Stored(
        tuple(_pairs(store, "run.json", "verdict.json", ("model", "engine", "groups"), ("strategies",))),
        tuple(_pairs(store, "bench.json", "payoff.json", ("hardware", "points"), ("baseline", "candidates"))),
    )


def _pairs(
    store: ResultStore, asked: str, told: str, wanted: Iterable[str], decided: Iterable[str]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for first, second in store.runs(asked, told):
        if all(key in first for key in wanted) and all(key in second for key in decided):
            yield first, second


def _cells(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [cell for group in run["groups"] for cell in group["cells"] if cell["role"] == "candidate"]


def _alone(cells: Iterable[Mapping[str, Any]], slot: str, layer: str | None) -> list[Mapping[str, Any]]:
    """Cells whose stack is one layer, of this slot and, if one is given, of this name."""
    return [cell for cell in cells if set(cell["stack"]) == {slot} and layer in (None, cell["stack"][slot]["name"])]


def _named(cells: Iterable[Mapping[str, Any]], stacks: Collection[str]) -> set[str]:
    return {cell["strategy"] for cell in cells if canonical(cell["stack"]) in stacks}


def _tasks(run: Mapping[str, Any]) -> list[str]:
    return [group["label"] for group in run["groups"] if not group["fidelity"]]


def _decode(point: Mapping[str, Any]) -> float | None:
    return next((one["gap"] for one in point["roofline"] if one["what"] == "decode"), None)


def _median(found: list[tuple[float, str]]) -> Gap | None:
    if not found:
        return None
    return Gap(median(times for times, _ in found), len(found), tuple(dict.fromkeys(run for _, run in found)))
