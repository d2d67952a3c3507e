"""A picture in the three forms that it is given in: SVG for a page, PNG for whatever shows no SVG, and its data as CSV."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import matplotlib
from matplotlib.figure import Figure

from harness.places import encode
from harness.report import sheet
from harness.report.plots.theme import DPI, STYLE, WIDTH

SUFFIXES = (".svg", ".png", ".csv")


@dataclass(frozen=True)
class Plot:
    """A finished picture with the words that belong to it.

    ``svg`` stands alone and fetches nothing. ``csv`` holds the rows that were drawn and no others.
    """

    name: str  # of its files
    title: str
    caption: str
    alt: str
    svg: str
    png: bytes
    csv: str
    wide: bool = False  # too wide for a phone: there it is looked at in parts

    @property
    def uri(self) -> str:
        """The SVG as the source of an image, in which nothing can run."""
        return "data:image/svg+xml;base64," + base64.b64encode(encode(self.svg)).decode()

    @property
    def files(self) -> dict[str, bytes]:
        """By path in the run's folder."""
        return dict(zip(paths(self.name), (encode(self.svg), self.png, encode(self.csv)), strict=True))


def paths(name: str) -> list[str]:
    """Where the picture of this name lies in the run's folder, in each of its forms."""
    return [f"plots/{name}{suffix}" for suffix in SUFFIXES]


def picture(
    name: str,
    title: str,
    caption: str,
    alt: str,
    rows: Sequence[Any],
    size: tuple[float, float],
    fill: Callable[[Figure], None],
) -> Plot:
    """Draws a figure of ``size`` (width and height in inches) with ``fill``.

    Args:
        rows: What ``fill`` draws: dataclasses of one kind, or mappings with the same keys.
    """
    table = [dict(row) if isinstance(row, Mapping) else asdict(row) for row in rows]
    svg, png = _paint(size, fill)
    return Plot(name, title, caption, alt, svg, png, sheet.csv_text(table[0], table), wide=size[0] > WIDTH)


def _paint(size: tuple[float, float], fill: Callable[[Figure], None]) -> tuple[str, bytes]:
    """SVG and PNG, without a date, a version or an address."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}), warnings.catch_warnings():
        # a sign that the font lacks is a box in the PNG; in the SVG, text is text, and the reader's fonts may have it
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        figure = Figure(figsize=size, dpi=DPI)
        fill(figure)
        png = _saved(figure, "png", ("Software",))
        svg = _saved(figure, "svg", ("Creator", "Date", "Format", "Type")).decode()
    return svg[svg.index("<svg") :], png


def _saved(figure: Figure, kind: str, untold: Sequence[str]) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format=kind, dpi=DPI, metadata=dict.fromkeys(untold))
    return image.getvalue()


class OnTask(Protocol):
    """A row that belongs to a task in a mode."""

    @property
    def task(self) -> str: ...
    @property
    def mode(self) -> str: ...


Row = TypeVar("Row", bound=OnTask)


def by_task(rows: Sequence[Row], name: Callable[[tuple[str, str]], str]) -> list[tuple[str, list[Row]]]:
    """The name of each task in a mode, and its rows, in the order of the rows."""
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.task, row.mode), []).append(row)
    return [(name(column), mine) for column, mine in panels.items()]
