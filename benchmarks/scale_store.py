"""What the store costs: a report of 100,000 records, and writing and reading 1,000, 10,000 and 100,000 of them.

The records are made up, of the size that a needle task at 512 tokens has: 50 cells (the baseline, itself in another batch, the
control and 47 candidates) of 2,000 samples. The report is `kvgate report` in a process of its own. Writing is one part file a
record, as workers do it, in folders of 1,000; then each is read, merged and marked, and read again. Seconds of the CPU stand
beside those of the clock, which tell of a machine that others use too.

    python benchmarks/scale_store.py [--records N ...] > benchmarks/results/scale_store.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from harness import manifest as manifests
from harness import provenance
from harness import samples as sample_files
from harness.store import ResultStore
from harness.types import Evidence, Memory, Record, Response, Sample, State
from tasks.base import Task

RECORDS = (1_000, 10_000, 100_000)
CELLS, SAMPLES = 50, 2_000
A_CELL = 1_000  # records in a cell of those that are written one by one
TASK = yaml.safe_load((Path(__file__).resolve().parents[1] / "conf" / "task" / "needle_single.yaml").read_text())
FAMILIES = ("fp8", "int8", "kivi2", "snapkv", "window")
RIGHT = {"baseline": 0.95, "noise": 0.95, "control": 0.1, "candidate": 0.93}  # share of right answers


def made_samples(number: int) -> list[Sample]:
    return [
        Sample(
            id=f"needle_single-0-{index}",
            context=f"One of the numbers is {index}. " + "The grass is green. The sky is blue. " * 50,
            question="Which number is it?",
            answers=(str(index),),
            max_new_tokens=16,
            meta={"prompt_tokens": 500, "length": 512, "depth": index % 10 / 10},
        )
        for index in range(number)
    ]


def made_record(cell: str, sample: Sample, right: float, chance: random.Random) -> Record:
    score = float(chance.random() < right)
    tokens = tuple(chance.randrange(49152) for _ in range(12))
    facts = {"bytes": chance.random() * 1e6, "kept_mass": chance.random(), "kept_mass_min": chance.random()}
    return Record(
        cell=cell,
        sample_id=sample.id,
        sample_hash=sample.hash,
        prompt_hash=sample.hash,
        state=State.SCORED,
        score=score,
        answer=sample.answers[0] if score else "another",
        parts={"strict": score},
        response=Response(f"{sample.answers[0]}, as the text says.", tokens, "stop"),
        evidence=tuple(Evidence(layer, True, "acted on 256 of 500 tokens", facts) for layer in ("evict", "quant")),
        memory=Memory(500, 6_000_000, 6_100_000, 6_000_000, 11_000_000, 900_000_000, 0.5, 1000, 12_000_000),
        seconds=chance.random(),
    )


def made_run(folder: Path) -> None:
    """A results folder with one finished run, ``scale``."""
    store, samples, chance = ResultStore(folder), made_samples(SAMPLES), random.Random(0)
    file = store.samples_file("scale")
    sample_files.save(samples, file)
    samples_set = sample_files.set_hash(samples)
    cells = []
    for index in range(CELLS):
        role = ("baseline", "noise", "control")[index] if index < 3 else "candidate"
        strategy = "control" if role == "control" else "full" if index < 2 else f"{FAMILIES[index % 5]}_{index}"
        address = f"{index:024}"
        cell = store.cell(address)
        cell.append(made_record(address, sample, RIGHT[role], chance) for sample in samples)
        cell.finish(samples_set)
        cells.append(
            {"address": address, "role": role, "strategy": strategy, "describe": strategy, "stack": {"quant": strategy}}
        )
    manifests.save(manifest(file.name, samples_set, cells), folder / "runs" / "scale")


def manifest(samples_file: str, samples_set: str, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    versions = provenance.versions()
    return {
        "schema": manifests.SCHEMA,
        "name": "scale",
        "created": "2026-01-01T00:00:00+00:00",
        "command": "kvgate run",
        "model": {
            "id": "made up",
            "weights_sha": "none",
            "dtype": "float32",
            "deploy_dtype": "bfloat16",
            "deploy_element_bytes": 2,
            "element_bytes": 4,
        },
        "engine": {"name": "none", "device": "cpu", "versions": versions, "cpu": provenance.cpu()},
        "kvgate": versions["kvgate"],
        "git": None,
        "gate": {
            "margin": 0.1,
            "margin_kind": "absolute",
            "alpha": 0.05,
            "looks": 2,
            "power": 0.8,
            "tasks": [],
            "strict": False,
        },
        "compare": [],
        "notes": [],
        "groups": [
            {
                "label": "needle_single",
                "task": TASK,
                "chance": Task.chance,
                "graded": False,
                "fidelity": False,
                "compress": "prompt",
                "prefill": "exact",
                "start": "cold",
                "history": "reference",
                "seed": 0,
                "n": SAMPLES,
                "samples_file": samples_file,
                "samples_set": samples_set,
                "cells": cells,
            }
        ],
    }


def report() -> dict[str, Any]:
    """`kvgate report` of a made-up run: seconds, and the most memory that its process held."""
    with TemporaryDirectory(prefix="kvgate-") as scratch:
        made_run(Path(scratch))
        command = [sys.executable, "-m", "harness.cli", "report", "scale", f"results_dir={scratch}", "format=json"]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "records": CELLS * SAMPLES,
            "wall_s": time.perf_counter() - began,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "peak_bytes": after.ru_maxrss * 1024,
            "decisions": sorted({cell["decision"] for cell in json.loads(said.stdout)["cells"]}),
        }


def costs(records: int) -> dict[str, Any]:
    """Microseconds a record, of the clock and of the CPU, to write, merge and read so many."""
    sample, chance = made_samples(1)[0], random.Random(0)
    record = made_record("c", sample, 0.9, chance)
    with TemporaryDirectory(prefix="kvgate-") as scratch:
        cells = [ResultStore(scratch).cell(f"{index:024}") for index in range(records // A_CELL)]

        def write() -> None:
            for cell in cells:
                for index in range(A_CELL):
                    cell.append([replace(record, sample_id=f"needle_single-0-{index}")])

        def merge() -> None:
            for cell in cells:
                cell.finish("all")

        def read() -> None:
            assert sum(len(cell.read()[0]) for cell in cells) == records

        return {
            "records": records,
            **{work.__name__: _per_record(work, records) for work in (write, read, merge)},
            "read_merged": _per_record(read, records),
        }


def _per_record(work: Callable[[], None], records: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    took = time.perf_counter() - wall, time.process_time() - cpu
    return {name: 1e6 * seconds / records for name, seconds in zip(("wall_us", "cpu_us"), took, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=RECORDS, metavar="N", help="multiples of 1,000")
    options = parser.parse_args()
    busy = os.getloadavg()[0]
    facts = {"load_average": busy, "report": report(), "costs": [costs(records) for records in options.records]}
    from benchmarks.runs import record  # torch, which nothing above has need of

    print(json.dumps(record("scale_store", **{"model": "none", **facts}), indent=1))


if __name__ == "__main__":
    main()
