"""From composed configurations to work units: what must be computed, what the store already has, and what is refused.

Everything that can be checked without weights is checked here, and all problems are raised together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from harness import calibration, privacy
from harness import compare as comparisons
from harness import samples as sample_files
from harness.early import Rule, still_asked
from harness.engines.base import CONTROL, Engine, ModelFacts, Support
from harness.generation import Reserving, drawn, generation_of, num_items
from harness.history import HISTORIES, link, most_tokens
from harness.make import make
from harness.places import Place
from harness.stacks import make_stack
from harness.store import ResultStore, store_of
from harness.sweep.executor import Executor
from harness.types import BadInput, Gate, Generation, Sample, Unsupported, canonical, digest, strangers
from strategies.stack import Stack
from tasks.base import Task

BASELINE = "full"
STARTS = {  # and the slot that it matters to
    "cold": None,
    "warm": "prefix",
    "reloaded": "offload",
    "restarted": "offload",
}


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a group: ``role`` is baseline, candidate, noise (the baseline decoded apart), control, or kernel (the
    baseline computed by a candidate's attention kernels)."""

    address: str
    role: str
    strategy: str
    stack: Stack
    config: Mapping[str, Any]
    ask: Mapping[str, Any]
    engine: Mapping[str, Any] = field(default_factory=dict)  # options of the engine that this cell alone has
    overrides: tuple[str, ...] = ()  # of a job that asked for it


@dataclass(frozen=True)
class Group:
    """Cells that share samples, prefill and joint decode."""

    label: str  # the task's name, made unique within the run
    task: Task
    task_config: Mapping[str, Any]
    compress: str
    prefill: str
    start: str
    history: str
    seed: int
    n: int
    samples: list[Sample]
    samples_file: Place
    samples_set: str
    tokens: tuple[int, ...]  # of each sample, in the cache when it is compressed
    cells: tuple[PlannedCell, ...]

    @property
    def mode(self) -> str:
        history = f" history={self.history}" if self.history != "reference" else ""
        return f"compress={self.compress} prefill={self.prefill} start={self.start}{history} seed={self.seed}"

    @property
    def id(self) -> str:
        return f"{self.label} {self.mode}"


@dataclass(frozen=True)
class Setup:
    """What every run has: a name, a store, and one model on one engine."""

    name: str
    store: ResultStore
    model_config: Mapping[str, Any]
    engine_config: Mapping[str, Any]
    engine: Engine
    facts: ModelFacts
    calibration: Mapping[str, Any]


def setup_of(config: Mapping[str, Any], store: ResultStore, engine: Engine, facts: ModelFacts) -> dict[str, Any]:
    """The fields of ``Setup`` for a run of this configuration."""
    return {
        "name": str(config["name"]),
        "store": store,
        "model_config": config["model"],
        "engine_config": config["engine"],
        "engine": engine,
        "facts": facts,
        "calibration": config["calibration"],
    }


