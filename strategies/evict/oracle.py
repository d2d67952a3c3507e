"""The tokens that the answer will attend to: what a selector could know at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.base import KVShape
from strategies.evict.foresight import Foresight

ALL = 10**9


@dataclass(frozen=True, kw_only=True)
class Oracle(Foresight):
    """Foresight over the whole answer: a bound on every policy that selects by later attention.

    It is no bound on policies that select by something else.

    Args:
        steps: how many of the answer's queries count; 0 for all.
    """

    name: ClassVar[str] = "oracle"

    steps: int = 0

    @property
    def future_steps(self) -> int:
        return self.steps or ALL

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.steps < 0:
            found.append(f"{self.option('steps')} must be 0 or more, got {self.steps}")
        return found
