"""Is it worth coding tokens in few bits before they leave the device (FlexGen, arXiv 2303.06865)? By format and link speed.

For a prompt of 4,096 tokens: what each number format has to move, how long coding it (once, out) and decoding it (once, back)
takes on this machine, and how long its packets take to a real disk and to a real S3 server on this machine and back. A link of
another speed is computed: what is saved, out and back, against what coding and decoding cost. The break-even speed is
bytes saved out and back / (seconds coding + seconds decoding): below it coding pays, above it does not.

Coding runs on this CPU and is not fused; a GPU's kernels move the break-even up by as much as they are faster. Stores hold
float32, as the CPU computes; what a link saves is counted against a bfloat16 cache, as it would be deployed. Layers are alike:
a few are measured and scaled to the model. Formats alternate within each repetition; medians are given with least and most.
Files are written through to the device and read with the page cache emptied.

    python benchmarks/offload.py [--tokens 4096] [--repeats 7] > benchmarks/results/offload.json
    python benchmarks/offload.py --table benchmarks/results/offload.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the workers of `kvgate run` do

import torch
from torch import Tensor

from benchmarks.runs import markdown, record
from strategies.base import Format, KVShape, Offload, Tier
from strategies.offload.disk import Disk, DiskTier
from strategies.offload.s3 import S3
from strategies.packet import pack, unpack
from strategies.quant.flexgen import FlexGen4
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.quant.nvfp4 import NVFP4
from strategies.quant.turboquant import TurboQuant
from tests.s3server import BUCKET, KEYS, binary, serving

FORMATS: dict[str, Format | None] = {
    "exact": None,
    "fp8": FP8(),
    "int8": INT8(),
    "flexgen4": FlexGen4(),
    "nvfp4": NVFP4(),
    "turboquant 4bit_nc": TurboQuant(preset="4bit_nc", skip=()),
    "kivi4": KIVI(bits=4).format,
    "kivi2": KIVI(bits=2).format,
}
DEPLOYED = 2  # bytes of a bfloat16
LINKS = (0.1, 0.5, 1, 2, 5, 12.5, 25, 50)  # GB/s of 10^9 bytes


class Case(NamedTuple):
    """A model's cache, and how many of its layers are measured."""

    shape: KVShape
    measured: int


CASES = {
    "SmolLM2-135M": Case(KVShape(layers=30, kv_heads=3, query_heads=9, head_dim=64, element_bytes=4), 4),
    "8B, GQA": Case(KVShape(layers=32, kv_heads=8, query_heads=32, head_dim=128, element_bytes=4), 1),
}


def timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """Do ``work`` and note what it took."""
    start = time.perf_counter()
    done = work()
    seconds[name] = time.perf_counter() - start
    return done


def journey(format: Format | None, keys: Tensor, values: Tensor, tiers: Mapping[str, Tier]) -> dict[str, float]:
    """Seconds that one layer takes out and back, step by step, and ``bytes`` of its packet."""
    seconds: dict[str, float] = {}
    key, stored = "be9c/layer000", [keys, values]
    if format:
        store = timed(seconds, "code", lambda: format.store(keys, values))
        timed(seconds, "decode", store.read)
        stored = list(store.tensors())
    packet = timed(seconds, "pack", lambda: pack(stored, key))
    timed(seconds, "unpack", lambda: unpack(packet, key))
    for name, tier in tiers.items():
        timed(seconds, f"{name}_out", lambda tier=tier: (tier.put(key, packet), flush(tier, key)))
        assert timed(seconds, f"{name}_back", lambda tier=tier: tier.get(key))[0] == packet
        tier.delete(key)
    return {"code": 0.0, "decode": 0.0, **seconds, "bytes": float(len(packet))}


