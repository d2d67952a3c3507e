"""Early stop: who is asked no more, what that is called, and that planner, worker and judge agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.early import Harm, Rule
from harness.pairs import pair_up
from harness.store import ResultStore
from harness.types import Decision, Gate, Record, Response, Sample, State
from harness.verdict import harm_shown
from tests.cli import Kvgate, Own
from tests.test_verdict import flip_pairs, judge, make_pairs

EARLY = Gate(looks=1, early_stop=True)


def unfinished(pairs: Sequence[Any], first: int) -> tuple[Any, ...]:
    """The pairs, with those from place ``first`` on never asked of the candidate."""
    return tuple(
        replace(pair, candidate=None, candidate_state=State.NOT_RUN) if at >= first else pair
        for at, pair in enumerate(pairs)
    )


# --- The verdict ---

HARM = flip_pairs(200, gained=1, lost=80)


def test_harm_that_is_shown_before_the_end_is_no_go_with_its_count() -> None:
    stop = harm_shown(HARM, EARLY)
    assert stop is not None and stop < 60
    verdict = judge(unfinished(HARM, stop), EARLY, planned_n=200)
    assert verdict.decision is Decision.NO_GO
    assert (verdict.stopped_at, verdict.saved, verdict.n) == (stop, 200 - stop, stop)
    assert f"after {stop} samples" in verdict.reasons[0] and f"{200 - stop} of 200 samples were not asked" in str(
        verdict
    )
    assert verdict.ci_high is not None and verdict.ci_high < -EARLY.margin and verdict.p_value is None
    one_less = judge(unfinished(HARM, stop - 1), EARLY, planned_n=200)
    assert one_less.decision is Decision.INCONCLUSIVE and one_less.stopped_at is None


def test_nothing_stops_early_where_that_was_not_promised() -> None:
    verdict = judge(unfinished(HARM, 100), replace(EARLY, early_stop=False), planned_n=200)
    assert verdict.decision is Decision.INCONCLUSIVE and "run again to complete" in verdict.reasons[0]


def test_a_faulty_comparison_is_void_however_harmful() -> None:
    pairs = tuple(replace(pair, prompts_agree=False) for pair in unfinished(HARM, 100))
    assert judge(pairs, EARLY, planned_n=200).decision is Decision.VOID


def test_harm_itself_shows_that_the_task_sees_harm() -> None:
    assert judge(unfinished(HARM, 100), EARLY, planned_n=200, control=()).decision is Decision.NO_GO


def test_only_units_before_the_first_gap_count() -> None:
    """Which samples are in may depend on what they say: later ones that finished first are no evidence yet."""
    gap = tuple(replace(p, candidate_state=State.NOT_RUN) if at == 3 else p for at, p in enumerate(HARM))
    assert harm_shown(gap, EARLY) is None
    lost = tuple(replace(p, candidate_state=State.FAILED, candidate_fault="infrastructure") if at == 3 else p
                 for at, p in enumerate(HARM))  # fmt: skip
    assert harm_shown(lost, EARLY) is not None


def test_a_cluster_counts_when_all_of_it_is_in() -> None:
    clusters = [f"c{at // 4}" for at in range(120)]
    pairs = make_pairs([1.0] * 120, [0.0] * 120, clusters)
    stop = harm_shown(pairs, EARLY)
    assert stop is not None and stop < 20
    assert harm_shown(unfinished(pairs, 4 * stop), EARLY) == stop
    assert harm_shown(unfinished(pairs, 4 * stop - 1), EARLY) is None
    assert f"after {stop} clusters" in judge(unfinished(pairs, 4 * stop), EARLY, planned_n=120).reasons[0]


def test_a_relative_margin_is_a_share_of_each_unit() -> None:
    keeps_half = make_pairs([0.4] * 300, [0.2] * 300)
    relative = replace(EARLY, margin_kind="relative")
    assert harm_shown(keeps_half, replace(relative, margin=0.6)) is None
    assert harm_shown(keeps_half, replace(relative, margin=0.3)) is not None


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), max_size=80), st.data())
def test_what_is_shown_stays_shown(scores: list[tuple[float, float]], data: st.DataObject) -> None:
    pairs = make_pairs([b for b, _ in scores], [c for _, c in scores])
    cut = data.draw(st.integers(0, len(pairs)))
    gate = replace(EARLY, margin=0.1)
    before, after = harm_shown(unfinished(pairs, cut), gate), harm_shown(pairs, gate)
    assert before is None or before == after


# --- The candidates of a group ---

SAMPLES = [
    Sample(f"s{at}", "text", "question", ("a",), 8, cluster=f"c{at // 2}" if at < 10 else "") for at in range(40)
]


def record(cell: str, sample: Sample, score: float) -> Record:
    return Record(cell, sample.id, sample.hash, "p", State.SCORED, score=score, response=Response("a", (1,), "stop"))


@given(st.randoms(use_true_random=False), st.lists(st.booleans(), min_size=40, max_size=40))
def test_planner_worker_and_judge_come_to_the_same(chance: Random, right: list[bool]) -> None:
    """Whether records come one by one in any order, or all at once, and read back from JSON too."""
    rule = Rule.from_json(
        json.loads(json.dumps(Rule(replace(EARLY, margin=0.1), "reference", "b", ("x", "k"), ("k",)).to_json()))
    )
    records = [record("b", sample, 1.0) for sample in SAMPLES]
    records += [record(cell, sample, float(ok)) for cell in "xk" for sample, ok in zip(SAMPLES, right, strict=True)]
    at_once, one_by_one = Harm(rule, SAMPLES), Harm(rule, SAMPLES)
    at_once.note(records)
    at_once.look()
    chance.shuffle(records)
    for one in records:
        one_by_one.note([one])
        if chance.random() < 0.2:
            one_by_one.look()
    one_by_one.look()
    by_cell = {cell: {one.sample_id: one for one in records if one.cell == cell} for cell in "bx"}
    units = harm_shown(pair_up(SAMPLES, by_cell["b"], by_cell["x"], "reference"), rule.gate)
    assert at_once.stopped == one_by_one.stopped == ({} if units is None else {"x": units})
    assert at_once.asks(["b", "x", "k"]) == (["b", "x", "k"] if units is None else ["b", "k"])


def test_when_all_have_stopped_nobody_is_asked() -> None:
    harm = Harm(Rule(replace(EARLY, margin=0.1), "reference", "b", ("x",), ("b",)), SAMPLES)
    harm.note(record(cell, sample, float(cell == "b")) for cell in "bx" for sample in SAMPLES[:20])
    assert harm.asks(["b", "x", "noise"]) == ["b", "x", "noise"]
    assert set(harm.look()) == {"x"} and harm.look() == {}
    assert harm.asks(["b", "x", "noise"]) == []


# --- A run ---

KNOWN = """
import json
from dataclasses import dataclass
from pathlib import Path
from harness.types import Score, State
from tasks.retrieval.needle import Needle

