"""Trials by name: which are compared, and which requests they served."""

from __future__ import annotations

from collections.abc import Mapping

from harness.types import Measurement, Served

WARM_UP = "warm-up"  # begins the names of trials that are stored and not compared


def name(session: str, number: int) -> str:
    """No two of a results folder are called so. The number decides which requests are served."""
    return f"{session}-{number}"


def number(trial: str) -> int:
    """Inverse of ``name``."""
    return int(trial.rpartition("-")[2])


def served(measurements: Mapping[str, Measurement]) -> dict[str, Served]:
    """By trial what was served, warm-ups and failures left out."""
    return {
        trial: one.served
        for trial, one in measurements.items()
        if one.served is not None and not trial.startswith(WARM_UP)
    }
