"""What a plan would do: cells, reuse, work, and what its n can decide. Shown by ``dry_run=true``."""

from __future__ import annotations

from harness import stats
from harness.plan import Group, Plan

FLIP_RATES = (0.0, 0.01, 0.02, 0.05)  # shares of samples that change by noise alone, for which n is judged


def describe(plan: Plan) -> str:
    """The plan as text for a terminal."""
    lines = [
        f"model {plan.facts.display} on engine {plan.engine.name}, {len(plan.units())} load(s)",
        f"generation: {plan.generation.describe()}",
        f"gate: margin {plan.gate.margin} ({plan.gate.margin_kind}), alpha {plan.gate.alpha} over {plan.gate.looks} "
        f"looks, joint power {plan.gate.power}",
    ]
    for group in plan.groups:
        lines += ["", *_group(plan, group)]
    return "\n".join(lines)


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

    margins = ", ".join(f"{smallest(flips)} at {flips:.0%} flips" for flips in FLIP_RATES)
    return f"n={units} decides margins down to {margins} (a task of 0/1 scores)"
