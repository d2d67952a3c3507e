"""Calibration of difficulty: which setting is found, on which samples, and that it is found again."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.difficulty import SAMPLES, bisect
from harness.samples import load as load_samples
from harness.store import ResultStore
from tests.cli import Kvgate, Own, Said
from tests.tasks.task_doubles import NAMES, Pieces, load

RIGHT = {2: 16, 4: 15, 8: 12, 16: 5}  # of 16 samples, by number of keys
DIAL = f"""
from dataclasses import dataclass
from harness.types import Score, State
from tasks.retrieval.needle import Needle

@dataclass(frozen=True, kw_only=True)
class Dial(Needle):
    '''So many of 16 samples are right, whatever was said.'''

    def score(self, sample, response):
        return Score(State.SCORED, float(int(sample.id[-5:]) % 16 < {RIGHT}[self.keys]))
"""


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 1))
def test_bisection_finds_the_nearest_of_falling_scores_in_few_tries(scores: list[float], goal: float) -> None:
    scores = sorted(scores, reverse=True)
    tried = bisect(len(scores), goal, scores.__getitem__)
    assert all(tried[at] == scores[at] for at in tried)
    assert min(abs(score - goal) for score in tried.values()) == min(abs(score - goal) for score in scores)
    assert len(tried) <= math.floor(math.log2(len(scores))) + 1


@pytest.mark.parametrize("name", NAMES)
def test_every_task_has_a_ladder_it_can_climb(name: str) -> None:
    """All but fidelity, which has no right and wrong; a ladder begins with what the task allows and gets harder by size."""
    from harness.difficulty import _ladder

    task = load(name, lengths=[4096])
    option, values = _ladder(task, Pieces())
    assert (len(values) >= 2) == (not task.fidelity)
    assert list(values) == sorted(values)
    assert option == "lengths" or not name.startswith("ruler_"), "RULER's tasks are what their options make them"


@pytest.fixture
def dial(kvgate: Kvgate, own: Own):
    """``kvgate run`` on a task whose baseline scores what ``RIGHT`` says."""
    own("dial", DIAL)

    def run(*words: str) -> Said:
        task = ("task=needle_multikey", "task._target_=dial.Dial", "task.calibrate=true", "task.lengths=[1600]")
        return kvgate.run("strategy=fp8", "n=1", "gate.margin=0.3", *task, *words)

    return run


def test_a_setting_is_found_once_on_samples_of_its_own_and_found_again(dial, kvgate: Kvgate) -> None:
    note = f"needle_multikey: calibrated on the baseline: keys=8 (tried 4: 0.94, 8: 0.75; n={SAMPLES}, seed "
    before = dial("dry_run=true")
    assert before.code == 0, before.err
    assert "would try keys of 2, 4, 8, 16," in before.out and "0 of 1 in the store" in before.out
    assert not (kvgate.results / "cells").exists() and not (kvgate.results / "runs").exists()
    said = dial()
    assert said.code == 0, said.err
    folder = kvgate.results / "runs" / "r"
    manifest, verdict = (json.loads((folder / f"{name}.json").read_text()) for name in ("run", "verdict"))
    assert note in said.out and note in verdict["notes"][0] and note in (folder / "report.md").read_text()
    (group,) = manifest["groups"]
    assert group["task"]["keys"] == 8 and not {"calibrate", "band"} & group["task"].keys()
    cells = {path.parent.name for path in kvgate.results.glob("cells/*/ask.json")}
    mine = {cell["address"] for cell in group["cells"]}
    assert mine < cells and len(cells - mine) == 2  # the baseline alone, at each setting that was tried
    store = ResultStore(kvgate.results)
    thrown_away = {id for address in cells - mine for id in store.cell(address).read()[0]}
    samples = {sample.id for sample in load_samples(kvgate.results / "samples" / group["samples_file"])}
    assert len(thrown_away) == 2 * SAMPLES and not samples & thrown_away

    parts = {path: path.stat().st_mtime_ns for cell in cells for path in (store.root / "cells" / cell).glob("part-*")}
    again = dial("n=2", "name=again")
    assert again.code == 0 and note in again.out
    calibration = {path: time for path, time in parts.items() if path.parent.name in cells - mine}
    assert len(calibration) == 2 and all(path.stat().st_mtime_ns == time for path, time in calibration.items())
    second = json.loads((kvgate.results / "runs" / "again" / "run.json").read_text())["groups"][0]
    assert [cell["address"] for cell in second["cells"]] == [cell["address"] for cell in group["cells"]]
    # a run that names the setting itself has the same cells
    plainly = dial("task.calibrate=false", "task.keys=8", "dry_run=true")
    assert plainly.out.count("1 of 1 in the store") == 4

    missed = dial("task.band=[0.4,0.6]")
    assert missed.code == 2 and "Traceback" not in missed.err
    assert (
        "no keys of needle_multikey takes the baseline's score into task.band [0.4, 0.6]: tried 8: 0.75, 16: 0.31;"
        in missed.err
    )


REFUSED = {
    "what has no right and wrong": (["task=fidelity"], "fidelity has no option that makes it harder"),
    "a band that is none": (
        ["task.band=[0.9,0.5]"],
        "task.band must be two scores in [0, 1], the lower first, got [0.9, 0.5]",
    ),
    "one end of a band": (["task.band=0.5"], "task.band must be two scores in [0, 1]", "got 0.5"),
    "a band of words": (["task.band=[low,high]"], "task.band must be two scores", "['low', 'high']"),
    "neither yes nor no": (["task.calibrate=maybe"], "task.calibrate must be true or false, got 'maybe'"),
    "with all that is wrong": (["task.band=[2,3]", "gate.margin=7"], "task.band must be", "gate.margin must be"),
    "a run that cannot be": (["n=0"], "n must be 1 or more, got 0"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_calibrated_is_refused_before_anything_is_run(kvgate: Kvgate, words) -> None:
    overrides, *expected = words
    said = kvgate.run("strategy=fp8", *(["task.calibrate=true"] if "calibrate" not in overrides[0] else []), *overrides)
    assert said.code == 2 and "Traceback" not in said.err
    assert all(word in said.err for word in expected), said.err
    assert not (kvgate.results / "cells").exists()
