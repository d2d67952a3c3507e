"""Where in the prompt a needle is lost: score by prompt length and depth of each strategy, and what it lost there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.report.format import number, signed
from harness.report.outlook import Outlook
from harness.report.plots.names import label, short
from harness.report.plots.picture import Plot, by_task, picture
from harness.report.plots.theme import QUIET, WIDTH

NAME = "needle_length_depth"
LEFT, GAP, SQUARE, HEAD = 0.6, 0.12, 0.26, 0.34  # inches
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
        "Of each strategy, left: mean score of the scored samples, and how many they are (small); right: mean difference to "
        "the full cache of those that both have scored. Depth 0 is the start of the prompt. A grey square has no such sample. "
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


def _under(maps: Mapping[str, Sequence[Row]]) -> float:
    return UNDER + (SLANTED if _long(_bins(maps)[0]) else 0.0)


def _long(bins: Sequence[Bin]) -> bool:
    """Whether what is written at these bins would not fit side by side."""
    return any(len(_tick(one)) > 5 for one in bins)


def _high(maps: Mapping[str, Sequence[Row]]) -> float:
    """Of one strategy's maps, with the words around them."""
    return SQUARE * len(_bins(maps)[1]) + ABOVE + _under(maps)


def _abreast(maps: Mapping[str, Sequence[Row]]) -> int:
    return ABREAST.get(len(_bins(maps)[0]), 1)


def _fill(figure: Figure, panels: Sequence[tuple[str, dict[str, list[Row]]]]) -> None:
    width, height = figure.get_size_inches()
    top = 0.0
    for task, maps in panels:
        figure.text(0.1 / width, 1 - (top + 0.22) / height, label(task, 44), fontsize=11, fontweight="bold")
        top += HEAD
        abreast = _abreast(maps)
        names = short(maps, 48 // abreast)
        for number_of, (name, mine) in enumerate(maps.items()):
            row, column = divmod(number_of, abreast)
            corner = column * WIDTH / abreast, top + row * _high(maps)
            figure.text(
                (corner[0] + LEFT) / width,
                1 - (corner[1] + 0.18) / height,
                names[name],
                fontsize=8.5,
                fontweight="bold",
            )
            _maps(figure, corner, WIDTH / abreast, _bins(maps), mine)
        top += _high(maps) * -(-len(maps) // abreast)


def _maps(
    figure: Figure, corner: tuple[float, float], span: float, bins: tuple[list[Bin], list[Bin]], mine: Sequence[Row]
) -> None:
    """One strategy's maps, under their titles. ``corner`` is the upper left, from the upper left of the figure, in inches."""
    width, height = figure.get_size_inches()
    wide, high = (span - LEFT - GAP - 0.05) / 2, SQUARE * len(bins[1])
    for difference in (False, True) if any(row.delta is not None for row in mine) else (False,):
        left = corner[0] + LEFT + difference * (wide + GAP)
        bottom = height - corner[1] - ABOVE - high
        axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
        _frame(axes, bins, depths=not difference)
        axes.set_title("difference" if difference else "score", fontsize=7, fontweight="normal", color=QUIET, pad=3)
        for row in mine:
            _square(axes, bins, row, difference=difference)


def _frame(axes: Axes, bins: tuple[list[Bin], list[Bin]], depths: bool) -> None:
    """An empty map, of which the left one tells the depths."""
    lengths, all_depths = ([_tick(one) for one in side] for side in bins)
    axes.set(xlim=(-0.5, len(lengths) - 0.5), ylim=(len(all_depths) - 0.5, -0.5))
    axes.set_facecolor("#e9ebee")
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    slant = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if _long(bins[0]) else {}
    axes.set_xticks(range(len(lengths)), lengths, fontsize=7, **slant)
    axes.set_yticks(range(len(all_depths)), all_depths if depths else [""] * len(all_depths), fontsize=7)
    axes.set_xlabel("tokens", fontsize=7, color=QUIET, labelpad=1)
    if depths:
        axes.set_ylabel("depth", fontsize=7.5, color=QUIET, labelpad=2)


def _square(axes: Axes, bins: tuple[list[Bin], list[Bin]], row: Row, difference: bool) -> None:
    value, n = (row.delta, row.pairs) if difference else (row.score, row.n)
    if value is None:
        return
    x = bins[0].index((row.length_from_tokens, row.length_to_tokens))
    y = bins[1].index((row.depth_from, row.depth_to))
    colour = (DELTA if difference else SCORE).to_rgba(value)
    axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none"))
    red, green, blue, _ = colour
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    said = signed(value, 2) if difference else number(value, 2)
    axes.text(x, y - 0.14, said, ha="center", va="center", fontsize=7.5, color=ink)
    axes.text(x, y + 0.27, f"n {n}", ha="center", va="center", fontsize=5.5, color=ink)


def _tick(one: Bin) -> str:
    """4096 to 4096 -> ``4k``, 0.25 to 0.5 -> ``0.25-0.5``."""
    return "-".join(dict.fromkeys(_short(end) for end in one))


def _short(value: float) -> str:
    if value >= 1000:
        unit = 1024 if value % 1024 == 0 else 1000
        return f"{value / unit:.3g}k"
    return f"{value:.3g}"
