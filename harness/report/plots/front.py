"""The Pareto line: the points that no other beats."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other equals in both numbers and exceeds in one, by rising first number. More is better."""
    kept = [
        at for at, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]
    return sorted(kept, key=lambda at: points[at][0])
