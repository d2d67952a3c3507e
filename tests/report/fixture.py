"""A verdict of 12 strategies by 4 tasks with every decision, nulls and hostile text, and its samples."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd

HOSTILE = "<script>alert('x')</script>"
FORMULA = '=HYPERLINK("http://example.org","x")'
TASKS = (("niah_multikey", True), ("arithmetic_chain", True), ("instructions", True), ("fidelity_prose", False))
STRATEGIES = (  # name, stack, share of full, fall on each judged task
    ("fp8", "quant/fp8 format=e4m3", 0.5, (0.0, 0.0, -0.004)),
    ("int8-per-token", "quant/int8 granularity=token", 0.516, (0.0, -0.002, 0.002)),
    ("int4-kivi-g32", "quant/kivi bits=4 group=32", 0.2813, (-0.004, -0.006, -0.002)),
    ("int2-kivi-g32", "quant/kivi bits=2 group=32", 0.1563, (-0.06, -0.21, -0.03)),
    ("snapkv-50", "evict/snapkv keep=0.5", 0.5, (-0.002, -0.012, -0.004)),
    ("snapkv-25", "evict/snapkv keep=0.25", 0.2502, (-0.012, -0.05, -0.016)),
    ("snapkv-25-fp8", "evict/snapkv keep=0.25 + quant/fp8", 0.1251, (-0.016, -0.06, -0.018)),
    ("h2o-12", "evict/h2o keep=0.125", 0.125, (-0.35, -0.41, -0.11)),
    ("streaming-12", "evict/streaming keep=0.125", 0.125, (-0.82, -0.47, -0.22)),
    ("xkv-rank-low", "structure/xkv rank=512", 0.37, (-0.004, None, -0.01)),
    ("prefix-reuse", "prefix/radix", 1.0, (0.0, 0.0, 0.0)),
    ('a&b <b>"$x$" with a very long name indeed', "offload/host", 1.0, (None, None, None)),
)
BASELINE = {"niah_multikey": 0.985, "arithmetic_chain": 0.71, "instructions": 0.842}
MARGIN = 0.02


def verdict() -> dict[str, Any]:
    """Content of verdict.json."""
    cells = [
        _fidelity(name, i, share) if task.startswith("fidelity") else _judged(name, task, share, falls[t])
        for i, (name, _, share, falls) in enumerate(STRATEGIES)
        for t, (task, _) in enumerate(TASKS)
        if not (name == "prefix-reuse" and task == "fidelity_prose")
    ]
    return {
        "schema": "kvgate.verdict/1",
        "name": "qwen-ladder",
        "created": "2025-01-31T12:00:00+00:00",
        "model": {
            "id": "example/Small-0.6B-Instruct",
            "revision": "4f1c2aa0d1",
            "weights_sha": "9d2f6c0b8e77a1c3",
            "dtype": "float32",
            "deploy_dtype": "bfloat16",
            "layers": 28,
            "kv_heads": 8,
            "head_dim": 128,
        },
        "engine": {
            "name": "hf",
            "versions": {"torch": "2.9.0", "transformers": "4.57.1"},
            "device": "cpu",
            "attention": "sdpa",
        },
        "gate": {"margin": MARGIN, "margin_kind": "absolute", "alpha": 0.05, "looks": 2, "power": 0.8, "tasks": []},
        "seed": 0,
        "kvgate": "0.1.0",
        "git": {"commit": "0123abc", "dirty": False},
        "python": "3.11.9",
        "strategies": [_strategy(name, stack, cells) for name, stack, _, _ in STRATEGIES],
        "cells": cells,
        "comparisons": [
            _comparison("fp8", "int8-per-token", "niah_multikey", "equivalent within the margin"),
            _comparison("fp8", STRATEGIES[-1][0], "niah_multikey", "a better"),
            _comparison("fp8", "snapkv-25", "arithmetic_chain", "no difference shown"),
            _comparison("fp8", "prefix-reuse", "instructions", "not compared"),
        ],
        "notes": ["margin changed after the run: planned 0.01", HOSTILE],
    }


def _decide(fall: float | None, name: str) -> str:
    if fall is None or name == "prefix-reuse":
        return "VOID"
    return "NO-GO" if fall < -0.03 else "INCONCLUSIVE" if fall < -0.008 else "GO"


def _judged(name: str, task: str, share: float, fall: float | None) -> dict[str, Any]:
    decision = _decide(fall, name)
    n = 400 if task != "instructions" else 600
    known = fall is not None
    lost = round(-min(fall, 0) * n) + 2 if known else None
    half = 0.004 + 0.5 * abs(fall) ** 0.8 * 0.2 if known else None
    return {
        "strategy": name,
        "task": task,
        "mode": "prompt",
        "decision": decision,
        "gating": True,
        "n": n if known else 0,
        "clusters": n if task != "instructions" else 150,
        "baseline": BASELINE[task] if known else None,
        "score": BASELINE[task] + fall if known else None,
        "delta": fall,
        "ci_low": fall - half * 1.3 if known else None,
        "ci_high": fall + half if known else None,
        "margin": MARGIN,
        "alpha": 0.025,
        "p_value": {"GO": 0.0004, "INCONCLUSIVE": 0.21, "NO-GO": 0.9999}.get(decision),
        "test": "betting bound" if task == "instructions" else "exact paired",
        "gained": 2 if known else None,
        "lost": lost,
        "lost_pairs": 1 if decision == "NO-GO" else 0,
        "flip_rate": (lost + 2) / n if known else None,
        "noise_flip_rate": 0.0025,
        "control_delta": -0.61,
        "n_needed": 1180 if decision == "INCONCLUSIVE" else None,
        "n_needed_observed": 6200 if decision == "INCONCLUSIVE" and fall > -0.015 else None,
        "min_margin": 0.031 if decision == "INCONCLUSIVE" else 0.018 if known else None,
        "look": 2 if task == "arithmetic_chain" else 1,
        "looks": 2,
        "left_out": 0,
        "not_acted": n if name == "prefix-reuse" else 0,
        "truncated": 3 if name == "streaming-12" else 0,
        "failed": 0,
        "reasons": _reasons(decision, name),
        "fidelity": None,
        "memory": _memory(share) if known else None,
        "evidence": [
            {
                "layer": "evict/snapkv" if "snap" in name else "quant/kivi",
                "acted": decision != "VOID",
                "why": "tokens kept is below tokens seen" if decision != "VOID" else f"hit rate is 0 {HOSTILE}",
                "facts": {"tokens_kept": 1024.0, "tokens_seen": 4096.0, "attention_kept": 0.9731},
            }
        ],
        "output_tokens_baseline": 41.2,
        "output_tokens": 43.75 if known else None,
        "task_version": 2,
        "shots": 0,
        "family": {"instructions": "instructions", "arithmetic_chain": "reasoning"}.get(task, "retrieval"),
        "parts": _parts(task, fall) if known else [],
        "at_limit": 7 if known else None,
        "at_limit_baseline": 5,
        "failed_baseline": 0,
        "address": f"c{abs(hash_of(name + task)):015x}",
    }


def _parts(task: str, fall: float) -> list[dict[str, Any]]:
    """Two kinds of instructions, of which one is lost; lengths of everything; a text that nobody should run."""
    lost = {("kind", "begins"): 0.0, ("kind", f"ends {HOSTILE}"): 3 * fall, ("", "strict"): fall}
    rows = {("length", "512"): 0.0, ("length", "4096"): 2 * fall, **(lost if task == "instructions" else {})}
    return [
        {
            "group": group,
            "name": name,
            "n": 50,
            "baseline": 0.75,
            "score": 0.75 + delta,
            "delta": delta,
            "ci_low": delta - 0.05,
            "ci_high": delta + 0.05,
        }
        for (group, name), delta in rows.items()
    ]


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(text.encode()[-6:], "big")


def _reasons(decision: str, name: str) -> list[str]:
    return {
        "VOID": ["prefix/radix never hit: hit rate 0.0 on all samples" if name == "prefix-reuse" else "no headroom"],
        "INCONCLUSIVE": ["harm beyond the margin is neither excluded nor shown"],
        "NO-GO": ["d is below 0 at alpha / 2 and below the margin"],
    }.get(decision, [])


def _comparison(a: str, b: str, task: str, finding: str) -> dict[str, Any]:
    known = finding != "not compared"
    reasons = {
        "a better": f"{a} is better than {b} by 4.00 points over 400 samples, but within the margin {HOSTILE}.",
        "not compared": "On none of 400 samples did both strategies act, so there is nothing to compare.",
    }
    return {
        "a": a,
        "b": b,
        "task": task,
        "mode": "prompt",
        "finding": finding,
        "within_margin": finding[0] in "ae" if known else None,
        "n": 400 if known else 0,
        "clusters": None,
        "samples": 400 if known else 0,
        "a_score": 0.9 if known else None,
        "b_score": 0.86 if known else None,
        "delta": 0.04 if known else None,
        "ci_low": 0.011 if known else None,
        "ci_high": 0.069 if known else None,
        "margin": MARGIN,
        "alpha": 0.025,
        "p_value": 0.0002 if known else None,
        "p_holm": 0.0006 if known else None,
        "p_equivalence": 0.4 if known else None,
        "test": "exact unconditional" if known else None,
        "a_alone": 20,
        "b_alone": 4,
        "flip_rate": 0.06 if known else None,
        "n_needed": 2345 if finding[0] == "n" and known else None,
        "n_needed_observed": None,
        "look": 1,
        "looks": 2,
        "left_out": 0,
        "not_acted": 0,
        "reasons": [reasons.get(finding, f"{finding}: {a} and {b}, over 400 samples.")],
    }


def _fidelity(name: str, i: int, share: float) -> dict[str, Any]:
    return {
        **{key: None for key in _judged(name, "niah_multikey", share, None)},
        "strategy": name,
        "task": "fidelity_prose",
        "mode": "prompt",
        "decision": "MEASURED",
        "gating": False,
        "n": 64,
        "reasons": [],
        "evidence": [],
        "memory": _memory(share),
        "fidelity": {
            "kl_mean": None if i == 11 else 0.0004 * 1.9**i,
            "kl_p99": None if i == 11 else 0.006 * 1.8**i,
            "top1_agreement": 0.998 - 0.011 * i,
            "nll_delta": 0.0003 * 2**i,
        },
        "address": f"f{i:015x}",
    }


def _memory(share: float) -> dict[str, Any]:
    full = 2 * 28 * 8 * 128 * 2
    return {
        "formula_bytes_per_token": full * 2 * share,
        "stored_bytes_per_token": full * 2 * share * 1.004,
        "peak_bytes": 3_412_000_000,
        "kept_fraction": min(1.0, share * 2),
        "deploy_bytes_per_token": full * share,
        "deploy_full_bytes_per_token": full,
        "working_bytes_per_token": None,
    }


def _strategy(name: str, stack: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    own = [cell for cell in cells if cell["strategy"] == name and cell["gating"]]
    decisions = {cell["decision"] for cell in own}
    worst = next(kind for kind in ("NO-GO", "VOID", "INCONCLUSIVE", "GO") if kind in decisions)
    reasons = [f"{c['task']}: {r}" for c in own if c["decision"] == worst for r in c["reasons"]]
    ladder = {"policy": "snapkv", "option": "keep", "value": 0.5 if "50" in name else 0.25, "certified": worst == "GO"}
    return {
        "name": name,
        "decision": worst,
        "reasons": reasons,
        "stack": stack,
        "ladder": ladder if name.startswith("snapkv") else None,
    }


def samples() -> pd.DataFrame:
    """Rows as kvgate hands them over: the full cache's own, then each strategy's, 48 a cell."""
    names = [("full", (0.0, 0.0, 0.0)), *((name, falls) for name, _, _, falls in STRATEGIES)]
    rows = []
    for name, falls in names:
        for (task, gating), fall in zip(TASKS, (*falls, None), strict=True):
            if not gating or fall is None:
                continue
            rows += [_sample(name, task, fall, i) for i in range(48)]
    return pd.DataFrame(rows)


def _sample(name: str, task: str, fall: float, i: int) -> dict[str, Any]:
    draw = random.Random(f"{name}/{task}/{i}").random()
    needle = task == "niah_multikey"
    depth = (i // 4 % 6) / 5
    right = draw >= -fall * (1.6 if 0.1 < depth < 0.9 else 0.4)
    cut = name == "streaming-12" and i % 16 == 3
    text = f"The number is {7_000_000 + i}." if i % 5 else f"{HOSTILE} ```` | =1+1\n" + "and on it goes " * 80
    return {
        "strategy": name,
        "role": "baseline" if name == "full" else "candidate",
        "task": task,
        "mode": "prompt",
        "sample_id": f"{task}-{i:04d}",
        "state": "truncated" if cut else "scored",
        "score": None if cut else float(right),
        "baseline_score": 1.0,
        "baseline_state": "scored",
        "answer": str(7_000_000 + i) if right else HOSTILE if i % 2 else "",
        "baseline_answer": str(7_000_000 + i),
        "expected": str(7_000_000 + i),
        "text": text,
        "finish": "length" if cut else "stop",
        "output_tokens": 40 + i,
        "prompt_tokens": 1000 * 2 ** (i % 4),
        "length": 1024 * 2 ** (i % 4) if needle else None,
        "depth": depth if needle else None,
        "acted": True,
        "error": None,
    }
