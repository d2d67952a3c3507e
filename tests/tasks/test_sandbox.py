"""Programs that mean harm come back as failed, and nothing outside was touched: behind all walls, and behind fewer."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest

from tasks.code import sandbox
from tasks.code.sandbox import Limits, SandboxError, Walls, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

LIMITS = Limits(seconds=0.6, memory_mb=256, files_mb=4, processes=8, output_bytes=20_000)
ROOMY = Limits(seconds=20, memory_mb=256, output_bytes=20_000)

# CANARY is a file that must stay as it is, PORT one that nobody may call. Where a wall holds, each of them raises.
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "thread bomb": "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(99,)).start()",
    "memory": "held = []\nwhile True:\n    held.append(bytearray(10**7))",
    "endless output": "while True:\n    print('x' * 10000)",
    "endless loop": "while True:\n    pass",
    "endless sleep": "import time\ntime.sleep(10**6)",
    "deaf": "import signal\nfor number in (1, 2, 3, 15, 24):\n    signal.signal(number, signal.SIG_IGN)\nwhile True:\n    pass",
    "write a file": "open(CANARY, 'w').write('gone')",
    "delete a file": "import os\nos.remove(CANARY)",
    "delete a folder": "import os, shutil\nshutil.rmtree(os.path.dirname(CANARY))",
    "rename a file": "import os\nos.rename(CANARY, CANARY + '2')",
    "read a file": "print(open(CANARY).read())",
    "write through a link": "import os\nos.symlink(CANARY, 'link')\nopen('link', 'w').write('gone')",
    "fill the disk": "f = open('big', 'wb')\nwhile True:\n    f.write(bytes(10**6))",
    "hold all files open": "held = []\nwhile True:\n    held.append(open(f'f{len(held)}', 'w'))",
    "call by TCP": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1).send(b'secret')",
    "ask the network": "import urllib.request\nurllib.request.urlopen(f'http://127.0.0.1:{PORT}/secret')",
    "listen": "import socket\nsocket.create_server(('0.0.0.0', 0))\nsocket.create_connection(('127.0.0.1', PORT))",
    "kill the parent": "import os\nfor _ in range(3):\n    os.kill(os.getppid(), 9)\nraise OSError",
    "kill everyone": "import os\nos.kill(-1, 9)\nraise OSError",
    "run a shell": "import os\nif os.system(f'echo gone > {CANARY}'):\n    raise OSError",
    "run a program": "import subprocess\nsubprocess.run(['/usr/bin/rm', CANARY], check=True)",
    "replace itself": "import os\nos.execv('/usr/bin/rm', ['rm', CANARY])",
    "outlive it": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nraise OSError",
    "escape by import": "import ctypes\nif ctypes.CDLL(None).unlink(CANARY.encode()):\n    raise OSError",
    "escape by a hidden module": (
        "import os, _posixsubprocess as hidden\nend, _ = os.pipe()\n"
        "hidden.fork_exec([b'rm', CANARY.encode()], [b'/usr/bin/rm'], True, (), None, None, -1, -1, -1, -1, -1, -1, "
        "end, _, True, True, 0, None, None, None, -1, None, False)\nraise OSError"
    ),
    "escape by replacing": (
        "import os, posixpath\nposixpath.realpath = os.path.realpath = lambda path, **_: os.getcwd() + '/x'\n"
        "os.fsdecode = lambda path: 'x'\nopen(CANARY, 'w').write('gone')"
    ),
    "leave its folder undeletable": (
        "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.chmod('a/b', 0)\nos.chmod('a', 0)\n"
        "os.chmod('.', 0)\nraise OSError"
    ),
    "dig deep": "import os\nfor _ in range(2000):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\nraise OSError",
    "leave early": "import os\nos._exit(0)",
    "leave politely": "raise SystemExit(0)",
    "claim to have passed": (
        "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b'passed')\n    except OSError:\n        pass\n"
        "os._exit(0)"
    ),
    "recurse without end": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f([x])[0]\nf(0)",
}
NAMESPACES, NO_HOOK, NO_NAMESPACES = Walls(True), Walls(True, hook=False), Walls(False)


@cache
def grants(walls: Walls, python: str) -> bool:
    try:
        return run("", walls=walls).passed
    except SandboxError:
        return False


@pytest.fixture(params=[NAMESPACES, NO_HOOK, NO_NAMESPACES], ids=["all walls", "no hook", "no namespaces"])
def walls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Walls:
    """The walls asked for. Without namespaces root becomes another user, who needs a Python that all may read."""
    if not grants(request.param, sandbox.PYTHON):
        monkeypatch.setattr(sandbox, "PYTHON", os.path.realpath("/usr/bin/python3"))
    if not grants(request.param, sandbox.PYTHON):
        pytest.skip("this machine does not grant these walls")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def canary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="canary-", dir="/var/tmp") as folder:
        file = Path(folder) / "canary"
        file.write_text("a secret")
        file.chmod(0o666)
        file.parent.chmod(0o777)  # whoever is let in may do all
        yield file


@pytest.fixture
def listener() -> Iterator[tuple[int, list[object]]]:
    """A port, and who called it."""
    callers: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    callers.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=listen, daemon=True).start()
        yield server.getsockname()[1], callers
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The processes, here or in any namespace, that this test's guard runs in or has begun."""
    mark = f"# {uuid4()}"
    folder = tmp_path_factory.mktemp("marked")
    for name in ("sandbox.py", "jail.py", "guard.py"):
        shutil.copy(sandbox.HERE / name, folder)
    with (folder / "guard.py").open("a") as guard:
        guard.write(mark)  # the text is on the command line of the program's process
    monkeypatch.setattr(sandbox, "HERE", folder)

    def found() -> list[str]:
        names = []
        for entry in filter(lambda entry: entry.name.isdigit(), Path("/proc").iterdir()):
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    names.append(entry.name)
            except OSError:
                continue
        return names

    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_fails_and_touches_nothing(
    name: str,
    walls: Walls,
    canary: Path,
    listener: tuple[int, list[object]],
    programs: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, callers = listener
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)  # pytest closes its folders, and the program may be another user
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    outcome = run(f"CANARY = {str(canary)!r}\nPORT = {port}\n{HOSTILE[name]}\n", LIMITS, walls)
    assert not outcome.passed
    assert outcome.reason
    assert time.monotonic() - began < LIMITS.seconds + 10
    assert len(outcome.output) <= LIMITS.output_bytes
    assert "a secret" not in outcome.output
    assert canary.read_text() == "a secret"
    assert os.listdir(canary.parent) == ["canary"]
    assert os.listdir(tmp_path) == []
    assert callers == []
    assert programs() == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size < 50_000  # kilobytes


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("held = bytes(10**10)", "memory"),
        ("while True: print('x' * 10000)", "too much output"),
        ("assert 1 == 2", "raised AssertionError"),
        ("import sys; sys.exit()", "ended early"),
        ("import os; os._exit(3)", "exit code 3"),
        ("def", "raised SyntaxError"),
        ("import socket; socket.socket()", "forbidden socket.__new__"),
        ("open('/etc/passwd')", "forbidden open"),
    ],
)
def test_the_reason_is_told(source: str, reason: str) -> None:
    assert run(source, ROOMY).reason == reason


