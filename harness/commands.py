"""What ``kvgate run`` and ``kvgate report`` do, from a composed configuration to files and an exit code."""

from __future__ import annotations

import gc
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from harness import compare, privacy
from harness import manifest as manifests
from harness import report as reports
from harness.groups import RunRecords, read_run
from harness.judge import candidates, judge, report_gate, results_of, strict_exit
from harness.places import Place, place, write_atomic
from harness.store import ResultStore
from harness.table import to_table
from harness.types import BadInput, Gate, strangers

if TYPE_CHECKING:
    import pandas as pd

    from harness.plan import Job, Plan
    from harness.sweep.kinds import Outcome


def run(jobs: Sequence[Job], command: Sequence[str]) -> int:
    """Plan, execute what is missing, judge, report. Returns the exit code."""
    from harness import difficulty
    from harness.dry_run import describe
    from harness.plan import plan
    from harness.sweep.kinds import sweep_of

    sweep = sweep_of(jobs)
    asked, jobs = jobs, sweep.expanded(jobs)
    searches = difficulty.searches(jobs)
    if jobs[0].config["dry_run"]:
        planned = plan(difficulty.plain(jobs))
        print(*searches, *sweep.told(planned, asked), describe(planned), sep="\n")
        return 0
    settings = [difficulty.find(search) for search in searches]
    print(*settings, sep="\n", end="\n" * bool(settings))
    outcome = sweep.run(
        difficulty.settled(jobs, settings), asked, partial(_carry_out, command, list(map(str, settings)))
    )
    print(reports.text_table(outcome.verdict))
    print(f"report: {outcome.folder / 'report.html'}")
    if outcome.lost:
        raise BadInput(*outcome.lost)
    return strict_exit(outcome.verdict) if outcome.gate.strict else 0


def _carry_out(
    command: Sequence[str],
    settings: Sequence[str],
    jobs: Sequence[Job],
    *,
    notes: Sequence[str] = (),
    facts: Callable[[Plan], Mapping[str, Any]] = lambda plan: {},
) -> Outcome:
    """Plans, runs what is missing, judges and reports: how a sweep has jobs carried out (``CarryOut``).

    ``settings`` were found beforehand, and go into every report.
    """
    from harness import kernels
    from harness.plan import plan
    from harness.sweep.drive import execute
    from harness.sweep.kinds import Outcome

    planned = plan(jobs)
    known = facts(planned)
    for group in planned.groups:
        for cell in group.cells:
            for damage in planned.store.cell(cell.address).repair():
                print(f"{damage}; moved aside, that sample runs again")
    folder = planned.store.run(planned.name)
    configs = [{"overrides": list(job.overrides), "config": dict(job.config)} for job in jobs]
    write_atomic(folder / "config.yaml", yaml.safe_dump(configs, sort_keys=False, allow_unicode=True))
    manifest = {**manifests.make_manifest(planned, command, notes=[*settings, *notes]), **known}
    manifest["privacy"] = jobs[0].config["privacy"]
    manifest["reused"], manifest["job"] = _reused(planned), uuid.uuid4().hex
    manifests.save(manifest, folder)
    lost = execute(planned, manifest["job"])
    if controlled := kernels.with_controls(planned):
        manifest["groups"] = manifests.make_manifest(controlled, command)["groups"]
        if note := kernels.run(controlled):
            manifest["notes"].append(note)
    manifest["lost"] = lost
    manifests.save(manifest, folder)
    verdict = _judge_and_write(planned.store, folder, manifest, planned.gate, planned.compare)
    return Outcome(folder, verdict, planned.gate, lost)


def _reused(planned: Plan) -> list[str]:
    """Addresses of the cells that were finished before this run was started for the first time."""
    try:
        _, before = manifests.load(str(planned.store.run(planned.name)), planned.store.root)
    except BadInput:  # it never was, or its manifest is damaged
        before = {"groups": []}
    ours = {cell["address"] for group in before["groups"] for cell in group["cells"]} - {*before.get("reused", ())}
    return sorted(planned.finished() - ours)


def report(config: Mapping[str, Any]) -> int:
    """Rebuild a run's verdict and report from the store, or compare several runs. Returns the exit code."""
    if config["format"] not in ("text", "json"):
        raise BadInput(f"format must be text or json, got {config['format']!r}")
    if config["by"] not in ("task", "family"):
        raise BadInput(f"by must be task or family, got {config['by']!r}")
    if config["privacy"] and (wrong := privacy.problems(config["privacy"])):
        raise BadInput(*wrong)
    names = list(map(str, config["run"])) if isinstance(config["run"], list) else [str(config["run"])]
    if not names:
        raise BadInput("run must name a run, or several, got none")
    if len(names) > 1:
        from harness.between.command import compare_runs

        return compare_runs(names, config)
    folder, manifest = manifests.load(names[0], place(config["results_dir"]))
    manifest["privacy"] = config["privacy"] or manifest.get("privacy", "show")  # runs of before there was a choice
    gate = report_gate(manifest["gate"], config["gate"])
    if wrong := strangers(gate, {group["label"]: group["fidelity"] for group in manifest["groups"]}):
        raise BadInput(*wrong)
    compared = config["compare"] or manifest.get("compare", ())
    if wrong := compare.problems(compared, candidates(manifest)):
        raise BadInput(*wrong)
    store = ResultStore(results_of(folder))
    verdict = _judge_and_write(store, folder, manifest, gate, compared, rescore=config["rescore"])
    if config["format"] == "json":
        print(json.dumps(verdict, indent=1))
    else:
        print(reports.text_table(verdict, by=config["by"]))
        print(f"report: {folder / 'report.html'}")
    return strict_exit(verdict) if gate.strict else 0


def _judge_and_write(
    store: ResultStore,
    folder: Place,
    manifest: Mapping[str, Any],
    gate: Gate,
    compared: Sequence[str],
    *,
    rescore: bool = False,
) -> dict[str, Any]:
    with _uncollected():
        verdict, records = _judged(read_run(store, manifest, rescore=rescore), gate, compared)
        write_atomic(folder / "verdict.json", json.dumps(verdict, indent=1, ensure_ascii=False, allow_nan=False))
        reports.write(folder, verdict, records)
    _tell_ci(verdict)
    return verdict


def _judged(run: RunRecords, gate: Gate, compared: Sequence[str]) -> tuple[dict[str, Any], pd.DataFrame]:
    """verdict.json and one row a cell and sample, as they may be shown."""
    verdict, records = judge(run, gate, compared), to_table(run.groups)
    if run.manifest["privacy"] == "redact":
        return privacy.redact(verdict, records, run.manifest, run.damaged)
    return verdict, records


@contextmanager
def _uncollected() -> Iterator[None]:
    """Records hold no cycles; looking for some again and again while there are many takes as long as reading them."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _tell_ci(verdict: Mapping[str, Any]) -> None:
    """Append the answer to the summary of the GitHub step that this runs in, if it is one."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(path, "ab") as summary:
                summary.write(reports.step_summary(verdict))
        except OSError as error:
            raise BadInput(
                f"GITHUB_STEP_SUMMARY must name a file that can be written, got {path} ({error.strerror})"
            ) from error
