"""Work that may be asked for at any time, and takes a bounded share of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def paced(work: Callable[[], None], *, share: float, least_s: float = 0.0) -> Callable[[], None]:
    """``work``, unless it was done a moment ago: it takes at most this share of the time, and rests ``least_s`` at least."""
    next_s = -math.inf

    def turn() -> None:
        nonlocal next_s
        began = time.monotonic()
        if began < next_s:
            return
        work()
        now = time.monotonic()
        next_s = now + max(least_s, (now - began) / share)

    return turn
