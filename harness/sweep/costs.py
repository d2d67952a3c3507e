"""What the strategies of a plan cost, before they are judged: bytes by formula, or speed as kvgate bench has measured it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from harness.bench import metrics, trials
from harness.places import Place
from harness.plan import BASELINE, Group, Plan, PlannedCell
from harness.store import ResultStore
from harness.types import BadInput, Measurement, canonical
from strategies.stack import Stack

Costs = Mapping[str, float]
"""By strategy, what it costs: less is cheaper."""


def bytes_a_token(plan: Plan) -> Costs:
    """Bytes a prompt token at the dtype to deploy, by formula, on the task where they are most."""
    unknown = sorted({cell.strategy for _, cell in _candidates(plan) if cell.stack.calibrates})
    if unknown:
        raise BadInput(
            "sweep.by=bytes needs strategies whose bytes are known before they run, and what is learnt from a calibration text "
            f"is not, got {', '.join(unknown)}"
        )
    shape = plan.facts.shape.at(plan.facts.deploy_bytes)
    costs: dict[str, float] = {}
    for group, cell in _candidates(plan):
        lengths = Counter(group.tokens)
        total = sum(times * cell.stack.formula_bytes(tokens, shape) for tokens, times in lengths.items())
        costs[cell.strategy] = max(costs.get(cell.strategy, 0.0), total / sum(group.tokens))
    return costs


def time_a_token(plan: Plan) -> Costs:
    """Time of an output token in multiples of the full cache's, from trials of kvgate bench that had both.

    Of all loads that every strategy was measured under, with this model, engine and machine alike, the one measured last.
    """
    stacks = {cell.strategy: cell.stack.spec() for _, cell in _candidates(plan)}
    baseline, model = plan.engine.resolve(Stack(BASELINE)).spec(), canonical(plan.facts.identity)
    settings: dict[str, dict[str, dict[str, Measurement]]] = {}
    for address, ask in _asks(plan.store):
        mine = canonical(ask["model"]) == model and ask["engine"]["name"] == plan.engine.name
        if mine and not ask.get("again"):
            under = canonical([ask["load"], ask["machine"], ask["seed"]])
            settings.setdefault(under, {})[canonical(ask["stack"])] = plan.store.load(address).read()[0]
    found = []
    for measured in settings.values():
        full = measured.get(canonical(baseline), {})
        ratios = {name: _times(measured.get(canonical(spec), {}), full) for name, spec in stacks.items()}
        found.append((max((one.began for one in full.values()), default=0.0), ratios))
    _, newest = max(found, key=lambda one: (sum(map(bool, one[1].values())), one[0]), default=(0.0, {}))
    if missing := [name for name in stacks if not newest.get(name)]:
        raise BadInput(
            "sweep.by=throughput needs every strategy measured by kvgate bench under one load, on this model, engine and results "
            f"folder; not measured: {', '.join(missing)}"
        )
    return {name: math.exp(fmean(ratios)) for name, ratios in newest.items()}


COSTS: Mapping[str, tuple[Callable[[Plan], Costs], str]] = {
    "bytes": (bytes_a_token, "{:,.0f} bytes a token"),
    "throughput": (time_a_token, "{:.2f} times the full cache's time a token"),
}
"""What is cheap, how it is known, and how it is told."""


def _candidates(plan: Plan) -> list[tuple[Group, PlannedCell]]:
    return [(group, cell) for group in plan.groups for cell in group.cells if cell.role == "candidate"]


def _asks(store: ResultStore) -> list[tuple[str, dict[str, Any]]]:
    """Address and ask of every timed load in the store."""
    files: list[Place] = sorted(store.root.glob("loads/*/ask.json"), key=str)
    return [(file.parent.name, json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _times(mine: Mapping[str, Measurement], full: Mapping[str, Measurement]) -> list[float]:
    """Logarithms of the full cache's rate over the strategy's, a number for each trial that had both."""
    rates_of, base = (
        {trial: metrics.output_tokens_s(one.requests) for trial, one in trials.served(side).items()}
        for side in (mine, full)
    )
    return [math.log(a / b) for trial, b in rates_of.items() if b and (a := base.get(trial))]
