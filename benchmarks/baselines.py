"""What the small model scores with its full cache: every task whose samples are made offline, by length.

A task on which the baseline is at chance tests nothing, and runs of it come out VOID: these are marked. Greedy decoding, --n
samples a task and length; answers are kept in --results-dir, so it can be stopped and started again. Prints one JSON object;
--table prints the Markdown table of docs/tasks.md from it.

    python benchmarks/baselines.py [--results-dir results] [--n 12] > benchmarks/results/baselines.json
    python benchmarks/baselines.py --table benchmarks/results/baselines.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the workers of `kvgate run` do

import yaml
from statsmodels.stats.proportion import proportion_confint

from benchmarks.runs import MODEL, markdown, percent, record
from harness.engines.base import Ask, ModelFacts, Row, Session
from harness.engines.hf.engine import HFEngine
from harness.make import make
from harness.stats import cluster_means
from harness.store import ResultStore
from harness.types import Gate, Record, Sample, State
from harness.verdict import HEADROOM
from harness.worker import judged
from strategies.stack import Stack
from tasks.base import Task

CONF = Path(__file__).resolve().parents[1] / "conf" / "task"
GIVEN = {  # no score, other tasks again, a generator or data of your own choice, or programs that are run
    *("fidelity", "fidelity_answers", "fidelity_code", "ruler"),
    *("reasoning_gym", "hub", "human_eval", "jsonl", "lm_eval"),
}
TASKS = sorted({path.stem for path in CONF.glob("*.yaml")} - GIVEN)
LENGTHS = (512, 1024, 2048, 4096)
SEED = 0


def load(name: str, length: int) -> Task:
    options = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    task: Task = make({**options, "lengths": [length]}, "task")
    return task


def measured(
    task: Task, n: int, engine: HFEngine, facts: ModelFacts, session: Session, store: ResultStore
) -> dict[str, Any]:
    """The mean score of ``task`` and what it says; or why the task cannot be asked at this length."""
    if problems := task.problems(facts.tokenizer):
        return {"refused": problems}
    samples = task.samples(facts.tokenizer, n, SEED)
    ask = {
        "benchmark": "baselines",
        "model": facts.identity,
        "engine": engine.spec(),
        "task": task.spec(),
        "seed": SEED,
    }
    return summary(task, samples, answered(task, samples, ask, session, store))


def answered(
    task: Task, samples: Sequence[Sample], ask: Mapping[str, Any], session: Session, store: ResultStore
) -> list[Record]:
    """A record of every sample, those that are in the store not run again."""
    wanted = {sample.id: sample.hash for sample in samples}
    store.note_ask(ask)
    cell = store.cell(store.ask(ask))
    cell.note_loaded(session.facts())
    before, _ = cell.read(wanted)
    row = Row(cell.address, Stack("full"))
    for sample in samples:
        if sample.id not in before or not before[sample.id].final:
            answers = session.run([Ask(sample, [[row]])], compress="prompt", seed=SEED)
            cell.append([judged(task, sample, answer) for answer in answers])
    records, _ = cell.read(wanted)
    return [records[sample.id] for sample in samples]


def summary(task: Task, samples: Sequence[Sample], records: Sequence[Record]) -> dict[str, Any]:
    """Mean and 95 % limits over clusters; an answer that was not finished is not right, as in a verdict.

    A score between 0 and 1 spreads no wider than a coin with its mean, so Wilson's limits hold for graded scores too.
    """
    if lost := [one for one in records if not one.final]:
        raise RuntimeError(f"{len(lost)} samples of {task.name} were lost, the first with {lost[0].error}; run again")
    scores = [one.score or 0.0 for one in records]
    units = cluster_means(scores, [sample.cluster or sample.id for sample in samples])
    mean = float(units.mean())
    low, high = proportion_confint(mean * len(units), len(units), alpha=0.05, method="wilson")
    return {
        "n": len(records),
        "units": len(units),
        "score": mean,
        "ci_low": float(low),
        "ci_high": float(high),
        "truncated": sum(one.state is State.TRUNCATED for one in records) / len(records),
        "chance": task.chance,
        "void": mean <= task.chance + HEADROOM * Gate().margin,
    }


def table(found: Mapping[str, Any]) -> str:
    """One row a task, one column a length: score, limits, answers that were cut off; void, where the default gate calls it so."""
    lengths = [str(length) for length in found["lengths"]]
    rows = [
        [f"`{name}`", *(_cell(by_length[length]) for length in lengths)] for name, by_length in found["tasks"].items()
    ]
    return markdown(["task", *lengths], rows)


def _cell(cell: Mapping[str, Any]) -> str:
    if "refused" in cell:
        return "does not fit"
    text = f"{cell['score']:.2f} ({cell['ci_low']:.2f} to {cell['ci_high']:.2f})"
    cut = f", {percent(cell['truncated'])} cut off" if cell["truncated"] else ""
    return text + cut + (", void" if cell["void"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", default="results", help="where answers are kept")
    parser.add_argument("--n", type=int, default=12, help="samples a task and length")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS, metavar="TASK", help="all if not named")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="TOKENS", help="prompt and answer")
    parser.add_argument("--table", default=None, metavar="JSON", help="print the table of a record and do nothing else")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    engine, store = HFEngine(), ResultStore(Path(options.results_dir).absolute())
    least = [] if options.n >= 1 else [f"--n must be 1 or more, got {options.n}"]
    if problems := [*least, *store.problems()]:
        parser.error("\n".join(problems))
    facts = engine.describe(MODEL)
    tasks: dict[str, dict[str, Any]] = {name: {} for name in options.tasks}
    with engine.open(MODEL, Stack("full")) as session:
        for length in options.lengths:
            for name, by_length in tasks.items():
                cell = measured(load(name, length), options.n, engine, facts, session, store)
                by_length[str(length)] = cell
                print(f"{name} at {length}: {_cell(cell)}", file=sys.stderr)
    print(json.dumps(record("baselines", n=options.n, lengths=list(options.lengths), tasks=tasks), indent=1))


if __name__ == "__main__":
    main()
