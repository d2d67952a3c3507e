"""What more workers gain and what executors cost, with `kvgate run` as a user starts it: whole commands, on the small model.

- workers: two of one thread each against one of one thread, and one of two threads beside them
- executors: the same shards of a minute or more through Ray, and through Slurm where there is one, against a local worker
- resumed: the same command once more, when nothing is missing, against the first time

Each way starts on an empty results folder; every second trial takes the ways in turned order, and ratios are those of one trial.

    python benchmarks/scale_executors.py [--trials 3] [--n 96] > benchmarks/results/scale_executors.json
    python benchmarks/scale_executors.py --table benchmarks/results/scale_executors.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.runs import markdown, percent, record

GRID = ("-m", "strategy=fp8,kivi4,snapkv,window", "task=needle_single,code_lookup", "task.lengths=[1024]")
WAYS = {  # options by name
    "one worker, one thread": ("executor.workers=1", "engine.threads=1"),
    "two workers, one thread each": ("executor.workers=2", "engine.threads=1"),
    "one worker, two threads": ("executor.workers=1", "engine.threads=2"),
}
CLUSTERS = {  # with the same shards as the local worker beside them
    "local": ("executor.workers=1", "engine.threads=1"),
    "ray": ("executor=ray", "executor.workers=1", "engine.threads=1"),
    "slurm": ("executor=slurm", "executor.workers=1", "engine.threads=1"),
}
TARGETS = {"workers": 1.6, "overhead": 0.05, "resumed": 0.05}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--n", type=int, default=96, help="samples a task")
    parser.add_argument("--shard", type=int, default=32, help="samples of a shard of a minute, for the executors")
    parser.add_argument("--table", type=Path, help="print the table of a stored result")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    trials = [trial(number, options.n, options.shard) for number in range(options.trials)]
    print(json.dumps(record("scale_executors", n=options.n, shard=options.shard, trials=trials), indent=1))


def trial(number: int, n: int, shard: int) -> dict[str, Any]:
    """Seconds of every way, once."""
    turned = number % 2 == 1
    return {
        "workers": {name: once(WAYS[name], n)["first_s"] for name in order(WAYS, turned)},
        "executors": {name: once((*CLUSTERS[name], f"executor.shard={shard}"), n) for name in order(there(), turned)},
    }


def there() -> list[str]:
    """The executors that can be measured here."""
    absent = ["ray"] * (not find_spec("ray")) + ["slurm"] * (not (find_spec("submitit") and _slurm_answers()))
    for name in absent:
        print(f"{name}: not measured, it is not here", file=sys.stderr)
    return [name for name in CLUSTERS if name not in absent]


def _slurm_answers() -> bool:
    return bool(shutil.which("sinfo")) and not subprocess.run(["sinfo", "--noheader"], capture_output=True).returncode


def order(ways: Sequence[str] | Mapping[str, Any], turned: bool) -> list[str]:
    return list(reversed(list(ways))) if turned else list(ways)


def once(words: Sequence[str], n: int) -> dict[str, float]:
    """Seconds of the grid on an empty folder, and of the same command when it has nothing left to do."""
    with TemporaryDirectory(dir=os.environ.get("KVGATE_SHARED")) as results:  # a folder that a cluster's nodes see
        command = [
            sys.executable,
            "-m",
            "harness.cli",
            "run",
            *GRID,
            f"n={n}",
            f"results_dir={results}",
            "name=r",
            *words,
        ]
        took = []
        for _ in range(2):
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
            took.append(time.perf_counter() - began)
    return {"first_s": took[0], "again_s": took[1]}


def table(result: Mapping[str, Any]) -> str:
    """Medians over trials, beside what is aimed at."""
    trials = result["trials"]
    one, two, threads = WAYS
    rows = []
    for name in (two, threads):
        gain = median(trial["workers"][one] / trial["workers"][name] for trial in trials)
        aim = f"at least {TARGETS['workers']}" if name == two else ""
        rows.append((f"{name}, against {one}", f"{gain:.2f} times", aim))
    for name in (name for name in CLUSTERS if name != "local" and name in trials[0]["executors"]):
        ratio = median(trial["executors"][name]["first_s"] / trial["executors"]["local"]["first_s"] for trial in trials)
        rows.append(
            (f"{name}, more than a local worker", percent(ratio - 1, 1), f"below {percent(TARGETS['overhead'])}")
        )
    again = median(trial["executors"]["local"]["again_s"] / trial["executors"]["local"]["first_s"] for trial in trials)
    rows.append(("the same command when nothing is missing", percent(again, 1), f"below {percent(TARGETS['resumed'])}"))
    return markdown(("what", "measured", "aim"), rows)


if __name__ == "__main__":
    main()
