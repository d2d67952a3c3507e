"""Moving a cache: what links, copies and codes cost in seconds, and when that pays. Pure.

Seconds, bytes and bytes a second throughout; formulas are those of docs/plan.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.sizing.hardware import Coding


def transfer_s(moved_bytes: float, bytes_s: float, operations: int = 1, latency_s: float = 0.0) -> float:
    """alpha + bytes / beta: each operation takes its latency, one after the other."""
    return operations * latency_s + moved_bytes / bytes_s


def gbit_s(gbit: float, links: int = 1) -> float:
    """Bytes a second of so many links of ``gbit`` gigabits."""
    return links * gbit * 1e9 / 8


def staged_s(moved_bytes: float, bytes_s: float, host_bytes_s: float) -> float:
    """Through the host's memory: in and out of it beside the link's own time, nothing at once."""
    return moved_bytes / bytes_s + 2 * moved_bytes / host_bytes_s


def break_even_bytes_s(bytes_per_token: float, prefill_tokens_s: float) -> float:
    """The link above which loading a token's cache is faster than computing it again."""
    return bytes_per_token * prefill_tokens_s


def ttft_s(tokens: int, hit_tokens: int, prefill_tokens_s: float, bytes_per_token: float, bytes_s: float) -> float:
    """A prompt of which ``hit_tokens`` are loaded and the rest is computed after that."""
    return (tokens - hit_tokens) / prefill_tokens_s + hit_tokens * bytes_per_token / bytes_s


def overlapped_s(loads_s: Sequence[float], computes_s: Sequence[float]) -> float:
    """Layer by layer: the next layer loads while this one computes. Seconds by layer."""
    rest = sum(max(compute, load) for compute, (_, load) in zip(computes_s, pairwise(loads_s), strict=False))
    return loads_s[0] + rest + computes_s[-1]


def coding_break_even_bytes_s(full_bytes: float, coded_bytes: float, coding: Coding) -> float:
    """The link below which coding before the way and decoding behind it pays: bytes saved over the seconds of both."""
    return (full_bytes - coded_bytes) / coding_s(full_bytes, coding)


def coding_s(full_bytes: float, coding: Coding) -> float:
    return full_bytes / coding.code_bytes_s + full_bytes / coding.decode_bytes_s


def coded_s(full_bytes: float, coded_bytes: float, coding: Coding, bytes_s: float) -> float:
    """Coding, the way, decoding, one after the other."""
    return coding_s(full_bytes, coding) + coded_bytes / bytes_s


def drives(wanted_bytes_s: float, drive_bytes_s: float) -> int:
    """Drives that give so many bytes a second together."""
    return -int(-wanted_bytes_s // drive_bytes_s)
