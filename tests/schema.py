"""The JSON Schema of verdict.json, and whether a verdict keeps to it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads(resources.files("harness.report").joinpath("verdict.schema.json").read_text())


def check(verdict: Any) -> None:
    """Raises jsonschema.ValidationError if ``verdict`` is none."""
    Draft202012Validator(SCHEMA).validate(verdict)
