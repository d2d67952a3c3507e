"""One report, written once and read by all tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd
import pytest

from harness import report


class Written(NamedTuple):
    """A report on disk and what it was made from."""

    folder: Path
    paths: list[Path]
    verdict: dict[str, Any]
    samples: pd.DataFrame


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """The module beside this file, loaded by path so that no other folder's ``fixture`` can stand in for it."""
    spec = importlib.util.spec_from_file_location("report_fixture", Path(__file__).with_name("fixture.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def written(made: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("report")
    verdict, samples = made.verdict(), made.samples()
    return Written(folder, report.write(folder, verdict, samples), verdict, samples)
