"""Every number format on the small model, side by side: bytes, fidelity, tasks, and what a decode step costs alone.

Runs `kvgate run` on each task with all formats at once (finished samples are kept in --results-dir, so it can be stopped
and started again), times decode steps of every format alone against the full cache, and prints one JSON object; --table
prints the Markdown tables of the README and docs/formats.md from such a record.

    python benchmarks/formats.py [--results-dir results] [--samples 16] > benchmarks/results/formats.json
    python benchmarks/formats.py --table benchmarks/results/formats.json
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

import pandas as pd
import torch

from benchmarks.runs import MODEL, markdown, percent, presets, record, run
from harness.calibration import text_of
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import feed
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.prefill import prefill
from harness.engines.hf.session import HFSession
from harness.stacks import make_stack
from strategies.stack import Stack
from tasks.corpus import prose

QUANT = "strategies.quant"
SCALED = {"fp8": f"{QUANT}.fp8.FP8", "fp8_e5m2": f"{QUANT}.fp8.FP8E5M2", "int8": f"{QUANT}.int8.INT8"}
KIVI, TURBO, NVFP4 = f"{QUANT}.kivi.KIVI", f"{QUANT}.turboquant.TurboQuant", f"{QUANT}.nvfp4.NVFP4"
QUANTO, HQQ = f"{QUANT}.hf_cache.HFQuanto", f"{QUANT}.hf_cache.HFHQQ"
PAIRS, RANK = f"{QUANT}.per_layer.PerLayer", {"_target_": "strategies.structure.lowrank.LowRank", "rank": 192}
FORMATS: dict[str, dict[str, Any]] = {  # name: the slots that differ from full
    "fp8": {"quant": {"_target_": SCALED["fp8"]}},
    "fp8 head": {"quant": {"_target_": SCALED["fp8"], "scale": "head"}},
    "fp8 tensor": {"quant": {"_target_": SCALED["fp8"], "scale": "tensor"}},
    "fp8 tensor text": {"quant": {"_target_": SCALED["fp8"], "scale": "tensor", "scale_from": "text"}},
    "fp8 tensor one": {"quant": {"_target_": SCALED["fp8"], "scale": "tensor", "scale_from": "one"}},
    "fp8_e5m2": {"quant": {"_target_": SCALED["fp8_e5m2"], "scale": "tensor", "scale_from": "one"}},
    "int8": {"quant": {"_target_": SCALED["int8"]}},
    "int8 tensor": {"quant": {"_target_": SCALED["int8"], "scale": "tensor"}},
    "nvfp4": {"quant": {"_target_": NVFP4}},
    "nvfp4 4/6": {"quant": {"_target_": NVFP4, "four_over_six": True}},
    "flexgen4": {"quant": {"_target_": f"{QUANT}.flexgen.FlexGen4"}},
    "hf_quanto 4": {"quant": {"_target_": QUANTO, "bits": 4}},
    "hf_quanto 2": {"quant": {"_target_": QUANTO, "bits": 2}},
    "hf_hqq 4": {"quant": {"_target_": HQQ, "bits": 4}},
    "hf_hqq 4 axis 1": {"quant": {"_target_": HQQ, "bits": 4, "axis_key": 1, "axis_value": 1, "group": 32}},
    "kivi4": {"quant": {"_target_": KIVI, "bits": 4}},
    "kivi2": {"quant": {"_target_": KIVI, "bits": 2}},
    "per_layer K4V2": {"quant": {"_target_": PAIRS, "pairs": ["K4V2"]}},
    "per_layer K8V4": {"quant": {"_target_": PAIRS, "pairs": ["K8V4"]}},
    "per_layer 5 bits": {"quant": {"_target_": PAIRS, "pairs": [], "budget": 5.0}},
    "turboquant k8v4": {"quant": {"_target_": TURBO, "preset": "k8v4"}},
    "turboquant 4bit_nc": {"quant": {"_target_": TURBO, "preset": "4bit_nc"}},
    "turboquant k3v4_nc": {"quant": {"_target_": TURBO, "preset": "k3v4_nc"}},
    "turboquant 3bit_nc": {"quant": {"_target_": TURBO, "preset": "3bit_nc"}},
    "lowrank 192": {"structure": RANK},
    "lowrank 192 int8": {"structure": RANK, "quant": {"_target_": SCALED["int8"]}},
}
LENGTHS = (512, 1024, 2048, 4096)


def quality(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By format: task scores beside the baseline's, fidelity, and bytes, with exact and with chunked prefill."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in FORMATS}
    few, n = max(12, options.samples // 2), options.samples
    lengths = f"task.lengths=[{','.join(map(str, LENGTHS))}]"
    with presets(FORMATS) as folder:

        def judged(name: str, *words: str) -> tuple[dict[str, Any], pd.DataFrame]:
            return run(folder, FORMATS, options.results_dir, f"formats-{name}", "gate.margin=0.1", *words)

        verdict, _ = judged("fidelity", "task=fidelity", "prefill=exact,chunked", f"n={few}")
        for cell in verdict["cells"]:
            where = rows[cell["strategy"]].setdefault("chunked" if "chunked" in cell["mode"] else "exact", {})
            where.update({key: cell["fidelity"][key] for key in ("kl_mean", "kl_p99", "top1_agreement", "nll_delta")})
            rows[cell["strategy"]].setdefault("memory", cell["memory"])
            rows[cell["strategy"]].setdefault("evidence", cell["evidence"][-1]["why"])
        for task, words in {
            "needle": ("task=needle_single", lengths, f"n={n * len(LENGTHS)}"),
            "code": ("task=code_lookup", "task.lengths=[512]", f"n={2 * n}"),
            "chain": ("task=chain", f"n={2 * n}"),
        }.items():
            verdict, samples = judged(task, *words)
            for cell in verdict["cells"]:
                keys = ("decision", "n", "baseline", "score", "ci_low", "ci_high", "lost", "gained")
                rows[cell["strategy"]][task] = {key: cell[key] for key in keys}
            if task == "needle":
                by_length = samples.groupby(["strategy", "length"])["score"].mean()
                for name in rows:
                    rows[name]["needle_by_length"] = {str(at): float(by_length[name, at]) for at in LENGTHS}
                rows["full"] = {"needle_by_length": {str(at): float(by_length["full", at]) for at in LENGTHS}}
    return rows


def bits_an_element(stack: Stack, session: HFSession) -> float:
    """Bits of one more stored element, metadata included, averaged over layers, once windows and residuals are full."""
    shape, block = session.about.shape.at(session.about.deploy_bytes), 8192
    more = stack.formula_bytes(2 * block, shape) - stack.formula_bytes(block, shape)
    return 8 * more / (block * shape.layers * shape.kv_heads * sum(shape.widths))


def decode_cost(
    session: HFSession, stacks: Mapping[str, Stack], steps: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Median seconds of one decode step alone after a prompt of 1,024 tokens, and its ratio to the full cache's.

    Steps of a format and of the full cache alternate in blocks of ``steps``, so both see the same machine.
    """
    ids = session.tokenizer.encode(" ".join(prose()))[:1024]
    prompt = prefill(session.model, ids, query_window=0, chunk=1024, seed=0)

    def block(stack: Stack) -> float:
        cache = build(prompt, [stack], steps + 2)
        tokens = torch.tensor([[ids[0]]], device=prompt.logits.device)
        with attention(session.model, DECODE):
            feed(session.model, cache, tokens, prompt.tokens)
            start = time.perf_counter()
            for step in range(steps):
                feed(session.model, cache, tokens, prompt.tokens + 1 + step)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return (time.perf_counter() - start) / steps

    costs = {}
    for name, stack in stacks.items():
        pairs = [(block(Stack("full")), block(stack)) for _ in range(repeats + 1)][1:]  # the first pair warms up
        costs[name] = {
            "step_s": round(statistics.median(mine for _, mine in pairs), 5),
            "ratio": round(statistics.median(mine / full for full, mine in pairs), 3),
        }
    return costs


