"""How fast a tier takes and gives what it is to keep: a disk, an object store, whatever ``strategy/offload`` knows."""

from __future__ import annotations

import random
import time
from uuid import uuid4

from strategies.base import Tier

LARGE = (16 * 2**20, 8)  # bytes of an object, objects
SMALL = (16 * 2**10, 64)


def rates(tier: Tier) -> dict[str, float]:
    """Bytes a second of putting and getting objects one after the other. They are deleted at the end, whatever happens.

    Raises OSError where the tier fails.
    """
    found = dict[str, float]()
    for size, (block, count) in {"large": LARGE, "small": SMALL}.items():
        content, keys = random.Random(0).randbytes(block), [uuid4().hex for _ in range(count)]
        try:
            began = time.perf_counter()
            for key in keys:
                tier.put(key, content)
            put = time.perf_counter()
            for key in keys:
                tier.get(key)
            got = time.perf_counter()
        finally:
            for key in keys:
                tier.delete(key)
        found |= {
            f"write_{size}_bytes_s": block * count / (put - began),
            f"read_{size}_bytes_s": block * count / (got - put),
        }
    return found
