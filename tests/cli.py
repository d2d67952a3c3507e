"""Runs the command line in this process, as the console script does, and tells what it said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import cli

Own = Callable[[str, str], Path]
"""``own(name, source)`` of conftest.py: writes a module as a user would."""


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Kvgate:
    """``kvgate(*words)`` for one results folder and one model."""

    def __init__(
        self, results: Path, model: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.results, self.model, self.capsys, self.patch = results, model, capsys, patch

    def __call__(self, *words: str) -> Said:
        self.patch.setattr(sys, "argv", ["kvgate", *words])
        self.patch.setattr(cli, "exit_code", 0)
        self.patch.setattr(cli, "problems", [])
        self.patch.setenv("HYDRA_FULL_ERROR", "1")
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = self.capsys.readouterr()
        code = stop.value.code
        return Said(code if isinstance(code, int) else 0, out, err)

    def run(self, *words: str) -> Said:
        """``kvgate run`` on the tiny model with short prompts of the fixture's folder."""
        given = {word.lstrip("+").split("=")[0] for word in words}
        defaults = {
            "model": "hf",
            "model.path": str(self.model),
            "results_dir": str(self.results),
            "engine.threads": "1",
            "task": "needle_single",
            "task.lengths": "[420]",
            "n": "3",
            "name": "r",
        }
        return self("run", *words, *(f"{key}={value}" for key, value in defaults.items() if key not in given))
