"""Strategies from configuration: one node a slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.make import make
from harness.types import BadInput
from strategies.base import SLOTS, Layer
from strategies.stack import Stack


def make_stack(name: str, config: Any, field: str = "strategy") -> Stack:
    """Build a strategy from its slots; an absent or empty slot holds no layer. ``field`` is where the user set it."""
    if not isinstance(config, Mapping):
        raise BadInput(f"{field} must be a node of slots ({', '.join(SLOTS)}), got {config!r}")
    layers: dict[str, Layer] = {}
    problems = []
    for slot, layer in config.items():
        if slot == "name" or not layer:
            continue
        if slot not in SLOTS:
            problems.append(f"{field}.{slot} must be one of the slots {', '.join(SLOTS)}")
            continue
        try:
            made = make(layer, f"{field}.{slot}")
        except BadInput as error:
            problems += error.problems
            continue
        if not isinstance(made, Layer) or made.slot != slot:
            problems.append(f"{field}.{slot} must hold a layer of that slot, got {layer['_target_']}")
        else:
            layers[slot] = made
    if problems:
        raise BadInput(*problems)
    return Stack(name, **layers)  # type: ignore[arg-type]
