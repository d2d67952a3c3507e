"""Memory of the devices that a model is on: what was taken at most, and what is left. Bytes."""

from __future__ import annotations

import resource
import sys

import torch

from harness.engines import process_memory


def forget_peak(device: torch.device) -> None:
    """Begin a new peak, over all GPUs; that of a process never falls."""
    if device.type == "cuda":
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(gpu)


def peak_bytes(device: torch.device) -> int:
    """Allocator peak since it was forgotten, over all GPUs; on a CPU the process's peak so far."""
    if device.type == "cuda":
        return sum(int(torch.cuda.max_memory_allocated(gpu)) for gpu in range(torch.cuda.device_count()))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_load_peak(device: torch.device) -> bool:
    """Begin the peak of a load, on a CPU that of the process too. False where the latter never falls."""
    if device.type != "cuda":
        return process_memory.forget_peak()
    forget_peak(device)
    return True


def load_peak_bytes(device: torch.device) -> int | None:
    """Peak since ``forget_load_peak``; None where the system does not tell."""
    return peak_bytes(device) if device.type == "cuda" else process_memory.peak_bytes()


def free_bytes(device: torch.device) -> int:
    """What may still be taken: on GPUs of each what the fullest has left, times their number; 0 where nobody tells."""
    if device.type != "cuda":
        return process_memory.free_bytes() or 0
    gpus = range(torch.cuda.device_count())
    cached = (torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu) for gpu in gpus)
    return len(gpus) * min(torch.cuda.mem_get_info(gpu)[0] + held for gpu, held in zip(gpus, cached, strict=True))