@dataclass(frozen=True)
class Plan(Setup):
    """One run of any number of strategies and tasks."""

    generation: Generation
    gate: Gate
    groups: tuple[Group, ...]
    executor: Executor
    compare: tuple[str, ...] = ()  # strategies that are also compared with each other

    def missing(self, group: Group) -> dict[str, set[str]]:
        """By cell address, the ids of samples that have no answer yet, or one that another try may better."""
        wanted = {sample.id: sample.hash for sample in group.samples}
        missing = {}
        for cell in group.cells:
            records, _ = self.store.cell(cell.address).read(wanted)
            missing[cell.address] = set(wanted) - {key for key, record in records.items() if record.final}
        return missing

    def to_run(self, group: Group) -> dict[str, set[str]]:
        """The same without what an early stop spares: samples of candidates that are shown harmful."""
        return still_asked(self.missing(group), self._early_stop(group), group.samples, self.store)

    def _early_stop(self, group: Group) -> Rule | None:
        """What stops candidates of a group early; None where nothing does."""
        by_role: dict[str, list[str]] = {}
        for cell in group.cells:
            by_role.setdefault(cell.role, []).append(cell.address)
        candidates, baseline = by_role.pop("candidate", []), by_role.get("baseline")
        if not (self.gate.early_stop and candidates and baseline) or group.task.fidelity:
            return None
        kept = tuple(address for mine in by_role.values() for address in mine)
        return Rule(self.gate, group.history, baseline[0], tuple(candidates), kept)

    def finished(self) -> set[str]:
        """Addresses of the cells that need no work."""
        return {cell for group in self.groups for cell, ids in self.missing(group).items() if not ids}

    def units(self) -> list[dict[str, Any]]:
        """The work, as plain data that can be sent to another process or machine; one unit for each engine load."""
        loads: dict[str, list[dict[str, Any]]] = {}
        options: dict[str, Mapping[str, Any]] = {}
        for group in self.groups:
            cells: dict[str, list[PlannedCell]] = {}
            for cell in group.cells:
                cells.setdefault(self._load(cell), []).append(cell)
            for load, mine in cells.items():
                loads.setdefault(load, []).append(self._unit_group(group, mine))
                options[load] = mine[0].engine
        return [
            {
                "model": self.model_config,
                "engine": {**self.engine_config, **options[load]},
                "device": self.engine.spec().get("device"),
                "load": load,
                "process": {"python": self.engine.python, "silence_s": self.engine.silence_s},
                "calibration": self.calibration,
                "results_dir": str(self.store.root),
                "groups": groups,
            }
            for load, groups in loads.items()
        ]

    def _load(self, cell: PlannedCell) -> str:
        """Cells with the same can share a loaded model."""
        return canonical([self.engine.load_key(cell.stack), dict(cell.engine)])

    def _unit_group(self, group: Group, mine: Sequence[PlannedCell]) -> dict[str, Any]:
        """The cells of one load. The baseline, where it is among them, leads."""

        def row(cell: PlannedCell) -> dict[str, Any]:
            return {"cell": cell.address, "strategy": cell.strategy, "role": cell.role, "stack": cell.config}

        joint = list({cell.address: row(cell) for cell in mine if cell.role != "noise"}.values())
        alone = [[row(cell)] for cell in mine if cell.role == "noise"]
        rule = self._early_stop(group)
        return {
            "id": group.id,
            "task": group.task_config,
            "compress": group.compress,
            "prefill": group.prefill,
            "start": group.start,
            "history": group.history,
            "seed": group.seed,
            "samples_file": str(group.samples_file),
            "samples_set": group.samples_set,
            "n": group.n,
            "batches": [joint, *alone],
            "early_stop": rule and rule.to_json(),
            "whole": any(cell.stack.prefix for cell in mine),  # earlier samples leave behind what later ones reuse
        }


@dataclass
class Job:
    """One composed configuration, with the overrides that made it."""

    config: Mapping[str, Any]
    overrides: Sequence[str] = ()


def gate_of(config: Mapping[str, Any]) -> Gate:
    """The gate without the parts that are not numbers (the control's stack)."""
    known = {field.name for field in fields(Gate)}
    values = {key: value for key, value in config.items() if key in known}
    return Gate(**{**values, "tasks": tuple(values.get("tasks") or ())})


