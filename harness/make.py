"""The one place that turns a configuration node with ``_target_`` into an object."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from pydantic import TypeAdapter, ValidationError

from harness.types import BadInput


def make(config: Any, field: str) -> Any:
    """Build the object that ``config`` describes.

    Where the class is a dataclass its fields' types are checked first, all of them. Raises BadInput naming the field, the rule
    and the value, or ``field`` and the constructor's complaint.
    """
    if not isinstance(config, Mapping):
        raise BadInput(
            f"{field} must be a node with _target_, got {config!r}; an option of a group is chosen with a slash"
        )
    if "_target_" not in config:
        raise BadInput(f"{field} must name a class in _target_, got {dict(config)}")
    checked = _checked(config, field)
    plain = {option: value for option, value in checked.items() if not _nodes(config[option])}
    try:
        made = instantiate({**config, **plain}, _convert_="all")
        return dataclasses.replace(made, **checked) if checked else made  # on the way tuples had become lists
    except InstantiationException as error:
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split())
        raise BadInput(f"{field}: {config['_target_']} cannot be built: {reason}") from error


def _checked(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The options of a dataclass as its fields' types want them (a YAML list as a tuple, say); nodes are built."""
    try:
        target = get_class(config["_target_"])
    except Exception:  # not a class, or none that can be found: instantiating it will tell
        return {}
    if not dataclasses.is_dataclass(target):
        return {}
    hints = get_type_hints(target)
    checked, problems = {}, []
    for option in (f.name for f in dataclasses.fields(target) if f.init and f.name in config):
        try:
            value = _built(config[option], f"{field}.{option}") if _nodes(config[option]) else config[option]
            checked[option] = TypeAdapter(hints[option]).validate_python(value)
        except BadInput as error:
            problems += error.problems
        except TypeError:  # plain options where an abstract class is wanted
            problems.append(
                f"{field}.{option} must be a node with _target_, or hold such nodes, got {config[option]!r}"
            )
        except ValidationError as error:
            problems += [f"{field}.{option}: {one['msg'].lower()}, got {config[option]!r}" for one in error.errors()]
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return checked


def _nodes(value: Any) -> bool:
    """Whether an option holds an object to build, or a list or a mapping of such."""
    if isinstance(value, list):
        return bool(value) and all(_nodes(one) for one in value)
    if isinstance(value, Mapping):
        return "_target_" in value or any(_nodes(one) for one in value.values())
    return False


def _built(value: Any, field: str) -> Any:
    if isinstance(value, list):
        return [_built(one, f"{field}.{at}") for at, one in enumerate(value)]
    if isinstance(value, Mapping) and "_target_" not in value:
        return {name: _built(one, f"{field}.{name}") for name, one in value.items()}
    return make(value, field)
