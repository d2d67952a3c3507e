"""Every eviction policy on the small model, down to a tenth of the cache, with random eviction among them.

Runs `kvgate run` on each task, with the question known when the cache is compressed and without it, with all policies and
budgets at once (finished samples are kept in --results-dir, so it can be stopped and started again), and times what selection
adds to a prefill. Prints one JSON object; --table prints the Markdown tables of the README and docs/eviction.md from it.

    python benchmarks/eviction.py [--results-dir results] [--samples 16] > benchmarks/results/eviction.json
    python benchmarks/eviction.py --table benchmarks/results/eviction.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the workers of `kvgate run` do


from benchmarks.runs import MODEL, markdown, percent, presets, record, run
from harness.engines.base import Ask, Row
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.session import HFSession
from harness.stacks import make_stack
from harness.types import Sample
from strategies.stack import Stack
from tasks.corpus import prose

EVICT = "strategies.evict"
POLICIES: dict[str, dict[str, Any]] = {  # name: the evict slot without its budget
    "random": {"_target_": f"{EVICT}.random.Random"},
    "window": {"_target_": f"{EVICT}.window.Window"},
    "window rerotated": {"_target_": f"{EVICT}.window.Window", "rerotate": True},
    "knorm": {"_target_": f"{EVICT}.knorm.Knorm"},
    "keydiff": {"_target_": f"{EVICT}.keydiff.KeyDiff"},
    "tova": {"_target_": f"{EVICT}.tova.TOVA"},
    "h2o": {"_target_": f"{EVICT}.h2o.H2O"},
    "snapkv": {"_target_": f"{EVICT}.snapkv.SnapKV"},
    "pyramidkv": {"_target_": f"{EVICT}.pyramidkv.PyramidKV"},
    "adakv": {"_target_": f"{EVICT}.adakv.AdaKV"},
    "expected_attention": {"_target_": f"{EVICT}.expected_attention.ExpectedAttention"},
    "kvzip": {"_target_": f"{EVICT}.kvzip.KVzip"},
    "rkv": {"_target_": f"{EVICT}.rkv.RKV"},
    "hybrid": {
        "_target_": f"{EVICT}.hybrid.Hybrid",
        "parts": [{"_target_": f"{EVICT}.snapkv.SnapKV"}, {"_target_": f"{EVICT}.keydiff.KeyDiff"}],
        "weights": [0.7, 0.3],
    },
    "quest": {"_target_": f"{EVICT}.quest.Quest"},
    "delayed": {"_target_": f"{EVICT}.delayed.Delayed"},
    "oracle": {"_target_": f"{EVICT}.oracle.Oracle"},
}
KEEPS = (0.75, 0.5, 0.25, 0.1)
STRATEGIES = {f"{name} {keep}": {"evict": {**slot, "keep": keep}} for name, slot in POLICIES.items() for keep in KEEPS}
TASKS = {
    "needle": ("task=needle_single", "task.lengths=[512]"),
    "questions": ("task=needle_multiquery", "task.lengths=[512]"),  # several questions to one context
    "code": ("task=code_lookup", "task.lengths=[512]"),
    "fidelity": ("task=fidelity", "task.lengths=[512]", "task.tokens=24"),
}
MODES = ("prompt", "context")
CLEARLY = 0.25  # a score above random's: three of twelve samples


def quality(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By strategy, mode and task: scores with their intervals, or fidelity; and the attention that was kept."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in STRATEGIES}
    with presets(STRATEGIES) as folder:
        for task, words in TASKS.items():
            n = max(6, options.samples // 2) if task == "fidelity" else options.samples
            asked = (*words, f"compress={','.join(MODES)}", f"n={n}", "gate.margin=0.1")
            verdict, _ = run(folder, STRATEGIES, options.results_dir, f"eviction-{task}", *asked)
            for cell in verdict["cells"]:
                where = rows[cell["strategy"]].setdefault(cell["mode"], {})
                if task == "fidelity":
                    facts = cell["evidence"][0]["facts"]
                    where["fidelity"] = {key: cell["fidelity"][key] for key in ("kl_mean", "top1_agreement")}
                    where["attention_kept"] = facts.get("attention_kept")
                    where["missed_tokens"] = facts.get("missed_tokens")
                    memory = cell["memory"]
                    where["share"] = memory["deploy_bytes_per_token"] / memory["deploy_full_bytes_per_token"]
                else:
                    keys = ("decision", "n", "baseline", "score", "ci_low", "ci_high")
                    where[task] = {key: cell[key] for key in keys}
    return rows


def selection_cost(session: HFSession, repeats: int) -> dict[str, float]:
    """What a policy at half of the cache adds to a prefill of 1,024 tokens, as a share of it.

    One answer token of the policy and the full cache against that of the full cache alone, in turns; the median of paired
    differences, over the time of a plain prefill.
    """
    text = session.tokenizer.decode(session.tokenizer.encode(" ".join(prose()))[:1000])
    one = Sample("cost", text, "Go on.", (), 1)

    def seconds(*stacks: Stack) -> float:
        start = time.perf_counter()
        list(session.run([Ask(one, [[Row(stack.name, stack) for stack in stacks]])], compress="prompt", seed=0))
        return time.perf_counter() - start

    full, costs = Stack("full"), {}
    for name, slot in POLICIES.items():
        stack = make_stack(name, {"evict": {**slot, "keep": 0.5}})
        pairs = [(seconds(full, full), seconds(full, stack)) for _ in range(repeats + 1)][1:]  # the first warms up
        alone = statistics.median(seconds(full) for _ in range(3))
        costs[name] = round(statistics.median(mine - plain for plain, mine in pairs) / alone, 3)
    return costs


def table(measured: Mapping[str, Any], mode: str) -> str:
    """The Markdown table of one mode: score of each task at each budget; bold where it is clearly above random."""
    rows = measured["strategies"]
    head = ["policy", *(f"{task} {keep:g}" for task in ("needle", "questions", "code") for keep in KEEPS)]
    head += [*(f"KL {keep:g}" for keep in KEEPS), "attention kept 0.25", "cost"]
    body = []
    for name in POLICIES:
        cells = [name]
        for task in ("needle", "questions", "code"):
            for keep in KEEPS:
                mine, random = (rows[f"{one} {keep}"][mode][task] for one in (name, "random"))
                beats = mine["score"] >= random["score"] + CLEARLY
                cells.append(f"**{mine['score']:.2f}**" if beats else f"{mine['score']:.2f}")
        cells += [f"{rows[f'{name} {keep}'][mode]['fidelity']['kl_mean']:.3f}" for keep in KEEPS]
        kept = rows[f"{name} 0.25"][mode]["attention_kept"]
        body.append([*cells, "" if kept is None else percent(kept), f"{measured['cost'][name]:+.0%}"])
    return markdown(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", default="results", help="where the runs' samples are kept")
    parser.add_argument("--samples", type=int, default=16, help="samples a task and mode")
    parser.add_argument("--repeats", type=int, default=3, help="paired timings a policy")
    parser.add_argument("--costs-only", action="store_true", help="time selection and leave the tasks out")
    parser.add_argument(
        "--table", default=None, metavar="JSON", help="print the tables of a record and do nothing else"
    )
    options = parser.parse_args()
    if options.table:
        measured = json.loads(Path(options.table).read_text(encoding="utf-8"))
        for mode in MODES:
            print(f"compress={mode}\n\n{table(measured, mode)}\n")
        return
    rows = {} if options.costs_only else quality(options)
    with HFEngine().open(MODEL, Stack("full")) as session:
        costs = selection_cost(session, options.repeats)
    print(json.dumps(record("eviction", samples=options.samples, strategies=rows, cost=costs), indent=1))


if __name__ == "__main__":
    main()
