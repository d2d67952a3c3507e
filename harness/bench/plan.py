"""From composed configurations to settings that are timed in alternation. What is wrong is told at once, before weights load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import calibration, provenance
from harness.bench.judge import TAIL_VALUES
from harness.bench.load import Offline
from harness.bench.metrics import SLO
from harness.bench.roofline import hardware_problems
from harness.engines.base import Engine
from harness.make import make
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
from harness.store import ResultStore
from harness.types import BadInput
from strategies.stack import Stack

ALIKE = ("model", "engine", "gate", "calibration", "load", "hardware", "seed", "pairs")
NOT_SPEED = ("_target_", "python", "silence_s", "allow_formats")  # options of an engine that change no time


@dataclass(frozen=True)
class BenchPlan(Setup):
    """One run of one load with any number of settings, each a cell. Here ``noise`` is the baseline once more."""

    load: Offline
    load_config: Mapping[str, Any]
    payoff: Payoff
    hardware: Mapping[str, Any]
    seed: int
    pairs: int
    arms: tuple[PlannedCell, ...]  # the baseline first, its noise second

    @property
    def candidates(self) -> tuple[PlannedCell, ...]:
        return self.arms[2:]

    def whole_trials(self, arm: PlannedCell) -> list[str]:
        """Trials in which this candidate, the baseline and the baseline once more were all measured, oldest first."""
        read = [self.store.load(one.address).read()[0] for one in (*self.arms[:2], arm)]
        return [trial for trial in read[0] if all(trial in one and one[trial].served for one in read)]

    def missing(self) -> dict[str, int]:
        """By address of a candidate, the trials that it still lacks."""
        return {arm.address: max(0, self.pairs - len(self.whole_trials(arm))) for arm in self.candidates}

    def loads(self) -> dict[str, list[PlannedCell]]:
        """Arms by the load of the engine that they share."""
        by_key: dict[str, list[PlannedCell]] = {}
        for arm in self.arms:
            by_key.setdefault(self.engine.load_key(arm.stack), []).append(arm)
        return by_key


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
    store = ResultStore(Path(first["results_dir"]).expanduser().absolute())
    problems += store.problems()
    engine, found = engine_of(first["engine"])
    problems += found
    stacks, found = stacks_of(jobs, engine)
    problems += found
    problems += baseline_only(stacks.values())
    load, facts = None, None
    try:
        load = make(first["load"], "load")
    except BadInput as error:
        problems += error.problems
    if engine is not None:
        problems += _refusals(engine, stacks.values())
        facts, found = described(engine, first["model"])
        problems += found
    if load is not None:
        problems += load.problems(facts.max_tokens if facts else None)
    if engine is not None and facts is not None:
        for stack in stacks.values():
            problems += stack.problems(facts.shape)
            problems += refused("strategy", engine, stack.name, engine.prefills(stack, engine.prefill, facts.shape))
        if any(stack.calibrates for stack in stacks.values()):
            problems += calibration.problems(first["calibration"], facts.tokenizer)
    if load is not None and not load.problems(None):
        problems += _idle(stacks.values(), load) + _untold(payoff, load)
    if problems or engine is None or facts is None or load is None:
        raise BadInput(*dict.fromkeys(problems))
    common = {
        "model": facts.identity,
        "engine": {**engine.spec(), **{k: v for k, v in first["engine"].items() if k not in NOT_SPEED}},
        "machine": {"cpu": provenance.cpu(), "cores": provenance.cores()},
        "load": load.spec(),
        "seed": first["seed"],
    }
    configs = {strategy_key(job.config["strategy"]): job.config["strategy"] for job in jobs}

    def arm(role: str, stack: Stack, layers: Mapping[str, Any]) -> PlannedCell:
        fitted = {"calibration": calibration.spec(first["calibration"])} if stack.calibrates else {}
        again = {"again": True} if role == "noise" else {}
        ask = {
            **common,
            "engine": {**common["engine"], **engine.spec_for(stack)},
            "stack": stack.spec(),
            **fitted,
            **again,
        }
        return PlannedCell(store.ask(ask), role, stack.name, stack, layers, ask)

    candidates = [arm("candidate", stacks[key], layers) for key, layers in configs.items() if stacks[key].layers()]
    full = engine.resolve(Stack(BASELINE))
    return BenchPlan(
        **setup_of(first, store, engine, facts),
        load=load,
        load_config=first["load"],
        payoff=payoff,
        hardware=first["hardware"],
        seed=first["seed"],
        pairs=first["pairs"],
        arms=(arm("baseline", full, {}), arm("noise", full, {}), *candidates),
    )


def payoff_of(gate: Mapping[str, Any]) -> Payoff:
    """The payoff half of ``conf/gate``; level, looks and power are those of both halves."""
    wanted = {name: gain for name, gain in gate["payoff"].items() if name != "slo" and gain is not None}
    shared = {key: gate[key] for key in ("alpha", "looks", "power")}
    return Payoff(wanted, SLO(**(gate["payoff"].get("slo") or {})), **shared)


def _untold(payoff: Payoff, load: Offline) -> list[str]:
    """Percentiles that are wanted and that the load has too few values for."""
    values = {"ttft_p99": load.requests, "itl_p99": load.requests * (load.output_tokens - 1)}
    return [
        f"gate.payoff.{name} needs {TAIL_VALUES} values in a measurement, and load {load.name} gives {number}"
        for name, number in values.items()
        if name in payoff.wanted and number < TAIL_VALUES
    ]


def _refusals(engine: Engine, stacks: Iterable[Stack]) -> list[str]:
    """Layers that the engine cannot serve, and settings that it cannot time, whatever the model."""
    found = []
    full = engine.resolve(Stack(BASELINE))
    loads = len({engine.load_key(stack) for stack in (full, *stacks)})
    for stack in stacks:
        layers = [(layer, engine.supports(layer)) for layer in stack.layers()]
        for layer, answer in layers:
            found += refused(f"strategy.{layer.slot}", engine, f"{layer.slot}/{layer.name}", answer)
        if all(answer.yes for _, answer in layers):
            found += refused("strategy", engine, f"to time {stack.name}", engine.times(stack, loads))
    return found


def _idle(stacks: Iterable[Stack], load: Offline) -> list[str]:
    """Budgets that no prompt of the load exceeds: such a run would test nothing."""
    return [
        f"strategy.evict: {stack.name} keeps {stack.evict.budget(load.prompt_tokens)} tokens, which must be below "
        f"load.prompt_tokens, {load.prompt_tokens}"
        for stack in stacks
        if stack.evict and stack.evict.budget(load.prompt_tokens) >= load.prompt_tokens
    ]
