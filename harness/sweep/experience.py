"""What stored records say of the time and memory that a plan will take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from statistics import fmean, median
from typing import Any

from harness.places import Place, read_all
from harness.plan import Group, Plan
from harness.types import Record

CELLS = 6  # of each kind that are read: more would say the same


class Experience:
    """Records of a plan's own cells, and of other cells of the same model on the same engine and kind of device."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def seconds(self, group: Group) -> float | None:
        """Seconds that a worker takes for a sample of this group, with all rows; None where nothing is known.

        Its own records tell; else those of other cells, of the same task if there are any, in proportion to their prompts.
        """
        joint, alone = (self._own(group, batch) or self._others(group, batch) for batch in ("joint", "alone"))
        return joint + (alone or 0.0) if joint else None

    def peak_bytes(self) -> int | None:
        """The most that a worker has held so far, as records tell it; None where nothing is known."""
        mine = [cell.address for group in self.plan.groups for cell in group.cells]
        peaks = [
            record.memory.peak_bytes
            for record in self._records([*mine[:CELLS], *self._alike("joint", None)])
            if record.memory
        ]
        return max(peaks, default=None)

    def _own(self, group: Group, batch: str) -> float | None:
        role = {"joint": "baseline", "alone": "noise"}[batch]
        times = self._records(cell.address for cell in group.cells if cell.role == role)
        return median(seconds) if (seconds := [record.seconds for record in times if record.seconds]) else None

    def _others(self, group: Group, batch: str) -> float | None:
        for task in (group.task.name, None):
            rates = [
                record.seconds / record.memory.prompt_tokens
                for record in self._records(self._alike(batch, task))
                if record.memory and record.seconds
            ]
            if rates:
                return median(rates) * fmean(group.tokens)
        return None

    def _alike(self, batch: str, task: str | None) -> list[str]:
        """Addresses of some cells of this model, of this task or any."""
        fits = (
            address
            for address, ask in self._asks
            if ask["mode"]["batch"] == batch and (task is None or ask["task"]["options"].get("name") == task)
        )
        return [address for address, _ in zip(fits, range(CELLS), strict=False)]

    @cached_property
    def _asks(self) -> list[tuple[str, dict[str, Any]]]:
        asked = {"model": self.plan.facts.identity, "engine": self.plan.engine.spec()}
        engine = (asked["engine"]["name"], asked["engine"].get("device"))
        files: list[Place] = sorted(self.plan.store.root.glob("cells/*/ask.json"), key=str)
        asks = [(file.parent.name, json.loads(ask)) for file, ask in zip(files, read_all(files), strict=True)]
        return [
            (address, ask)
            for address, ask in asks
            if ask["model"] == asked["model"] and (ask["engine"]["name"], ask["engine"].get("device")) == engine
        ]

    def _records(self, addresses: Iterable[str]) -> Iterator[Record]:
        for address in addresses:
            yield from self.plan.store.cell(address).read()[0].values()
