"""Colours, type and width of all pictures. Hues are those of Okabe and Ito, safe for colour-blind readers."""

from __future__ import annotations

from typing import Any

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

_HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
_MARKS = ("s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
FULL: dict[str, Any] = {"color": QUIET, "marker": "o", "linestyle": "--"}  # the full cache's line

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the first is always there; a reader's Verdana is about as wide
    "svg.fonttype": "none",  # text stays text: small, and found by a search
    "svg.hashsalt": "kvgate",
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
WIDTH = 5.4  # inches: on a phone, letters keep about the size that they have here


def mark(kind: Decision) -> dict[str, Any]:
    """A decision's mark: its own shape as well as its colour, hollow where nothing was tested."""
    colour, hollow = STRONG[kind], kind == Decision.VOID
    return {
        "marker": MARKER[kind],
        "markersize": 9 if kind == Decision.NO_GO else 7.5,
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": colour if hollow else "white",
        "markeredgewidth": 1.2 if hollow else 0.8,
    }


def line(at: int) -> dict[str, Any]:
    """The look of setting number ``at`` of those that stand side by side: no two of the first 28 share hue and dash."""
    turn = at // len(_HUES)
    return {
        "color": _HUES[at % len(_HUES)],
        "marker": _MARKS[(at + turn) % len(_MARKS)],
        "linestyle": _DASHES[turn % len(_DASHES)],
    }