@dataclass(frozen=True, kw_only=True)
class Known(Needle):
    '''Right is what stands in a file.'''
    file: str

    def score(self, sample, response):
        return Score(State.SCORED, float(response.text in json.loads(Path(self.file).read_text())), response.text)
"""


@pytest.fixture
def known(kvgate: Kvgate, own: Own, tmp_path: Path):
    """``kvgate run`` on a task where what the full cache says is right, and whatever differs is wrong."""
    own("known", KNOWN)
    first = Kvgate(tmp_path / "first", kvgate.model, kvgate.capsys, kvgate.patch)
    file = tmp_path / "texts.json"

    def run(*words: str, right: Sequence[str] = (), seeds: Sequence[int] = (0,), n: int = 20):
        if not file.exists():
            strategies = ",".join(["window", *right])
            grid = (f"strategy={strategies}", f"seed={','.join(map(str, seeds))}", f"n={n}")
            assert first.run("-m", *grid).code == 0
            manifest = json.loads((first.results / "runs" / "r" / "run.json").read_text())
            everyone = [cell for group in manifest["groups"] for cell in group["cells"]]
            cells = [cell for cell in everyone if cell["strategy"] in ("full", *right)]
            store = ResultStore(first.results)
            records = [r for cell in cells for r in store.cell(cell["address"]).read()[0].values()]
            file.write_text(json.dumps([r.response.text for r in records]))
        task = ("task._target_=known.Known", f"+task.file={file}")
        return kvgate.run(*words, *task, f"n={n}", "gate.margin=0.2", "gate.looks=1")

    return run


def load(kvgate: Kvgate, name: str = "r") -> tuple[dict[str, Any], dict[str, Any]]:
    folder = kvgate.results / "runs" / name
    return tuple(json.loads((folder / f"{file}.json").read_text()) for file in ("run", "verdict"))  # type: ignore[return-value]


def answers(kvgate: Kvgate) -> dict[str, int]:
    """Records by address."""
    store = ResultStore(kvgate.results)
    return {path.name: len(store.cell(path.name).read()[0]) for path in (kvgate.results / "cells").glob("*")}


def test_a_harmful_row_is_dropped_and_a_harmless_one_goes_on(known, kvgate: Kvgate) -> None:
    words = ("-m", "strategy=window,dynamic", "gate.early_stop=true", "engine.rows=20")
    said = known(*words)
    assert said.code == 0, said.err
    assert "window is stopped, harm is shown after" in said.out + said.err
    manifest, verdict = load(kvgate)
    cells = {cell["strategy"]: cell for cell in verdict["cells"]}
    window = cells["window"]
    assert window["decision"] == "NO-GO" and 0 < window["stopped_at"] <= window["n"] < 20
    assert window["saved"] == 20 - window["n"] and "Stopped early" in window["reasons"][0]
    assert cells["dynamic"]["decision"] == "GO" and cells["dynamic"]["n"] == 20
    assert any(
        "1 of 2 cells stopped early" in note and f"{window['saved']} answers" in note for note in verdict["notes"]
    )
    counted = answers(kvgate)
    by_strategy = {(c["role"], c["strategy"]): counted[c["address"]] for c in manifest["groups"][0]["cells"]}
    assert by_strategy["candidate", "window"] == window["n"]
    assert all(n == 20 for key, n in by_strategy.items() if key != ("candidate", "window"))
    marks = {path.parent.name for path in kvgate.results.glob("cells/*/finished-*")}
    assert marks == set(counted) - {window["address"]}  # a stopped cell is never marked as finished

    assert known(*words).code == 0  # nothing is asked again, and nothing changes
    assert answers(kvgate) == counted and load(kvgate)[1]["cells"] == verdict["cells"]
    assert known(*words, "gate.early_stop=false").code == 0  # completed, it is judged as any other
    assert set(answers(kvgate).values()) == {20}
    whole = {cell["strategy"]: cell for cell in load(kvgate)[1]["cells"]}["window"]
    assert whole["decision"] == "NO-GO" and whole["stopped_at"] is None and whole["saved"] == 0


def test_when_all_candidates_have_stopped_nobody_is_asked_any_more(known, kvgate: Kvgate) -> None:
    assert known("strategy=window", "gate.early_stop=true", "engine.rows=20").code == 0
    counted = answers(kvgate)
    assert len(set(counted.values())) == 1 and max(counted.values()) < 20
    before = load(kvgate)[1]["cells"][0]
    assert before["decision"] == "NO-GO"
    rows = (kvgate.results / "runs" / "r" / "report.md").read_text()
    assert "not asked" in rows and "run again to complete" not in rows
    said = known("strategy=window", "gate.early_stop=true", "dry_run=true")
    assert "work: 0 prefills" in said.out and said.out.count("the rest is spared by an early stop") == 4
    assert known("strategy=window", "gate.early_stop=true").code == 0
    assert answers(kvgate) == counted
    # another candidate brings the group to life again
    assert known("-m", "strategy=window,dynamic", "gate.early_stop=true").code == 0
    assert sorted(answers(kvgate).values()) == sorted([before["n"], 20, 20, 20, 20])


def test_a_milder_gate_afterwards_does_not_inherit_the_stop(known, kvgate: Kvgate) -> None:
    assert known("strategy=window", "gate.early_stop=true", "engine.rows=20").code == 0
    where = f"results_dir={kvgate.results}"
    cell = json.loads(kvgate("report", "r", where, "gate.margin=0.99", "format=json").out)["cells"][0]
    assert cell["decision"] == "INCONCLUSIVE" and "run again to complete" in cell["reasons"][0]


def test_a_candidate_that_is_the_control_is_asked_to_the_end(known, kvgate: Kvgate) -> None:
    words = ("strategy=random", "strategy.evict.keep=0.1", "gate.early_stop=true", "engine.rows=20")
    assert known(*words).code == 0
    assert set(answers(kvgate).values()) == {20}


def test_the_baseline_alone_is_asked_to_the_end(kvgate: Kvgate, monkeypatch: pytest.MonkeyPatch) -> None:
    """As calibration of difficulty asks it: there is nobody to stop, and so nobody has been stopped."""
    from harness import difficulty
    from harness.plan import baseline_alone, plan

    handed: list[Any] = []
    monkeypatch.setattr("harness.commands.run", lambda jobs, command: handed.extend(jobs) or 0)
    assert kvgate.run("strategy=window", "gate.early_stop=true").code == 0
    (job,) = difficulty.plain(handed)
    alone = baseline_alone(plan([job]), job)
    (group,) = alone.groups
    assert [len(ids) for ids in alone.to_run(group).values()] == [3]
    assert alone.units()[0]["groups"][0]["early_stop"] is None
