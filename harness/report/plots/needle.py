"""Where in the prompt a needle is lost: score by prompt length and depth of each strategy, and what it lost there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from harness.report.format import number, signed
from harness.report.outlook import Outlook
from harness.report.plots.names import label, short
from harness.report.plots.picture import Plot, by_task, picture
from harness.report.plots.theme import QUIET, WIDTH

NAME = "needle_length_depth"
LEFT, GAP, SQUARE, HEAD = 0.6, 0.12, 0.26, 0.34  # inches
SIDE = WIDTH - LEFT  # of all maps that stand side by side
ABOVE, UNDER, SLANTED = (
    0.5,
    0.3,
    0.25,
)  # inches of two maps: whose and what they are, lengths, and more where these are long
ABREAST = {1: 3, 2: 2}  # strategies side by side, by the number of lengths; of more lengths one
DEPTH_BINS, LENGTH_BINS = 10, 6
SCORE = ScalarMappable(Normalize(0, 1), "cividis")  # even in brightness for every kind of colour vision
DELTA = ScalarMappable(Normalize(-1, 1), "PuOr")  # orange is lost, purple gained: told apart by every kind


@dataclass(frozen=True)
class Row:
    """A square of a map. ``pairs`` of its samples were scored on both sides; ``delta`` is their mean difference.

    What has few distinct lengths or depths has a square for each, which begins and ends there.
    """

    task: str
    mode: str
    strategy: str
    length_from_tokens: float
    length_to_tokens: float
    depth_from: float
    depth_to: float
    n: int
    score: float | None
    pairs: int
    delta: float | None  # None of the full cache itself


Bin = tuple[float, float]  # where it begins and ends
Corners = tuple[tuple[float, float], ...]
Colour = tuple[float, float, float, float]
Square = tuple[Corners, Colour]
EMPTY: Colour = (0.914, 0.922, 0.933, 1.0)


def rows(outlook: Outlook, samples: pd.DataFrame) -> list[Row]:
    """Every square that a sample fell into, the full cache's first, then by strategy."""
    if samples.empty or "depth" not in samples:
        return []
    needles = samples[samples["depth"].notna() & samples["length"].notna()].copy()
    for side in ("score", "baseline_score"):
        needles[side] = pd.to_numeric(needles[side], errors="coerce").astype(float)
    needles["depth_bin"] = _binned(needles["depth"].astype(float), DEPTH_BINS)
    needles["length_bin"] = _binned(needles["length"].astype(float), LENGTH_BINS)
    known = ["full", *(entry["name"] for entry in outlook.strategies)]
    maps = dict(iter(needles.groupby(["task", "mode", "strategy"], sort=False)))
    columns = dict.fromkeys(key[:2] for key in maps)
    return [
        _row((*column, name), bins, group)
        for column in columns
        for name in known
        if (*column, name) in maps
        for bins, group in maps[*column, name].groupby(["length_bin", "depth_bin"])
    ]


