"""Where results lie: a folder, on a disk or a network share, or what begins with one name in an S3 bucket.

Both are asked alike, in the words of ``pathlib``. What a folder and a bucket do each in their own way is here: a file that is
whole or not there, a file that only the first of several writers makes, and reading many.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from harness.s3 import S3Path, read_together
from harness.types import well_formed

Place = Path | S3Path
File = TypeVar("File", bound=Path | S3Path)


def place(where: str | Place) -> Place:
    """The place that an option names. Raises BadInput if there can be no such place."""
    if isinstance(where, S3Path) or "://" in str(where):
        return S3Path.of(str(where))
    return Path(where).expanduser().absolute()


def encode(text: str) -> bytes:
    """UTF-8, whatever is in ``text``."""
    return well_formed(text).encode()


def write_atomic(file: File, content: str | bytes) -> File:
    """Write so that a reader sees the old file or the new one, never half of one. Returns the file. Raises OSError."""
    data = encode(content) if isinstance(content, str) else content
    if isinstance(file, S3Path):
        file.put(data)
    else:
        with _beside(file, data) as whole:
            os.replace(whole, file)
    return file


def create(file: Place, content: str) -> bool:
    """Write as ``write_atomic``, unless the file is there. Whether it was written; of many writers at once one is told so."""
    try:
        if isinstance(file, S3Path):
            file.put(content.encode(), absent=True)
            return True
        with _beside(file, content.encode()) as whole:
            _link(whole, file)
    except FileExistsError:
        return False
    return True


def read_all(files: Sequence[Place]) -> Iterator[bytes]:
    """The content of each file, in their order. Raises FileNotFoundError if one is gone."""
    if objects := [file for file in files if isinstance(file, S3Path)]:
        return read_together(objects)
    return (file.read_bytes() for file in files)


def remove(files: Iterable[Place]) -> None:
    """Delete files, those that are gone too."""
    for file in files:
        file.unlink(missing_ok=True)


@contextmanager
def _beside(file: Path, data: bytes) -> Iterator[Path]:
    """A file with this content beside ``file``, from where it can be moved in one step; gone at the end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        beside.write_bytes(data)
        yield beside
    finally:
        beside.unlink(missing_ok=True)  # a full disk keeps no half of it


def _link(whole: Path, file: Path) -> None:
    try:
        os.link(whole, file)
    except FileExistsError:
        raise
    except (
        OSError
    ):  # some mounts have no hard links; there two writers in the same moment could both be told that they were first
        if file.exists():
            raise FileExistsError(file) from None
        os.replace(whole, file)
