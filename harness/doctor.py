"""``kvgate doctor``: what is installed, what is missing and how to get it, and which layer works on which engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.engines.base import Engine
from harness.make import make
from harness.provenance import OPTIONAL, PACKAGES, cpu, git_commit, versions
from harness.types import BadInput
from strategies.base import SLOTS, Layer
from strategies.stack import Stack

CONF = Path(__file__).resolve().parents[1] / "conf"


def _options(group: str) -> dict[str, Mapping[str, Any]]:
    files = sorted((CONF / group).glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) or {} for file in files}


def engines() -> dict[str, Engine]:
    """Every engine option, as it is set up by default."""
    return {name: make(config, "engine") for name, config in _options("engine").items()}


def legality(engines: Mapping[str, Engine]) -> dict[str, dict[str, dict[str, Any]]]:
    """By layer option and engine option: does the engine serve it, and why."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for slot in SLOTS:
        for name, config in _options(f"strategy/{slot}").items():
            if config:
                layer = make(config, f"strategy.{slot}")
                answers = {name: engine.supports(_settled(engine, layer)) for name, engine in engines.items()}
                table[f"{slot}/{name}"] = {e: {"yes": a.yes, "why": a.why} for e, a in answers.items()}
    return table


def _settled(engine: Engine, layer: Layer) -> Layer:
    """The layer with the engine's choice for what its preset leaves open."""
    stack = engine.resolve(Stack("", **{layer.slot: layer}))  # type: ignore[arg-type]
    return stack.layers()[0]


def devices() -> list[str]:
    """CPU, then accelerators as torch sees them."""
    import torch

    gpus = [
        f"cuda:{i} {torch.cuda.get_device_name(i)}, {torch.cuda.get_device_properties(i).total_memory / 2**30:.0f} GiB"
        for i in range(torch.cuda.device_count())
    ]
    return [f"{os.cpu_count()} x {cpu()}", *gpus]


def gaps(found: Mapping[str, str | None]) -> dict[str, str]:
    """What is missing, and one command that fixes each."""
    fixes = {package: f"{sys.executable} -m pip install {package}" for package in PACKAGES if found[package] is None}
    return fixes


def doctor() -> dict[str, Any]:
    """Everything ``kvgate doctor`` knows. Raises nothing: what cannot be found out is said."""
    from harness.engines.hf.fetch import cache_folder

    found = versions()
    cache = cache_folder()
    models = sorted(path.parent.name for path in cache.glob("models/*/config.json"))
    needs: dict[str, str | None] = {}
    try:
        known = engines()
        needs, table = {name: engine.missing() for name, engine in known.items()}, legality(known)
    except BadInput as error:
        table = {"error": {"any": {"yes": False, "why": str(error)}}}
    return {
        "schema": "kvgate.doctor/1",
        "versions": found,
        "git": git_commit(),
        "devices": devices(),
        "cache": {"folder": str(cache), "writable": _writable(cache), "models": models},
        "gaps": gaps(found),
        "engines": {name: {"ready": fix is None, "fix": fix} for name, fix in needs.items()},
        "legality": table,
    }


def _writable(folder: Path) -> bool:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return os.access(existing, os.W_OK)


def doctor_text(facts: Mapping[str, Any]) -> str:
    """The facts of ``doctor`` for a terminal."""
    lines = ["versions"]
    for package, installed in facts["versions"].items():
        note = f"not installed ({OPTIONAL[package]}, optional)" if package in OPTIONAL else "NOT INSTALLED"
        lines.append(f"  {package:14} {installed or note}")
    lines += ["devices", *(f"  {device}" for device in facts["devices"])]
    cache = facts["cache"]
    models = ", ".join(cache["models"]) or "no model yet; the first run fetches it"
    lines += ["cache", f"  {cache['folder']} ({'writable' if cache['writable'] else 'NOT WRITABLE'}): {models}"]
    for package, command in facts["gaps"].items():
        lines.append(f"missing {package}: {command}")
    lines.append("engines")
    lines += [f"  {name:8} {'ready' if one['ready'] else one['fix']}" for name, one in facts["engines"].items()]
    lines.append("layers and engines")
    for layer, answers in facts["legality"].items():
        for engine, answer in answers.items():
            lines.append(f"  {layer:18} {engine:8} {'yes' if answer['yes'] else 'no '}  {answer['why']}")
    return "\n".join(lines)
