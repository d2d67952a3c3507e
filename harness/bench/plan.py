"""From composed configurations to settings that are timed in alternation. What is wrong is told at once, before weights load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import calibration, provenance
from harness.bench import trials
from harness.bench.facts import TAIL_VALUES
from harness.bench.loads.base import Load
from harness.bench.loads.points import PACE, Point, points_of
from harness.bench.metrics import SLO
from harness.bench.roofline import hardware_problems
from harness.engines.base import Engine
from harness.payoff import MIN_PAIRS, Payoff
from harness.plan import (
    BASELINE,
    Job,
    PlannedCell,
    Setup,
    baseline_only,
    described,
    engine_of,
    gate_of,
    mixed,
    named,
    refused,
    setup_of,
    stacks_of,
    strategy_key,
)
from harness.store import store_of
from harness.types import BadInput
from strategies.stack import Stack

ALIKE = ("model", "engine", "gate", "calibration", "load", "hardware", "seed", "pairs")
NOT_SPEED = (
    "_target_",
    "python",
    "guidellm",
    "key_env",
    "retries",
    "concurrency",
    "silence_s",
    "gpus_per_worker",
    "allow_formats",
)  # change no time


@dataclass(frozen=True)
class BenchPoint:
    """One load and every setting under it, each a cell: the baseline first, the baseline once more second."""

    point: Point
    arms: tuple[PlannedCell, ...]

    @property
    def candidates(self) -> tuple[PlannedCell, ...]:
        return self.arms[2:]


@dataclass(frozen=True)
class BenchPlan(Setup):
    """One run of one load, or of several that differ in one option, with any number of settings."""

    load_name: str
    points: tuple[BenchPoint, ...]
    payoff: Payoff
    hardware: Mapping[str, Any]
    seed: int
    pairs: int

    @property
    def settings(self) -> tuple[PlannedCell, ...]:
        """Baseline, noise and candidates, as they are under the first load."""
        return self.points[0].arms

    def missing(self) -> dict[str, list[int]]:
        """By address of a candidate, the numbers of the trials that it lacks: those in which not all of it, the baseline and the
        baseline once more were measured."""
        return {
            arm.address: [number for number in range(self.pairs) if number not in whole]
            for at in self.points
            for arm, whole in zip(at.candidates, self._whole(at), strict=True)
        }

    def _whole(self, at: BenchPoint) -> list[set[int]]:
        """By candidate, the numbers of its whole trials."""
        full, again, *others = (self._served(arm) for arm in at.arms)
        return [{trials.number(trial) for trial in full & again & mine} for mine in others]

    def _served(self, arm: PlannedCell) -> set[str]:
        return set(trials.served(self.store.load(arm.address).read()[0]))

    def load_key(self, arm: PlannedCell) -> str:
        """Settings with one key share a load of the engine."""
        return self.engine.load_key(arm.stack)


def plan(jobs: Sequence[Job]) -> BenchPlan:
    """Merge the jobs of a grid into one plan. Raises BadInput with every problem found."""
    first = jobs[0].config
    problems = mixed(jobs, ALIKE) + named(first["name"])
    if first["pairs"] < MIN_PAIRS:
        problems.append(f"pairs must be {MIN_PAIRS} or more, fewer decide nothing, got {first['pairs']}")
    if first["seed"] < 0:
        problems.append(f"seed must be 0 or more, got {first['seed']}")
    gate = gate_of(first["gate"])
    payoff = payoff_of(first["gate"])
    problems += gate.problems() + payoff.problems() + hardware_problems(first["hardware"])
    store, found = store_of(first["results_dir"])
    problems += found
    engine, found = engine_of(first["engine"])
    problems += found
    stacks, found = stacks_of(jobs, engine)
    problems += found
    problems += baseline_only(stacks.values())
    points, facts = list[Point](), None
    try:
        points = points_of(first["load"])
    except BadInput as error:
        problems += error.problems
    loads = [point.load for point in points]
    if engine is not None:
        problems += _refusals(engine, stacks.values(), loads)
        facts, found = described(engine, first["model"])
        problems += found
    if engine is not None:
        problems += _unseen(payoff, engine)
    for load in loads:
        wrong = load.problems(facts.max_tokens if facts else None)
        problems += wrong or _idle(stacks.values(), load) + _untold(payoff, load)
    if points and "rate" in payoff.wanted and (len(points) == 1 or points[0].weight is None):
        got = f"several {points[0].option}" if len(points) > 1 else "one"
        problems.append(
            f"gate.payoff.rate needs a load with several points of {', '.join(PACE)}, such as load=arrivals, got {got}"
        )
    if engine is not None and facts is not None:
        for stack in stacks.values():
            problems += stack.problems(facts.shape)
            problems += refused("strategy", engine, stack.name, engine.prefills(stack, engine.prefill, facts.shape))
            problems += refused("strategy", engine, stack.name, engine.serves(stack, facts.shape))
        if any(stack.calibrates for stack in stacks.values()):
            problems += calibration.problems(first["calibration"], facts.tokenizer)
    if problems or store is None or engine is None or facts is None:
        raise BadInput(*dict.fromkeys(problems))
    common = {
        "model": facts.identity,
        "engine": {**engine.spec(), **{k: v for k, v in first["engine"].items() if k not in NOT_SPEED}},
        "machine": {"cpu": provenance.cpu(), "cores": provenance.cores()},
        "seed": first["seed"],
    }
    configs = {strategy_key(job.config["strategy"]): job.config["strategy"] for job in jobs}
    full = engine.resolve(Stack(BASELINE))

    def arm(load: Load, role: str, stack: Stack, layers: Mapping[str, Any]) -> PlannedCell:
        fitted = {"calibration": calibration.spec(first["calibration"])} if stack.calibrates else {}
        again = {"again": True} if role == "noise" else {}
        ask = {
            **common,
            "load": load.spec(),
            "engine": {**common["engine"], **engine.spec_for(stack)},
            "stack": stack.spec(),
            **fitted,
            **again,
        }
        return PlannedCell(store.ask(ask), role, stack.name, stack, layers, ask)

    def at(point: Point) -> BenchPoint:
        candidates = [
            arm(point.load, "candidate", stacks[key], layers) for key, layers in configs.items() if stacks[key].layers()
        ]
        both = (arm(point.load, role, full, {}) for role in ("baseline", "noise"))
        return BenchPoint(point, (*both, *candidates))

    return BenchPlan(
        **setup_of(first, store, engine, facts),
        load_name=first["load"]["name"],
        points=tuple(map(at, points)),
        payoff=payoff,
        hardware=first["hardware"],
        seed=first["seed"],
        pairs=first["pairs"],
    )


def payoff_of(gate: Mapping[str, Any]) -> Payoff:
    """The payoff half of ``conf/gate``; level, looks and power are those of both halves."""
    wanted = {name: gain for name, gain in gate["payoff"].items() if name != "slo" and gain is not None}
    shared = {key: gate[key] for key in ("alpha", "looks", "power")}
    return Payoff(wanted, SLO(**(gate["payoff"].get("slo") or {})), **shared)


def _untold(payoff: Payoff, load: Load) -> list[str]:
    """Percentiles that are wanted and that the load has too few values for."""
    values = {"ttft_p99": load.num_requests, "itl_p99": load.num_gaps}
    return [
        f"gate.payoff.{name} needs {TAIL_VALUES} values in a measurement, and load {load.name} gives {number}"
        for name, number in values.items()
        if name in payoff.wanted and number < TAIL_VALUES
    ]


def _unseen(payoff: Payoff, engine: Engine) -> list[str]:
    """Metrics and limits that are wanted and that the engine does not see."""
    asked = {f"gate.payoff.{name}": name for name in payoff.wanted}
    asked |= {f"gate.payoff.slo.{name}": name for name in payoff.slo.limits}
    return [
        f"{field} must be null on engine {engine.name}, which does not see {kind}"
        for field, name in asked.items()
        if (kind := name.partition("_")[0]) in engine.unseen
    ]


def _refusals(engine: Engine, stacks: Iterable[Stack], loads: Sequence[Load]) -> list[str]:
    """Layers that the engine cannot serve, and settings that it cannot time, whatever the model."""
    found = []
    full = engine.resolve(Stack(BASELINE))
    opened = len({engine.load_key(stack) for stack in (full, *stacks)})
    for stack in (full, *stacks):
        layers = [(layer, engine.supports(layer)) for layer in stack.layers()]
        for layer, answer in layers:
            found += refused(f"strategy.{layer.slot}", engine, f"{layer.slot}/{layer.name}", answer)
        if all(answer.yes for _, answer in layers):
            for load in loads:
                timed = engine.times(stack, load.demands(), opened)
                found += refused("strategy", engine, f"to time {stack.name} under load {load.name}", timed)
    return list(dict.fromkeys(found))


def _idle(stacks: Iterable[Stack], load: Load) -> list[str]:
    """Budgets that some prompt of the load does not exceed: there such a layer would do nothing."""
    return [
        f"strategy.evict: {stack.name} keeps {stack.evict.budget(load.shortest_tokens)} tokens, which must be below "
        f"the shortest prompt of load {load.name}, {load.shortest_tokens}"
        for stack in stacks
        if stack.evict and stack.evict.budget(load.shortest_tokens) >= load.shortest_tokens
    ]
