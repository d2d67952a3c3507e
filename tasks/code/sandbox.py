"""Run a program that nobody has read: ``run(source)`` says whether it came to its end, and if not, why.

Each program gets a fresh interpreter (``jail.py`` starts it, ``guard.py`` runs the program), an empty environment, a
temporary folder, and these walls:

- **Namespaces**, where Linux grants them. The program sees the system's libraries and Python, read-only, a small folder in
  memory, no network, and no process but its own. When its first process is ended, all are. If kvgate runs as root, the
  program runs as a user that owns nothing.
- **Limits** of the kernel: time, memory of a process, size and number of files, number of processes, bytes of output.
- **An audit hook** in the interpreter: whatever asks Python for a socket, a process, a signal, C code or a file outside
  the folder ends the program. It stops accidents and plain malice; code that corrupts the interpreter gets past it.

Without namespaces the hook alone stands between the program and the network, and, unless kvgate is root and so can make
the program another user, between it and the user's files.

This is not a virtual machine. A hole in the kernel is a way out; a program may measure and slow down the machine for the
time that it has; and one that sets out to can claim to have passed, because its tests run in the same interpreter.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
GRACE = 20.0  # seconds that the jail has for its own work on a busy machine
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # not a virtual environment's link

_numbers = itertools.count()


class SandboxError(RuntimeError):
    """No program can be run here, or this one could not be; the fault is the machine's, not the program's."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use."""

    seconds: float = 5.0
    memory_mb: int = 512  # of each process
    files_mb: int = 16
    open_files: int = 64
    processes: int = 4  # threads among them; 1 where the kernel would count all that this user runs
    output_bytes: int = 65536


@dataclass(frozen=True)
class Walls:
    """Which walls there are, besides the limits."""

    namespaces: bool
    hook: bool = True


@dataclass(frozen=True)
class Outcome:
    """How a program ended. ``reason`` is passed, timeout, memory, too much output, raised X, forbidden X, ..."""

    passed: bool
    reason: str
    output: str


def run(source: str, limits: Limits | None = None, walls: Walls | None = None) -> Outcome:
    """Run ``source`` behind ``walls`` (the best that this machine has) and within ``limits``.

    Raises SandboxError if the program could not be started.
    """
    return _run(source, limits or Limits(), walls or best_walls())


@cache
def best_walls() -> Walls:
    """The walls that this machine has, tried once. Raises SandboxError with the reason if programs cannot be run at all."""
    if sys.platform != "linux":
        raise SandboxError(f"generated code is run on Linux only, and this is {sys.platform}")
    reasons = []
    for walls in (Walls(namespaces=True), Walls(namespaces=False)):
        try:
            outcome = _run("print(1 + 1)", Limits(seconds=GRACE), walls)
            if outcome.passed and outcome.output == "2\n":
                return walls
            reasons.append(f"{outcome.reason} {outcome.output}".strip())
        except SandboxError as error:
            reasons.append(str(error))
    raise SandboxError(f"generated code cannot be run here: {'; '.join(dict.fromkeys(reasons))}")


def _run(source: str, limits: Limits, walls: Walls) -> Outcome:
    folder = tempfile.mkdtemp(prefix="kvgate-program-")
    prefix = os.path.dirname(os.path.dirname(PYTHON))
    order = {
        "source": source,
        "token": secrets.token_hex(16),
        "hook": walls.hook,
        "namespaces": walls.namespaces,
        "limits": asdict(limits),
        "folder": folder,
        "libraries": ["/usr", "/lib", "/lib64", "/lib32", prefix],
        "python": PYTHON,
        "guard": (HERE / "guard.py").read_text(encoding="utf-8"),
        "number": (os.getpid() * 1000 + next(_numbers)) % 10**8,
    }
    try:
        jail = subprocess.run(
            [PYTHON, "-I", "-S", str(HERE / "jail.py")],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            env={},
            cwd="/",
            start_new_session=True,
            timeout=limits.seconds + GRACE,
        )
        told = json.loads(jail.stdout)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"the sandbox did not answer within {error.timeout:.0f} seconds") from error
    except ValueError as error:
        reason = (jail.stderr.strip().splitlines() or [f"exit code {jail.returncode}"])[-1]
        raise SandboxError(f"the sandbox did not start ({reason})") from error
    finally:
        _remove(folder)
    if told["reason"].startswith("jail "):
        raise SandboxError(f"the sandbox did not start ({told['reason'].removeprefix('jail ')})")
    return Outcome(told["reason"] == "passed", told["reason"], told["output"])


def _remove(folder: str) -> None:
    """Remove ``folder``, however deep, and whatever rights were taken from it."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", folder], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", "--", folder], check=False, capture_output=True)
