"""The one place that turns a configuration node with ``_target_`` into an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from harness.types import BadInput


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