def flush(tier: Tier, key: str) -> None:
    """Write a file through to the device, and forget what memory has of it."""
    if isinstance(tier, DiskTier):
        with tier.file(key).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(case: Case, tokens: int, repeats: int, tiers: Mapping[str, Tier]) -> dict[str, dict[str, Any]]:
    """By format: bytes and seconds of the whole model."""
    shape, chance = case.shape, torch.Generator().manual_seed(0)
    sides = torch.randn(2 * case.measured, 1, shape.kv_heads, tokens, shape.head_dim, generator=chance)
    layers = list(zip(sides[::2], sides[1::2], strict=True))
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in FORMATS}
    for _ in range(repeats + 1):
        for name, format in FORMATS.items():
            steps = [journey(format, keys, values, tiers) for keys, values in layers]
            seen[name].append({step: sum(one[step] for one in steps) for step in steps[0]})
    scale, deployed = shape.layers / case.measured, shape.at(DEPLOYED)
    rows = {}
    for name, format in FORMATS.items():
        counted = seen[name][1:]  # the first repetition warms up
        all_bytes = format.layer_bytes(tokens, deployed) if format else deployed.exact_bytes(tokens)
        rows[name] = {
            "bytes": round(scale * counted[0].pop("bytes")),
            "deploy_bytes": shape.layers * all_bytes,
            "seconds": {step: spread([scale * one[step] for one in counted]) for step in counted[0]},
        }
    return rows


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    three = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 5) for name, value in three.items()}


def links(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By format: the link speed in GB/s below which coding pays, and the seconds gained at each speed, out and back."""
    full, found = rows["exact"]["deploy_bytes"], {}
    for name, row in rows.items():
        if name != "exact":
            saved = 2 * (full - row["deploy_bytes"])
            spent = sum(row["seconds"][step]["median"] for step in ("code", "decode"))
            found[name] = {
                "break_even_gb_s": round(saved / spent / 1e9, 3),
                "gained_s": {str(speed): round(saved / speed / 1e9 - spent, 3) for speed in LINKS},
            }
    return found


@contextmanager
def real_tiers() -> Iterator[dict[str, Tier]]:
    """A disk, and an S3 server if one is installed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        layers: dict[str, Offload] = {"disk": Disk(path=str(folder / "disk"))}
        if binary():
            os.environ.update(KEYS)
            (folder / "s3").mkdir()
            server = stack.enter_context(serving(folder / "s3"))
            layers["s3"] = S3(bucket=BUCKET, endpoint=server.endpoint)
        yield {name: layer.tier() for name, layer in layers.items()}


def table(measured: Mapping[str, Any]) -> str:
    """The Markdown tables of a record, one a model."""
    parts = []
    for name, case in measured["models"].items():
        rows = case["formats"]
        tiers = [tier for tier in ("disk", "s3") if f"{tier}_out" in rows["exact"]["seconds"]]
        steps = ["code", "decode", *(f"{tier}_{way}" for tier in tiers for way in ("out", "back"))]
        head = [
            "format",
            "MB, bfloat16",
            "MB here",
            *(f"{step.replace('_', ' ')} s" for step in steps),
            "break-even GB/s",
        ]
        body = []
        for format, row in rows.items():
            link = case["links"].get(format)
            seconds = [f"{row['seconds'][step]['median']:.2f}" for step in steps]
            megabytes = [f"{row[key] / 1e6:,.0f}" for key in ("deploy_bytes", "bytes")]
            body.append([format, *megabytes, *seconds, f"{link['break_even_gb_s']:.2f}" if link else ""])
        speeds = [f"{speed:g} GB/s" for speed in LINKS]
        gains = [
            [format, *(f"{gain:+.2f}" for gain in link["gained_s"].values())] for format, link in case["links"].items()
        ]
        title = f"{name}: {case['layers']} layers ({case['measured_layers']} measured), {measured['tokens']:,} tokens"
        parts += [title, markdown(head, body), "Seconds gained out and back, by link speed:"]
        parts.append(markdown(["format", *speeds], gains))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="prompt length")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions that count")
    parser.add_argument(
        "--table", default=None, metavar="JSON", help="print the tables of a record and do nothing else"
    )
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    load = [os.getloadavg()[0]]
    models = {}
    with real_tiers() as tiers, torch.inference_mode():
        for name, case in CASES.items():
            rows = measure(case, options.tokens, options.repeats, tiers)
            counted = {"layers": case.shape.layers, "measured_layers": case.measured}
            models[name] = {**counted, "formats": rows, "links": links(rows)}
    load.append(os.getloadavg()[0])
    facts = {"tokens": options.tokens, "repeats": options.repeats, "load_before_and_after": load, "models": models}
    print(json.dumps(record("offload", model="shapes only", **facts), indent=1))


if __name__ == "__main__":
    main()
