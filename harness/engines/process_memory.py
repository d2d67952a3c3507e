"""The memory of this process: its peak from a moment on, which is what an allocator's own is on a device, and what is left."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def forget_peak() -> bool:
    """Give what is free back to the system and start a new peak. False where the system keeps one for the whole process."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """The most that was resident since ``forget_peak``; None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def free_bytes() -> int | None:
    """What may still be taken: of the machine, or of a group of processes with a limit that this one is in. None where the
    system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    machine = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*machine, *(left for group in groups for left in _left(*group.split(":", 2)))], default=None)


def _left(_: str, controllers: str, path: str) -> Iterator[int]:
    """What each limit on a group and those that it is in leaves; cached files count as free."""
    if controllers and "memory" not in controllers.split(","):
        return
    root = Path("/sys/fs/cgroup") / ("memory" if controllers else "")
    limit, usage, cached = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if controllers
        else ("memory.max", "memory.current", "inactive_file")
    )
    folder = root / path.strip("/")
    for group in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # no such file: not limited here; "max": not at all
            most, used = (int((group / name).read_text()) for name in (limit, usage))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield most - used + int(stat.get(cached, 0))
