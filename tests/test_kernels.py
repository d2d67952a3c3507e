"""A strategy whose attention kernels are not the baseline's: the baseline is run on them too, and told apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import kernels
from harness.engines.hf.engine import HFEngine
from harness.groups import read_run
from harness.judge import judge
from harness.manifest import make_manifest
from harness.plan import Plan, plan
from harness.sweep.drive import execute
from tests.test_conf import job


@dataclass(frozen=True, kw_only=True)
class Choosy(HFEngine):
    """The reference engine, told to be one that has several kinds of attention kernels."""

    def on_kernels(self, attention: str) -> dict[str, Any]:
        return {"prefill_chunk": 64}  # an option that changes nothing but rounding


@pytest.fixture
def planned(tiny: Path, tmp_path: Path) -> Plan:
    words = ["strategy=fp8", "task=needle_single", "task.lengths=[420]", "n=3", "engine.threads=1", "name=r"]
    made = plan([job(*words, "model=hf", f"model.path={tiny}", f"results_dir={tmp_path}")])
    node = {**made.engine_config, "_target_": f"{Choosy.__module__}.{Choosy.__qualname__}"}
    return Plan(**{**vars(made), "engine": Choosy(threads=1), "engine_config": node})


def loaded(planned: Plan, role: str) -> Path:
    (cell,) = (cell for cell in planned.groups[0].cells if cell.role == role)
    return planned.store.cell(cell.address).folder / "loaded.json"


def test_other_kernels_get_a_control_of_their_own(planned: Plan) -> None:
    execute(planned)
    assert kernels.with_controls(planned) is None  # all were computed alike
    facts = json.loads(loaded(planned, "candidate").read_text())
    loaded(planned, "candidate").write_text(json.dumps({**facts, "attention": "OTHER"}))
    controlled = kernels.with_controls(planned)
    assert controlled is not None
    *_, cell = controlled.groups[0].cells
    assert (cell.role, cell.strategy, dict(cell.engine)) == ("kernel", "full on OTHER", {"prefill_chunk": 64})
    assert cell.address not in {one.address for one in planned.groups[0].cells}
    units = controlled.units()
    assert [unit["engine"]["prefill_chunk"] for unit in units] == [1024, 64]
    assert [row["cell"] for row in units[1]["groups"][0]["batches"][0]] == [cell.address]
    execute(controlled)
    path = loaded(controlled, "kernel")
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention": "OTHER"}))  # as such an engine would tell
    verdict = judge(read_run(controlled.store, make_manifest(controlled, ["kvgate run"])), controlled.gate)
    (judged,) = verdict["cells"]
    assert judged["kernel_delta"] == 0.0 and judged["n"] == 3
    assert any("attention by OTHER, the baseline's by sdpa" in note for note in verdict["notes"])


def test_a_strategy_on_the_baselines_kernels_has_no_control(planned: Plan) -> None:
    execute(planned)
    verdict = judge(read_run(planned.store, make_manifest(planned, ["kvgate run"])), planned.gate)
    assert verdict["cells"][0]["kernel_delta"] is None and not verdict["notes"]


def test_a_control_that_cannot_be_run_costs_no_verdict(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format's kernels may be for that format alone."""
    monkeypatch.setattr(Choosy, "on_kernels", lambda self, attention: {"prefill_chunk": 0})  # refused by the worker
    execute(planned)
    facts = json.loads(loaded(planned, "candidate").read_text())
    loaded(planned, "candidate").write_text(json.dumps({**facts, "attention": "OTHER"}))
    controlled = kernels.with_controls(planned)
    assert controlled is not None
    note = kernels.run(controlled)
    assert "could not be run on a strategy's attention kernels" in note and "prefill_chunk must be 1 or more" in note
    verdict = judge(read_run(controlled.store, make_manifest(controlled, ["kvgate run"], [note])), controlled.gate)
    assert verdict["cells"][0]["n"] == 3 and verdict["cells"][0]["kernel_delta"] is None and note in verdict["notes"]
