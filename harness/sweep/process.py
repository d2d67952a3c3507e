"""One worker process: told its work on standard input, heard line by line, ended with everything that it has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Timer
from types import TracebackType
from typing import Any

from harness.types import BadInput

# Threads that spin while they wait for each other slow a run down many times where cores are shared with other work; those
# that sleep at once cost a fifth on a quiet machine. A short spin costs neither.
PATIENT = {"GOMP_SPINCOUNT": "1000"}
GRACE_S = 60.0  # for a process that is asked to end


class Process:
    """A Python module that runs as a process, from ``with`` on.

    Args:
        module: what is run, with ``python -m``.
        python: interpreter; None for this one.
        silence_s: it hangs, and is ended, when it is listened to and says nothing for so long; None waits for ever.
        environment: what it finds in its environment, beside what is in ours.
    """

    def __init__(
        self, module: str, python: str | None, silence_s: float | None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = [python or sys.executable, "-P", "-m", module]
        self.silence_s = silence_s
        self.environment = environment or {}
        self.hung = False

    def __enter__(self) -> Process:
        environment = {**PATIENT, **os.environ, **self.environment}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # in a session of its own, so that whatever it starts can be ended with it
        self.popen = subprocess.Popen(self.command, text=True, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        with suppress(BrokenPipeError):  # what it was never told
            self.popen.__exit__(kind, error, trace)

    def tell(self, message: Mapping[str, Any]) -> None:
        """One line to its standard input, which stays open: it ends when that closes. Raises BrokenPipeError if it is gone."""
        self.popen.stdin.write(json.dumps(message) + "\n")
        self.popen.stdin.flush()

    def lines(self) -> Iterator[str]:
        """What it says, until it ends, or is ended because it was silent for too long."""
        while True:
            with self._patience():
                line = self.popen.stdout.readline()
            if not line:
                return
            yield line

    def events(self, pass_on: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """The events that it tells, a JSON object a line. What a library printed between them is passed on.

        Raises BadInput with the problems of an event ``refused``.
        """
        for line in self.lines():
            try:
                event = json.loads(line)
                refused = event["event"] == "refused"
            except (ValueError, TypeError, KeyError):
                pass_on(line.rstrip())
                continue
            if refused:
                raise BadInput(*event["problems"])
            yield event

    def wait(self) -> int:
        return int(self.popen.wait())

    def dismiss(self) -> None:
        """Tell it that nothing more is asked, and hear it out."""
        with suppress(BrokenPipeError):
            self.tell({})
            for _ in self.lines():
                pass

    def finish(self) -> None:
        """Close its input and let it end by itself for a while."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self.popen.stdin.close()
            self.popen.wait(GRACE_S)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        if self.silence_s is None:
            yield
            return

        def end() -> None:
            self.hung = True
            self._end()

        timer = Timer(self.silence_s, end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
