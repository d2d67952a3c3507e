"""Does a setting lose quality, or the attention kernels that the engine takes for it?

A serving engine may compute a strategy with other kernels than the baseline, which is known only after both were loaded. Then the
baseline is run once more with the strategy's kernels, and its distance from the baseline is told beside the strategy's.
"""

from __future__ import annotations

from dataclasses import replace

from harness.plan import Group, Plan, PlannedCell
from harness.sweep.drive import execute
from harness.types import BadInput


def with_controls(plan: Plan) -> Plan | None:
    """The plan with a cell for each kind of kernels that some strategy was found to use and the baseline was not; None if there
    is no such."""
    groups = tuple(replace(group, cells=(*group.cells, *_controls(plan, group))) for group in plan.groups)
    return replace(plan, groups=groups) if groups != plan.groups else None


def run(controlled: Plan) -> str:
    """Run the controls alone. Returns a note for the report where they cannot be run, "" where they were: the verdicts do not
    hang on them."""
    alone = (
        replace(group, cells=tuple(cell for cell in group.cells if cell.role == "kernel"))
        for group in controlled.groups
    )
    try:
        problems = execute(replace(controlled, groups=tuple(group for group in alone if group.cells)))
    except BadInput as error:
        problems = error.problems
    why = "; ".join(problems)
    told = "the baseline could not be run on a strategy's attention kernels, so what these do is not told apart"
    return f"{told}: {why}" if problems else ""


def named(attention: str) -> str:
    """The strategy name of the baseline on these kernels."""
    return f"full on {attention}"


def _controls(plan: Plan, group: Group) -> list[PlannedCell]:
    def kernels(cell: PlannedCell) -> str | None:
        return plan.store.cell(cell.address).loaded().get("attention")

    baseline = next(cell for cell in group.cells if cell.role == "baseline")
    used = dict.fromkeys(kernels(cell) for cell in group.cells if cell.role == "candidate")
    controls = []
    for attention in used:
        options = plan.engine.on_kernels(attention) if attention and attention != kernels(baseline) else {}
        if options:
            ask = {**baseline.ask, "engine": {**baseline.ask["engine"], **options}}
            cell = replace(baseline, role="kernel", strategy=named(str(attention)), engine=options)
            controls.append(replace(cell, address=plan.store.ask(ask), ask=ask))
    return controls
