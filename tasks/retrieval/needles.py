"""Several needles asked for at once: the score is the share of values found (RULER's match-all), not all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.retrieval.needle import Needle


@dataclass(frozen=True, kw_only=True)
class Needles(Needle):
    """A needle task with partial credit; for ``values`` or ``queries`` above one."""

    graded: ClassVar[bool] = True

    def grade(self, share: float) -> float:
        return share
