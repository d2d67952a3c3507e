"""The walls of the sandbox: starts ``guard.py`` behind them, waits, and tells how it ended. ``sandbox.py`` runs this file
in a fresh interpreter, an order on its standard input, because a process with threads and a GPU must not fork.

The order of the walls: new namespaces (process ids, network, files, messages), a root that has nothing but the system's
libraries and Python, read-only, and one small folder in memory; then another user if this one is root; then limits; then
no way to new privileges. Only then is the program's interpreter started.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534
STRANGERS = 2_000_000_000  # user ids from here on are given to nobody
REPORT = 9  # the file descriptor that the guard reports to


def call(function: Callable[..., int], *args: Any) -> None:
    if function(*args) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    call(libc.mount, *encoded[:3], ctypes.c_ulong(flags), encoded[3])


def read_only(target: str) -> None:
    """Make a mount and all below it read-only, without devices and without programs that change the user."""
    attributes = (ctypes.c_uint64 * 4)(RDONLY | NOSUID | NODEV, 0, 0, 0)
    call(libc.syscall, MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, 32)


def is_root() -> bool:
    """Whether this process may become any user: root, and not only in some container's account of users."""
    with open("/proc/self/uid_map") as file:
        return os.geteuid() == 0 and [int(word) for word in file.readline().split()] == [0, 0, 2**32 - 1]


def leave_users_and_processes(root: bool) -> None:
    """The next child is process 1 of its own world; without root, also of its own users, among whom it is nobody."""
    user, group = os.geteuid(), os.getegid()
    call(libc.unshare, NEWPID | (0 if root else NEWUSER))
    if not root:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def leave_files_and_network(folder: str, libraries: list[str], megabytes: int) -> None:
    """Leave ``libraries`` to see, read-only, and an empty folder to write to, which is in memory and gone with the program."""
    call(libc.unshare, NEWNS | NEWNET | NEWIPC | NEWUTS)
    mount(None, "/", None, REC | PRIVATE)
    mount("tmpfs", folder, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for path in libraries:
        if os.path.islink(path):
            os.symlink(os.readlink(path), folder + path)
        elif os.path.isdir(path) and not os.path.exists(folder + path):
            os.makedirs(folder + path)
            mount(path, folder + path, None, BIND | REC)
            read_only(folder + path)
    work = folder + "/work"
    os.mkdir(work)
    mount("tmpfs", work, "tmpfs", NOSUID | NODEV | NOEXEC, f"size={megabytes}m,nr_inodes=1000,mode=777")
    mount(None, folder, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    os.chdir(folder)
    call(libc.syscall, PIVOT_ROOT[os.uname().machine], b".", b".")
    call(libc.umount2, b".", DETACH)
    os.chdir("/work")


def become_stranger(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def limit(limits: Mapping[str, Any], processes: int) -> None:
    seconds = int(limits["seconds"]) + 1
    megabyte = 1 << 20
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_AS, limits["memory_mb"] * megabyte, limits["memory_mb"] * megabyte),
        (resource.RLIMIT_FSIZE, limits["files_mb"] * megabyte, limits["files_mb"] * megabyte),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def enter(order: Mapping[str, Any], root: bool) -> None:
    """All walls that a process puts around itself. No way back."""
    user = STRANGERS + order["number"]
    if order["namespaces"]:
        leave_files_and_network(order["folder"], order["libraries"], order["limits"]["files_mb"])
    else:
        os.chdir(order["folder"])
        if root:
            os.chown(".", user, user)
    if root:
        become_stranger(user)
    own = root or order["namespaces"]  # else the limit counts all that this user runs, and 1 is "no more"
    limit(order["limits"], order["limits"]["processes"] if own else 1)
    call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(order: Mapping[str, Any]) -> tuple[int, int, int]:
    """The program's process, its output and its report."""
    program = os.memfd_create("program")
    with open(program, "wb", closefd=False) as file:
        file.write(json.dumps({key: order[key] for key in ("source", "token", "hook")}).encode())
    os.lseek(program, 0, os.SEEK_SET)
    output, outputs = os.pipe()
    report, reports = os.pipe()
    root = is_root()
    if order["namespaces"]:
        leave_users_and_processes(root)
    child = os.fork()
    if child:
        os.close(outputs)
        os.close(reports)
        return child, output, report
    try:
        for source, target in ((program, 0), (outputs, 1), (outputs, 2), (reports, REPORT)):
            os.dup2(source, target)
        os.closerange(3, REPORT)
        os.setsid()
        enter(order, root)
        os.execve(order["python"], [order["python"], "-I", "-S", "-c", order["guard"]], {})
    except BaseException as error:
        os.write(REPORT, f"jail {error}".encode())
    finally:
        os._exit(70)


def watch(child: int, output: int, report: int, limits: Mapping[str, Any]) -> tuple[str, int, bytes, bytes]:
    """Read what the program says, until it ends or breaks a limit. Keeps no more than may be said."""
    said = {output: b"", report: b""}
    most = {output: limits["output_bytes"], report: 4096}
    ended = os.pidfd_open(child)
    poll = select.poll()
    for fd in (ended, *said):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    open_ends = list(said)
    deadline = time.monotonic() + limits["seconds"]
    broken = ""
    over = False
    while not broken and not over:
        ready = [fd for fd, _ in poll.poll(max(deadline - time.monotonic(), 0) * 1000)]
        over = ended in ready
        if not ready:
            broken = "timeout"
        for fd in [fd for fd in open_ends if over or fd in ready]:
            if not drain(fd, said, most[fd]):
                open_ends.remove(fd)
                poll.unregister(fd)
            if len(said[fd]) > most[fd]:
                broken = "too much output"
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return broken, status, said[output][: most[output]], said[report][: most[report]]


def drain(fd: int, said: dict[int, bytes], most: int) -> bool:
    """Read what is there. False at its end."""
    while len(said[fd]) <= most:
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        said[fd] += chunk
    return True


def end_orphans() -> None:
    """End whatever the program left behind. In its own process world there is nothing left by now."""
    for _ in range(1000):
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def reason(token: str, broken: str, status: int, report: str) -> str:
    """How it ended, in words; "passed" only if the guard said so."""
    if broken:
        return broken
    if report == token and status == 0:
        return "passed"
    if report.startswith(("forbidden ", "raised ", "memory", "ended early", "jail ")):
        return report
    if status == -signal.SIGXCPU:
        return "timeout"
    return f"signal {-status}" if status < 0 else f"exit code {status}"


def main() -> None:
    order = json.load(sys.stdin)
    call(libc.prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child, output, report = start(order)
    broken, status, said, told = watch(child, output, report, order["limits"])
    end_orphans()
    first = told.decode(errors="replace").partition("\n")[0]  # of several processes the first to report counts
    why = reason(order["token"], broken, status, first)
    json.dump({"reason": why, "output": said.decode(errors="replace")}, sys.stdout)


if __name__ == "__main__":
    main()
