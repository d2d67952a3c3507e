"""How fast a folder takes and gives bytes, in large blocks and in small ones."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LARGE = (16 * 2**20, 8)  # bytes of a block, blocks
SMALL = (16 * 2**10, 1024)


def rates(folder: Path) -> dict[str, float]:
    """Bytes a second of writing (flushed to the device) and of reading (not from the page cache, where the system drops it).

    Small blocks are written and read in random order. Raises OSError if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for size, (block, count) in {"large": LARGE, "small": SMALL}.items():
        order = list(range(count))
        if size == "small":
            random.Random(0).shuffle(order)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            found[f"write_{size}_bytes_s"] = block * count / _write(file.fileno(), block, order)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found[f"read_{size}_bytes_s"] = block * count / _read(file.fileno(), block, order)
    return found


def _write(file: int, block: int, order: Sequence[int]) -> float:
    content = random.Random(0).randbytes(block)
    began = time.perf_counter()
    for at in order:
        os.pwrite(file, content, at * block)
    os.fsync(file)
    return time.perf_counter() - began


def _read(file: int, block: int, order: Sequence[int]) -> float:
    began = time.perf_counter()
    for at in order:
        os.pread(file, block, at * block)
    return time.perf_counter() - began
