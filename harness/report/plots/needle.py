"""Where in the prompt a needle is lost: score by prompt length and depth, for each needle task and strategy."""

from __future__ import annotations

import math
from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from harness.report.format import number, shorten
from harness.report.outlook import Outlook
from harness.report.plots.theme import QUIET, Plot, paint

FILE = "needle_length_depth.png"
ACROSS = 4  # maps in a row
LEFT, GAP, UNDER, HEAD = 0.85, 0.3, 0.75, 0.5  # inches
DEPTH_BINS, LENGTH_BINS = 10, 6
COLOURS = "cividis"  # even in brightness for every kind of colour vision


def draw(outlook: Outlook, samples: pd.DataFrame) -> Plot | None:
    """One map for each needle task and strategy, the full cache first; None where no sample has a depth."""
    if samples.empty or "depth" not in samples or samples["depth"].isna().all():
        return None
    needles = samples[samples["depth"].notna() & samples["length"].notna()].copy()
    if needles.empty:
        return None
    needles["score"] = pd.to_numeric(needles["score"], errors="coerce").astype(float)
    needles["depth"], depths = _binned(needles["depth"].astype(float), DEPTH_BINS)
    needles["length"], lengths = _binned(needles["length"].astype(float), LENGTH_BINS)
    known = ["full", *(entry["name"] for entry in outlook.strategies)]
    maps = dict(iter(needles.groupby(["task", "mode", "strategy"], sort=False)))
    panels = [
        (column, {name: maps[*column, name] for name in known if (*column, name) in maps})
        for column in dict.fromkeys(key[:2] for key in maps)
    ]
    panels = [(column, mine) for column, mine in panels if mine]
    if not panels:
        return None
    wide, high = max(2.3, 0.52 * len(lengths)) + GAP, max(1.1, 0.36 * len(depths)) + UNDER
    rows = sum(math.ceil(len(mine) / ACROSS) for _, mine in panels)
    across = min(ACROSS, max(len(mine) for _, mine in panels))
    width, height = max(wide * across + LEFT, 5.5), high * rows + HEAD * len(panels) + 0.05
    tasks = ", ".join(outlook.label(column) for column, _ in panels)
    return Plot(
        FILE,
        "Needles by length and depth",
        "Mean score of the scored samples (upper number) and how many they are (n, small). Depth 0 is the start of "
        "the prompt. An empty square has no scored sample. Few samples in a square say little.",
        f"Maps of score by prompt length and needle depth for {tasks}; {len(panels[0][1])} settings, full cache first.",
        paint(width, height, lambda figure: _fill(figure, outlook, panels, depths, lengths, (wide, high))),
    )


def _binned(values: pd.Series, most: int) -> tuple[pd.Series, list[str]]:
    """Each value's row or column in the map, and their labels. Few distinct values stay as they are."""
    distinct = sorted(values.unique())
    if len(distinct) <= most + 1:
        return values.map({value: i for i, value in enumerate(distinct)}), [_tick(value) for value in distinct]
    edges = np.linspace(distinct[0], distinct[-1], most + 1)
    index = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, most - 1)
    labels = [f"{_tick(low)}-{_tick(high)}" for low, high in pairwise(edges)]
    return pd.Series(index, index=values.index), labels


def _tick(value: float) -> str:
    """4096 -> ``4k``, 0.25 -> ``0.25``."""
    if value >= 1000:
        unit = 1024 if value % 1024 == 0 else 1000
        return f"{value / unit:.3g}k"
    return f"{value:.3g}"


def _fill(
    figure: Figure,
    outlook: Outlook,
    panels: list[tuple[tuple[str, str], dict[str, pd.DataFrame]]],
    depths: list[str],
    lengths: list[str],
    panel: tuple[float, float],
) -> None:
    width, height = figure.get_size_inches()
    wide, high = panel
    scale = ScalarMappable(Normalize(0, 1), COLOURS)
    top = 0.0
    for column, maps in panels:
        figure.text(0.12 / width, 1 - (top + 0.3) / height, outlook.label(column), fontsize=12, fontweight="bold")
        for i, (name, rows) in enumerate(maps.items()):
            down, position = divmod(i, ACROSS)
            left, bottom = position * wide + LEFT, top + HEAD + (down + 1) * high - UNDER + 0.22
            box = (left / width, 1 - bottom / height, (wide - GAP) / width, (high - UNDER) / height)
            axes = figure.add_axes(box)
            _map(axes, rows, len(depths), len(lengths), scale)
            axes.set_title(shorten(name, max(18, int(wide * 7.2))), fontsize=9)
            axes.set_xticks(range(len(lengths)), lengths, fontsize=7, rotation=0 if max(map(len, lengths)) < 6 else 30)
            axes.set_yticks(range(len(depths)), depths if position == 0 else [""] * len(depths), fontsize=7)
            axes.set_xlabel("prompt length, tokens", fontsize=7.5, color=QUIET, labelpad=2)
            if position == 0:
                axes.set_ylabel("depth", fontsize=7.5, color=QUIET, labelpad=2)
        top += HEAD + high * math.ceil(len(maps) / ACROSS)


def _map(axes: Axes, rows: pd.DataFrame, depths: int, lengths: int, scale: ScalarMappable) -> None:
    axes.set(xlim=(-0.5, lengths - 0.5), ylim=(depths - 0.5, -0.5))
    axes.set_facecolor("#f1f2f4")
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    axes.vlines(np.arange(lengths - 1) + 0.5, -0.5, depths - 0.5, color="white", linewidth=1)
    axes.hlines(np.arange(depths - 1) + 0.5, -0.5, lengths - 0.5, color="white", linewidth=1)
    grid = np.full((depths, lengths), np.nan)
    for (depth, length), group in rows.groupby(["depth", "length"]):
        scores = group["score"].dropna()
        if scores.empty:
            continue
        grid[depth, length] = mean = scores.mean()
        red, green, blue, _ = scale.to_rgba(mean)
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        axes.text(length, depth - 0.14, number(mean, 2), ha="center", va="center", fontsize=7.5, color=ink)
        axes.text(length, depth + 0.25, f"n {len(scores)}", ha="center", va="center", fontsize=5.5, color=ink)
    axes.imshow(
        np.ma.masked_invalid(grid), cmap=matplotlib.colormaps[COLOURS], norm=scale.norm, aspect="auto", zorder=0
    )
