"""What judging a grid costs here, and what the same evictions cost one by one in kvpress.

48 cells: 16 evictions on 3 tasks, by `kvgate run`, with the full cache, a positive control and the full cache once more beside
them, verdicts and report included. Then the same prompts in kvpress under each of the 16 presses, one after another, with
its model loaded once; it answers for no full cache and judges nothing. Then the grid by `kvgate run` again, every second
eviction on a cache packed in FP8. Prints one JSON object. ``ratio`` is the whole wall time of kvpress over that of kvgate;
``same_answers`` is the share of answers that are equal, token for token, beside each other.

kvpress pins an older transformers, so it has an environment of its own:

    python3.11 -m venv /tmp/kvpress
    /tmp/kvpress/bin/pip install torch==2.13.0 transformers==5.2.0 kvpress==0.5.5
    python benchmarks/scale.py --kvpress-python /tmp/kvpress/bin/python > benchmarks/results/scale.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the workers of `kvgate run` do; kvpress inherits it

from benchmarks.runs import MODEL, presets, record, run
from harness import manifest as manifests
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.fetch import locate
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.samples import load
from harness.store import ResultStore

EVICT = "strategies.evict"
KEEPS = (0.75, 0.5, 0.25, 0.125)
POLICIES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {  # the evict slot, and the press that keeps the same
    "knorm": ({"_target_": f"{EVICT}.knorm.Knorm"}, "KnormPress", {}),
    "keydiff": ({"_target_": f"{EVICT}.keydiff.KeyDiff"}, "KeyDiffPress", {}),
    "window": ({"_target_": f"{EVICT}.window.Window", "sinks": 4}, "StreamingLLMPress", {"n_sink": 4}),
    "snapkv": (
        {"_target_": f"{EVICT}.snapkv.SnapKV", "window": 32, "kernel": 5},
        "SnapKVPress",
        {"window_size": 32, "kernel_size": 5},
    ),
}
GRID = {f"{name} {keep}": {"evict": {**slot, "keep": keep}} for name, (slot, *_) in POLICIES.items() for keep in KEEPS}
FP8 = {"_target_": "strategies.quant.fp8.FP8"}
HALF_PACKED = {  # every second one
    f"{name} fp8" if at % 2 else name: {**slots, "quant": FP8} if at % 2 else slots
    for at, (name, slots) in enumerate(GRID.items())
}
PRESSES = {
    f"{name} {keep}": {"class": press, "compression_ratio": 1 - keep, **options}
    for name, (_, press, options) in POLICIES.items()
    for keep in KEEPS
}
TASKS = ("needle_single", "needle_multikey", "code_lookup")
CHILD = Path(__file__).with_name("scale_kvpress.py")


def judged(options: argparse.Namespace, strategies: Mapping[str, Any], scratch: str, name: str) -> dict[str, Any]:
    """`kvgate run` of all cells, with the seconds of the whole command."""
    words = (
        f"task={','.join(TASKS)}",
        f"task.lengths=[{options.tokens}]",
        f"n={options.samples}",
        f"engine.threads={options.threads}",
        *(("model=hf", f"model.path={options.model}") if options.model else ("model=smollm2",)),
    )
    with presets(strategies) as folder:
        start = time.perf_counter()
        verdict, _ = run(folder, strategies, scratch, name, *words)
        seconds = time.perf_counter() - start
    cells = len(verdict["cells"])
    assert cells == len(strategies) * len(TASKS), f"{cells} cells were judged"
    return {"cells": cells, "s": round(seconds, 1)}


def asked(options: argparse.Namespace, scratch: str, name: str) -> list[dict[str, Any]]:
    """The run's prompts as kvpress is given them, each with what kvgate answered under each eviction."""
    _, manifest = manifests.load(name, Path(scratch))
    tokenizer = HFEngine().describe(model_of(options)).tokenizer
    assert isinstance(tokenizer, PromptTokenizer)
    store, prompts = ResultStore(Path(scratch)), []
    for group in manifest["groups"]:
        cells = [cell for cell in group["cells"] if cell["strategy"] in PRESSES]
        records = {cell["strategy"]: store.cell(cell["address"]).read()[0] for cell in cells}
        for sample in load(Path(scratch) / "samples" / group["samples_file"], group["n"]):
            prompt = tokenizer.prompt(sample)
            said = {name: mine[sample.id].response for name, mine in records.items()}
            prompts.append(
                {
                    "ids": prompt.context + prompt.rest,
                    "max_new_tokens": sample.max_new_tokens,
                    "stop_ids": sorted(tokenizer.stop_ids),
                    "stop": sample.stop,
                    "said": {name: response and response.token_ids for name, response in said.items()},
                }
            )
    return prompts


def pressed(options: argparse.Namespace, prompts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What kvpress made of the prompts, with the seconds of its whole process."""
    words = {
        "model": str(locate(model_of(options))),
        "threads": options.threads,
        "presses": PRESSES,
        "prompts": prompts,
    }
    start = time.perf_counter()
    child = subprocess.run(
        [options.kvpress_python, str(CHILD)], input=json.dumps(words), stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = round(time.perf_counter() - start, 1)
    told = json.loads(child.stdout)
    pairs = [
        (said, prompt["said"][press])
        for press, by_prompt in told.pop("answers").items()
        for said, prompt in zip(by_prompt, prompts, strict=True)
    ]
    equal = sum(said == list(ours) for said, ours in pairs if ours is not None)
    return {"cells": len(PRESSES) * len(TASKS), "s": seconds, **told, "same_answers": round(equal / len(pairs), 3)}


def model_of(options: argparse.Namespace) -> dict[str, Any]:
    return {**MODEL, "path": options.model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvpress-python", required=True, help="interpreter of the environment that has kvpress")
    parser.add_argument("--tokens", type=int, default=1024, help="length of prompt and answer")
    parser.add_argument("--samples", type=int, default=4, help="samples a task")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads, of both")
    parser.add_argument("--model", default=None, help="a model folder instead of the default model")
    options = parser.parse_args()
    with TemporaryDirectory() as scratch:
        ours = judged(options, GRID, scratch, "evictions")
        theirs = pressed(options, asked(options, scratch, "evictions"))
    with TemporaryDirectory() as scratch:  # another: nothing of the first grid is to be reused
        packed = judged(options, HALF_PACKED, scratch, "half-packed")
    facts = {
        "tokens": options.tokens,
        "samples": options.samples,
        "ratio": round(theirs["s"] / ours["s"], 2),
        "kvgate": ours,
        "kvpress": theirs,
        "kvgate_half_packed": {**packed, "times_the_evictions": round(packed["s"] / ours["s"], 2)},
    }
    print(json.dumps(record("scale", **facts)))


if __name__ == "__main__":
    main()