def plan(jobs: Sequence[Job]) -> Plan:
    """Merge the jobs of a grid into one plan. Raises BadInput with every problem found."""
    first = jobs[0].config
    problems = mixed(jobs)
    gate = gate_of(first["gate"])
    problems += gate.problems()
    generation = generation_of(first["gen"])
    problems += generation.problems()
    problems += privacy.problems(first["privacy"])
    for job in jobs:
        problems += _numbers(job.config)
    store, unwritable = store_of(first["results_dir"])
    problems += unwritable
    engine, unbuilt = engine_of(first["engine"])
    problems += unbuilt
    stacks, found = stacks_of(jobs, engine)
    problems += found
    problems += baseline_only(stacks.values())
    problems += _starts(stacks, jobs) if stacks else []
    compare = _compare(jobs)
    if not found:  # else some strategies have no name yet
        known = [stack.name for stack in stacks.values() if stack.layers()]
        for names in (job.config.get("compare") or () for job in jobs):
            problems += comparisons.problems(names, known)
    control, found = _control(first["gate"], engine)
    problems += found
    executor, found = _executor(first["executor"], engine)
    problems += found
    tasks, found = _tasks(jobs)
    problems += found
    facts = None
    if engine is not None:
        jobs = [_prefilled(job, engine) for job in jobs]
        problems += refused("gen", engine, generation.describe(), engine.generates(generation))
        problems += _refusals(engine, stacks.values(), control, tasks.values(), jobs)
        facts, found = described(engine, first["model"])
        problems += found
    if engine is not None and facts is not None:
        for stack in stacks.values():
            problems += stack.problems(facts.shape)
        problems += [p.replace("strategy.", "gate.control.") for p in control.problems(facts.shape)] if control else []
        problems += _modes(engine, stacks.values(), facts, jobs)
        if any(stack.calibrates for stack in stacks.values()):
            problems += calibration.problems(first["calibration"], facts.tokenizer)
        room = Reserving(facts.tokenizer, generation)
        problems += room.problems()
        for task in tasks.values():
            problems += [f"{problem} ({_asked(task, room)})" for problem in task.problems(room)]
    problems += _thoughtful(tasks.values(), generation)
    problems += strangers(gate, {label: tasks[key].fidelity for key, label in _labels(tasks).items()})
    if problems or store is None or engine is None or facts is None or control is None or executor is None:
        raise BadInput(*dict.fromkeys(problems))
    plan = Plan(
        **setup_of(first, store, engine, facts),
        generation=generation,
        gate=gate,
        executor=executor,
        groups=_groups(jobs, store, engine, facts, stacks, control, tasks, generation),
        compare=compare,
    )
    found = _histories(plan.groups, facts)
    if found := found or [problem for group in plan.groups for problem in _misfits(group, facts)]:
        raise BadInput(*dict.fromkeys(found))
    return plan


def baseline_alone(planned: Plan, job: Job) -> Plan:
    """The baseline by itself on a job's task, samples and seed, with the model and the engine of a plan that stands."""
    full, task = Stack(BASELINE), make(job.config["task"], "task")
    asked = Job({**job.config, "strategy": {}})
    common = (planned.store, planned.engine, planned.facts)
    group = _group(task.name, task, [asked], *common, {strategy_key({}): full}, full, planned.generation)
    baseline = tuple(cell for cell in group.cells if cell.role == "baseline")
    return replace(planned, groups=(replace(group, cells=baseline),), compare=())


ALIKE = ("model", "engine", "gate", "calibration", "gen", "executor", "privacy")  # of all jobs of a run


def mixed(jobs: Sequence[Job], keys: Sequence[str] = ALIKE) -> list[str]:
    """Parts that the jobs of one run must share, and do not."""
    problems = []
    for key in keys:
        distinct = {json.dumps(job.config[key], sort_keys=True) for job in jobs}  # also of nan, which is refused later
        if len(distinct) > 1:
            problems.append(f"{key}: one run compares strategies on one {key}; start a run for each")
    return problems


