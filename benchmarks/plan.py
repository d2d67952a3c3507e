"""How long the simulators of sizing take, and in how much memory: traces of 100,000, 300,000 and 1,000,000 requests from a file.

Requests begin with one of 1,000 shared texts, popular by Zipf's law, of 16 blocks of 512 tokens in the mean. In one set of traces
they end with 4 blocks of their own in the mean, so that there is no end to different blocks, and caches have up to 65,536 blocks;
in the other they end at once, and the ceiling is among the sizes. Each measurement is a process that reads the file.

With --trace also what each rule finds on a recorded trace, what paging admits of it, and what disaggregation makes of it.

    python benchmarks/plan.py [--requests N ...] [--trace FILE] > benchmarks/results/plan.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.engines.process_memory import peak_bytes
from harness.sizing import disaggregated, paging, reuse
from harness.sizing.traces import read, synthetic

BLOCK = 512
REQUESTS = (100_000, 300_000, 1_000_000)
PLACES = (1024, 4096, 16384, 65536)
PASSES: Sequence[
    tuple[str, int, str, Sequence[float]]
] = [  # name, own blocks in the mean, policy, sizes of cache in blocks
    ("LRU, four sizes, ends of their own", 4, "lru", PLACES),
    ("LRU, four sizes and the ceiling, shared texts only", 0, "lru", (*PLACES, math.inf)),
    ("vLLM's pool, one size, ends of their own", 4, "vllm", PLACES[2:3]),
    ("radix tree, one size, ends of their own", 4, "radix", PLACES[2:3]),
]
# an 8B model with 8 KV heads of 128 in BF16 and FP8, beside its weights on 80 GB; its speeds are assumed, not measured
MODEL = {"kv_bytes_per_token": 131072, "format_kv_bytes_per_token": 65536, "memory_bytes": 60e9}
SPEEDS = disaggregated.Speeds(
    prefill_tokens_s=20_000, step_s=0.006, step_request_s=2e-5, step_token_s=4e-8, kv_bytes_per_token=131072, layers=32
)
SLO = disaggregated.SLO(ttft_s=5.0, itl_s=0.05)
GPUS, LINK_GB_S, CHUNKS, REPLAYED = 4, 12.5, (256, 768, 2048, 8192), 1000


def written(folder: Path, requests: int, own_blocks: int) -> Path:
    """A trace as Mooncake's are."""
    path = folder / f"{requests}_{own_blocks}.jsonl"
    if not path.exists():
        with path.open("w", encoding="utf-8") as lines:
            for request in synthetic(requests, block=BLOCK, own_blocks=own_blocks):
                fields = {
                    "timestamp": request.timestamp_s * 1000,
                    "input_length": request.input_tokens,
                    "output_length": request.output_tokens,
                    "hash_ids": request.blocks,
                }
                lines.write(f"{json.dumps(fields)}\n")
    return path


def measured(path: Path, policy: str, places: Sequence[float]) -> dict[str, Any]:
    """Of this process: seconds from opening the file to the last number, by the clock and of a core, and its peak of memory."""
    start, start_cpu = time.perf_counter(), time.process_time()
    found = reuse.curve(read(path, BLOCK), BLOCK, [size * BLOCK for size in places], policy)
    seconds, cpu_s, peak = time.perf_counter() - start, time.process_time() - start_cpu, peak_bytes()
    return {
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_rss_mb": None if peak is None else round(peak / 1e6, 1),
        "mean_prompt_tokens": round(found.prompt_tokens / found.requests, 1),
        "token_hit_rate": {
            "ceiling" if math.isinf(size) else str(size): round(point.token_hit_rate, 5)
            for size, point in zip(places, found.points, strict=True)
        },
    }


def apart(*arguments: Any) -> dict[str, Any]:
    """``measured`` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return dict(process.apply(measured, arguments))


def synthetic_traces(counts: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    with TemporaryDirectory() as folder:
        for requests in counts:
            for name, own_blocks, policy, places in PASSES:
                row = apart(written(Path(folder), requests, own_blocks), policy, places)
                rows.append({"pass": name, "requests": requests, **row})
    return rows


def recorded(path: Path) -> dict[str, Any]:
    """What is found on a trace that was recorded."""
    sizes = [places * BLOCK for places in PLACES[:3]]
    curves = {policy: asdict(reuse.curve(read(path, BLOCK), BLOCK, sizes, policy)) for policy in reuse.CACHES}
    ceiling = reuse.curve(read(path, BLOCK), BLOCK, [math.inf]).points[0]
    batch = list(islice(read(path, 16), REPLAYED))
    arrived = list(islice(read(path, BLOCK), REPLAYED))
    return {
        "file": path.name,
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "ceiling": {"token_hit_rate": ceiling.token_hit_rate, "request_hit_rate": ceiling.request_hit_rate},
        "curves": curves,
        "first_requests": len(batch),
        "waste_block_16": asdict(paging.waste(batch, 16)),
        "admitted_block_16": {**MODEL, **asdict(paging.admitted(batch, 16, **MODEL))},
        "disaggregated": {
            "speeds": asdict(SPEEDS),
            "slo": SLO.limits,
            "link_gb_s": LINK_GB_S,
            "rows": [asdict(row) for row in disaggregated.compare(arrived, SPEEDS, GPUS, LINK_GB_S, SLO, CHUNKS)],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--requests", type=int, nargs="+", default=REQUESTS, metavar="N", help="lengths of made-up traces"
    )
    parser.add_argument(
        "--trace", type=Path, default=None, metavar="JSONL", help="also a recorded trace in Mooncake's form"
    )
    options = parser.parse_args()
    facts: dict[str, Any] = {"block_tokens": BLOCK, "synthetic": synthetic_traces(options.requests)}
    if options.trace:
        facts["recorded"] = recorded(options.trace)
    from benchmarks.runs import record  # torch, which the processes above have no need of

    print(json.dumps(record("plan", **{"model": "none", **facts}), indent=1))


if __name__ == "__main__":
    main()
