"""The inside of the sandbox: runs one program and reports how it ended. ``jail.py`` starts this text in an interpreter that
has nothing but the standard library.

Python tells an audit hook of most of what leaves the interpreter. What a program that solves a puzzle never does, ends
it: sockets, other programs, processes, signals, ctypes, and files outside its folder. The hook knows what Python tells it
and no more; a program that turns to C code behind Python's back meets only the other walls.
"""

from __future__ import annotations

import _posixsubprocess
import json
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

REPORT = 9  # the file descriptor that the jail listens to
FORBIDDEN = 77  # exit code
BARRED = {
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn"),
    *("os.kill", "os.killpg", "signal.pthread_kill"),
    *("os.setxattr", "os.removexattr", "resource.setrlimit", "resource.prlimit"),
}
FAMILIES = ("socket.", "ctypes.", "syslog.", "fcntl.")
# event -> how many paths lead its arguments, and where in them a folder stands that the paths start from
CHANGES = {
    "os.remove": (1, (1,)),
    "os.rmdir": (1, (1,)),
    "os.mkdir": (1, (2,)),
    "os.rename": (2, (2, 3)),
    "os.link": (2, (2, 3)),
    "os.symlink": (2, (2,)),
    "os.chmod": (1, (2,)),
    "os.chown": (1, (3,)),
    "os.utime": (1, (3,)),
    "os.truncate": (1, ()),
    "os.chdir": (1, ()),
    "shutil.rmtree": (1, ()),
}


def audit_hook(end: Callable[[str], object]) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook that calls ``end(event)`` for what is forbidden. It holds what it needs, so that no later change unsays it."""
    realpath, isdir, fsdecode = os.path.realpath, os.path.isdir, os.fsdecode
    folder = realpath(os.getcwd())
    library = {realpath(sys.base_prefix), realpath(sys.base_exec_prefix)}
    barred, families, changes = BARRED, FAMILIES, CHANGES
    written = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def within(path: Any, *roots: str) -> bool:
        if isinstance(path, int):
            return True  # a descriptor, which was judged when it was opened
        path = realpath(fsdecode(path))
        return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in barred or event.startswith(families):
            end(event)
        elif event == "open":
            path, _, flags = args
            reads = not (flags or 0) & written and not isdir(path)
            if not within(path, folder) and not (reads and within(path, *library)):
                end(event)
        elif event in changes:
            paths, starts = changes[event]
            inside = all(within(path, folder) for path in args[:paths])
            if not inside or any(args[at] not in (-1, None) for at in starts):
                end(event)

    return hook


def main() -> None:
    order = json.load(sys.stdin)
    write, leave, flush = os.write, os._exit, sys.stdout.flush

    def end(report: str, code: int = FORBIDDEN) -> NoReturn:
        write(REPORT, (report + "\n").encode())
        leave(code)

    program = sys.modules["__main__"] = ModuleType("__main__")
    if order["hook"]:
        vars(_posixsubprocess)["fork_exec"] = None  # the one way to a new process that no event tells of
        sys.addaudithook(audit_hook(lambda event: end("forbidden " + event)))
    try:
        exec(compile(order["source"], "<program>", "exec"), program.__dict__)
        flush()
    except MemoryError:
        end("memory", 1)
    except SystemExit:
        end("ended early", 1)
    except BaseException as error:
        kind = type(error).__name__
        try:
            traceback.print_exc(limit=-4)
            sys.stderr.flush()
        except BaseException:
            pass
        end("raised " + kind, 1)
    end(order["token"], 0)


if __name__ == "__main__":
    main()