def _numbers(config: Mapping[str, Any]) -> list[str]:
    problems = []
    if config["n"] < 1:
        problems.append(f"n must be 1 or more, got {config['n']}")
    if config["seed"] < 0:
        problems.append(f"seed must be 0 or more, got {config['seed']}")
    if config["compress"] not in ("prompt", "context", "other"):
        problems.append(f"compress must be prompt, context or other, got {config['compress']!r}")
    if config["prefill"] not in ("auto", "exact", "chunked"):
        problems.append(f"prefill must be auto, exact or chunked, got {config['prefill']!r}")
    if config["start"] not in STARTS:
        problems.append(f"start must be one of {', '.join(STARTS)}, got {config['start']!r}")
    if config["history"] not in HISTORIES:
        problems.append(f"history must be {' or '.join(HISTORIES)}, got {config['history']!r}")
    return problems + named(config["name"])


def named(name: Any) -> list[str]:
    """What is wrong with the name of a run's folder."""
    bad = str(name).strip() in ("", ".", "..") or set(str(name)) & set("/\\")
    return [f"name must be a plain folder name, got {name!r}"] if bad else []


def strategy_key(config: Mapping[str, Any]) -> str:
    return canonical({slot: layer for slot, layer in config.items() if slot != "name" and layer})


def engine_of(config: Mapping[str, Any]) -> tuple[Engine | None, list[str]]:
    try:
        return make(config, "engine"), []
    except BadInput as error:
        return None, error.problems


def described(engine: Engine, model: Mapping[str, Any]) -> tuple[ModelFacts | None, list[str]]:
    try:
        return engine.describe(model), []
    except BadInput as error:
        return None, error.problems
    except Unsupported as error:
        return None, [str(error)]


def baseline_only(stacks: Collection[Stack]) -> list[str]:
    """Whether there is nothing but the baseline."""
    rule = "strategy must name at least one beside full, which always runs as the baseline, got full"
    return [rule] if stacks and not any(stack.layers() for stack in stacks) else []


def _prefilled(job: Job, engine: Engine) -> Job:
    """The job with the engine's own way to prefill where none was asked for."""
    asked = job.config["prefill"]
    return Job({**job.config, "prefill": engine.prefill if asked == "auto" else asked}, job.overrides)


def stacks_of(jobs: Sequence[Job], engine: Engine | None) -> tuple[dict[str, Stack], list[str]]:
    """Distinct stacks by configuration, as the engine serves them. One that the command line changed is named by what it is."""
    stacks: dict[str, Stack] = {}
    problems = []
    for job in jobs:
        config = job.config["strategy"]
        try:
            stack = _served(make_stack(str(config.get("name")), config), engine)
        except BadInput as error:
            problems += error.problems
            continue
        changed = any(word.lstrip("+~").startswith(("strategy.", "strategy/")) for word in job.overrides)
        renamed = any(word.lstrip("+").startswith("strategy.name=") for word in job.overrides)
        if (changed and not renamed) or not config.get("name"):
            stack = replace(stack, name=stack.short())
        stacks.setdefault(strategy_key(config), stack)
    names = Counter(stack.name for stack in stacks.values())
    for key, stack in stacks.items():
        if names[stack.name] > 1 or (stack.name in (BASELINE, CONTROL) and stack.layers()):
            stacks[key] = replace(stack, name=stack.describe())
    return stacks, problems


def _compare(jobs: Sequence[Job]) -> tuple[str, ...]:
    """All jobs share one list: what any of them names."""
    return tuple(dict.fromkeys(name for job in jobs for name in job.config.get("compare") or ()))


def _served(stack: Stack, engine: Engine | None) -> Stack:
    return engine.resolve(stack) if engine else stack


def _control(gate: Mapping[str, Any], engine: Engine | None) -> tuple[Stack | None, list[str]]:
    try:
        return _served(make_stack(CONTROL, gate["control"], "gate.control"), engine), []
    except BadInput as error:
        return None, error.problems


def _executor(config: Mapping[str, Any], engine: Engine | None) -> tuple[Executor | None, list[str]]:
    try:
        executor: Executor = make(config, "executor")
    except BadInput as error:
        return None, error.problems
    return executor, executor.problems(engine) if engine else []


