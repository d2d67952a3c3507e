"""From stored records to verdict.json: pairs them, counts the look, and asks ``verdict``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from harness import payoffs
from harness.compare import ComparisonInput, compare
from harness.groups import CellRecords, GroupRecords, RunRecords
from harness.parts import Part, parts
from harness.pass_at_k import pass_at_k
from harness.places import Place
from harness.store import ResultStore
from harness.types import (
    BadInput,
    Decision,
    Gate,
    Generation,
    State,
    canonical,
    digest,
)
from harness.verdict import CellInput, CellVerdict, even, judge_cell, judge_ladders, judge_strategy

SCHEMA = "kvgate.verdict/1"
NAMED = 5  # samples that failed, of a task


def judge(run: RunRecords, gate: Gate, compared: Sequence[str] = ()) -> dict[str, Any]:
    """verdict.json: every cell of a run, judged from stored facts.

    Args:
        run: What the store holds of it.
        gate: What counts as good enough; the run's own gate, or another.
        compared: Strategies that are compared with each other, every two of them; none if empty.
    """
    store, manifest, groups = run.store, run.manifest, run.groups
    gating = gate.tasks or tuple(dict.fromkeys(g.planned["label"] for g in groups if not g.task.fidelity))
    notes = [*manifest.get("notes", ()), *manifest.get("lost", ()), *_notes(manifest, gate, compared, run.rescored)]
    cells: list[tuple[CellVerdict, dict[str, Any]]] = []
    pairs: list[ComparisonInput] = []
    for group in groups:
        looks = {name: _look(store, group, cell, gate, notes) for name, cell in group.candidates.items()}
        for name, cell in group.candidates.items():
            look, held = looks[name]
            asked = _cell_input(group, cell, look)
            judged = judge_cell(asked, held, gating)
            inside = parts(asked, group.samples, group.baseline.records, cell.records)
            cells.append((judged, _cell_json(judged, inside, group, cell, manifest["model"])))
        pairs += _comparison_inputs(group, compared, looks)
        notes += _left_out_of_comparison(group, compared)
    notes += _stop_notes([judged for judged, _ in cells])
    strategies, ladders = _strategies([judged for judged, _ in cells], groups, manifest, gate)
    benches = list(store.runs("bench.json", "payoff.json"))
    stacks = {name: cell.planned["stack"] for group in groups for name, cell in group.candidates.items()}
    strategies = [{**one, "payoff": payoffs.of(benches, manifest, stacks[one["name"]])} for one in strategies]
    return {
        "schema": SCHEMA,
        "name": manifest["name"],
        "created": manifest["created"],
        "command": manifest["command"],
        "model": manifest["model"],
        "engine": manifest["engine"],
        "gen": manifest.get("gen") or asdict(Generation()),  # runs of before there was a choice
        "gate": {**asdict(gate), "tasks": list(gating)},
        "seed": min(group["seed"] for group in manifest["groups"]),
        "kvgate": manifest["kvgate"],
        "git": manifest["git"],
        "python": manifest["engine"]["versions"]["python"],
        "strategies": strategies,
        "ladders": ladders,
        "cells": [facts for _, facts in cells],
        "pass_at_k": [facts for group in groups for facts in _pass_at_k(group, manifest)],
        "comparisons": [asdict(comparison) for comparison in compare(pairs)],
        "notes": [*dict.fromkeys([*notes, *_engine_notes(groups), *_failure_notes(groups)]), *map(str, run.damaged)],
        "reused": _reused(groups, manifest.get("reused", ())),
    }


def _reused(groups: Sequence[GroupRecords], addresses: Collection[str]) -> list[dict[str, str]]:
    """The cells that an earlier run had finished."""
    return [
        {"task": group.planned["label"], "mode": group.mode, **{key: cell.planned[key] for key in ("role", "strategy")}}
        for group in groups
        for cell in group.cells
        if cell.planned["address"] in addresses
    ]


def _look(store: ResultStore, group: GroupRecords, cell: CellRecords, gate: Gate, notes: list[str]) -> tuple[int, Gate]:
    """Which look at this pair of cells this is, and the gate that it is held to.

    What was promised before the first look holds for all later ones: alpha and the number of looks cannot be renegotiated
    with the samples on the table. Another margin may be asked, and is noted.
    """
    baseline, control = group.baseline, group.role("control")
    done = set(baseline.records) & set(cell.records)
    if group.task.fidelity or len(done) < len(group.samples):
        return 1, gate
    promise = {
        "margin": gate.margin,
        "margin_kind": gate.margin_kind,
        "alpha": gate.alpha,
        "looks": gate.looks,
        "control": control.planned["address"] if control else None,
    }
    pair = digest([baseline.planned["address"], cell.planned["address"]], 24)
    look, first = store.look(pair, group.planned["samples_set"], promise)
    where = f"{cell.planned['strategy']} on {group.planned['label']}"
    for key in ("alpha", "looks"):
        if first[key] != promise[key]:
            notes.append(
                f"{where}: gate.{key} stays {first[key]} as promised before the first look, not {promise[key]}"
            )
    for key in ("margin", "margin_kind", "control"):
        if first[key] != promise[key]:
            notes.append(f"{where}: gate.{key} differs from the first look's: {first[key]} then, {promise[key]} now")
    return look, replace(gate, alpha=first["alpha"], looks=first["looks"])


def _cell_input(group: GroupRecords, cell: CellRecords, look: int) -> CellInput:
    return CellInput(
        strategy=cell.planned["strategy"],
        task=group.planned["label"],
        mode=group.mode,
        pairs=group.pairs(cell),
        noise=group.noise,
        control=group.control,
        planned_n=group.planned["n"],
        look=look,
        chance=group.task.chance,
        graded=group.planned["graded"],
        fidelity=group.task.fidelity,
        fidelity_measures=_fidelity(cell),
        kernel=group.kernel(cell),
    )


def _comparison_inputs(
    group: GroupRecords, names: Sequence[str], looks: Mapping[str, tuple[int, Gate]]
) -> list[ComparisonInput]:
    """Every two of the named strategies that this group has, unless it only measures fidelity.

    Both were looked at as often as the younger of the two was; of two promises the stricter one holds.
    """
    here = [name for name in names if name in looks and not group.task.fidelity]
    inputs = []
    for a, b in combinations(here, 2):
        (look, gate), (other_look, other_gate) = looks[a], looks[b]
        cell = _cell_input(group, group.candidates[a], min(look, other_look))
        cell = replace(cell, pairs=even(group.pairs(group.candidates[a], against=group.candidates[b])))
        stricter = min(gate, other_gate, key=lambda gate: gate.alpha / gate.looks)
        inputs.append(ComparisonInput(b, cell, stricter))
    return inputs


def _left_out_of_comparison(group: GroupRecords, names: Sequence[str]) -> list[str]:
    """Why candidates that were to be compared are not, on this task."""
    where = f"{group.planned['label']} ({group.mode})"
    if names and group.task.fidelity:
        return [f"compare: not on {where}, which measures fidelity and is not judged"]
    return [
        f"compare: {name} is compared with no other on {where}, where it was not run"
        for name in names
        if name not in group.candidates
    ]


def _fidelity(cell: CellRecords) -> dict[str, float]:
    """Means over samples of what following the baseline measured; kl_max is the largest."""
    measured = [r.response.fidelity for r in cell.records.values() if r.response and r.response.fidelity]
    if not measured:
        return {}
    means = {key: sum(facts[key] for facts in measured) / len(measured) for key in measured[0]}
    return {**means, "kl_max": max(facts["kl_max"] for facts in measured)}


def _cell_json(
    verdict: CellVerdict, inside: Sequence[Part], group: GroupRecords, cell: CellRecords, model: Mapping[str, Any]
) -> dict[str, Any]:
    facts = asdict(verdict)
    facts["reasons"] = list(verdict.reasons)
    return {
        **facts,
        "family": group.task.family,
        "task_version": group.task.version,
        "shots": _shots(group.planned["task"]),
        "parts": [asdict(part) for part in inside],
        "memory": _memory(cell, model["element_bytes"], model["deploy_element_bytes"]),
        "loaded": dict(cell.loaded),
        "loaded_baseline": dict(group.baseline.loaded),
        "capacity_ratio": _capacity_ratio(group.baseline, cell),
        "evidence": _evidence(cell),
        "output_tokens": _output_tokens(cell),
        "output_tokens_baseline": _output_tokens(group.baseline),
        "thinking_cut": _thinking_cut(group, cell),
        "thinking_cut_baseline": _thinking_cut(group, group.baseline),
        "at_limit": _at_limit(cell),
        "at_limit_baseline": _at_limit(group.baseline),
        "failed_baseline": sum(record.state is State.FAILED for record in group.baseline.records.values()),
        "address": cell.planned["address"],
        "command": cell.planned.get("command"),  # runs of before it was kept: none
    }


def _shots(task: Mapping[str, Any]) -> int | None:
    """Worked examples before each question, by the task's options; None where the task's own data says how many."""
    shots: int | None = task.get("num_fewshot", task.get("shots", 0))
    return shots


def _memory(cell: CellRecords, held: int, deployed: int) -> dict[str, float | int] | None:
    """Bytes a prompt token, each over all samples; the peak is the largest seen.

    ``held`` and ``deployed`` are the sizes of an unquantized element here and where the model will be deployed.
    """
    memory = [record.memory for record in cell.records.values() if record.memory]
    if not memory:
        return None
    tokens = sum(m.prompt_tokens for m in memory)
    return {
        "formula_bytes_per_token": sum(m.formula_bytes for m in memory) / tokens,
        "stored_bytes_per_token": sum(m.stored_bytes for m in memory) / tokens,
        "deploy_bytes_per_token": sum(m.formula_bytes + m.unpacked_elements * (deployed - held) for m in memory)
        / tokens,
        "deploy_full_bytes_per_token": sum(m.full_elements for m in memory) * deployed / tokens,
        "working_bytes_per_token": sum(m.working_bytes for m in memory) / tokens,
        "peak_bytes": max(m.peak_bytes for m in memory),
        "kept_fraction": sum(m.kept_fraction * m.prompt_tokens for m in memory) / tokens,
    }


def _capacity_ratio(baseline: CellRecords, cell: CellRecords) -> float | None:
    """Tokens that fit into the same bytes, as a multiple of the baseline's, of engines that tell what a token takes."""
    full, mine = (one.loaded.get("kv_bytes_per_token") for one in (baseline, cell))
    return full / mine if full and mine else None


