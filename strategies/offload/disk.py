"""Stored tokens wait in files."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar

from strategies.base import KVShape, Lost
from strategies.offload.bounded import Bounded, Limited

SUFFIX, BESIDE = ".kv", ".part"
OURS = re.compile(
    r"([0-9a-f]{2})[0-9a-f]*\.layer\d{3}\.kv(\.[0-9a-f]{32}\.part)?"
)  # in the folder of the first two digits
KEY = re.compile(r"\w[\w-]*(/[\w-]+)*", re.ASCII)
STALE_S = 3600  # a file still being written is younger


class DiskTier(Bounded):
    """One file an object, ``<path>/ab/ab12cd.layer003.kv`` for the key ``ab12cd/layer003``.

    Files are written beside and renamed, so a reader sees none or a whole one. They are not forced to the platter: what a
    power failure tears is found by the packet's checksum and computed again. The folder itself says what lies there and, by
    the files' times, when it was used last, so that strategies and processes that share it keep one limit. Files that are
    not ours are never touched.
    """

    def __init__(self, path: Path, max_gib: float | None) -> None:
        super().__init__("disk", max_gib)
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        for file, facts in _files(path, BESIDE):  # of a process that was killed while writing
            if time.time() - facts.st_mtime > STALE_S:
                file.unlink(missing_ok=True)

    def put(self, key: str, data: bytes) -> str:
        if self.limit < inf:
            there = sorted(_files(self.path, SUFFIX), key=lambda one: one[1].st_mtime_ns)
            self.sizes = {file.name.removesuffix(SUFFIX).replace(".", "/"): facts.st_size for file, facts in there}
        return super().put(key, data)

    def write(self, key: str, data: bytes) -> None:
        file = self.file(key)
        beside = file.with_name(f"{file.name}.{uuid.uuid4().hex}{BESIDE}")
        try:
            file.parent.mkdir(exist_ok=True)
            beside.write_bytes(data)
            _touch(beside)
            os.replace(beside, file)
        except OSError as error:
            raise self._failed(file, error) from error
        finally:
            with suppress(OSError):  # renamed, or never made
                beside.unlink()

    def read(self, key: str) -> bytes:
        file = self.file(key)
        try:
            data = file.read_bytes()
        except FileNotFoundError as error:
            raise Lost(f"disk: {file}: not there") from error
        except OSError as error:
            raise self._failed(file, error) from error
        with suppress(OSError):  # a folder that may only be read
            _touch(file)
        return data

    def erase(self, key: str) -> None:
        file = self.file(key)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(file, error) from error

    def file(self, key: str) -> Path:
        """Where ``key`` lies."""
        if not KEY.fullmatch(key):
            raise ValueError(f"a key is words between slashes, got {key!r}")
        return self.path / key[:2] / f"{key.replace('/', '.')}{SUFFIX}"

    def _failed(self, file: Path, error: OSError) -> OSError:
        return OSError(f"disk: {file}: {error.strerror}")


@dataclass(frozen=True, kw_only=True)
class Disk(Limited):
    """Files in a folder, on whatever file system that is.

    Args:
        path: the folder; made if it is not there.
        max_gib: room in GiB for all that lies there, of earlier runs too; over it the least recently used files are deleted.
            None for no limit.
    """

    name: ClassVar[str] = "disk"
    places: ClassVar[frozenset[str]] = Limited.places | {"path"}

    path: str | None = None

    def tier(self) -> DiskTier:
        assert self.path is not None
        return DiskTier(Path(self.path).expanduser(), self.max_gib)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if self.path is None:
            found.append(f"{self.option('path')} must be a folder to keep the stored tokens in, got null")
        elif reason := _not_writable(Path(self.path).expanduser()):
            found.append(f"{self.option('path')} must be a folder that can be written to, got {self.path}: {reason}")
        return found


def _touch(file: Path) -> None:
    """Note that ``file`` is used now, more finely than the kernel's clock ticks."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _files(path: Path, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Files of ours with this suffix. Names of other programs' files may end alike."""
    for file in path.glob(f"??/*{suffix}"):
        name = OURS.fullmatch(file.name)
        if name and name[1] == file.parent.name:
            with suppress(FileNotFoundError):  # deleted by another process just now
                yield file, file.stat()


def _not_writable(path: Path) -> str | None:
    """Why no file can be made in ``path``, found by making one; permissions alone would tell root nothing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            return None
    except OSError as error:
        return error.strerror