def _tasks(jobs: Sequence[Job]) -> tuple[dict[str, Task], list[str]]:
    tasks: dict[str, Task] = {}
    problems = []
    for job in jobs:
        key = canonical(job.config["task"])
        if key not in tasks:
            try:
                tasks[key] = make(job.config["task"], "task")
            except BadInput as error:
                problems += error.problems
    return tasks, problems


def _asked(task: Task, room: Reserving) -> str:
    """Whose problem it is, and what its samples have to leave room for."""
    return f"task {task.name}" + (f", beside {room.reserved} tokens for thinking" if room.reserved else "")


def _thoughtful(tasks: Iterable[Task], generation: Generation) -> list[str]:
    """Tasks that have no place for thinking."""
    return [
        f"gen.think_tokens must be 0 for task {task.name}, whose samples follow the baseline's words from the first on, "
        f"got {generation.think_tokens}"
        for task in tasks
        if task.fidelity and generation.thinking
    ]


def _refusals(
    engine: Engine, stacks: Iterable[Stack], control: Stack | None, tasks: Iterable[Task], jobs: Sequence[Job]
) -> list[str]:
    """Layers, controls, starts and tasks that the engine cannot serve, whatever the model."""
    found = []
    for stack in stacks:
        for layer in stack.layers():
            answer = engine.supports(layer)
            found += refused(f"strategy.{layer.slot}", engine, f"{layer.slot}/{layer.name}", answer)
        for start in dict.fromkeys(job.config["start"] for job in jobs):
            if start in STARTS and matters(start, stack):
                found += refused(f"start={start}", engine, stack.name, engine.starts(start, stack))
    if control:
        found += refused("gate.control", engine, control.describe(), engine.controls(control))
    for task in tasks:
        if task.fidelity:
            found += refused("task", engine, task.name, engine.follows())
    return found


def refused(asked: str, engine: Engine, whom: str, answer: Support) -> list[str]:
    return [] if answer.yes else [f"{asked}: engine {engine.name} refuses {whom}: {answer.why}"]


def _modes(engine: Engine, stacks: Iterable[Stack], facts: ModelFacts, jobs: Sequence[Job]) -> list[str]:
    """Strategies and modes that the engine cannot serve for this model."""
    found = []
    for stack in stacks:
        found += refused("strategy", engine, stack.name, engine.serves(stack, facts.shape))
    for compress in dict.fromkeys(job.config["compress"] for job in jobs):
        answer = engine.compresses(compress, facts.shape)
        found += refused(f"compress={compress}", engine, facts.display, answer)
    for prefill in dict.fromkeys(job.config["prefill"] for job in jobs):
        for stack in stacks:
            answer = engine.prefills(stack, prefill, facts.shape)
            found += refused(f"prefill={prefill}", engine, stack.name, answer)
    return found


def matters(start: str, stack: Stack) -> bool:
    """Whether ``stack`` acts otherwise after such a start than after a cold one."""
    return any(layer.slot == STARTS[start] for layer in stack.layers())


def _starts(stacks: Mapping[str, Stack], jobs: Sequence[Job]) -> list[str]:
    """Starts that make no difference to any strategy."""
    asked = {job.config["start"] for job in jobs} & set(STARTS)
    return [
        f"start={start} needs a strategy with a layer in slot {STARTS[start]}, got {', '.join(s.name for s in stacks.values())}"
        for start in sorted(asked)
        if STARTS[start] and not any(matters(start, stack) for stack in stacks.values())
    ]


def has_turns(samples: Iterable[Sample]) -> bool:
    """Whether the samples are conversations, so that it matters whose answers a later turn is told."""
    return any(sample.turns for sample in samples)


def _histories(groups: Sequence[Group], facts: ModelFacts) -> list[str]:
    """What stands against telling each strategy its own answers: nothing to tell, or turns that cannot be told so."""
    own = [group for group in groups if group.history == "own"]
    labels = ", ".join(dict.fromkeys(group.label for group in own))
    if own and not any(has_turns(group.samples) for group in own):
        return [f"history=own needs a task whose samples have earlier turns, got {labels}"]
    return [problem for group in own for problem in _untold(group, facts)]


