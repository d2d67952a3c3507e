"""Early stop where a group is cut into shards: workers learn from the store what others have answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import worker
from harness.plan import Plan, plan
from harness.sweep.shards import cut
from harness.sweep.watch import Seat, watch
from harness.types import Record, State
from tests.test_conf import job

GATE = ("gate.early_stop=true", "gate.margin=0.2", "gate.looks=1")


@pytest.fixture
def planned(tiny: Path, tmp_path: Path) -> Callable[..., Plan]:
    def make(*words: str, n: int = 30) -> Plan:
        where = ("model=hf", f"model.path={tiny}", f"results_dir={tmp_path}", f"n={n}", "name=r", "engine.rows=4")
        return plan([job("strategy=window", "task=needle_single", "task.lengths=[420]", *where, *GATE, *words)])

    return make


def answer(made: Plan, samples: set[str], scores: dict[str, float]) -> None:
    """Store records of these samples in the cells of these roles, as another worker would."""
    (group,) = made.groups
    for cell in (cell for cell in group.cells if cell.role in scores):
        made.store.cell(cell.address).append(
            Record(cell.address, sample.id, sample.hash, "x", State.SCORED, scores[cell.role])
            for sample in group.samples
            if sample.id in samples
        )


def answered(made: Plan, role: str) -> set[str]:
    (address,) = {cell.address for cell in made.groups[0].cells if cell.role == role}
    return set(made.store.cell(address).read()[0])


def test_a_worker_stops_asking_when_others_have_shown_harm(
    planned: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planned("executor.workers=2", "executor.shard=24")
    first, second = cut(made)
    others, mine = set(first["groups"][0]["own"]), second["groups"][0]["own"]
    cells = made.missing(made.groups[0])
    second["groups"][0]["missing"] = {cell: mine for cell in cells}
    events: list[tuple[str, dict[str, Any]]] = []

    def emit(event: str, **facts: Any) -> None:
        events.append((event, facts))
        if event == "answered" and len(answered(made, "baseline")) == 1:
            answer(made, others, {"baseline": 1.0, "candidate": 0.0})

    monkeypatch.setattr(worker, "emit", emit)
    monkeypatch.setattr(worker, "SHARE", 1.0)
    worker.run(iter([second]))
    (stopped,) = [facts["text"] for event, facts in events if event == "stopped"]
    assert "window is stopped" in stopped
    told = [facts["sample"] for event, facts in events if event == "answered"]
    assert sorted(told) == sorted(mine) and answered(made, "candidate") - others < set(mine)
    assert answered(made, "noise") == answered(made, "baseline") - others  # with its only candidate the group has ended
    assert cut(made) == []  # the planner comes to the same


def test_a_shard_that_an_early_stop_spares_starts_no_worker_and_is_told_of(planned: Callable[..., Plan]) -> None:
    made = planned("executor.workers=2", "executor.shard=24")
    first, second = cut(made)
    answer(made, set(first["groups"][0]["own"]), {"baseline": 1.0, "candidate": 0.0})
    told: list[Any] = []
    with Seat() as seat:
        seat.stop()  # no worker can be started
        assert watch(second, seat, told.append) == []
    assert sorted(event["sample"] for event in told) == sorted(second["groups"][0]["own"])
