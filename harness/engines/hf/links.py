"""What this device can do at best: move bytes, multiply matrices, copy to and from the host. Best of several tries."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

TRIES = 5
MOVED = {"cpu": 256 * 2**20, "cuda": 2**30}  # bytes: far more than any cache holds
SIDE = {"cpu": 2048, "cuda": 8192}  # of a square matrix
BLOCKS = {"large": 256 * 2**20, "small": 64 * 2**10}  # bytes of a copy between host and device


def rates(dtype: torch.dtype) -> dict[str, float]:
    """Bytes and operations a second of the device that models of this dtype run on. The better way to move memory counts."""
    device = _device()
    side = SIDE[device]
    square = torch.ones(side, side, dtype=dtype, device=device)
    found = {
        "memory_bytes_s": max(memory(dtype).values()),
        "matmul_flop_s": 2 * side**3 / _best(lambda: square @ square),
    }
    return found | (_copies() if device == "cuda" else {})


def memory(dtype: torch.dtype) -> dict[str, float]:
    """Bytes a second of a product of a matrix with a vector, as decoding reads weights, and of a copy, which writes as much as it
    reads.
    """
    device, columns = _device(), 4096
    matrix = torch.ones(MOVED[device] // dtype.itemsize // columns, columns, dtype=dtype, device=device)
    vector, other = torch.ones(columns, dtype=dtype, device=device), torch.empty_like(matrix)
    return {
        "matvec_bytes_s": matrix.nbytes / _best(lambda: matrix @ vector),
        "copy_bytes_s": 2 * matrix.nbytes / _best(lambda: other.copy_(matrix)),
    }


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _copies() -> dict[str, float]:
    found = {}
    for size, nbytes in BLOCKS.items():
        host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        found[f"to_device_{size}_bytes_s"] = nbytes / _best(lambda: there.copy_(host))  # noqa: B023
        found[f"from_device_{size}_bytes_s"] = nbytes / _best(lambda: host.copy_(there))  # noqa: B023
    return found


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several tries, after one that does not count."""
    times = []
    for _ in range(TRIES + 1):
        _wait()
        began = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
