"""Colours, type and canvas of all pictures. Hues are those of Okabe and Ito, safe for colour-blind readers."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure

from harness.types import Decision

INK = "#1b1f24"
QUIET = "#5f6670"
GRID = "#dfe3e8"
STRONG = {
    Decision.GO: "#006b4f",
    Decision.NO_GO: "#b34700",
    Decision.INCONCLUSIVE: "#8a6d00",
    Decision.VOID: "#5f6670",
    Decision.MEASURED: "#0b5fa5",
}
TINT = {
    Decision.GO: "#bfe6d8",
    Decision.NO_GO: "#f6cdb4",
    Decision.INCONCLUSIVE: "#f8efae",
    Decision.VOID: "#e3e5e8",
    Decision.MEASURED: "#cfe3f6",
}
MARKER = {
    Decision.GO: "o",
    Decision.NO_GO: "X",
    Decision.INCONCLUSIVE: "D",
    Decision.VOID: "s",
    Decision.MEASURED: "P",
}

LINES = [  # of settings that stand side by side: each its own hue, mark and dash
    {"color": "#0072b2", "marker": "s", "linestyle": "-"},
    {"color": "#d55e00", "marker": "^", "linestyle": "-"},
    {"color": "#009e73", "marker": "D", "linestyle": "-"},
    {"color": "#cc79a7", "marker": "v", "linestyle": "-"},
    {"color": "#e69f00", "marker": "P", "linestyle": "-."},
    {"color": "#56b4e9", "marker": "X", "linestyle": "-."},
    {"color": "#1b1f24", "marker": "*", "linestyle": ":"},
]

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is a name
    "axes.edgecolor": "#9aa1a9",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "grid.color": GRID,
    "figure.facecolor": "white",
}
DPI = 130


@dataclass(frozen=True)
class Plot:
    """A finished picture with the words that belong to it."""

    file: str
    title: str
    caption: str
    alt: str
    png: bytes


def paint(width: float, height: float, fill: Callable[[Figure], None]) -> bytes:
    """A figure of ``width`` x ``height`` inches, filled by ``fill``, as PNG bytes that hold no date and no version."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=(width, height), dpi=DPI)
        fill(figure)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
    return image.getvalue()
