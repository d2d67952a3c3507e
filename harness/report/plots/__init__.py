"""The pictures of a report, drawn without pyplot or any global state. A picture that has no data is not drawn.

Each module has ``rows``, the data as it is drawn and as its CSV has it, and ``draw``, which reads no other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.report.outlook import Outlook
from harness.report.plots import (
    curves,
    fidelity,
    ladder,
    latencies,
    lengths,
    load_memory,
    matrix,
    memory,
    needle,
    quality_bytes,
    quality_throughput,
    turns,
)
from harness.report.plots.picture import Plot, paths

__all__ = ["BENCH_FILES", "FILES", "Plot", "draw", "draw_bench"]

FILES = tuple(
    path
    for module in (matrix, quality_bytes, ladder, needle, turns, lengths, fidelity, memory)
    for path in paths(module.NAME)
)
BENCH_FILES = tuple(
    path for module in (curves, latencies, quality_throughput, load_memory) for path in paths(module.NAME)
)


def draw(verdict: Mapping[str, Any], samples: pd.DataFrame) -> list[Plot]:
    """Every picture that this verdict and these samples have data for, in the order of the report."""
    outlook = Outlook(verdict)
    drawn = (
        matrix.draw(outlook),
        quality_bytes.draw(outlook),
        ladder.draw(outlook),
        needle.draw(outlook, samples),
        turns.draw(outlook),
        lengths.draw(outlook, samples),
        fidelity.draw(outlook),
        memory.draw(outlook),
    )
    return [plot for plot in drawn if plot]


def draw_bench(verdict: Mapping[str, Any]) -> list[Plot]:
    """The same of what ``kvgate bench`` has measured."""
    drawn = (curves.draw(verdict), latencies.draw(verdict), quality_throughput.draw(verdict), load_memory.draw(verdict))
    return [plot for plot in drawn if plot]
