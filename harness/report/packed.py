"""The flipped samples inside the page: packed by cell, so that a browser unpacks those that are asked for and no others."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from harness.report.cells import CellPart
from harness.report.flips import Flip
from harness.report.format import MISSING

BANDS = 5  # parts of the depth that a reader can choose


@dataclass(frozen=True)
class Chunk:
    """The samples of one cell. ``data``: JSON, deflated (zlib), in base64."""

    strategy: str
    task: str
    data: str


@dataclass(frozen=True)
class Packed:
    """All chunks, and what there is to choose by."""

    num_lost: int
    num_gained: int
    chunks: tuple[Chunk, ...]
    choices: tuple[tuple[str, tuple[str, ...]], ...]  # field of a sample: values that some sample has


def pack(cells: Iterable[CellPart]) -> Packed:
    """The same samples give the same text: nothing in it tells when it was packed."""
    flipped = [cell for cell in cells if cell.flips]
    flips = [flip for cell in flipped for flip in cell.flips]
    choices = {
        "strategy": [cell.strategy for cell in flipped],
        "task": [cell.task for cell in flipped],
        "kind": sorted((flip.kind for flip in flips), reverse=True),
        "state": sorted(flip.state for flip in flips),
        "length": sorted((flip.length for flip in flips), key=_by_number),
        "depth": sorted((_band(flip) for flip in flips), key=_by_number),
    }
    return Packed(
        num_lost=sum(cell.num_lost for cell in flipped),
        num_gained=sum(cell.num_gained for cell in flipped),
        chunks=tuple(Chunk(cell.strategy, cell.task, _data(cell)) for cell in flipped),
        choices=tuple((name, tuple(dict.fromkeys(values))) for name, values in choices.items()),
    )


def _data(cell: CellPart) -> str:
    rows = [{**asdict(flip), "strategy": cell.strategy, "task": cell.task, "depth": _band(flip)} for flip in cell.flips]
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def _band(flip: Flip) -> str:
    """``20 % to 40 %``."""
    if flip.depth is None:
        return MISSING
    band, width = min(int(flip.depth * BANDS), BANDS - 1), 100 // BANDS
    return f"{band * width} % to {(band + 1) * width} %"


def _by_number(text: str) -> tuple[float, str]:
    """Numbers in their order, and what is none after them."""
    digits = text.partition(" ")[0].replace(",", "")
    return (float(digits) if digits.replace(".", "", 1).isdigit() else float("inf")), text
