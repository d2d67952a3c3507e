"""How long it takes to make samples, and what memory: the six RULER tasks that lm-eval 0.4.13 can make offline, side by side.

500 samples of each at 4,096 tokens, counted with the small model's own tokenizer; seconds are summed over the six tasks, each
library in a process of its own, one after the other. lm-eval always makes 500 samples of a length. Memory is what the process
grows by from 100 samples to 500 of the same task. Without lm-eval (`pip install 'kvgate[lmeval]' nltk wonderwords scipy`) its
side is left out and said to be. Prints one JSON object; --table prints the Markdown table from it.

    python benchmarks/samples.py [--samples 500] [--length 4096] > benchmarks/results/samples.json
    python benchmarks/samples.py --table benchmarks/results/samples.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runs import MODEL, markdown, record
from harness.make import make

CONF = Path(__file__).resolve().parents[1] / "conf" / "task"
TASKS = {  # lm-eval's name: ours
    "niah_single_1": "ruler_niah_single_1",
    "niah_multikey_2": "ruler_niah_multikey_2",
    "niah_multikey_3": "ruler_niah_multikey_3",
    "ruler_vt": "ruler_vt",
    "ruler_cwe": "ruler_cwe",
    "ruler_fwe": "ruler_fwe",
}


def ours(name: str, samples: int, length: int) -> dict[str, float]:
    from harness.engines.hf.engine import HFEngine

    tokenizer = HFEngine().describe(MODEL).tokenizer
    options = yaml.safe_load((CONF / f"{TASKS[name]}.yaml").read_text(encoding="utf-8"))
    task = make({**options, "lengths": [length]}, "task")
    task.samples(tokenizer, 2, 1)  # texts are read
    few = _peak(lambda: task.samples(tokenizer, samples // 5, 2))
    start = time.perf_counter()
    made = task.samples(tokenizer, samples, 0)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "samples": len(made), "grown_mib": _peak(lambda: None) - few}


def lm_evals(name: str, samples: int, length: int) -> dict[str, float]:
    from lm_eval.tasks import TaskManager, get_task_dict

    from harness.engines.hf.fetch import locate

    manager = TaskManager(metadata={"tokenizer": str(locate(MODEL)), "max_seq_lengths": [length]})
    start = time.perf_counter()
    (task,) = get_task_dict([name], manager).values()
    made = len(list(task.test_docs()))
    return {"seconds": time.perf_counter() - start, "samples": made}


SIDES = {"kvgate": ours, "lm-eval": lm_evals}


def _peak(work: Any) -> float:
    """Peak memory of this process in MiB after ``work``."""
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(side: str, name: str, options: argparse.Namespace) -> dict[str, float]:
    """One task on one side, in a process of its own."""
    words = ["--only", side, name, "--samples", str(options.samples), "--length", str(options.length)]
    done = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(found: dict[str, Any]) -> str:
    sides = [side for side in SIDES if side in found["tasks"]["niah_single_1"]]
    rows = [
        [name, *(f"{by_side[side]['seconds']:.1f} s" for side in sides), f"{by_side['kvgate']['grown_mib']:.0f} MiB"]
        for name, by_side in found["tasks"].items()
    ]
    total = [sum(task[side]["seconds"] for task in found["tasks"].values()) for side in sides]
    return markdown(
        ["task", *sides, "kvgate grows by"], [*rows, ["all", *(f"{seconds:.1f} s" for seconds in total), ""]]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--length", type=int, default=4096, help="tokens of prompt and answer")
    parser.add_argument("--table", default=None, metavar="JSON", help="print the table of a record and do nothing else")
    parser.add_argument("--only", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    if options.only:
        side, name = options.only
        print(json.dumps(SIDES[side](name, options.samples, options.length)))
        return
    sides = [side for side in SIDES if side == "kvgate" or find_spec("lm_eval")]
    tasks = {name: {side: measured(side, name, options) for side in sides} for name in TASKS}
    totals = {side: sum(task[side]["seconds"] for task in tasks.values()) for side in sides}
    share = totals["kvgate"] / totals["lm-eval"] if "lm-eval" in totals else None
    print(json.dumps(record("samples", length=options.length, tasks=tasks, seconds=totals, share=share), indent=1))


if __name__ == "__main__":
    main()
