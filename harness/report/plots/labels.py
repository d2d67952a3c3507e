"""Names beside points so that no name covers another name or a point; of many points numbers, with a key below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from harness.report.plots.theme import DPI, INK, QUIET

_ANGLES = (0, 180, 45, -45, 135, -135, 90, -90, 20, -20, 160, -160, 65, -65, 115, -115)
_RADII = (9, 14, 20, 28, 38, 50, 64, 80, 98, 118, 140, 165, 190)  # points (1/72 inch) from the mark
# of every place that is tried, the nearest first, [places, 2] and [places, 1]
_DIRECTIONS = np.array([[math.cos(math.radians(a)), math.sin(math.radians(a))] for _ in _RADII for a in _ANGLES])
_DISTANCES = np.array([[radius] for radius in _RADII for _ in _ANGLES])


FEW = 14  # more names than these cover each other
KEY_LINE, KEY_COLUMNS = 0.16, 2  # inches, columns


def beside(names: Sequence[str]) -> list[str]:
    """What is written at the point of each name: itself, or its number in the key."""
    return list(names) if len(names) <= FEW else [str(at) for at in range(1, len(names) + 1)]


def key_inches(names: Sequence[str]) -> float:
    """How high the key is; nothing where names stand at their points."""
    return KEY_LINE * -(-len(names) // KEY_COLUMNS) + 0.15 if len(names) > FEW else 0.0


def key(figure: Figure, names: Sequence[str]) -> None:
    """Numbers and names along the lower edge, column by column."""
    if len(names) <= FEW:
        return
    width, height = figure.get_size_inches()
    down = -(-len(names) // KEY_COLUMNS)
    for at, name in enumerate(names):
        column, row = divmod(at, down)
        x, y = 0.15 + column * (width - 0.2) / KEY_COLUMNS, key_inches(names) - 0.1 - row * KEY_LINE
        figure.text(x / width, y / height, f"{at + 1}  {name}", fontsize=7.5, va="top")


def place(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], avoid: Sequence[Bbox] = ()) -> None:
    """Writes each name at the nearest free place around its point, with a thin line where that is not close by.

    Greedy: the most crowded points choose first. Call it when limits and scales are final.

    Args:
        axes: Where to write.
        points: In data coordinates.
        names: One a point.
        avoid: Boxes in pixels that no name may cover (error bars, legends).
    """
    renderer = FigureCanvasAgg(axes.figure).get_renderer()
    pixels = [tuple(axes.transData.transform(point)) for point in points]
    frame = axes.get_window_extent(renderer)
    marks = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in pixels]
    taken = [*marks, *avoid]
    unit = DPI / 72
    for i in sorted(range(len(points)), key=lambda i: (_crowding(pixels, i), i)):
        text = axes.annotate(names[i], points[i], fontsize=7.5, color=INK, zorder=5)
        extent = text.get_window_extent(renderer)
        box, steps = _free(pixels[i], extent.width + 3, extent.height + 1, frame, taken, unit)
        text.remove()
        taken.append(box)
        offset = ((box.x0 + 1.5 - pixels[i][0]) / unit, (box.y0 + 1.5 - pixels[i][1]) / unit)
        line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3} if steps > 1 else None
        axes.annotate(
            names[i], points[i], xytext=offset, textcoords="offset points", fontsize=7.5, color=INK, arrowprops=line,
            va="bottom", zorder=5, bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        )  # fmt: skip


def _crowding(pixels: Sequence[tuple[float, float]], i: int) -> float:
    """Distance to the nearest other point: small first."""
    return min((math.dist(pixels[i], other) for j, other in enumerate(pixels) if j != i), default=math.inf)


def _free(
    point: tuple[float, float], wide: float, high: float, frame: Bbox, taken: Sequence[Bbox], unit: float
) -> tuple[Bbox, int]:
    """The first box around ``point`` that lies in the frame and on nothing; the least bad one if there is none."""
    half = np.array([wide, high]) / 2
    centres = point + _DIRECTIONS * (_DISTANCES * unit + half * abs(_DIRECTIONS))
    low, top = centres - half, centres + half
    covered = _overlaps(low, top, np.array([box.extents for box in taken]))
    covered[((low < frame.min) | (top > frame.max)).any(axis=1)] = math.inf
    best = int(covered.argmin())  # the first of equals
    if math.isinf(covered[best]):
        return Bbox.from_bounds(*point, wide, high), len(_RADII)
    step = best // len(_ANGLES) if covered[best] == 0 else len(_RADII)
    return Bbox([low[best], top[best]]), step


def _overlaps(low: np.ndarray, high: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Of each box, ``[n, 2]`` and ``[n, 2]``, the area that lies on the boxes ``taken``, ``[m, 4]``."""
    sides = np.minimum(high[:, None], taken[:, 2:]) - np.maximum(low[:, None], taken[:, :2])
    return np.maximum(sides, 0).prod(axis=2).sum(axis=1)