def _untold(group: Group, facts: ModelFacts) -> list[str]:
    if group.task.fidelity:
        rule = "needs tasks whose answers are each strategy's own"
        return [f"history=own {rule}; in task {group.label} all are fed the baseline's"]
    try:
        longest = max(_request_tokens(group, facts))
    except ValueError as error:
        return [f"{problem} (task {group.label})" for problem in str(error).splitlines()]
    limit = f"the model's {facts.max_tokens} tokens"
    rule = f"history=own must leave room in {limit} for the longest answers that earlier turns may have"
    return [f"{rule}; task {group.label} may take {longest}"] if longest > facts.max_tokens else []


def _labels(tasks: Mapping[str, Task]) -> dict[str, str]:
    """A label for each task: its name, with a number where one name stands for several settings."""
    names = Counter(task.name for task in tasks.values())
    seen: Counter[str] = Counter()
    labels = {}
    for key, task in tasks.items():
        seen[task.name] += 1
        labels[key] = task.name if names[task.name] == 1 else f"{task.name}#{seen[task.name]}"
    return labels


def _groups(
    jobs: Sequence[Job],
    store: ResultStore,
    engine: Engine,
    facts: ModelFacts,
    stacks: Mapping[str, Stack],
    control: Stack,
    tasks: Mapping[str, Task],
    generation: Generation,
) -> tuple[Group, ...]:
    members: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        mode = (job.config[key] for key in ("compress", "prefill", "start", "history", "seed"))
        where = (canonical(job.config["task"]), *mode)
        members.setdefault(where, []).append(job)
    labels = _labels(tasks)
    return tuple(
        _group(labels[key], tasks[key], same, store, engine, facts, stacks, control, generation)
        for (key, *_), same in members.items()
    )


def _group(
    label: str,
    task: Task,
    same: Sequence[Job],
    store: ResultStore,
    engine: Engine,
    facts: ModelFacts,
    stacks: Mapping[str, Stack],
    control: Stack,
    generation: Generation,
) -> Group:
    """The cells of jobs that share task, seed and mode."""
    config = same[0].config
    compress, prefill, start, history, seed = (
        config[key] for key in ("compress", "prefill", "start", "history", "seed")
    )
    n = max(job.config["n"] for job in same)
    file, samples = _samples(store, task, facts, n, seed, generation)

    def cell(role: str, stack: Stack, layers: Mapping[str, Any], batch: str = "joint") -> PlannedCell:
        ask = {
            "model": facts.identity,
            "engine": {**engine.spec(), **engine.spec_for(stack)},
            "stack": stack.spec(),
            "task": task.spec(),
            "mode": {
                "compress": compress,
                "prefill": prefill if stack.packs else "exact",  # nothing to read back: the same either way
                "pass": start if matters(start, stack) else "cold",
                "batch": batch,
                **({"history": history} if history == "own" and has_turns(samples) else {}),
            },
            **({"calibration": calibration.spec(config["calibration"])} if stack.calibrates else {}),
            "generation": generation.spec(),
            "seed": seed,
        }
        return PlannedCell(store.ask(ask), role, stack.name, stack, layers, ask)

    candidates = {strategy_key(job.config["strategy"]): job for job in same}
    cells = [
        cell("baseline", Stack(BASELINE), {}),
        *(
            replace(cell("candidate", stacks[key], job.config["strategy"]), overrides=tuple(job.overrides))
            for key, job in candidates.items()
            if stacks[key].layers()
        ),
        cell("noise", Stack(BASELINE), {}, batch="alone"),
    ]
    if not task.fidelity:  # may be a candidate too: then both are one cell with two roles
        cells.append(cell("control", control, config["gate"]["control"]))
    return Group(
        label=label,
        task=task,
        task_config=config["task"],
        compress=compress,
        prefill=prefill,
        start=start,
        history=history,
        seed=seed,
        n=len(samples),  # of a file that holds fewer, all
        samples=samples,
        samples_file=file,
        samples_set=sample_files.set_hash(samples),
        tokens=tuple(facts.tokenizer.compressed_tokens(sample, compress) for sample in samples),
        cells=tuple(cells),
    )


