"""A run in a store whose records were written by hand: every decision and state, hostile texts, and secrets to look for."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import samples as sample_files
from harness.degenerate import degenerate
from harness.store import ResultStore
from harness.types import Evidence, Fault, Gate, Generation, Memory, Record, Response, Sample, State, canonical, digest

SECRETS = {
    "context": "ContextSecret",
    "question": "QuestionSecret",
    "answers": "AnswerSecret",
    "text": "ResponseSecret",
    "error": "ErrorSecret",
    "stop": "StopSecret",
    "command": "CommandSecret",
    "lost": "LostSecret",
    "damaged": "DamagedSecret",
}
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \x00\x0b ]]> \ud800 \ufffe =1+1"
LONG = "long line " * 100_000
N = 120
BAD = "=bad<b>|"
TOKENS = (70001, 70002, 70003)
NEEDLE = {"_target_": "tasks.retrieval.needle.Needle", "name": "needle_single", "lengths": [512]}
FIDELITY = {"_target_": "tasks.fidelity.Fidelity", "name": "fidelity", "lengths": [512]}

COMMAND = f"kvgate run strategy=good 'task.template=Say {SECRETS['command']} first' gen.stop={SECRETS['stop']}"

Right = Callable[[int], bool]


def plant(results: Path, name: str = "planted") -> Path:
    """The run's folder. ``kvgate report`` makes its report."""
    store = ResultStore(results)
    groups = [_group(store, "needle_single", NEEDLE, _judged()), _group(store, "fidelity", FIDELITY, _measured())]
    versions = {"python": "3.11.9", "torch": "2.9.0", "kvgate": "0.1.0"}
    sizes = {"deploy_element_bytes": 2, "element_bytes": 4, "layers": 4, "kv_heads": 2, "head_dim": 64}
    manifest = {
        "schema": "kvgate.run/1",
        "name": name,
        "created": "2026-01-31T12:00:00+00:00",
        "command": COMMAND,
        "model": {"id": "org/model", "revision": "1", "weights_sha": "w", "dtype": "float32"}
        | {"deploy_dtype": "bfloat16", **sizes},
        "engine": {"name": "hf", "versions": versions, "cpu": "a"},
        "kvgate": "0.1.0",
        "git": None,
        "gate": asdict(Gate(margin=0.1)),
        "gen": asdict(Generation(stop=(SECRETS["stop"],))),
        "compare": [],
        "notes": ["a note that may be read"],
        "lost": [f"good: the scorer failed: {SECRETS['lost']} {HOSTILE}"],
        "groups": groups,
    }
    folder = store.run(name)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(manifest))
    part = next(results.glob("cells/*/part-*.jsonl"))
    body = {"cell": "c", "state": "scored", SECRETS["damaged"]: 1}
    part.with_name("part-z.jsonl").write_text(canonical({"checksum": digest(body), "record": body}) + "\n")
    return folder


def _judged() -> list[tuple[str, str, Right, bool]]:
    """Role, strategy, which samples are right, and whether its layer acted."""
    return [
        ("baseline", "full", lambda i: True, True),
        ("noise", "full", lambda i: True, True),
        ("control", "control", lambda i: i % 2 == 0, True),
        ("candidate", "good", lambda i: True, True),
        ("candidate", "unsure", lambda i: i % 10 > 0, True),
        ("candidate", BAD, lambda i: i % 3 > 0, True),
        ("candidate", "idle", lambda i: True, False),
        ("candidate", "unfinished", lambda i: True, True),
    ]


def _measured() -> list[tuple[str, str, Right, bool]]:
    return [("baseline", "full", lambda i: True, True), ("candidate", "good", lambda i: True, True)]


def _group(
    store: ResultStore, label: str, task: dict[str, Any], cells: Iterable[tuple[str, str, Right, bool]]
) -> dict[str, Any]:
    samples = [_sample(label, i) for i in range(N)]
    file = store.samples_file(label)
    sample_files.save(samples, file)
    fidelity = label == "fidelity"
    planned = []
    for role, strategy, right, acted in cells:
        address = store.ask({"label": label, "role": role, "strategy": strategy})
        records = [_record(address, sample, i, strategy, right(i), acted, fidelity) for i, sample in enumerate(samples)]
        store.cell(address).append(record for record in records if record.state is not State.NOT_RUN)
        stack = {} if strategy == "full" else {"quant": {"class": "FP8", "options": {}}}
        planned.append(
            {"address": address, "role": role, "strategy": strategy, "describe": f"quant/{strategy}", "stack": stack}
            | ({"command": f"{COMMAND} name=alone"} if role == "candidate" else {})
        )
    return {
        **{"label": label, "task": task, "chance": 0.0, "graded": fidelity, "fidelity": fidelity, "seed": 0, "n": N},
        **{"compress": "prompt", "prefill": "exact", "start": "cold", "history": "reference"},
        **{"samples_file": file.name, "samples_set": sample_files.set_hash(samples), "cells": planned},
    }


def _sample(label: str, i: int) -> Sample:
    answer = f"{SECRETS['answers']} {i}" + f" {HOSTILE}" * (i == 3)
    meta = {"prompt_tokens": 500 + i, "length": 512 if i % 2 else 1024}
    context = f"{SECRETS['context']}: {SECRETS['answers']} {i}"
    return Sample(f"{label}-{i}", context, SECRETS["question"], (answer,), 16, meta=meta)


def _record(address: str, sample: Sample, i: int, strategy: str, right: bool, acted: bool, fidelity: bool) -> Record:
    state, fault = _state(strategy, i)
    said = f"{SECRETS['text']} {i}" + {3: f" {HOSTILE}", 6: f" {LONG}"}.get(i, "")
    answered = state in (State.SCORED, State.TRUNCATED)
    measures = {
        "kl_mean": 0.01,
        "kl_p99": 0.1,
        "kl_max": 0.2,
        "top1_agreement": 0.97,
        "nll_delta": 0.003,
        "steps": 16.0,
    }
    response = Response(said, (*TOKENS, i), "stop", fidelity=measures if fidelity else None)
    assert not degenerate(response)
    return Record(
        address,
        sample.id,
        sample.hash,
        f"prompt{i}",
        state,
        score=float(right) if state is State.SCORED else None,
        answer=(sample.answers[0] if right else said) if answered else "",
        response=response if answered else None,
        evidence=(Evidence("quant/fp8", acted, "packed", {"bits": 8.0}),) if strategy != "full" else (),
        memory=Memory(500 + i, 1000, 1100, 1000, 4000, 10**9, 1.0, 0, 512) if answered else None,
        error="" if state is not State.FAILED else f"{SECRETS['error']} {HOSTILE}",
        fault=fault,
    )


def _state(strategy: str, i: int) -> tuple[State, Fault | None]:
    """What is not run leaves its cell unfinished, so that is a cell of its own."""
    if strategy == BAD and i < 12:
        return {0: (State.TRUNCATED, None), 1: (State.FAILED, "model")}.get(i % 6, (State.SCORED, None))
    return (State.NOT_RUN, None) if strategy == "unfinished" and i == 5 else (State.SCORED, None)


def packed_in(page: bytes) -> bytes:
    """All that the chunks of a page hold, as it is once unpacked."""
    chunks = re.findall(rb'<script type="text/plain"[^>]*>([^<]*)</script>', page)
    return b"".join(zlib.decompress(base64.b64decode(chunk)) for chunk in chunks)


def hashes() -> set[str]:
    """Plain hashes of all samples."""
    return {_sample(label, i).hash for label in ("needle_single", "fidelity") for i in range(N)}
