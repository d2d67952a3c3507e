"""What ``kvgate bench`` does, from composed configurations to files and an exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness import manifest as manifests
from harness import provenance
from harness.bench import drive, links, roofline
from harness.bench.judge import judge
from harness.bench.plan import BenchPlan, plan
from harness.judge import strict_exit
from harness.make import make
from harness.places import write_atomic
from harness.plan import Job, engine_of, mixed
from harness.report import bench as reports
from harness.types import BadInput

SCHEMA = "kvgate.bench/2"
LINKS = "harness.bench.links.Links"  # a load that serves nothing


def bench(jobs: Sequence[Job], command: Sequence[str]) -> int:
    """Plan, measure what is missing, judge, report. Returns the exit code."""
    if problems := mixed(jobs, ("load",)):
        raise BadInput(*problems)
    if jobs[0].config["load"].get("_target_") == LINKS:
        return _links(jobs[0].config)
    planned = plan(jobs)
    if jobs[0].config["dry_run"]:
        print(describe(planned))
        return 0
    for arm in (arm for at in planned.points for arm in at.arms):
        for damage in planned.store.load(arm.address).repair():
            print(f"{damage}; moved aside, that trial is measured again")
    folder = planned.store.run(planned.name)
    manifest = make_manifest(planned, command)
    write_atomic(folder / "bench.json", json.dumps(manifest, indent=1, ensure_ascii=False))
    lost = drive.execute(planned)
    manifest["notes"] += lost
    verdict = judge(planned.store, manifest, planned.payoff)
    write_atomic(folder / "payoff.json", json.dumps(verdict, indent=1, ensure_ascii=False, allow_nan=False))
    page = reports.write(folder, verdict)
    print(reports.text(verdict))
    print(f"report: {page}")
    if lost:
        raise BadInput(*lost)
    return strict_exit({"strategies": verdict["candidates"]}) if jobs[0].config["gate"]["strict"] else 0


def _links(config: Mapping[str, Any]) -> int:
    """Measure the machine and say how the file is used."""
    measured, (engine, problems) = make(config["load"], "load"), engine_of(config["engine"])
    if engine is None:
        raise BadInput(*problems)
    if config["dry_run"]:
        print(f"measures memory, matrices and the disk of {measured.path}")
        return 0
    path = links.measure(measured, engine, config)
    print(path.read_text(encoding="utf-8"), end="")
    print(f"hardware: {path}\nkvgate bench --config-dir {config['results_dir']} hardware={config['name']} ...")
    return 0


def make_manifest(plan: BenchPlan, command: Sequence[str]) -> dict[str, Any]:
    """bench.json: what was asked for, as plain data that points at the measurements."""
    return {
        "schema": SCHEMA,
        "name": plan.name,
        **manifests.origin(plan.facts, plan.engine, command),
        "machine": {"cpu": provenance.cpu(), "cores": provenance.cores()},
        "load": {"name": plan.load_name, "option": plan.points[0].point.option},
        "hardware": dict(plan.hardware),
        "size": asdict(size) if (size := roofline.size_of(plan.facts.shape, plan.facts.parameters)) else None,
        "seed": plan.seed,
        "pairs": plan.pairs,
        "notes": [],
        "points": [
            {
                "label": at.point.label,
                "value": at.point.value,
                "weight": at.point.weight,
                "load": at.point.load.spec(),
                "describe": at.point.load.describe(),
                "arms": [manifests.part(arm) for arm in at.arms],
            }
            for at in plan.points
        ],
    }


def describe(plan: BenchPlan) -> str:
    """The plan as text for a terminal."""
    missing = plan.missing()
    wanted = ", ".join(f"{name} {gain:g}" for name, gain in plan.payoff.wanted.items()) or "nothing, all is measured"
    opened = len({plan.load_key(arm) for arm in plan.settings})
    lines = [
        f"model {plan.facts.display} on engine {plan.engine.name}, {opened} load(s)",
        f"wanted gain: {wanted}; alpha {plan.payoff.alpha} over {plan.payoff.looks} looks",
        f"{plan.pairs} pairs in alternation, the baseline measured twice in each",
    ]
    for at in plan.points:
        lines.append(f"load {at.point.label} {at.point.load.describe()}")
        for arm in at.candidates:
            done = plan.pairs - len(missing[arm.address])
            lines.append(f"  {arm.strategy:28} {done} of {plan.pairs} pairs in the store  {arm.stack.describe()}")
    return "\n".join(lines)