def test_an_innocent_program_passes(walls: Walls) -> None:
    source = (
        "import collections, dataclasses, hashlib, math, os, random, re, string, typing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
        "assert os.getuid() != 0\n"
        "open('notes', 'w').write('kept')\nassert open('notes').read() == 'kept'\nos.remove('notes')\n"
        "print(Point(3), hashlib.md5(b'').hexdigest())\n"
    )
    outcome = run(source, ROOMY, walls)
    assert (outcome.passed, outcome.reason) == (True, "passed")
    assert outcome.output == "Point(x=3) d41d8cd98f00b204e9800998ecf8427e\n"


@pytest.mark.parametrize("namespaces", [True, False])
def test_processes_that_were_let_begin_end_with_their_program(
    namespaces: bool, programs: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that left the session and the process that began them."""
    if not namespaces:
        monkeypatch.setattr(sandbox, "PYTHON", os.path.realpath("/usr/bin/python3"))
    if not grants(Walls(namespaces), sandbox.PYTHON):
        pytest.skip("this machine does not grant these walls")
    source = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
        "    os._exit(0)\nos.wait()\nprint('begun')\n"
    )
    outcome = run(source, ROOMY, Walls(namespaces, hook=False))
    if outcome.reason == "raised BlockingIOError":
        pytest.skip("a user who is not root cannot begin a process without namespaces")
    assert (outcome.reason, outcome.output) == ("passed", "begun\n")
    assert programs() == []


def test_the_environment_is_empty(walls: Walls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "a secret")
    outcome = run("import os, sys\nprint(dict(os.environ), sys.path, sys.flags.isolated)", ROOMY, walls)
    assert outcome.passed
    assert "SECRET" not in outcome.output
    assert "site-packages" not in outcome.output
    assert outcome.output.endswith(" 1\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests are about that user already")
def test_a_user_who_is_not_root_has_the_same_walls(canary: Path, programs: Callable[[], list[str]]) -> None:
    """Its namespaces are another kind: they begin with one of users."""
    for name in ("sandbox.py", "jail.py", "guard.py"):
        shutil.copy(sandbox.HERE / name, canary.parent)
    names = ("call by TCP", "read a file", "write a file", "fork bomb", "kill everyone", "outlive it")
    sources = ["print(1)", *(f"CANARY = {str(canary)!r}\nPORT = 1\n{HOSTILE[name]}" for name in names)]
    code = f"import sandbox\nfor s in {sources!r}:\n    print(sandbox.run(s, walls=sandbox.Walls(True, False)).reason)"
    told = subprocess.run(
        [os.path.realpath("/usr/bin/python3"), "-B", "-c", code],
        **{"cwd": canary.parent, "user": 1234, "group": 1234, "extra_groups": [], "capture_output": True, "text": True},
    )
    if "SandboxError" in told.stderr or "No such file" in told.stderr:
        pytest.skip("this machine grants such a user no namespaces, or has no python3 for it")
    assert told.stdout.split("\n") == [
        "passed",
        "raised OSError",
        *["raised FileNotFoundError"] * 2,
        "raised BlockingIOError",
        "raised ProcessLookupError",
        "raised OSError",
        "",
    ]
    assert canary.read_text() == "a secret"
    assert programs() == []


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    sandbox.best_walls.cache_clear()
    with pytest.raises(SandboxError, match="on Linux only, and this is win32"):
        run("")
    sandbox.best_walls.cache_clear()


def test_a_machine_without_any_walls_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PYTHON", "/bin/false")
    sandbox.best_walls.cache_clear()
    with pytest.raises(SandboxError, match=r"cannot be run here: the sandbox did not start \(exit code 1\)"):
        run("")
    sandbox.best_walls.cache_clear()