def draw(outlook: Outlook, samples: pd.DataFrame) -> Plot | None:
    """Two maps for each needle task and strategy, the full cache first; None where no sample has a depth."""
    squares = rows(outlook, samples)
    if not squares:
        return None
    panels = [(task, _by_strategy(mine)) for task, mine in by_task(squares, outlook.label)]
    height = sum(HEAD + _high(maps) * -(-len(maps) // _abreast(maps)) for _, maps in panels) + 0.05
    return picture(
        NAME,
        "Needles by length and depth",
        "Of each strategy, left: mean score of the scored samples, and their number (n), on top where it is the same in all "
        "squares; right: mean difference to the full cache of those that both have scored. Depth 0 is the start of the "
        "prompt. A grey square has no such sample. "
        "Few samples in a square say little.",
        f"Maps of score by prompt length and needle depth, and of its difference to the full cache, for "
        f"{', '.join(task for task, _ in panels)}; {len(panels[0][1])} settings, full cache first.",
        squares,
        (WIDTH, height),
        lambda figure: _fill(figure, panels),
    )


def _binned(values: pd.Series, most: int) -> list[Bin]:
    """Each value's bin. Few distinct values stay as they are."""
    distinct = sorted(values.unique())
    if len(distinct) <= most + 1:
        return [(value, value) for value in values]
    edges = np.linspace(distinct[0], distinct[-1], most + 1)
    at = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, most - 1)
    return [(float(edges[i]), float(edges[i + 1])) for i in at]


def _row(cell: tuple[str, str, str], bins: tuple[Bin, Bin], group: pd.DataFrame) -> Row:
    scores = group["score"].dropna()
    deltas = (group["score"] - group["baseline_score"]).dropna() if cell[2] != "full" else scores[:0]
    (length_from, length_to), (depth_from, depth_to) = bins
    score, delta = (None if values.empty else float(values.mean()) for values in (scores, deltas))
    return Row(*cell, length_from, length_to, depth_from, depth_to, len(scores), score, len(deltas), delta)


def _by_strategy(mine: Sequence[Row]) -> dict[str, list[Row]]:
    maps: dict[str, list[Row]] = {}
    for row in mine:
        maps.setdefault(row.strategy, []).append(row)
    return maps


def _bins(maps: Mapping[str, Sequence[Row]]) -> tuple[list[Bin], list[Bin]]:
    """Lengths and depths of a task's maps, each in order."""
    everything = [row for mine in maps.values() for row in mine]
    lengths = sorted({(row.length_from_tokens, row.length_to_tokens) for row in everything})
    return lengths, sorted({(row.depth_from, row.depth_to) for row in everything})


def _under(lengths: Sequence[Bin]) -> float:
    return UNDER + (SLANTED if _long(lengths) else 0.0)


def _long(bins: Sequence[Bin]) -> bool:
    """Whether what is written at these bins would not fit side by side."""
    return any(len(_tick(one)) > 5 for one in bins)


def _high(maps: Mapping[str, Sequence[Row]]) -> float:
    """Of one strategy's maps, with the words around them."""
    lengths, depths = _bins(maps)
    return SQUARE * len(depths) + ABOVE + _under(lengths)


def _abreast(maps: Mapping[str, Sequence[Row]]) -> int:
    return ABREAST.get(len(_bins(maps)[0]), 1)


def _fill(figure: Figure, panels: Sequence[tuple[str, dict[str, list[Row]]]]) -> None:
    """All maps on one pair of axes, in inches from the upper left: own axes would cost more than all that is in a map."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    squares: list[Square] = []
    top = 0.0
    for task, maps in panels:
        axes.text(0.1, top + 0.22, label(task, 44), fontsize=11, fontweight="bold")
        top += HEAD
        abreast, bins, high = _abreast(maps), _bins(maps), _high(maps)
        names = short(maps, 48 // abreast)
        for number_of, (name, mine) in enumerate(maps.items()):
            row, column = divmod(number_of, abreast)
            left, upper = LEFT + column * SIDE / abreast, top + row * high
            axes.text(left, upper + 0.18, names[name], fontsize=8.5, fontweight="bold")
            if not column:
                _depths(axes, upper + ABOVE, bins[1])
            squares += _maps(axes, (left, upper + ABOVE), SIDE / abreast, bins, mine)
        top += high * -(-len(maps) // abreast)
    axes.add_collection(
        PolyCollection([corners for corners, _ in squares], facecolors=[colour for _, colour in squares])
    )


def _depths(axes: Axes, top: float, depths: Sequence[Bin]) -> None:
    """What the rows of squares are, on the left of all maps that stand side by side."""
    for at, depth in enumerate(map(_tick, depths)):
        axes.text(LEFT - 0.04, top + SQUARE * (at + 0.5), depth, ha="right", va="center", fontsize=7, color=QUIET)
    middle = top + SQUARE * len(depths) / 2
    axes.text(0.11, middle, "depth", ha="center", va="center", rotation=90, fontsize=7.5, color=QUIET)


def _maps(
    axes: Axes, corner: tuple[float, float], span: float, bins: tuple[list[Bin], list[Bin]], mine: Sequence[Row]
) -> Iterator[Square]:
    """One strategy's maps, whose squares begin at ``corner``, with the words around them. Yields what is to be coloured."""
    left, top = corner
    wide, high = (span - 2 * GAP) / 2, SQUARE * len(bins[1])
    side = wide / len(bins[0])
    slant = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if _long(bins[0]) else {"ha": "center"}
    for difference in (False, True) if any(row.delta is not None for row in mine) else (False,):
        told = [(row, *_of(row, difference)) for row in mine]
        counts = {n for _, value, n in told if value is not None}
        same = f"\nn {counts.pop()}" if len(counts) == 1 else ""
        axes.text(left, top - 0.05, f"{'difference' if difference else 'score'}{same}", fontsize=7, color=QUIET)
        for at, tokens in enumerate(map(_tick, bins[0])):
            axes.text(left + side * (at + 0.5), top + high + 0.03, tokens, va="top", fontsize=7, color=QUIET, **slant)
        axes.text(
            left + wide / 2,
            top + high + _under(bins[0]) - 0.15,
            "tokens",
            ha="center",
            va="top",
            fontsize=7,
            color=QUIET,
        )
        yield _box(left, top, wide, high), EMPTY
        for row, value, n in told:
            if value is None:
                continue
            x = left + side * bins[0].index((row.length_from_tokens, row.length_to_tokens))
            y = top + SQUARE * bins[1].index((row.depth_from, row.depth_to))
            colour = (DELTA if difference else SCORE).to_rgba(value)
            yield _box(x + 0.02 * side, y + 0.01, 0.96 * side, SQUARE - 0.02), colour
            ink = {"ha": "center", "va": "center", "color": _ink(colour)}
            said = signed(value, 2) if difference else number(value, 2)
            axes.text(x + side / 2, y + SQUARE * (0.5 if same else 0.36), said, fontsize=7.5, **ink)
            if not same:
                axes.text(x + side / 2, y + SQUARE * 0.77, f"n {n}", fontsize=5.5, **ink)
        left += wide + GAP


def _of(row: Row, difference: bool) -> tuple[float | None, int]:
    """What a square shows, and of how many samples."""
    return (row.delta, row.pairs) if difference else (row.score, row.n)


def _box(x: float, y: float, wide: float, high: float) -> Corners:
    return ((x, y), (x + wide, y), (x + wide, y + high), (x, y + high))


def _ink(colour: Colour) -> str:
    """What can be read on it."""
    red, green, blue, _ = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _tick(one: Bin) -> str:
    """4096 to 4096 -> ``4k``, 0.25 to 0.5 -> ``0.25-0.5``."""
    return "-".join(dict.fromkeys(_short(end) for end in one))


def _short(value: float) -> str:
    if value >= 1000:
        unit = 1024 if value % 1024 == 0 else 1000
        return f"{value / unit:.3g}k"
    return f"{value:.3g}"
