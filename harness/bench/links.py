"""``load=links``: nothing is served; what the machine can do is measured and written where other commands find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from harness import provenance
from harness.bench import disk
from harness.engines.base import Engine
from harness.plan import named
from harness.store import write_atomic
from harness.types import BadInput, Unsupported


@dataclass(frozen=True, kw_only=True)
class Links:
    """Memory and matrix rates of the device, copies between host and device where there are two, and a folder's disk.

    Args:
        path: a folder on the disk that is measured.
    """

    name: str
    path: str = "."


def measure(links: Links, engine: Engine, config: Mapping[str, Any]) -> Path:
    """Measure, and write ``hardware/<name>.yaml`` into the results folder; returns it. Raises BadInput."""
    if problems := named(config["name"]):
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
    }
    path = Path(config["results_dir"]).expanduser() / "hardware" / f"{config['name']}.yaml"
    write_atomic(path, yaml.safe_dump(facts, sort_keys=False))
    return path