def table(measured: Mapping[str, Any]) -> str:
    """The Markdown table of a record, most bits first."""
    head = [
        *("format", "bits an element", "bytes a token", "share", "KL (nats)", "top-1", "KL chunked"),
        *(f"needle {at}" for at in LENGTHS),
        *("code", "chain", "decode step"),
    ]
    rows = measured["formats"]
    full = rows["full"]
    baseline = [f"{full['needle_by_length'][str(at)]:.2f}" for at in LENGTHS]
    first = next(row for name, row in rows.items() if name != "full")
    lines = [
        "full",
        "16",
        f"{first['memory']['deploy_full_bytes_per_token']:,.0f}",
        *("100 %", "0", "100 %", "0", *baseline),
        f"{first['code']['baseline']:.2f}",
        f"{first['chain']['baseline']:.2f}",
        "1.0",
    ]
    body = [lines]
    for name, row in sorted(rows.items(), key=lambda item: -item[1].get("bits", 99)):
        if name == "full":
            continue
        memory = row["memory"]
        body.append(
            [
                name,
                f"{row['bits']:.2f}",
                f"{memory['deploy_bytes_per_token']:,.0f}",
                percent(memory["deploy_bytes_per_token"] / memory["deploy_full_bytes_per_token"]),
                f"{row['exact']['kl_mean']:.4f}",
                percent(row["exact"]["top1_agreement"], 1),
                f"{row['chunked']['kl_mean']:.4f}",
                *(f"{row['needle_by_length'][str(at)]:.2f}" for at in LENGTHS),
                f"{row['code']['score']:.2f}",
                f"{row['chain']['score']:.2f}",
                f"{row['decode']['ratio']:.1f}",
            ]
        )
    return markdown(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", default="results", help="where the runs' samples are kept")
    parser.add_argument("--samples", type=int, default=16, help="needle samples a length; other tasks follow from it")
    parser.add_argument("--steps", type=int, default=8, help="decode steps a timing")
    parser.add_argument("--repeats", type=int, default=5, help="paired timings a format")
    parser.add_argument("--costs-only", action="store_true", help="time decode steps and leave the tasks out")
    parser.add_argument("--table", default=None, metavar="JSON", help="print the table of a record and do nothing else")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    rows = {} if options.costs_only else quality(options)
    with HFEngine().open(MODEL, Stack("full")) as session:
        stacks = {name: make_stack(name, slots) for name, slots in FORMATS.items()}
        fitted = {n: session.fit(s, text_of(None), 4096) if s.calibrates else s for n, s in stacks.items()}
        costs = decode_cost(session, fitted, options.steps, options.repeats)
        for name, stack in fitted.items():
            rows.setdefault(name, {}).update(bits=round(bits_an_element(stack, session), 3), decode=costs[name])
    print(json.dumps(record("formats", samples=options.samples, formats=rows), indent=1))


if __name__ == "__main__":
    main()
