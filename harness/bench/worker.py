"""Times settings in a process of its own: ``python -m harness.bench.worker``.

The first line of standard input says which, with which engine; each further line asks for one measurement, which goes straight
into the store. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from harness.bench.loads.base import Load, Prose
from harness.bench.metrics import output_tokens_s
from harness.bench.trials import WARM_UP
from harness.engines.base import Engine, Traffic
from harness.make import make
from harness.stacks import make_stack
from harness.store import ResultStore
from harness.types import Measurement, Served, digest
from harness.worker import carry_out, emit, fitted

WATCH_S = 1.0  # between looks for the parent


def run_unit(unit: Mapping[str, Any]) -> None:
    """Open the engine once, warm every setting up, and measure what is asked for until nothing more is."""
    store = ResultStore(unit["results_dir"])
    engine: Engine = make(unit["engine"], "engine")
    stacks = {arm["strategy"]: engine.resolve(make_stack(arm["strategy"], arm["stack"])) for arm in unit["arms"]}
    prose = Prose(engine.describe(unit["model"]).tokenizer)
    with engine.open(unit["model"], next(iter(stacks.values()))) as session:
        for address in (address for arm in unit["arms"] for address in arm["addresses"]):
            store.load(address).note_loaded(dict(session.facts()))
        stacks = {name: fitted(stack, unit["calibration"], session) for name, stack in stacks.items()}

        warm = set[tuple[str, str]]()  # settings and loads

        def measure(address: str, strategy: str, trial: str, place: int, traffic: Traffic) -> Measurement:
            began, served, error = time.time(), None, ""
            try:
                served = session.serve(stacks[strategy], traffic, seed=unit["seed"])
            except Exception as failure:  # out of memory, a broken layer: others are spared, and this is told
                traceback.print_exc()
                error = f"{type(failure).__name__}: {failure}"
            measured = Measurement(address, trial, place, began, served, error)
            store.load(address).append([measured])
            return measured

        def warm_up(address: str, strategy: str, load: Load, place: int) -> None:
            """Once for each setting and load."""
            if load.warmup and (strategy, digest(load.spec())) not in warm:
                warm.add((strategy, digest(load.spec())))
                trial = f"{WARM_UP} {unit['session']}"
                measure(address, strategy, trial, place, load.warming(prose, unit["seed"]))

        emit("opened")
        first: Load = make(unit["load"], "load")
        for place, arm in enumerate(unit["arms"]):
            warm_up(arm["addresses"][0], arm["strategy"], first, place)
        emit("ready")
        for line in iter(sys.stdin.readline, ""):
            asked = json.loads(line)
            load: Load = make(asked["load"], "load")
            warm_up(asked["address"], asked["strategy"], load, asked["place"])
            traffic = load.traffic(prose, unit["seed"], asked["index"])
            done = measure(asked["address"], asked["strategy"], asked["trial"], asked["place"], traffic)
            emit("measured", address=done.cell, error=done.error, tokens_s=_rate(done.served))


def _rate(served: Served | None) -> float | None:
    return output_tokens_s(served.requests) if served else None


def _end_with_parent() -> None:
    """Exit when the parent is gone: nobody is left for whom to measure."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(3)


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    carry_out(lambda: run_unit(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