def _samples(
    store: ResultStore, task: Task, facts: ModelFacts, n: int, seed: int, generation: Generation
) -> tuple[Place, list[Sample]]:
    """The task's samples as they are generated, from their file if they were made before."""
    prompts = [facts.identity[key] for key in ("tokenizer", "chat_template")]
    asked = {"task": task.spec(), "prompts": prompts, "n": n, "seed": seed}
    asked |= {"gen": asdict(generation)} if generation.spec() != "greedy" else {}
    key = digest(asked, 24)
    file = store.samples_file(key)
    try:
        return file, sample_files.load(file)
    except BadInput:  # not made yet, or damaged
        pass
    room = Reserving(facts.tokenizer, generation)
    try:
        items = task.samples(room, num_items(n, generation), seed)
    except ValueError as error:
        raise BadInput(*(f"{problem} ({_asked(task, room)})" for problem in str(error).splitlines())) from error
    sample_files.save(drawn(items, n, generation), file)
    return file, sample_files.load(file)


def _misfits(group: Group, facts: ModelFacts) -> list[str]:
    """What only the samples show: budgets, rooms and lengths that they do not go with."""
    return [*_idle(group), *_crowded(group, facts), *_overlong(group, facts)]


def _overlong(group: Group, facts: ModelFacts) -> list[str]:
    """Tasks keep prompt and answer short enough; thinking comes on top, and its marks may cut the text into other tokens."""
    if not any(sample.think for sample in group.samples):
        return []
    longest, most = max(_request_tokens(group, facts)), facts.tokenizer.max_tokens
    rule = f"must leave room for prompt and answer of task {group.label} in the model's {most} tokens"
    return [f"gen.think_tokens {rule}; the longest request takes {longest}"] if longest > most else []


def _request_tokens(group: Group, facts: ModelFacts) -> list[int]:
    """Of each sample, the tokens that its prompt and all that may follow take at most."""
    before = link(group.history, group.samples)
    return [most_tokens(sample, before, facts.tokenizer) for sample in group.samples]


def _crowded(group: Group, facts: ModelFacts) -> list[str]:
    """Rooms that the longest request of the group does not fit into, with all the answer tokens that it may have."""
    paged = [(cell.stack, cell.stack.paging) for cell in group.cells if cell.stack.paging]
    if not paged:
        return []
    problems = []
    whole = _request_tokens(group, facts)
    for stack, paging in paged:
        dropped = (tokens - stack.most_held(tokens, facts.shape) for tokens in group.tokens)
        try:
            for tokens, gone in zip(whole, dropped, strict=True):
                paging.room(tokens - gone)
        except Unsupported as error:
            problems.append(f"{error} (task {group.label}, with its answer)")
    return problems


def _idle(group: Group) -> list[str]:
    """Budgets that no prompt of the group exceeds: such a run would test nothing."""
    longest = max(group.tokens)
    if group.compress == "other" and not all(sample.other for sample in group.samples):
        rule = "needs samples with another question about their context, for which it was compressed"
        return [f"compress=other {rule}; task {group.label} has none"]
    return [
        f"{'gate.control' if cell.role == 'control' else 'strategy'}.evict: {cell.strategy} keeps "
        f"{cell.stack.evict.budget(longest)} tokens, which must be below the longest {group.compress} of task "
        f"{group.label}, {longest} tokens"
        for cell in group.cells
        if cell.stack.evict and cell.stack.evict.budget(longest) >= longest
    ]
