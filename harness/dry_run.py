"""What a plan would do: cells, reuse, work, its cost, and what its n can decide. Shown by ``dry_run=true``."""

from __future__ import annotations

from collections.abc import Sequence

from harness import stats
from harness.plan import Group, Plan
from harness.sweep.executor import Shard
from harness.sweep.experience import Experience
from harness.sweep.shards import cut

FLIP_RATES = (0.0, 0.01, 0.02, 0.05)  # shares of samples that change by noise alone, for which n is judged


def describe(plan: Plan) -> str:
    """The plan as text for a terminal."""
    lines = [
        f"model {plan.facts.display} on engine {plan.engine.name}, {len(plan.units())} load(s)",
        *_work(plan),
        f"generation: {plan.generation.describe()}",
        f"gate: margin {plan.gate.margin} ({plan.gate.margin_kind}), alpha {plan.gate.alpha} over {plan.gate.looks} "
        f"looks, joint power {plan.gate.power}",
    ]
    for group in plan.groups:
        lines += ["", *_group(plan, group)]
    return "\n".join(lines)


def _work(plan: Plan) -> list[str]:
    """Cells, shards, and what they will take as far as stored records tell."""
    shards = cut(plan)
    done, experience = plan.finished(), Experience(plan)
    addresses = {cell.address for group in plan.groups for cell in group.cells}
    sizes = [sum(len(part["own"]) for part in shard["groups"]) for shard in shards]
    span = " to ".join(dict.fromkeys(str(end(sizes)) for end in (min, max))) if sizes else ""
    of = f" of {span} sample(s)" if sizes else ""
    return [
        f"{len(addresses)} cells, {len(done)} of them reused: they are finished in the store",
        f"executor {plan.executor.name}: {len(shards)} shard(s){of}, {min(plan.executor.workers, len(shards))} at once",
        _time(plan, shards, experience),
        _peak(experience),
    ]


def _time(plan: Plan, shards: Sequence[Shard], experience: Experience) -> str:
    each = {group.id: experience.seconds(group) for group in plan.groups}
    if None in each.values():
        return f"time: not known, for the store has no record of {plan.facts.display} on this engine and kind of device"
    took = [sum((each[part["id"]] or 0.0) * len(part["own"]) for part in shard["groups"]) for shard in shards]
    workers = min(plan.executor.workers, len(shards)) or 1
    whole = max(sum(took) / workers, max(took, default=0.0))
    return f"time: about {duration(whole)} for {duration(sum(took))} of work, by the seconds of stored records"


def _peak(experience: Experience) -> str:
    peak = experience.peak_bytes()
    known = f"a worker has held up to {peak / 2**30:.1f} GiB in earlier runs of this model" if peak else "not known yet"
    return f"memory: {known}"


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _group(plan: Plan, group: Group) -> list[str]:
    missing = plan.missing(group)
    prompt = [plan.facts.tokenizer.prompt_tokens(sample) for sample in group.samples]
    wanted = plan.to_run(group)
    todo = set().union(*wanted.values())
    prefill = sum(tokens for sample, tokens in zip(group.samples, prompt, strict=True) if sample.id in todo)
    rows = sum(len(ids) for ids in wanted.values())
    answer = max(plan.facts.tokenizer.new_tokens(sample) for sample in group.samples)
    more = " and one for each history that differs" if group.history == "own" else ""
    lines = [
        f"{group.id}: {group.n} samples, prompts of {min(prompt)} to {max(prompt)} tokens, up to {answer} answer tokens",
        f"  work: {len(todo)} prefills{more}, {prefill} prompt tokens; {rows} answers in joint decodes of "
        f"{len(group.cells)} rows",
    ]
    for cell in group.cells:
        done = group.n - len(missing[cell.address])
        spared = (
            ", the rest is spared by an early stop" if len(wanted[cell.address]) < len(missing[cell.address]) else ""
        )
        where = f"{done} of {group.n} in the store{spared}"
        lines.append(f"  {cell.role:9} {cell.strategy:28} {where}  {cell.stack.describe()}")
    if not group.task.fidelity:
        lines.append(f"  {_decidable(plan, group)}")
    return lines


def _decidable(plan: Plan, group: Group) -> str:
    """Smallest margins that n independent samples decide with the wanted joint power, by flip rate, if nothing is lost."""
    gating = [g for g in plan.groups if not g.task.fidelity]
    power, alpha = stats.power_per_task(plan.gate.power, len(gating)), plan.gate.alpha / plan.gate.looks
    units = len({sample.cluster or sample.id for sample in group.samples})

    def smallest(flips: float) -> str:
        margin = stats.smallest_margin(lambda margin: stats.ni_power(units, margin, alpha, flips) >= power)
        return "none" if margin is None else f"{margin:.3f}"

    def needed(flips: float) -> str:
        return str(stats.ni_sample_size(margin, alpha, power, flips) or "no n")

    decided = ", ".join(f"{smallest(flips)} at {flips:.0%} flips" for flips in FLIP_RATES)
    told = f"n={units} decides margins down to {decided} (a task of 0/1 scores)"
    if plan.gate.margin_kind == "relative":
        return told  # what the margin comes to is known with the baseline's score
    margin = plan.gate.margin
    wanted = ", ".join(f"{needed(flips)} at {flips:.0%}" for flips in FLIP_RATES)
    return f"{told}; a margin of {margin:g} needs n = {wanted}"
