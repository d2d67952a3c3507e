"""Runs against a run: what moved, what differs and what cannot be compared, of real runs that differ in one thing each."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import optimize
from scipy import stats as distributions

from harness.between.judge import SCHEMA
from harness.between.pairing import SAME_ANSWERS
from harness.between.shifts import Effect, Shift, effect, measure, shift
from harness.places import place, write_atomic
from harness.store import ResultStore
from harness.types import Pair, State
from tests import planted
from tests.cli import Kvgate
from tests.s3server import BUCKET
from tests.test_verdict import make_pairs

NAMES = ("before", "after")


# --- The numbers, against plain accounts of them ---


def moved(reference: list[float], other: list[float], clusters: list[str] | None = None, graded: bool = False) -> Shift:
    pairs = make_pairs(reference, other, clusters) if clusters else make_pairs(reference, other)
    found = shift(measure("fp8", "t", "prompt", pairs, chance=0.0, graded=graded), NAMES)
    assert isinstance(found, Shift)
    return found


def plain_p_value(gained: int, lost: int, n: int, mean: float) -> float:
    """Against "the mean difference is ``mean`` or less", by adding up every table at the worst rate of losses."""

    def statistic(b: int, c: int) -> float:
        def unlikely(loss: float) -> float:
            gain = loss + mean
            rates = ((b, gain), (c, loss), (n - b - c, 1 - gain - loss))
            return -sum(k * math.log(max(rate, 1e-300)) for k, rate in rates if k)

        fitted = optimize.minimize_scalar(
            unlikely, bounds=(max(0.0, -mean), (1 - mean) / 2), method="bounded", options={"xatol": 1e-12}
        ).x
        variance = max(2 * fitted + mean - mean**2, 1e-12)
        return (b - c - n * mean) / math.sqrt(n * variance)

    seen = statistic(gained, lost)
    tables = [(b, c) for b in range(n + 1) for c in range(n + 1 - b) if statistic(b, c) >= seen - 1e-6]
    low, high = max(0.0, -mean), (1 - mean) / 2
    losses = [low + (high - low) * k / 400 for k in range(401)]
    return max(
        sum(
            distributions.multinomial.pmf([b, c, n - b - c], n, [loss + mean, loss, 1 - 2 * loss - mean])
            for b, c in tables
        )
        for loss in losses
    )


def test_the_interval_of_right_and_wrong_is_the_exact_one() -> None:
    found = moved([1, 1, 0, 0, 0, 0, 1, 0, 0], [1, 0, 1, 1, 1, 1, 1, 1, 0])
    assert (found.n, found.gained, found.lost, found.test) == (9, 5, 1, "exact unconditional")
    assert (found.reference, found.other, found.delta) == pytest.approx((3 / 9, 7 / 9, 4 / 9))
    for gained, lost, limit in ((5, 1, found.ci_low), (1, 5, -found.ci_high)):  # p jumps where tables tie
        assert plain_p_value(gained, lost, 9, limit - 1e-3) < 0.0255
        assert plain_p_value(gained, lost, 9, limit + 1e-3) > 0.0245


def plain_wealth(differences: list[float], mean: float) -> float:
    """The most that a gambler against "the mean is ``mean`` or less" ever had, who knows what came before and began with 1."""
    wealth = most = 1.0
    seen: list[float] = []
    for d in differences:
        known = sum(seen) / max(len(seen), 1)
        spread = max(sum(x * x for x in seen) / max(len(seen), 1) - known**2, 0.0)
        edge = known - mean
        wealth *= 1 + min(max(edge / max(spread + edge**2, 1e-12), 0.0), 0.5 / (1 + mean)) * (d - mean)
        most = max(most, wealth)
        seen.append(d)
    return most


def test_the_interval_of_what_a_setting_costs_is_that_of_half_of_it_by_betting() -> None:
    def cell(baseline: list[float], candidate: list[float]) -> Any:
        return measure("fp8", "t", "prompt", make_pairs(baseline, candidate), chance=0.0, graded=False)

    full = [1.0] * 60
    before, after = [0.0 if i % 10 == 0 else 1.0 for i in range(60)], [0.0 if i % 3 else 1.0 for i in range(60)]
    found = effect(cell(full, before), cell(full, after))
    assert isinstance(found, Effect)
    assert (found.n, found.reference, found.other) == pytest.approx((60, -6 / 60, -40 / 60))
    assert found.delta == pytest.approx(-34 / 60) and found.ci_low < found.delta < found.ci_high < 0
    half = [(b - a) / 2 for a, b in zip(before, after, strict=True)]
    assert plain_wealth(half, found.ci_low / 2) == pytest.approx(1 / 0.025, rel=1e-3)
    assert plain_wealth([-d for d in half], -found.ci_high / 2) == pytest.approx(1 / 0.025, rel=1e-3)


def test_samples_that_share_a_context_are_one_unit() -> None:
    found = moved([1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], clusters=["a", "a", "b", "b"])
    assert (found.n, found.clusters, found.samples, found.delta, found.test) == (2, 2, 4, -0.25, "betting")


def test_what_was_not_finished_lost_or_not_acted_on_is_no_pair() -> None:
    pairs = list(make_pairs([1.0] * 100, [1.0] * 100))
    faults: dict[int, dict[str, Any]] = {
        0: {"candidate_state": State.NOT_RUN, "candidate": None},
        1: {"candidate_state": State.FAILED, "candidate": None, "candidate_fault": "infrastructure"},
        2: {"acted": False},
        3: {"prompts_agree": False},
    }
    for at, fault in faults.items():
        pairs[at] = Pair(**{**vars(pairs[at]), **fault})
    found = shift(measure("fp8", "t", "prompt", pairs, chance=0.0, graded=False), NAMES)
    assert isinstance(found, Shift)
    told = (found.n, found.unfinished, found.left_out, found.not_acted, found.prompts_differ)
    assert told == (97, 1, 1, 1, 1)
    idle = [Pair(**{**vars(pair), "acted": False}) for pair in make_pairs([1.0] * 5, [1.0] * 5)]
    why = shift(measure("fp8", "t", "prompt", idle, chance=0.0, graded=False), NAMES)
    assert why == "on none of 5 samples did every layer act in both runs"
    gone = [Pair(**{**vars(pair), **faults[1]}) for pair in make_pairs([1.0] * 5, [1.0] * 5)]
    assert "Infrastructure failures took 5 of 5" in str(
        shift(measure("fp8", "t", "prompt", gone, chance=0.0, graded=False), NAMES)
    )


# --- Real runs, one thing changed each ---


class Both:
    """``both(*words)`` compares run ``a`` with a run ``b`` that has words of its own."""

    def __init__(self, kvgate: Kvgate) -> None:
        self.kvgate = kvgate

    def run(self, name: str, *words: str) -> None:
        said = self.kvgate.run("-m", f"name={name}", "strategy=fp8,window", *words)
        assert said.code == 0, said.err

    def report(self, *words: str) -> dict[str, Any]:
        said = self.kvgate("report", "a", "b", f"results_dir={self.kvgate.results}", "format=json", *words)
        assert said.code == 0, said.err
        return dict(json.loads(said.out))

    def __call__(self, *words: str, first: tuple[str, ...] = ()) -> dict[str, Any]:
        there = self.kvgate.results.parent / "words of a"
        if not there.exists() or there.read_text() != repr(first):
            self.run("a", *first)
            there.write_text(repr(first))
        self.run("b", *words)
        (against,) = self.report()["against"]
        return dict(against)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared") / "results"


@pytest.fixture
def both(shared: Path, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Both:
    """Runs in one results folder, so that what one test has asked is there for the next."""
    return Both(Kvgate(shared, tiny, capsys, monkeypatch))


def fields(against: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {one["field"]: (one["reference"], one["other"]) for one in against["differences"]}


def whys(against: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(one["strategy"], one["task"], one["mode"], one["why"]) for one in against["not_compared"]]


SAME = [(name, "needle_single", "prompt", SAME_ANSWERS) for name in ("full", "fp8", "window")]


def unmoved(against: dict[str, Any], n: int = 3) -> bool:
    shifts = [one["baseline"] for one in against["tasks"]] + [one["shift"] for one in against["cells"]]
    return all((one["n"], one["delta"], one["gained"], one["lost"]) == (n, 0.0, 0, 0) for one in shifts)


def test_another_number_of_samples(both: Both) -> None:
    against = both("n=5")
    assert fields(against) == {"tasks.needle_single prompt.n": (3, 5)}
    rest = "2 of 5 samples of b are not those of a: the 3 that are the same are paired"
    assert whys(against) == [(None, "needle_single", "prompt", rest), *SAME]
    assert [(one["n_reference"], one["n_other"]) for one in against["tasks"]] == [(3, 5)]
    elsewhere = shutil.copytree(both.kvgate.results, both.kvgate.results.parent / "elsewhere", dirs_exist_ok=True)
    words = ("report", "a", str(elsewhere / "runs" / "b"), f"results_dir={both.kvgate.results}", "format=json")
    (against,) = json.loads(both.kvgate(*words).out)["against"]  # another machine's answers, which are the same
    assert whys(against) == [(None, "needle_single", "prompt", rest)] and unmoved(against)


def test_another_margin_and_other_threads(both: Both) -> None:
    against = both("gate.margin=0.4", "engine.threads=2")
    assert fields(against) == {"gate.margin": (0.02, 0.4), "engine.threads": (1, 2)}
    assert whys(against) == SAME  # neither asks another cell
    decisions = [(one["name"], one["reference"], one["other"]) for one in against["strategies"]]
    assert decisions == [("fp8", "VOID", "VOID"), ("window", "VOID", "VOID")]  # a random model is right nowhere
    again = both.report("gate.margin=0.3")["against"][0]
    assert "gate.margin" in fields(again)  # what was promised is told, whatever is asked now
    assert {one["reference"]["decision"] for one in again["cells"]} == {"VOID"}


@pytest.mark.slow
def test_another_dtype_stores_other_bytes(both: Both) -> None:
    against = both("model.dtype=bfloat16")
    told = fields(against)
    assert (
        told["model.dtype"] == ("float32", "bfloat16") and told["strategies.full.loaded.dtype"] == told["model.dtype"]
    )
    assert unmoved(against)
    window = next(one for one in against["cells"] if one["strategy"] == "window")
    sizes = [window[side]["stored_bytes_per_token"] for side in ("reference", "other")]
    assert sizes[0] == pytest.approx(2 * sizes[1])
    assert window["reference"]["kv_share"] == window["other"]["kv_share"]


@pytest.mark.slow
def test_another_model_moves_every_answer(
    both: Both, tiny_family: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.types import Response, Sample, Score
    from tasks.retrieval.needle import Needle

    against = both(f"model.path={tiny_family('qwen2')}")
    assert "model.weights" in fields(against) and not whys(against)
    first = {
        record.response.text
        for cell in json.loads((both.kvgate.results / "runs/a/verdict.json").read_text())["cells"]
        for record in ResultStore(both.kvgate.results).cell(cell["address"]).read()[0].values()
        if record.response
    }

    def partial(self: Needle, sample: Sample, response: Response) -> Score:
        return Score(State.SCORED, float(response.text in first), response.text)

    monkeypatch.setattr(Needle, "score", partial)
    monkeypatch.setattr("harness.pairs.degenerate", lambda response: "")  # a tiny model's loops count as text here
    (against,) = both.report("rescore=true")["against"]
    for one in against["cells"]:
        shifted = one["shift"]
        assert (shifted["reference"], shifted["other"], shifted["delta"], shifted["lost"]) == (1, 0, -1, 3)
        assert -1 <= shifted["ci_low"] < 0 and shifted["n"] == 3


def test_what_only_one_of_them_has_is_named_one_by_one(both: Both) -> None:
    against = both("strategy=fp8,kivi2", first=("task=needle_single,code_lookup",))
    assert [one["strategy"] for one in against["cells"]] == ["fp8"]
    assert whys(against) == [
        ("window", "needle_single", "prompt", "only a has it: VOID"),
        ("fp8", "code_lookup", "prompt", "only a has this task: VOID"),
        ("window", "code_lookup", "prompt", "only a has this task: VOID"),
        ("kivi2", "needle_single", "prompt", "only b has it: VOID"),
        *SAME[:2],
    ]
    missing = [(one["name"], one["reference"], one["other"]) for one in against["strategies"]]
    assert missing == [("fp8", "VOID", "VOID"), ("window", "VOID", None), ("kivi2", None, "VOID")]


@pytest.mark.slow
def test_another_mode_and_fidelity(both: Both) -> None:
    against = both("task=needle_single,fidelity", "compress=context,prompt", first=("task=needle_single,fidelity",))
    assert {(one["task"], one["mode"]) for one in against["cells"]} == {
        ("needle_single", "prompt"),
        ("fidelity", "prompt"),
    }
    only = "b has it in this mode, a in prompt"
    assert ("fp8", "needle_single", "context", f"{only}: VOID") in whys(against)
    assert ("window", "fidelity", "context", f"{only}: MEASURED") in whys(against)
    assert (None, "fidelity", "prompt") in [why[:3] for why in whys(against)]
    measured = next(one for one in against["cells"] if one["task"] == "fidelity")
    assert measured["shift"] is None and measured["other"]["fidelity"]["kl_mean"] > 0


@pytest.mark.slow
def test_other_items_and_another_measure(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.retrieval.needle import Needle

    ((strategy, task, _, why),) = whys(both("seed=1"))
    assert (strategy, task) == (None, "needle_single")
    assert why == "other items: no sample of a is one of b (seed 0 in a, 1 in b)"
    both.run("b", "task.lengths=[440]")
    assert whys(both.report()["against"][0])[0][3] == "task.lengths is [420] in a, [440] in b"
    monkeypatch.setattr(Needle, "version", Needle.version + 1)
    both.run("b")
    (against,) = both.report()["against"]
    assert "another measure; rescore=true judges both" in whys(against)[0][3]
    assert [one["shift"] for one in against["cells"]] == [None, None]
    (against,) = both.report("rescore=true")["against"]
    assert unmoved(against) and not whys(against)


@pytest.mark.slow
def test_a_run_that_was_broken_off_pairs_what_it_has(both: Both, shared: Path) -> None:
    both("model.dtype=bfloat16")
    manifest = json.loads((shared / "runs/b/run.json").read_text())
    (window,) = [cell for cell in manifest["groups"][0]["cells"] if cell["strategy"] == "window"]
    folder = shared / "cells" / window["address"]
    (part,) = folder.glob("part-*.jsonl")
    first, *_ = part.read_text().splitlines()
    part.write_text(first + "\n")
    cells = {one["strategy"]: one["shift"] for one in both.report()["against"][0]["cells"]}
    assert [(cells[name]["n"], cells[name]["unfinished"]) for name in ("fp8", "window")] == [(3, 0), (1, 2)]
    shutil.rmtree(folder)
    assert ("window", "needle_single", "prompt", "none of 3 samples finished in both runs") in whys(
        both.report()["against"][0]
    )


# --- The files ---


def test_files_are_written_once_and_the_same_again(both: Both, shared: Path) -> None:
    both("n=5")
    both.run("c", "strategy=fp8", "model.dtype=bfloat16")
    where, kvgate = f"results_dir={shared}", both.kvgate
    said = kvgate("report", "a", "b", "c", where)
    assert said.code == 0, said.err
    folder = shared / "comparisons" / "a+b+c"
    assert f"comparison: {folder / 'comparison.html'}" in said.out
    for words in ("b against a", "c against a", "note: needle_single (prompt)"):
        assert words in said.out
    names = ("comparison.json", "comparison.md", "comparison.html")
    before = [(folder / name).read_bytes() for name in names]
    assert sorted(file.name for file in folder.iterdir()) == sorted(names)
    found = json.loads(before[0])
    assert found["schema"] == SCHEMA == "kvgate.comparison/1"
    assert [one["name"] for one in found["runs"]] == ["a", "b", "c"]
    assert [one["run"] for one in found["against"]] == ["b", "c"]
    assert kvgate("report", "a", "b", "c", where).code == 0
    assert [(folder / name).read_bytes() for name in names] == before
    assert all("tasks.needle_single prompt.n" in text.decode() for text in before)


def test_hostile_names_are_shown_and_nothing_private_is(kvgate: Kvgate, tmp_path: Path) -> None:
    folders = [planted.plant(tmp_path / side) for side in ("left", "right")]
    for file in (tmp_path / "right").glob("cells/*/part-*.jsonl"):
        file.write_text("")
    where = f"results_dir={kvgate.results}"
    said = kvgate("report", *map(str, folders), where, "privacy=redact", "format=json")
    assert said.code == 0, said.err
    made = kvgate.results / "comparisons" / "planted+planted#2"
    texts = [said.out, *(file.read_text() for file in made.iterdir())]
    assert len(texts) == 4
    for text in texts:
        assert not [secret for secret in planted.SECRETS.values() if secret in text]
    page = (made / "comparison.html").read_text()
    assert "=bad&lt;b&gt;|" in page and "<script" not in page and "<b>" not in page
    assert "none of 120 samples finished in both runs" in page
    shown = kvgate("report", *map(str, folders), where).out
    assert planted.SECRETS["lost"] in shown and "\x1b" not in shown
    assert planted.SECRETS["lost"] in (made / "comparison.html").read_text()
    manifest = json.loads((folders[1] / "run.json").read_text())
    (folders[1] / "run.json").write_text(json.dumps({**manifest, "privacy": "redact"}))
    assert planted.SECRETS["lost"] not in kvgate("report", *map(str, folders), where).out  # one of them is enough


@pytest.mark.slow
def test_runs_in_a_bucket(kvgate: Kvgate, tmp_path: Path, s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    for name in ("x", "y"):
        planted.plant(tmp_path / "there", name)
    bucket = place(f"s3://{BUCKET}/{tmp_path.name}")
    for file in (tmp_path / "there").rglob("*"):
        if file.is_file():
            write_atomic(bucket / str(file.relative_to(tmp_path / "there")), file.read_bytes())
    said = kvgate("report", "x", "y", f"results_dir={bucket}")
    assert said.code == 0, said.err
    page = bucket / "comparisons" / "x+y" / "comparison.html"
    assert f"comparison: {page}" in said.out and b"y against x" in page.read_bytes()


# --- Refusals ---


def test_what_cannot_be_compared_at_all_is_refused_at_once(kvgate: Kvgate) -> None:
    for name, task in (("a", "needle_single"), ("b", "code_lookup")):
        assert kvgate.run("strategy=fp8", f"name={name}", f"task={task}").code == 0
    where = f"results_dir={kvgate.results}"
    refused = {
        ("a", "nowhere", "neither"): ["got 'nowhere'; there are a, b", "got 'neither'; there are a, b"],
        ("a", "b", "a"): [f"run must name each run once, got {kvgate.results / 'runs/a'} 2 times"],
        ("a", str(kvgate.results / "runs/a")): ["each run once"],
        ("a", str(kvgate.results / "runs/b/../a")): ["each run once"],
        ("run=[]",): ["run must name a run, or several, got none"],
        ("a", "b's"): ["""got "b's"; there are a, b"""],
        ("a", "b"): ["runs with a task in common, got a with needle_single (prompt) and b with code_lookup (prompt)"],
        ("a", "b", "compare=fp8,window", "by=family", "gate.strict=true"): [
            "compare must be empty where runs are compared: it pairs candidates of one run, got fp8, window",
            "by must be task where runs are compared, got family",
            "gate.strict must not be set where runs are compared",
        ],
        ("a", "b", "privacy=hide"): ["privacy must be show or redact, got 'hide'"],
        ("a", "b", "gate.margin=7"): ["gate.margin must be in (0, 1], got 7"],
    }
    for words, expected in refused.items():
        said = kvgate("report", *words, where)
        assert said.code == 2 and "Traceback" not in said.err, said
        for sentence in expected:
            assert sentence in said.err, said.err
    assert not (kvgate.results / "comparisons").exists()
    said = kvgate("watch", "a", "b", where)
    assert said.code == 2 and "kvgate watch: run must name one, got a, b" in said.err
    assert kvgate("report", "run=[a]", where).code == 0  # a list of one is that one
