"""kvgate watch: what is seen of a run that goes on elsewhere, from its store alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import live
from harness.sweep.watch import write_outcome
from tests.cli import Kvgate
from tests.test_early import known  # noqa: F401  (a fixture)
from tests.test_resume import start


def files(results: Path) -> set[str]:
    return {str(path.relative_to(results)) for path in results.rglob("*")}


def cut(kvgate: Kvgate, keep: int) -> None:
    """Take the run back to where each cell had so many records and nothing was judged."""
    for path in kvgate.results.glob("cells/*/part-*"):
        lines = path.read_text().splitlines()[:keep]
        path.write_text("".join(f"{line}\n" for line in lines))
    for path in [*kvgate.results.glob("cells/*/finished-*"), *kvgate.results.glob("runs/r/verdict.json")]:
        path.unlink()
    for path in kvgate.results.glob("looks/*/*"):
        path.unlink()


def test_a_run_that_has_ended_and_one_that_goes_on(kvgate: Kvgate) -> None:
    assert kvgate.run("-m", "strategy=fp8,window", "task=needle_single,fidelity", "gate.margin=0.3").code == 0
    where = ("watch", "r", f"results_dir={kvgate.results}")
    said = kvgate(*where)
    assert said.code == 0, said.err
    assert "r: 27 of 27 answers, 2 of 2 tasks, ended" in said.out
    assert "needle_single: fp8 is VOID, 0.000 over 3 of 3" in said.out and "fidelity: window is MEASURED" in said.out
    cut(kvgate, 2)
    before = files(kvgate.results)
    said = kvgate(*where, "once=true")
    assert said.code == 0 and "r: 18 of 27 answers, 0 of 2 tasks" in said.out and "is VOID" not in said.out
    assert files(kvgate.results) == before  # nothing is written, no look is counted


def test_what_an_early_stop_spares_is_not_waited_for(known, kvgate: Kvgate) -> None:  # noqa: F811
    assert known("strategy=window", "gate.early_stop=true", "engine.rows=20").code == 0
    view = live.look("r", kvgate.results)
    (line,) = view.lines
    assert view.ended and view.done == view.total and view.groups_done == 1
    assert line.decision == "NO-GO" and line.answers < line.n


def test_why_parts_of_a_run_were_given_up_is_shown_while_it_goes_on(kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    cut(kvgate, 2)
    file = kvgate.results / "runs" / "r" / "run.json"
    manifest = json.loads(file.read_text())
    shard = {"job_dir": str(kvgate.results / "jobs" / manifest["job"]), "number": 1}
    assert live.look("r", kvgate.results).lost == ()  # all ended well, and was cleared away
    write_outcome({**shard, "number": 0}, [])
    write_outcome(shard, ["engine: the worker died"])
    said = kvgate("watch", "r", f"results_dir={kvgate.results}", "once=true")
    assert said.code == 0 and said.out.count("given up: engine: the worker died") == 1
    file.write_text(
        json.dumps({**manifest, "lost": ["fp8: engine: the worker died"]})
    )  # as the end of the run tells it
    assert live.look("r", kvgate.results).lost == ("fp8: engine: the worker died",)


def test_a_terminal_gets_one_screen(kvgate: Kvgate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda self: True, raising=False)
    said = kvgate("watch", "r", f"results_dir={kvgate.results}")
    assert said.code == 0 and said.out.count(live.CLEAR) == 1
    assert re.search(r"needle_single +fp8 +3 of 3 ", said.out) and "kvgate report r shows" in said.out


def test_rate_and_time_left_come_from_what_was_seen(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(live.time, "monotonic", lambda: next(clock))
    line = live.Line("needle", "fp8", 5, 50, 1.0, 1.0, 0.0, "")
    show = live._plain_lines()
    next(show)
    for done, ended in ((10, False), (30, False), (100, True)):
        show.send(live.View("r", done, 100, 1, 0, (line,), ended))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "r: 10 of 100 answers, 0 of 1 tasks" and "2 a second, 0:00:35 left" in out[1]
    assert out[2].endswith("ended") and "fp8" not in " ".join(out)


def test_a_run_elsewhere_is_watched_to_its_end(tiny: Path, tmp_path: Path) -> None:
    run = start(tmp_path / "results", tiny)
    try:
        command = [
            sys.executable,
            "-m",
            "harness.cli",
            "watch",
            "r",
            f"results_dir={tmp_path / 'results'}",
            "every_s=0.2",
        ]
        for _ in range(600):
            if (tmp_path / "results" / "runs" / "r" / "run.json").exists():
                break
            with pytest.raises(subprocess.TimeoutExpired):
                run.wait(0.1)
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ))
        assert said.returncode == 0, said.stderr
        assert said.stdout.splitlines()[-1].startswith(("r: ", "needle", "fidelity")) and ", ended" in said.stdout
        assert run.wait(120) == 0
        verdict = json.loads((tmp_path / "results" / "runs" / "r" / "verdict.json").read_text())
        assert {cell["look"] for cell in verdict["cells"]} == {1}
    finally:
        run.kill()
        run.communicate()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "run must be a run folder or the name of a run"),
        (["r", "every_s=0"], "every_s must be above 0, got 0"),
    ],
)
def test_what_cannot_be_watched_is_refused(kvgate: Kvgate, words: list[str], says: str) -> None:
    said = kvgate("watch", *words, f"results_dir={kvgate.results}")
    assert said.code == 2 and says in said.err and "Traceback" not in said.err
