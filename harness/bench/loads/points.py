"""A load of which one option is a list is several loads, one for each value: the points of a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.bench.loads.base import Load
from harness.make import make
from harness.types import BadInput

PACE = {
    "rate_s": 1,
    "in_flight": 1,
    "time_scale": -1,
}  # options that make a load heavier, or lighter, and change nothing else


@dataclass(frozen=True)
class Point:
    """One load. ``option`` is the one that differs from point to point, with its ``value``; empty and None where there is one."""

    option: str
    value: float | None
    load: Load
    config: Mapping[str, Any]

    @property
    def weight(self) -> float | None:
        """By which points are ordered from the lightest on; None where they do not differ in how much is asked at a time."""
        return None if self.value is None or self.option not in PACE else PACE[self.option] * self.value

    @property
    def label(self) -> str:
        return f"{self.option}={self.value:g}" if self.value is not None else ""


def points_of(config: Mapping[str, Any]) -> list[Point]:
    """The points of ``conf/load``, in the order that they are given in. Raises BadInput with every problem of every one."""
    lists = {option: value for option, value in config.items() if isinstance(value, list | tuple)}
    if len(lists) > 1:
        raise BadInput(f"load must have a list in one option at most, got {', '.join(lists)}")
    if not lists:
        return [Point("", None, _made(config), config)]
    ((option, values),) = lists.items()
    if not values or not all(map(_number, values)) or len(set(values)) < len(values):
        raise BadInput(f"load.{option} must be a number or a list of different ones, got {list(values)}")
    configs = [{**config, option: value} for value in values]
    return [Point(option, value, _made(one), one) for value, one in zip(values, configs, strict=True)]


def _made(config: Mapping[str, Any]) -> Load:
    load = make(config, "load")
    if not isinstance(load, Load):
        raise BadInput(f"load._target_ must be a load that is served, got {config['_target_']}")
    return load


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
