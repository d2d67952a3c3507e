"""What ``kvgate plan`` does, from composed configurations to tables or JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harness.bench.metrics import SLO
from harness.plan import Job, mixed
from harness.sizing import claims, disaggregated, printed, stored
from harness.sizing.case import Case, Simulated, Workload
from harness.sizing.hardware import Hardware, hardware_of
from harness.sizing.holding import Holding
from harness.sizing.section import Section
from harness.sizing.sections import SECTIONS
from harness.sizing.traces import Recorded
from harness.types import BadInput

ALIKE = (
    *("model", "hardware", "formats", "trace", "simulated", "slo", "show", "format", "results_dir"),
    *(field.name for field in fields(Workload)),
)
CLAIMS = "claims"
FORMATS = ("text", "markdown", "json")


def plan(jobs: Sequence[Job], command: Sequence[str]) -> int:
    """Count, and print what was asked for. Returns the exit code. Raises BadInput with every problem found."""
    first = jobs[0].config
    problems = mixed(jobs, ALIKE) + _choices(first)
    if (results := Path(first["results_dir"]).expanduser()).exists() and not results.is_dir():
        problems.append(f"results_dir must be a folder, got {first['results_dir']}")
    if problems:
        raise BadInput(*problems)
    if first["show"] == [CLAIMS]:
        told = {CLAIMS: _claims(_trace_of(first["trace"]))}
        facts: dict[str, Any] = {}
    else:
        case = case_of(jobs)
        made = {name: make(case) for name, make in SECTIONS.items() if name in (first["show"] or SECTIONS)}
        told = {name: section for name, section in made.items() if section}
        facts = {**_facts(case), "left_out": _left_out(first["show"], told)}
        if not told:
            parts = ", ".join(first["show"])
            raise BadInput(
                f"show: {parts} has nothing to say of this model, load and hardware: too little of them is known"
            )
    print(_printed(first["format"], told, facts, command))
    return 0


def _left_out(show: Sequence[str], told: Collection[str]) -> list[str]:
    """What a reader may miss, and why: parts that were asked for by name, and one whose package is not installed."""
    missing = None if show else disaggregated.missing()
    silent = [name for name in show if name not in told]
    found = [
        f"{name} has nothing to say of this model, load and hardware: too little of them is known" for name in silent
    ]
    return [*found, missing] if missing else found


def _printed(form: str, told: Mapping[str, Section], facts: Mapping[str, Any], command: Sequence[str]) -> str:
    if form == "json":
        return printed.as_json(told, facts, command)
    left_out = facts.get("left_out", ())
    return printed.as_markdown(told, left_out) if form == "markdown" else printed.as_text(told, left_out)


def _claims(trace: Recorded | None) -> Section:
    """Raises BadInput with what is wrong of the trace."""
    from harness.engines.hf.casts import overflow
    from harness.sizing.stacks import times_smaller

    if trace and (problems := trace.problems()):
        raise BadInput(*problems)
    return claims.section(times_smaller, overflow(), trace)


def _choices(config: Mapping[str, Any]) -> list[str]:
    found = []
    if config["format"] not in FORMATS:
        found.append(f"format must be one of {', '.join(FORMATS)}, got {config['format']!r}")
    known = (CLAIMS, *SECTIONS)
    found += [
        f"show must name parts of a plan ({', '.join(known)}), got {one!r}"
        for one in config["show"]
        if one not in known
    ]
    if "disaggregation" in config["show"] and (reason := disaggregated.missing()):
        found.append(f"show: {reason}")
    if CLAIMS in config["show"] and len(config["show"]) > 1:
        found.append(f"show must be claims alone, which are of no plan, got {', '.join(config['show'])}")
    return found


def case_of(jobs: Sequence[Job]) -> Case:
    """What is planned. Raises BadInput with what is wrong of workload, hardware, model and strategies, all at once."""
    from harness.engines.hf.census import shape_of_model
    from harness.sizing.stacks import holdings_of, strategies_of

    first = jobs[0].config
    load = Workload(**{field.name: first[field.name] for field in fields(Workload)})
    trace, simulated = _trace_of(first["trace"]), _simulated_of(first)
    problems, hardware, model = (
        [*load.problems(), *simulated.problems(), *(trace.problems() if trace else [])],
        None,
        None,
    )
    try:
        hardware = hardware_of(first["hardware"])
    except BadInput as error:
        problems += error.problems
    try:
        model = shape_of_model(first["model"])
    except BadInput as error:
        problems += error.problems
    held: tuple[Holding, ...] = ()
    left_out: tuple[str, ...] = ()
    if model is not None:
        if model.max_tokens and load.context > model.max_tokens:
            problems.append(
                f"context must be at most the {model.max_tokens} tokens that {model.name} reads, got {load.context}"
            )
        try:
            strategies = strategies_of(jobs)
            held, left_out = holdings_of(model, strategies, {k: v for k, v in first["formats"].items() if v})
        except BadInput as error:
            problems += error.problems
    if problems or model is None or hardware is None:
        raise BadInput(*dict.fromkeys(problems))
    known = stored.read(first["results_dir"])
    scenario = str((first.get("scenario") or {}).get("name", ""))
    return Case(model, hardware, held, load, known, simulated, trace, scenario, left_out)


def _trace_of(config: Mapping[str, Any]) -> Recorded | None:
    if config["path"] is None:
        return None
    return Recorded(Path(config["path"]).expanduser(), config["form"], config["block"])


def _simulated_of(config: Mapping[str, Any]) -> Simulated:
    asked = config["simulated"]
    return Simulated(
        asked["requests"],
        asked["replicas"],
        tuple(asked["chunks_tokens"]),
        asked["link_bytes_s"],
        SLO(**config["slo"]),
        tuple(config["trace"]["policies"]),
    )


def _facts(case: Case) -> dict[str, Any]:
    return {
        "model": {
            "name": case.model.name,
            "attention": case.model.kind,
            "layers": len(case.model.layers),
            "kv_bytes_per_token": case.full.bytes_per_token(case.load.context),
            "weight_bytes": case.weight_bytes,
            "fitted": case.model.fitted or None,
        },
        "hardware": _known(case.hardware),
        "load": asdict(case.load),
        "trace": case.trace and {**asdict(case.trace), "path": str(case.trace.path)},
        "simulated": asdict(case.simulated),
        "scenario": case.scenario or None,
    }


def _known(hardware: Hardware) -> dict[str, Any]:
    facts = asdict(hardware)
    return {**facts, "tiers": {tier.pop("name"): tier for tier in facts["tiers"]}}
