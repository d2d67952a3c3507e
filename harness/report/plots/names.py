"""Names as a picture can show them: one line, not long, and no two alike that differ in more than white space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.format import shorten, visible

LINE = 0.148  # inches of a line of a legend
BACK = 8  # signs before the first difference that are kept where a word begins there


def label(name: str, limit: int) -> str:
    """A name as one line of at most ``limit`` signs that every form of a picture can hold."""
    return shorten(_line(name), limit)


def short(names: Iterable[str], limit: int) -> dict[str, str]:
    """The label of each name; of those that would look alike, what comes after their common beginning. ``limit``: 20 or more."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(label(name, limit), []).append(name)
    shown = {}
    for text, mine in alike.items():
        begin = _common([_line(name) for name in mine])
        shown |= {name: text if len(mine) == 1 else "…" + shorten(_line(name)[begin:], limit - 1) for name in mine}
    return shown


def _line(name: str) -> str:
    return " ".join(visible(name).split())


def _common(lines: Sequence[str]) -> int:
    """Signs that all lines begin with, less those of the word in which they part."""
    first, last = min(lines), max(lines)  # all lie between these two, so they begin alike for the longest
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return next((at for at in range(same, max(0, same - BACK), -1) if lines[0][at - 1] in " -_/=+"), same)


def legend_inches(looks: Mapping[str, Any], columns: int) -> float:
    """How high the legend of these lines is."""
    return LINE * -(-len(looks) // columns) + 0.12


def legend(figure: Figure, looks: Mapping[str, Mapping[str, Any]], columns: int) -> None:
    """A line and a name for each look along the upper edge; what is below is laid out in the rest."""
    names = short(looks, 64 // columns)
    handles = [Line2D([], [], linewidth=1.4, markersize=4.5, label=names[name], **look) for name, look in looks.items()]
    figure.legend(
        handles=handles,
        loc="upper center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        borderaxespad=0.1,
        labelspacing=0.3,
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - legend_inches(looks, columns) / figure.get_figheight()))
