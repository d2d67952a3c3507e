"""``load=links``: nothing is served; what the machine can do is measured and written where other commands find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from harness import provenance
from harness.bench import disk, tiers
from harness.engines.base import Engine
from harness.make import make
from harness.places import write_atomic
from harness.plan import described, named
from harness.types import BadInput, Unsupported


@dataclass(frozen=True, kw_only=True)
class Links:
    """Memory and matrix rates of the device, copies between host and device where there are two, and a folder's disk; also the
    tier of ``strategy/offload``, where one is chosen.

    Args:
        path: a folder on the disk that is measured.
    """

    name: str
    path: str = "."


def measure(links: Links, engine: Engine, config: Mapping[str, Any]) -> Path:
    """Measure, and write ``hardware/<name>.yaml`` into the results folder; returns it. Raises BadInput."""
    results = Path(config["results_dir"]).expanduser()
    if problems := named(config["name"]) + _unreadable(config["results_dir"]):
        raise BadInput(*problems)
    try:
        found: dict[str, Any] = engine.rates(config["model"])
    except Unsupported as error:
        raise BadInput(f"load=links: {error}") from error
    folder = Path(links.path).expanduser()
    try:
        disks = disk.rates(folder)
    except OSError as error:
        raise BadInput(
            f"load.path must be a folder that can be written to, got {links.path}: {error.strerror}"
        ) from error
    facts = {
        "name": config["name"],
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": engine.spec()["device"],
        "cpu": provenance.cpu(),
        "price_hour": config["hardware"].get("price_hour"),
        **found,
        "disk": disks,
        **_tier(engine, config),
    }
    return write_atomic(results / "hardware" / f"{config['name']}.yaml", yaml.safe_dump(facts, sort_keys=False))


def _unreadable(results_dir: str) -> list[str]:
    """Why hardware files cannot lie there."""
    rule = "results_dir must be a folder for load=links: --config-dir reads the hardware file from it"
    return [f"{rule}, got {results_dir}"] if "://" in results_dir else []


def _tier(engine: Engine, config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Rates of the tier of ``strategy.offload``, by its name, if there is one. Raises BadInput."""
    layers = config["strategy"].get("offload")
    if not layers:
        return {}
    facts, problems = described(engine, config["model"])
    offload = make(layers, "strategy.offload")
    if facts is None or (problems := offload.problems(facts.shape)):
        raise BadInput(*problems)
    try:
        return {offload.name: tiers.rates(offload.tier())}
    except OSError as error:
        raise BadInput(f"strategy.offload: {error}") from error