def _evidence(cell: CellRecords) -> list[dict[str, Any]]:
    """By layer: did it act on every sample, in how many, and the means of its numbers."""
    by_layer: dict[str, list[Any]] = {}
    for record in cell.records.values():
        for evidence in record.evidence:
            by_layer.setdefault(evidence.layer, []).append(evidence)
    return [
        {
            "layer": layer,
            "acted": all(one.acted for one in found),
            "why": f"acted on {sum(one.acted for one in found)} of {len(found)} samples; the first: {found[0].why}",
            "facts": _means([one.facts for one in found]),
        }
        for layer, found in by_layer.items()
    ]


def _means(facts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the samples that have a number; one without bytes of a tier has moved none."""
    means = {}
    for key in dict.fromkeys(key for mine in facts for key in mine):
        known = [mine.get(key, 0.0) for mine in facts if key in mine or key.startswith("bytes_")]
        means[key] = sum(known) / len(known)
    return means


def _output_tokens(cell: CellRecords) -> float | None:
    lengths = [record.response.output_tokens for record in cell.records.values() if record.response]
    return sum(lengths) / len(lengths) if lengths else None


def _thinking_cut(group: GroupRecords, cell: CellRecords) -> float | None:
    """Share of the answers whose thinking used its budget up; None where none thinks."""
    cut = [record.response.thinking_cut for record in cell.records.values() if record.response]
    return sum(cut) / len(cut) if cut and any(sample.think for sample in group.samples) else None


def _pass_at_k(group: GroupRecords, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of a group whose right/wrong items were answered several times, pass@k of the baseline and of each candidate."""
    k = manifest.get("gen", {}).get("k", 1)
    if k == 1 or group.planned["graded"] or group.task.fidelity:
        return []
    cells = {group.baseline.planned["strategy"]: group.baseline, **group.candidates}
    label = group.planned["label"]
    return [
        asdict(pass_at_k((name, label, group.mode), group.samples, cell.records, k)) for name, cell in cells.items()
    ]


def _at_limit(cell: CellRecords) -> int:
    """Answers that ended because they had as many tokens as an answer may have."""
    return sum(record.response is not None and record.response.finish == "length" for record in cell.records.values())


def _strategies(
    cells: Sequence[CellVerdict], groups: Sequence[GroupRecords], manifest: Mapping[str, Any], gate: Gate
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The strategies' own verdicts, and the ladders that they are rungs of."""
    planned = {c.planned["strategy"]: c.planned for g in groups for c in g.cells if c.planned["role"] == "candidate"}
    verdicts = {name: judge_strategy([cell for cell in cells if cell.strategy == name]) for name in planned}
    ladders = [Ladder(**ladder) for ladder in manifest.get("ladders", ())] or _budgets(planned)
    rungs = {
        str(key): [
            (at, verdicts[name].p_value if verdicts[name].decision is Decision.GO else None)
            for at, (_, name) in enumerate(ladder.rungs)
        ]
        for key, ladder in enumerate(ladders)
    }
    certified = judge_ladders(rungs, gate.alpha / gate.looks)
    found = [_ladder_json(ladder, certified[str(key)], planned) for key, ladder in enumerate(ladders)]
    rung_of = {
        rung["strategy"]: {
            **{key: ladder[key] for key in ("policy", "option", "smallest_certified")},
            **{key: rung[key] for key in ("value", "certified")},
        }
        for ladder in found
        for rung in ladder["rungs"]
    }
    strategies = [
        {
            "name": name,
            "decision": verdict.decision,
            "reasons": list(verdict.reasons),
            "stack": planned[name]["describe"],
            "ladder": rung_of.get(name),
        }
        for name, verdict in verdicts.items()
    ]
    return strategies, found


@dataclass(frozen=True)
class Ladder:
    """Strategies that differ in the value of one option alone, as (value, strategy) from mild to harsh."""

    option: str  # strategy.evict.keep
    rungs: Sequence[tuple[Any, str]]


def _ladder_json(ladder: Ladder, last: float | None, planned: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A ladder with what is certified on it: all rungs up to place ``last``, none if that is None."""
    option = ladder.option.rsplit(".", 1)[-1]
    _, mildest = ladder.rungs[0]
    return {
        "policy": re.sub(rf" {option}=\S+", "", planned[mildest]["describe"]),
        "option": option,
        "smallest_certified": None if last is None else ladder.rungs[int(last)][0],
        "rungs": [
            {"value": value, "strategy": name, "certified": last is not None and at <= last}
            for at, (value, name) in enumerate(ladder.rungs)
        ],
    }


def _budgets(planned: Mapping[str, Mapping[str, Any]]) -> list[Ladder]:
    """The ladders that nobody named: strategies of a grid that differ in their budget alone."""
    alike: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name, cell in planned.items():
        evict = cell["stack"].get("evict")
        if not evict:
            continue
        options = dict(evict["options"])
        budgets = {key: options.pop(key) for key in ("keep", "keep_tokens")}
        if not any(budgets.values()):  # a policy made of others has budgets inside
            continue
        kind = "keep" if budgets["keep"] is not None else "keep_tokens"
        key = canonical({**cell["stack"], "evict": {**evict, "options": options}})
        alike.setdefault((kind, key), []).append((float(budgets[kind]), name))
    return [
        Ladder(f"strategy.evict.{kind}", sorted(rows, reverse=True))
        for (kind, _), rows in alike.items()
        if len(rows) > 1
    ]


def _stop_notes(cells: Sequence[CellVerdict]) -> list[str]:
    """What early stops have spared."""
    stopped = [cell for cell in cells if cell.stopped_at is not None]
    if not stopped:
        return []
    saved = sum(cell.saved for cell in stopped)
    return [
        f"{len(stopped)} of {len(cells)} cells stopped early, for harm was shown: {saved} answers were not asked for"
    ]


def _engine_notes(groups: Sequence[GroupRecords]) -> list[str]:
    """What the engine that served a strategy is at risk of, and where it computes otherwise than for the baseline."""
    notes = []
    for group in groups:
        for name, cell in group.candidates.items():
            notes += loaded_notes(name, cell.loaded, group.baseline.loaded)
    return notes


def _failure_notes(groups: Sequence[GroupRecords]) -> list[str]:
    """Samples that the machine gave no answer to, by task; of many the first are named."""
    notes = []
    for group in groups:
        records = [record for cell in group.cells for record in cell.records.values()]
        lost = [one for one in records if one.state is State.FAILED and one.fault == "infrastructure"]
        whys = {one.sample_id: one.error for one in lost}
        named = ", ".join(f"{sample} ({why})" for sample, why in list(whys.items())[:NAMED])
        more = f" and {len(whys) - NAMED} more" if len(whys) > NAMED else ""
        if whys:
            label = group.planned["label"]
            notes.append(f"{label}: samples failed, are left out and never counted as wrong: {named}{more}")
    return notes


def loaded_notes(name: str, mine: Mapping[str, Any], whole: Mapping[str, Any]) -> list[str]:
    """The same of one strategy, by what was found on loading it and the baseline."""
    notes = [f"{name}: {risk}" for risk in mine.get("risks", ())]
    ours, theirs = whole.get("attention"), mine.get("attention")
    if ours and theirs and ours != theirs:
        notes.append(f"{name}: attention by {theirs}, the baseline's by {ours}: what differs may be the kernel's doing")
    return notes


def _notes(manifest: Mapping[str, Any], gate: Gate, compared: Sequence[str], rescore: bool) -> list[str]:
    promised = manifest["gate"]
    notes = [
        f"gate.{key} was changed after the run: promised {promised[key]}, judged at {value}"
        for key, value in asdict(gate).items()
        if key not in ("strict", "tasks") and promised.get(key, False) != value
    ]
    if gate.tasks and list(gate.tasks) != list(promised["tasks"]):
        notes.append(f"gate.tasks was changed after the run: judged on {', '.join(gate.tasks)}")
    if set(compared) != set(manifest.get("compare", ())):  # fewer names are chosen too, and Holm would be milder
        notes.append(
            f"compare was chosen after the run: {', '.join(compared)}. If their scores were known by then, confirm what is "
            "found on another seed"
        )
    if rescore:
        notes.append("stored responses were scored again with the scorers of this version")
    return notes


def report_gate(promised: Mapping[str, Any], changes: Mapping[str, Any]) -> Gate:
    """The run's gate with what ``kvgate report`` asks differently. Raises BadInput if it breaks a rule."""
    merged = {**promised, **{key: value for key, value in changes.items() if value is not None}}
    gate = Gate(**{**merged, "tasks": tuple(merged["tasks"])})
    if problems := gate.problems():
        raise BadInput(*problems)
    return gate


def strict_exit(verdict: Mapping[str, Any]) -> int:
    """0 all GO, 1 some NO-GO, else 3: something was not shown, or nothing was judged. NO-GO weighs more."""
    decisions = {Decision(strategy["decision"]) for strategy in verdict["strategies"]}
    if Decision.NO_GO in decisions:
        return 1
    return 0 if decisions == {Decision.GO} else 3


def candidates(manifest: Mapping[str, Any]) -> list[str]:
    """Names of the strategies that a run judges."""
    cells = [cell for group in manifest["groups"] for cell in group["cells"] if cell["role"] == "candidate"]
    return list(dict.fromkeys(cell["strategy"] for cell in cells))


def results_of(folder: Place) -> Place:
    """The results folder that a run's folder lies in."""
    return folder.parent.parent
