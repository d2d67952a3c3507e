"""The one place that turns a configuration node with ``_target_`` into an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from harness.types import BadInput
from strategies.base import SLOTS, Layer, Stack


def make(config: Mapping[str, Any], field: str) -> Any:
    """Build the object that ``config`` describes. Raises BadInput naming ``field`` and the constructor's complaint."""
    if "_target_" not in config:
        raise BadInput(f"{field} must name a class in _target_, got {dict(config)}")
    try:
        return instantiate(dict(config), _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__ or error
        reason = str(cause).strip().splitlines()[0]
        raise BadInput(f"{field}: {config['_target_']} cannot be built: {reason}") from error


def make_stack(name: str, config: Mapping[str, Any]) -> Stack:
    """Build a strategy from its slots; an absent or empty slot holds no layer."""
    layers: dict[str, Layer] = {}
    problems = []
    for slot, layer in config.items():
        if slot == "name" or not layer:
            continue
        if slot not in SLOTS:
            problems.append(f"strategy.{slot} must be one of the slots {', '.join(SLOTS)}")
            continue
        try:
            made = make(layer, f"strategy.{slot}")
        except BadInput as error:
            problems += error.problems
            continue
        if not isinstance(made, Layer) or made.slot != slot:
            problems.append(f"strategy.{slot} must hold a layer of that slot, got {layer['_target_']}")
        else:
            layers[slot] = made
    if problems:
        raise BadInput(*problems)
    return Stack(name, **layers)  # type: ignore[arg-type]
