"""The peak memory of this process, from a moment on: what an allocator's own peak is on a device."""

from __future__ import annotations

import ctypes
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
