"""Names beside points so that no name covers another name or a point."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from harness.report.plots.theme import DPI, INK, QUIET

_ANGLES = (0, 180, 45, -45, 135, -135, 90, -90, 20, -20, 160, -160, 65, -65, 115, -115)
_RADII = (9, 14, 20, 28, 38, 50, 64, 80, 98, 118, 140, 165, 190)  # points (1/72 inch) from the mark


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
            va="bottom", zorder=5, path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


def _crowding(pixels: Sequence[tuple[float, float]], i: int) -> float:
    """Distance to the nearest other point: small first."""
    return min((math.dist(pixels[i], other) for j, other in enumerate(pixels) if j != i), default=math.inf)


def _free(
    point: tuple[float, float], wide: float, high: float, frame: Bbox, taken: Sequence[Bbox], unit: float
) -> tuple[Bbox, int]:
    """The first box around ``point`` that lies in the frame and on nothing; the least bad one if there is none."""
    best, least = None, math.inf
    for step, radius in enumerate(_RADII):
        for angle in _ANGLES:
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            centre_x = point[0] + dx * (radius * unit + wide / 2 * abs(dx))
            centre_y = point[1] + dy * (radius * unit + high / 2 * abs(dy))
            box = Bbox.from_bounds(centre_x - wide / 2, centre_y - high / 2, wide, high)
            if box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1:
                continue
            covered = sum(_overlap(box, other) for other in taken)
            if covered == 0:
                return box, step
            if covered < least:
                best, least = box, covered
    return best or Bbox.from_bounds(point[0], point[1], wide, high), len(_RADII)


def _overlap(one: Bbox, other: Bbox) -> float:
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(wide, 0) * max(high, 0)
