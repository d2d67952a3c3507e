"""Runs GuideLLM in a process of its own, with an interpreter that has it: its import sets the event loop of the whole process.

A script, not a module of the package: that interpreter need not have kvgate. Each line of standard input is a scenario as JSON,
each line of standard output what was seen of its requests. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from typing import Any

os.environ.setdefault("GUIDELLM__MAX_WORKER_PROCESSES", "1")  # more would take the cores of what is measured
os.environ.setdefault(
    "GUIDELLM__MP_CONTEXT_TYPE", "forkserver"
)  # a process for each measurement, that imports nothing anew
os.environ.setdefault("GUIDELLM__CONSOLE_LOG_LEVEL", "WARNING")
WATCH_S = 1.0  # between looks for the parent
TIMES = (
    *("targeted_start", "request_start", "first_token_iteration", "last_token_iteration", "request_end"),
    "resolve_end",  # of one that failed there is no other
)


def seen(state: str, stats: Any) -> dict[str, Any]:
    """Of one request: its place in the data, Unix times, and what the server counted; None where it did not."""
    info, timings = stats.info, stats.info.timings
    return {
        "state": state,
        "row": info.settings.relative_timestamp,
        "turn": info.turn_index,
        "error": info.error or "",
        **{name: getattr(timings, name) for name in TIMES},
        "chunks": timings.token_iterations,
        "tokens_in": stats.input_metrics.text_tokens,
        "tokens_out": stats.output_metrics.text_tokens,
        "cached_tokens": stats.cached_tokens,
    }


async def measure(spec: dict[str, Any]) -> list[dict[str, Any]]:
    from guidellm.benchmark import benchmark_generative_text
    from guidellm.schemas.benchmark import BenchmarkScenario

    scenario = BenchmarkScenario.create(scenario=None, spec=spec)
    report, _ = await benchmark_generative_text(args=scenario, progress=False, console=None)
    (benchmark,) = report.benchmarks
    requests = benchmark.requests
    return [
        seen(state, stats)
        for state in ("successful", "errored", "incomplete")
        for stats in getattr(requests, state) or []
    ]


def end_with_parent() -> None:
    """Exit when the parent is gone, and let nothing that sends requests outlive it."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(3)


def main() -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    import guidellm.benchmark  # noqa: F401

    multiprocessing.set_forkserver_preload(["guidellm.benchmark"])
    for line in sys.stdin:
        try:
            answer = {"requests": asyncio.run(measure(json.loads(line)))}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=said, flush=True)


if __name__ == "__main__":
    main()
