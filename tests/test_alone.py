"""The command that a report gives for one cell asks for that cell and no other, and finds it where it lies."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from harness.manifest import _alone
from tests.cli import Kvgate


def cells(kvgate: Kvgate, run: str) -> list[dict[str, Any]]:
    return list(json.loads((kvgate.results / "runs" / run / "verdict.json").read_text())["cells"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (
            "-m",
            "strategy=fp8,window",
            "task=needle_single,code_lookup",
            "gate.tasks=[needle_single]",
            "compare=fp8,window",
        ),
        ("sweep=ladder", "strategy=knorm", "keep=[0.75,0.5]"),
        ("-m", "strategy=fp8", "strategy.quant.scale=head,tensor", "seed=3"),
    ],
    ids=["grid", "ladder", "options"],
)
def test_the_command_of_a_cell_is_that_cell(kvgate: Kvgate, words: tuple[str, ...]) -> None:
    assert kvgate.run(*words).code == 0
    before = {path: path.read_bytes() for path in kvgate.results.glob("cells/*/part-*")}
    asked = cells(kvgate, "r")
    for cell in asked:
        first, second, *alone = shlex.split(cell["command"])
        assert (first, second) == ("kvgate", "run") and kvgate("run", *alone).code == 0
        (found,) = cells(kvgate, alone[-1].removeprefix("name="))
        assert {key: found[key] for key in ("address", "strategy", "task", "score", "n")} == {
            key: cell[key] for key in ("address", "strategy", "task", "score", "n")
        }
    assert {path: path.read_bytes() for path in kvgate.results.glob("cells/*/part-*")} == before
    assert cells(kvgate, "r") == asked  # the run itself was not written over


def test_the_user_s_own_folder_of_options_is_kept() -> None:
    class Named:
        name, address, seed, early_stop = "r", "0123456789", 0, True
        overrides = ("strategy=mine", "+x=a b")

    plan = Named()
    plan.gate = plan  # type: ignore[attr-defined]
    command = ["kvgate run", "-m", "--config-dir", "/my conf", "strategy=mine,other"]
    said = _alone(plan, plan, plan, command)  # type: ignore[arg-type]
    assert (
        said == "kvgate run --config-dir '/my conf' strategy=mine '+x=a b' gate.early_stop=true seed=0 name=r-01234567"
    )
