"""The rules that options keep, each as a sentence with field, rule and value; no sentence means no problem."""

from __future__ import annotations

from collections.abc import Iterable


def whole(field: str, value: object, least: int = 1) -> list[str]:
    """``value`` must be a whole number of ``least`` or more."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return []
    return [f"{field} must be a whole number of {least} or more, got {value!r}"]


def one_of(field: str, value: object, allowed: Iterable[str]) -> list[str]:
    """``value`` must be one of the ``allowed`` words."""
    choices = tuple(allowed)
    return [] if value in choices else [f"{field} must be one of {', '.join(choices)}, got {value!r}"]


def inside(problem: str, part: str) -> str:
    """A problem of the task that an option ``part`` of another task holds, named from that other task."""
    return problem.replace("task.", f"task.{part}.", 1)
