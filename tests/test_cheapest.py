"""sweep=cheapest: who is tried in which order, who is never run, and whose verdict the run's is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.bench import plan as benches
from harness.judge import candidates
from harness.plan import Job
from harness.store import ResultStore
from harness.sweep import cheapest
from harness.sweep.cheapest import Cheapest
from harness.sweep.kinds import Outcome
from harness.types import Gate, LoadMemory, Measurement, Request, Served, digest
from tests.cli import Kvgate
from tests.test_early import answers, known, load  # noqa: F401  (known is a fixture)

GRID = ("-m", "sweep=cheapest")


def fresh_seed(number: int) -> int:
    """Of the samples of a confirmation, of a run with seed 0."""
    return int(digest({"confirmation": number, "seed": 0}, 15), 16)


def seeds(kvgate: Kvgate) -> set[int]:
    return {json.loads(path.read_text())["seed"] for path in kvgate.results.glob("cells/*/ask.json")}


def test_the_order_is_told_and_nothing_is_run(kvgate: Kvgate) -> None:
    said = kvgate.run(*GRID, "strategy=fp8,window,int8", "dry_run=true")
    assert said.code == 0, said.err
    assert "selection from the cheapest upwards: window (" in said.out
    assert said.out.index("window (") < said.out.index("fp8 (") < said.out.index("int8 (")  # equal bytes: as named
    assert not (kvgate.results / "cells").exists()


def test_the_winner_is_confirmed_on_fresh_samples_and_dearer_ones_are_not_run(known, kvgate: Kvgate) -> None:  # noqa: F811
    words = (*GRID, "strategy=window,dynamic,paged", "engine.rows=20")
    said = known(*words, seeds=[0, fresh_seed(1)])
    assert said.code == 0, said.err
    assert "selection: window (" in said.out and "is NO-GO" in said.out
    run, verdict = load(kvgate)
    assert candidates(run) == ["dynamic"]
    assert [(one["name"], one["decision"]) for one in verdict["strategies"]] == [("dynamic", "GO")]
    tried = candidates(load(kvgate, "r-selection")[0])
    assert tried == ["window", "dynamic"]  # paged costs more, and has no cell
    assert any("window (" in note and "not run, for they cost more: paged (" in note for note in verdict["notes"])
    assert any("confirmation 1 of 1 that were promised, on fresh samples" in note for note in verdict["notes"])
    assert sorted(seeds(kvgate)) == [0, fresh_seed(1)] and verdict["seed"] == fresh_seed(1)
    counted = answers(kvgate)
    assert known(*words).code == 0 and answers(kvgate) == counted  # found again, nothing is run


def test_where_none_passes_nothing_is_confirmed(known, kvgate: Kvgate) -> None:  # noqa: F811
    said = known(*GRID, "strategy=window,keydiff", "gate.strict=true", "engine.rows=20")
    assert said.code == 1, said.err
    assert "no strategy is GO on every task: nothing is confirmed" in said.out
    assert seeds(kvgate) == {0} and not (kvgate.results / "runs" / "r").exists()


@pytest.mark.parametrize("confirmations", [1, 2])
def test_a_winner_that_fails_is_never_called_go(known, kvgate: Kvgate, confirmations: int) -> None:  # noqa: F811
    """Right on the samples of the selection; what is right on fresh ones stands in no file."""
    said = known(*GRID, "strategy=dynamic,paged", f"sweep.confirmations={confirmations}")
    assert said.code == 0, said.err
    run, verdict = load(kvgate)
    assert verdict["strategies"][0]["decision"] == "VOID"  # the full cache has nothing to lose there
    assert verdict["gate"]["alpha"] == 0.05 / confirmations
    assert len(seeds(kvgate)) == 1 + confirmations
    assert candidates(run) == [["dynamic"], ["paged"]][confirmations - 1]
    gave_way = [note for note in verdict["notes"] if "dynamic was VOID on fresh samples, and gave way" in note]
    assert len(gave_way) == confirmations - 1


def test_by_throughput_is_as_kvgate_bench_measured(kvgate: Kvgate, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*GRID, "strategy=fp8,int8,window", "sweep.by=throughput", "dry_run=true")
    said = kvgate.run(*words)
    assert said.code == 2 and "not measured: fp8, int8, window" in said.err
    handed: list[Job] = []

    def instead(jobs, command):
        handed.extend(jobs)
        return 0

    monkeypatch.setattr("harness.bench.command.bench", instead)
    where = [f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "engine.threads=1"]
    said = kvgate("bench", "-m", "strategy=fp8,int8,window", "load=offline_tiny", "model=hf", *where)
    assert said.code == 0, said.err
    planned = benches.plan(handed)
    tokens_s = {"full": 100.0, "fp8": 150.0, "int8": 50.0, "window": 200.0}
    for arm in planned.settings:
        planned.store.note_ask(arm.ask, "loads")
        rate = tokens_s[arm.strategy] if arm.role != "noise" else 1.0
        request = Request("r", 8, 10, sent_s=0.0, first_token_s=0.1, last_token_s=10 / rate, end_s=10 / rate)
        served = Served((request,), (), LoadMemory(1, 1, 1.0, None))
        ResultStore(kvgate.results).load(arm.address).append([Measurement(arm.address, "t", 0, 1.0, served)])
    said = kvgate.run(*words)
    assert said.code == 0, said.err
    assert "window (0.50 times" in said.out and "fp8 (0.67 times" in said.out and "int8 (2.00 times" in said.out
    assert said.out.index("window (") < said.out.index("fp8 (") < said.out.index("int8 (")
    said = kvgate.run(*GRID, "strategy=fp8,keydiff", "sweep.by=throughput", "dry_run=true")
    assert said.code == 2 and "not measured: keydiff" in said.err


# --- The law, without a model ---


class Runs:
    """Stands in for carrying out: each strategy has a decision in the selection, and one in each confirmation."""

    def __init__(self, decisions: dict[str, list[str]]) -> None:
        self.decisions, self.carried = decisions, list[tuple[list[str], int, float]]()

    def __call__(self, jobs, *, notes=(), facts=None) -> Outcome:
        config = jobs[0].config
        names = [job.config["strategy"]["name"] for job in jobs]
        self.carried.append((names, config["seed"], config["gate"]["alpha"]))
        at = next((at for at in (1, 2, 3) if config["seed"] == fresh_seed(at)), 0)
        entries = [{"name": name, "decision": self.decisions[name][at]} for name in names]
        return Outcome(Path(config["name"]), {"strategies": entries, "notes": list(notes)}, Gate())


def walked(monkeypatch: pytest.MonkeyPatch, confirmations: int, **decisions: list[str]) -> tuple[Runs, Outcome]:
    """``sweep=cheapest`` over these strategies, which cost the more the later they are named."""
    nodes = {name: {"name": name, "quant": {"_target_": name}} for name in decisions}
    jobs = [
        Job({"name": "r", "seed": 0, "n": 10, "gate": {"alpha": 0.06}, "strategy": node}) for node in nodes.values()
    ]
    cells = [SimpleNamespace(role="candidate", config=node, strategy=name) for name, node in nodes.items()]
    planned = SimpleNamespace(groups=[SimpleNamespace(cells=cells)])
    monkeypatch.setattr(cheapest, "plan", lambda jobs: planned)
    costs = {name: float(at) for at, name in enumerate(decisions)}
    monkeypatch.setattr(cheapest, "COSTS", {"bytes": (lambda plan: costs, "{:.0f} bytes")})
    runs = Runs(decisions)
    return runs, Cheapest("bytes", confirmations).run(jobs, jobs, runs)


def test_the_walk_ends_at_the_first_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, outcome = walked(monkeypatch, 1, a=["NO-GO"], b=["INCONCLUSIVE"], c=["GO", "GO"], d=["GO", "GO"])
    seen = [(names, seed) for names, seed, _ in runs.carried]
    assert seen == [(["a"], 0), (["a", "b"], 0), (["a", "b", "c"], 0), (["c"], fresh_seed(1))]
    assert outcome.folder == Path("r") and outcome.verdict["strategies"] == [{"name": "c", "decision": "GO"}]
    assert "not run, for they cost more: d (3 bytes), 10 answers" in outcome.verdict["notes"][0]


@pytest.mark.parametrize("failed", ["NO-GO", "INCONCLUSIVE", "VOID"])
def test_one_confirmation_is_all_there_is(monkeypatch: pytest.MonkeyPatch, failed: str) -> None:
    runs, outcome = walked(monkeypatch, 1, a=["GO", failed], b=["GO", "GO"])
    assert len(runs.carried) == 2 and outcome.verdict["strategies"] == [{"name": "a", "decision": failed}]


def test_promised_confirmations_share_alpha_and_samples_are_fresh_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, outcome = walked(
        monkeypatch, 2, a=["GO", "NO-GO"], b=["NO-GO"], c=["GO", "", "INCONCLUSIVE"], d=["GO", "", "", "GO"]
    )
    confirmations = [(names, seed, alpha) for names, seed, alpha in runs.carried if seed]
    assert confirmations == [(["a"], fresh_seed(1), 0.03), (["c"], fresh_seed(2), 0.03)]
    assert all(alpha == 0.06 for _, seed, alpha in runs.carried if not seed)
    assert outcome.verdict["strategies"] == [{"name": "c", "decision": "INCONCLUSIVE"}]  # d is never reached
    assert any("a was NO-GO on fresh samples" in note for note in outcome.verdict["notes"])


def test_a_failed_confirmation_is_the_verdict_when_no_other_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, outcome = walked(monkeypatch, 3, a=["GO", "NO-GO"], b=["VOID"])
    assert outcome.folder == Path("r") and outcome.verdict["strategies"] == [{"name": "a", "decision": "NO-GO"}]


def test_where_none_passes_the_selection_is_all_there_is_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, outcome = walked(monkeypatch, 1, a=["NO-GO"], b=["VOID"])
    assert outcome.folder == Path("r-selection") and not any(seed for _, seed, _ in runs.carried)


REFUSED = {
    "one strategy": (["strategy=fp8"], "strategy must name two or more for sweep=cheapest"),
    "one and the baseline": (["strategy=full,fp8"], "strategy must name two or more"),
    "two seeds": (["strategy=fp8,int8", "seed=0,1"], "seed must be one for sweep=cheapest", "got 0, 1"),
    "no confirmation": (["strategy=fp8,int8", "sweep.confirmations=0"], "sweep.confirmations must be 1 or more, got 0"),
    "another price": (["strategy=fp8,int8", "sweep.by=luck"], "sweep.by", "'luck'"),
    "a comparison": (["strategy=fp8,int8", "compare=fp8,int8"], "compare must be left out with sweep=cheapest"),
    "budgets": (["strategy=fp8,int8", "keep=[0.5,0.25]"], "keep must be left out without sweep=ladder"),
    "bytes that are learnt": (
        ["strategy=lowrank", "strategy.structure.rank=32,16"],
        "sweep.by=bytes needs strategies whose bytes are known",
    ),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_selected_is_refused(kvgate: Kvgate, words: tuple[list[str], str]) -> None:
    overrides, *expected = words
    said = kvgate.run(*GRID, *overrides)
    assert said.code == 2 and "Traceback" not in said.err, said
    assert all(word in said.err for word in expected), said.err
    assert not (kvgate.results / "cells").exists()
