"""``kvgate bench`` on the tiny model: what it measures, keeps, refuses, survives and reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.bench import facts, judge, notes, trials
from harness.bench.loads.base import Prose
from harness.bench.loads.closed import Closed
from harness.bench.metrics import SLO
from harness.calibration import text_of
from harness.engines.base import Demands, Prompt, Traffic
from harness.engines.endpoint import engine as endpoint
from harness.engines.hf import timing
from harness.engines.hf.engine import HFEngine
from harness.report import bench as reports
from harness.report.plots import curves
from harness.stacks import make_stack
from harness.store import LoadCell, ResultStore
from harness.types import Evidence, LoadMemory, Measurement, Request, Served
from strategies.evict.snapkv import SnapKV
from strategies.stack import Stack
from tests.bench.conftest import Bench
from tests.cli import Kvgate
from tests.test_conf import CONF, composed

LOAD = Closed(name="l", requests=3, prompt_tokens=40, output_tokens=5, in_flight=2)


def prompts_of(session: Any, load: Closed = LOAD, seed: int = 0, index: int = 0) -> Sequence[Prompt]:
    return load.traffic(Prose(session.tokenizer), seed, index).prompts


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("part-*.jsonl")}


def test_what_a_run_measures_and_leaves_behind(bench: Bench, kvgate: Kvgate) -> None:
    assert kvgate.run("strategy=fp8").code == 0
    said = bench("strategy=fp8", "gate.payoff.capacity=1.5", "hardware.price_hour=3.6", "gate.payoff.slo.e2e_s=1000")
    assert said.code == 0, said.err
    verdict, fp8 = bench.file("payoff.json"), bench.candidate("fp8")
    assert (fp8["decision"], fp8["pairs"], fp8["look"]) == ("GO", 5, 1)
    assert fp8["metrics"]["capacity"]["gain"]["mean"] == pytest.approx(
        2 * 32 / (32 + 4)
    )  # bfloat16, or bytes and a scale
    assert fp8["quality"]["run"] == "r" and fp8["quality"]["engine"] == "hf"
    assert fp8["memory"]["stored_bytes"] == fp8["memory"]["formula_bytes"]
    assert fp8["usd_per_million_tokens"] == pytest.approx(1000 / fp8["values"]["throughput"])
    assert fp8["attainment"] == 1.0 and fp8["metrics"]["goodput"]["gain"]["pairs"] == 5
    assert fp8["values"]["ttft_p99"] is None and verdict["notes"] == []
    pictures = {file.name for file in (bench.results / "runs/b/plots").iterdir()}
    drawn = ("latencies", "quality_throughput", "load_memory")
    assert pictures == {f"{name}.{kind}" for name in drawn for kind in ("svg", "png", "csv")}
    baseline, mine = bench.measurements("baseline"), bench.measurements("candidate")
    taken = [r for trial, one in mine.items() if "warm-up" not in trial for r in one.served.requests]  # type: ignore[union-attr]
    times = {r.first_token_s - r.sent_s for r in taken}  # type: ignore[operator]
    assert [time for time, _ in fp8["ecdf_s"]["ttft"]] == sorted(times)
    assert set(baseline) == set(mine)  # warm-up and five trials
    places = [(baseline[trial].place, mine[trial].place) for trial in mine if "warm-up" not in trial]
    assert sorted(places) == [(0, 2)] * 3 + [(2, 0)] * 2
    for trial, one in mine.items():
        assert one.served and baseline[trial].served
        assert [r.id for r in one.served.requests] == [r.id for r in baseline[trial].served.requests]
        for request in one.served.requests:
            assert request.token_s and len(request.token_s) == request.tokens_out == 8 and request.tokens_in == 64
            assert request.queued_s == 0.0 <= request.sent_s < request.token_s[0]  # type: ignore[operator]
            assert list(request.token_s) == sorted(request.token_s) and request.end_s == request.token_s[-1]
    page = (bench.results / "runs/b/bench.html").read_text()
    for words in ("Equal load", "Equal memory", "full, measured again", "a million tokens", "dense copy", "GO"):
        assert words in page and (words in said.out or words == "dense copy")

    before = files(bench.results)
    again = bench("strategy=fp8", "gate.payoff.capacity=1.9")
    assert again.code == 0 and files(bench.results) == before, "everything was there"
    assert bench.candidate("fp8")["decision"] == "NO-GO" and bench.candidate("fp8")["look"] == 1
    assert "asked for capacity 1.5 at the first look, now for capacity 1.9" in " ".join(
        bench.file("payoff.json")["notes"]
    )
    assert "5 of 5 pairs in the store" in bench("strategy=fp8", "dry_run=true").out


@pytest.mark.slow
def test_a_clock_that_jumps_changes_no_gain_and_no_look(bench: Bench) -> None:
    """Trials pair by their names; when each began only orders them."""
    assert bench("strategy=fp8").code == 0
    told = bench.candidate("fp8")
    for folder in (bench.results / "loads").iterdir():
        cell = LoadCell(folder)
        ran = list(cell.read()[0].values())
        for part in folder.glob("part-*"):
            part.unlink()
        cell.append([replace(one, began=1e9 - one.began) for one in ran])
        assert list(cell.read()[0]) == [one.trial for one in reversed(ran)]
    assert bench("strategy=fp8").code == 0
    again = bench.candidate("fp8")
    assert all(again[key] == told[key] for key in ("decision", "pairs", "look"))
    for name, metric in told["metrics"].items():
        assert again["metrics"][name]["gain"] == pytest.approx(metric["gain"])


@pytest.mark.slow
def test_a_failed_measurement_is_told_and_taken_again(bench: Bench, layer: Callable[[str], list[str]]) -> None:
    words = layer("if (HERE / 'broken').exists(): raise MemoryError('no room')")
    (bench.results.parent / "broken").touch()
    said = bench(*words, "gate.payoff.capacity=1.5", "gate.strict=true")
    assert said.code == 3, said.err
    mine = bench.candidate("mine")
    assert mine["decision"] == "INCONCLUSIVE" and "0 of 5 pairs were measured" in mine["reasons"][0]
    assert "mine: a measurement failed: MemoryError: no room" in bench.file("payoff.json")["notes"]
    (bench.results.parent / "broken").unlink()
    assert bench(*words, "gate.payoff.capacity=1.5").code == 0
    assert bench.candidate("mine")["decision"] == "GO"
    assert sum(one.served is None for one in bench.measurements("candidate").values()) == 6  # kept, with the warm-up


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_once(bench: Bench, layer: Callable[[str], list[str]]) -> None:
    """It dies while a candidate is measured; the same process served the baseline, which is measured on."""
    counted = "(HERE / 'n').open('a').write('x'); (HERE / 'n').stat().st_size in {deaths} and os._exit(9)"
    each = 2 * 3  # keys and values of three layers: one prompt packs so often, before its answer does
    warm = each * (1 + 7)  # one prompt, and seven tokens after the first
    once = bench(*layer(counted.format(deaths=(warm + 1,))), "name=once")
    assert once.code == 0, once.err
    assert "mine: the worker died" in once.err + once.out
    assert bench.candidate("mine", "once")["pairs"] == 4 and bench.candidate("mine", "once")["decision"] == "MEASURED"
    always = bench(*layer("(HERE / 'ready').exists() and os._exit(9); os.environ.get('X') or None"), "name=never")
    assert always.code == 0
    (bench.results.parent / "ready").touch()
    dead = bench(*layer("(HERE / 'ready').exists() and os._exit(9)"), "name=dead", "seed=1")
    assert dead.code == 2 and "the worker died before it was warm" in dead.err


REFUSED = {
    "too few pairs": (["pairs=3"], "pairs must be 5 or more", "got 3"),
    "no requests": (["load.requests=0"], "load.requests must be 1 or more, got 0"),
    "a load too long": (["load.prompt_tokens=9000"], "load must leave room", "4096", "9008"),
    "a gain of 0": (["gate.payoff.throughput=0"], "gate.payoff.throughput must be null or a gain above 0, got 0"),
    "goodput of what": (["gate.payoff.goodput=1"], "gate.payoff.goodput needs a limit in gate.payoff.slo"),
    "a rate of one load": (
        ["gate.payoff.rate=1", "gate.payoff.slo.ttft_s=1"],
        "gate.payoff.rate needs a load with several points of rate_s, in_flight, time_scale, such as load=arrivals, got one",
    ),
    "a rate of loads that differ otherwise": (
        ["load.prompt_tokens=[64,32]", "gate.payoff.rate=1", "gate.payoff.slo.ttft_s=1"],
        "gate.payoff.rate needs a load with several points",
        "got several prompt_tokens",
    ),
    "two lists": (["load.in_flight=[1,2]", "load.requests=[2,4]"], "load must have a list in one option at most"),
    "a share of requests": (["gate.payoff.slo.share=0"], "gate.payoff.slo.share must be above 0 and at most 1, got 0"),
    "arrivals on batches": (["load=arrivals"], "engine hf refuses to time", "all there at the start"),
    "a limit below 0": (
        ["gate.payoff.slo.ttft_s=-1"],
        "gate.payoff.slo.ttft_s must be a number of seconds above 0, got -1",
    ),
    "a tail of two": (["gate.payoff.ttft_p99=1"], "gate.payoff.ttft_p99 needs 100 values", "gives 2"),
    "a price": (["hardware.price_hour=-2"], "hardware.price_hour must be null or a price above 0, got -2"),
    "only the baseline": (["strategy=full"], "strategy must name at least one beside full"),
    "nothing to reuse": (["strategy=prefix_reuse"], "engine hf refuses to time", "nothing to come back to"),
    "a budget no prompt exceeds": (
        ["strategy=window", "strategy.evict.keep=null", "strategy.evict.keep_tokens=64"],
        "which must be below the shortest prompt of load offline_tiny, 64",
    ),
    "a seed": (["seed=-1"], "seed must be 0 or more, got -1"),
    "a name": (["name=a/b"], "name must be a plain folder name"),
    "a metric that is none": (["gate.payoff.speed=2"], "speed"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_field_rule_and_value(bench: Bench, words: tuple[Any, ...]) -> None:
    given = words[0] if any("strategy" in word for word in words[0]) else ["strategy=fp8", *words[0]]
    said = bench(*given)
    assert said.code == 2
    for part in words[1:]:
        assert part in said.err
    assert not (bench.results / "runs").exists()


def test_all_problems_are_told_at_once(bench: Bench) -> None:
    said = bench("strategy=prefix_reuse", "pairs=2", "load.in_flight=0", "gate.payoff.peak=-1", "gate.alpha=0.9")
    for field in ("strategy", "pairs", "load.in_flight", "gate.payoff.peak", "gate.alpha"):
        assert f"kvgate bench: {field}" in said.err


def test_a_server_is_not_timed_without_guidellm(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "find_spec", lambda name: None)
    where = [
        f"model.path={bench.kvgate.model}",
        f"results_dir={bench.results}",
        "engine.baseline=http://127.0.0.1:9/v1",
    ]
    said = bench.kvgate("bench", "strategy=fp8", "model=hf", "engine=endpoint", *where)
    assert said.code == 2 and "GuideLLM sends the requests of a load, and is not installed" in said.err


@pytest.fixture(scope="module")
def session(tiny: Path) -> Any:
    with HFEngine(threads=1).open({"name": "hf", "path": str(tiny)}, Stack("full")) as session:
        yield session


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What is fed, step by step, one token a row."""
    steps: list[list[int]] = []
    feed = timing.feed

    def noted(model: Any, cache: Any, tokens: torch.Tensor, position: int) -> torch.Tensor:
        steps.append(tokens[:, 0].tolist())
        return feed(model, cache, tokens, position)

    monkeypatch.setattr(timing, "feed", noted)
    return steps


def test_what_is_timed_says_what_plain_greedy_decoding_says(session: Any, fed: list[list[int]]) -> None:
    """Rows of a batch answer as if they were alone, and nothing ends an answer."""
    prompts = prompts_of(session)[:2]
    served = session.serve(Stack("full"), Traffic(prompts, 2), seed=0)
    assert [request.tokens_out for request in served.requests] == [5, 5]
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([prompt.token_ids])
        plain = session.model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        assert [step[row] for step in fed] == plain.tolist()[:4]


def test_an_eviction_is_served_alone_and_its_bytes_are_those_it_holds(session: Any, fed: list[list[int]]) -> None:
    prompts = prompts_of(session)
    stack = Stack("s", evict=SnapKV(keep=0.5, window=8))
    served = session.serve(stack, Traffic(prompts, 2), seed=0)
    assert [len(step) for step in fed] == [2] * 4 + [1] * 4
    shape = session.about.shape
    each = shape.layers * shape.exact_bytes(1)
    assert served.memory.stored_bytes == served.memory.formula_bytes == 3 * 20 * each
    assert served.memory.kv_bytes_per_token == pytest.approx(24 * each / 2 / 44)  # 20 of 40 and 4 of 4, in bfloat16
    assert [one.acted for one in served.evidence] == [True]
    assert served.requests[2].sent_s >= served.requests[1].end_s > served.requests[0].sent_s


def test_a_load_is_the_same_for_every_setting_and_new_in_every_trial(session: Any) -> None:
    one, same, next_trial, other_seed = (
        prompts_of(session, LOAD, seed, index) for seed, index in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert one == same and len(one) == 3 and {len(prompt.token_ids) for prompt in one} == {40}
    assert not {p.id for p in one} & {p.id for p in (*next_trial, *other_seed)}
    assert len({tuple(prompt.token_ids[:8]) for prompt in one}) == 3
    assert len(LOAD.warming(Prose(session.tokenizer), 0).prompts) == LOAD.warmup


TIMES = st.none() | st.floats(0, 1e6)


@given(
    TIMES, TIMES, st.none() | st.lists(st.floats(0, 1e6)).map(tuple), st.text(max_size=9), st.none() | st.integers(0)
)
def test_a_measurement_comes_back_as_it_went_in(
    tmp_path_factory: Any, sent: Any, end: Any, tokens: Any, text: str, peak: Any
) -> None:
    request = Request("r", 3, 2, 0.0, sent, None, None, end, tokens, 0, text)
    served = Served((request,), (Evidence("quant/fp8", True, text, {"x": 1.0}),), LoadMemory(1, 2, 3.5, peak))
    cell = LoadCell(tmp_path_factory.mktemp("cell"))
    whole = [Measurement("c", "t", 1, 2.0, served), Measurement("c", "u", 0, 1.0, None, text or "lost")]
    cell.append(whole)
    found, damaged = cell.read()
    assert list(found.values()) == whole[::-1] and damaged == []  # oldest first


def test_a_damaged_measurement_costs_itself_alone(tmp_path: Path) -> None:
    cell = LoadCell(tmp_path)
    one = Measurement("c", "t", 0, 1.0, None, "lost")
    cell.append([one, replace(one, trial="u")])
    (part,) = tmp_path.glob("part-*")
    part.write_text(part.read_text().replace('"trial":"u"', '"trial":"v"'))
    assert len(cell.repair()) == 1
    assert list(cell.read()[0]) == ["t"] and cell.read()[1] == []


def test_names_and_reasons_are_shown_and_never_interpreted(bench: Bench) -> None:
    bad = "<script>alert(1)</script>|`x`"
    verdict = _verdict(bad)
    page = reports.build(verdict)
    reports.write(bench.results, verdict)
    html = (bench.results / "bench.html").read_text()
    assert "<script>" not in html and html.count('src="data:image/svg+xml;base64,') == len(page.plots)
    assert "<script>" not in reports.markdown(page) and r"\|" in reports.markdown(page)
    assert {plot.name for plot in page.plots} == {"curves", "quality_throughput"}
    for one in verdict["candidates"]:
        one["quality"] = None
    assert "not judged here" in reports.text(verdict) and len(reports.build(verdict).plots) == 1


def _verdict(name: str) -> dict[str, Any]:
    empty = {"p50": None, "p90": None, "p99": None}
    gain = {"pairs": 5, "mean": 1.0, "low": 0.9, "high": 1.1}
    metric = {"gain": gain, "noise": gain, "wanted": None, "decision": "MEASURED"}
    found: dict[str, Any] = {
        "values": dict.fromkeys(reports.METRICS, 1.0),
        "latencies": {kind: empty for kind in ("queue", "ttft", "tpot", "itl", "e2e")},
        "ecdf_s": {kind: [] for kind in ("queue", "ttft", "tpot", "itl", "e2e")},
        "requests": 1,
        "failed": 0,
        "cached_share": 0.5,
        "memory": None,
        "roofline": [],
        "usd_per_million_tokens": None,
    }
    judged = {"decision": "GO", "pairs": 5, "look": 1, "metrics": dict.fromkeys(reports.METRICS, metric)}
    quality = {"decision": "GO", "run": name, "engine": "hf", "task": name, "delta": -0.01, "answer_length": 1.5}
    mine = {"strategy": name, "decision": "GO", "reasons": [name], "quality": quality, "describe": name}
    return {
        "name": name,
        "created": "now",
        "command": name,
        "model": {"id": name},
        "engine": {"name": "hf", "cpu": name, "device": "cpu"},
        "machine": {"cores": 2},
        "load": {"name": name, "option": name},
        "points": [{"label": name, "value": at, "describe": name} for at in (1, 2)],
        "pairs": 5,
        "payoff": {"wanted": {}, "slo": {"share": 0.9}},
        "baseline": {"strategy": "full", "points": [found] * 2},
        "candidates": [{**mine, "points": [{**judged, **found}] * 2, "curve": {"rate": metric}}],
        "notes": [name],
    }


PRESETS = sorted(file.stem for file in CONF.glob("strategy/*.yaml"))


@pytest.fixture(scope="module")
def roomy(tiny_family: Callable[..., Path]) -> Any:
    """A model of a shape that every preset fits."""
    folder = tiny_family(
        "llama", head_dim=64, num_key_value_heads=3, num_attention_heads=3, hidden_size=192, num_hidden_layers=6
    )
    with HFEngine(threads=1).open({"name": "hf", "path": str(folder)}, Stack("full")) as session:
        yield session


@pytest.mark.parametrize("preset", PRESETS)
def test_every_setting_that_is_timed_answers_in_a_batch_as_alone(roomy: Any, fed: list[list[int]], preset: str) -> None:
    session = roomy
    stack = HFEngine().resolve(make_stack(preset, composed("bench", f"strategy={preset}")["strategy"]))
    assert stack.problems(session.about.shape) == []
    if not HFEngine().times(stack, Demands(), 1).yes:
        assert preset in ("oracle", "delayed", "prefix_reuse"), "only what looks ahead, and what comes back to nothing"
        return
    if stack.calibrates:
        stack = session.fit(stack, text_of(None), 64)
    prompts = prompts_of(session, replace(LOAD, requests=2, prompt_tokens=150))
    together = session.serve(stack, Traffic(prompts, 2), seed=0)
    in_batch = [[step[row] for step in fed] for row in range(2)]
    fed.clear()
    alone = session.serve(stack, Traffic(prompts, 1), seed=0)
    steps = [step[0] for step in fed]
    assert in_batch == [steps[:4], steps[4:]]
    assert together.memory.stored_bytes == alone.memory.stored_bytes
    assert together.memory.kv_bytes_per_token == alone.memory.kv_bytes_per_token
    assert [one.layer for one in together.evidence] == [f"{layer.slot}/{layer.name}" for layer in stack.layers()]


def test_a_ladder_is_judged_load_by_load_and_shares_what_was_measured(bench: Bench) -> None:
    assert bench("strategy=fp8", "load.in_flight=2", "name=alone").code == 0
    before = files(bench.results)
    said = bench("strategy=fp8", "load.in_flight=[1,2]", "gate.payoff.capacity=1.5", "gate.payoff.slo.e2e_s=1000")
    assert said.code == 0, said.err
    verdict = bench.file("payoff.json")
    assert [point["label"] for point in verdict["points"]] == ["in_flight=1", "in_flight=2"]
    (fp8,) = verdict["candidates"]
    assert [at["decision"] for at in fp8["points"]] == ["GO", "GO"] and fp8["decision"] == "GO"
    assert [at["pairs"] for at in fp8["points"]] == [5, 5]
    assert fp8["curve"]["rate"]["gain"]["pairs"] == 0, "both loads meet the limit: where it ends was not seen"
    assert bench.measurements("candidate", point=1).keys() == bench.measurements("candidate", "alone").keys()
    assert files(bench.results) > before
    again = bench("strategy=fp8", "load.in_flight=[1,2,3]", "dry_run=true")
    assert again.out.count("5 of 5 pairs in the store") == 2 and again.out.count("0 of 5 pairs in the store") == 1
    assert (bench.results / "runs/b/plots/curves.png").is_file()


def test_memory_that_no_formula_explains_is_told() -> None:
    def served(stored: int, kv: float, peak: int | None) -> Served:
        return Served((Request("a", 10, 2), Request("b", 10, 2)), (), LoadMemory(stored, stored, kv, peak))

    full = served(1000, 100.0, 5000)
    assert notes.of_memory(full, served(500, 50.0, 4500), {"in_flight": 2}, allocated=False) == []
    (above,) = notes.of_memory(full, served(500, 50.0, 6000), {"in_flight": 2}, allocated=False)
    assert above == "its peak is 33% above the baseline's with the store exchanged"
    assert notes.of_memory(full, served(500, 50.0, None), {}, allocated=False) == []
    assert notes.of_memory(full, served(500, 52.0, 9000), {}, allocated=True) == []
    (fits,) = notes.of_memory(full, served(500, 60.0, 9000), {}, allocated=True)
    assert fits == "1.67 times as many tokens fit, and 2 times by formula"


def test_settings_and_loads_that_come_later_have_the_trials_that_they_lack(bench: Bench) -> None:
    """Whatever was measured before, trial i serves the same requests, no trial is another's namesake, and rates pair."""

    def run(*words: str) -> None:
        said = bench(*words, "gate.payoff.slo.ttft_s=1000")
        assert said.code == 0, said.err

    run("strategy=fp8", "load.in_flight=2")
    run("-m", "strategy=fp8,int8", "load.in_flight=2", "pairs=6")
    read = [bench.measurements(role) for role in ("baseline", "noise", "candidate")]
    last = [trial for trial in read[2] if not trial.startswith(trials.WARM_UP)]
    assert [trials.number(trial) for trial in last] == [0, 1, 2, 3, 4, 5], "fp8 lacked the sixth alone"
    (int8,) = (arm for arm in bench.file("bench.json")["points"][0]["arms"] if arm["strategy"] == "int8")
    later = trials.served(ResultStore(bench.results).load(int8["address"]).read()[0])
    assert [trials.number(trial) for trial in later] == [0, 1, 2, 3, 4, 5]
    for trial, one in later.items():
        for arm in read[:2]:
            base = arm[trial].served
            assert base and [r.id for r in base.requests] == [r.id for r in one.requests]

    run("strategy=fp8", "load.in_flight=[1,2]")
    address = [point["arms"][2]["address"] for point in bench.file("bench.json")["points"]]
    one, two = (trials.served(ResultStore(bench.results).load(name).read()[0]) for name in address)
    assert not set(one) & set(two) and set(map(trials.number, one)) < set(map(trials.number, two))


def test_a_rate_pairs_loads_that_were_measured_on_different_days() -> None:
    def load(day: str, order: Sequence[int], ttft_s: float) -> dict[str, Served]:
        request = Request("a", 10, 2, 0.0, 0.0, ttft_s, ttft_s + 1, 2.0)
        return {trials.name(day, at): Served((request,), (), LoadMemory(1, 1, 1.0, None)) for at in order}

    def seen(day: str, order: Sequence[int], ttft_s: float) -> judge._Seen:
        full, mine = load(day, order, ttft_s), load(day, order, ttft_s)
        return judge._Seen({}, full, full, mine, ("", ""), (), ())

    points = [{"weight": rate, "load": {"rate_s": rate}} for rate in (1.0, 3.0)]
    series = judge._rates([seen("x", range(5), 0.5), seen("y", (3, 1, 2, 0), 1.5)], points, SLO(ttft_s=1, share=0.5))
    assert series.pairs == series.noise == [(2.0, 2.0)] * 4, "half way from all to none"


def test_a_setting_that_loses_its_slowest_requests_is_not_faster_for_it() -> None:
    def seen(times: Sequence[float], lost: int) -> dict[str, float | None]:
        done = tuple(Request(str(t), 9, 3, 0.0, 0.0, t, t + 2, t + 2, (t, t + 1, t + 2)) for t in times)
        gone = tuple(Request(f"gone {at}", 9, 0, 0.0, 0.0, end_s=1.0, error="gone") for at in range(lost))
        return facts.measured(Served(done + gone, (), LoadMemory(1, 1, 1.0, None)), SLO())

    slow, fast = [5.0] * 60, [1.0] * 40
    assert seen([*fast, *slow], 0)["ttft_p50"] == 5.0
    assert (
        seen(fast, 60)["ttft_p50"] is None and seen(fast, 60)["e2e_p50"] is None and seen(fast, 60)["tpot_p50"] is None
    )
    assert seen(fast, 1)["ttft_p50"] == 1.0, "where the median is one that came, it is told"
    assert seen([*fast, *slow], 0)["ttft_p99"] == 5.0 and seen([*fast, *slow], 0)["itl_p99"] == 1.0
    assert seen([*fast, *slow], 2)["ttft_p99"] is None and seen([*fast, *slow], 2)["itl_p99"] is None
    assert seen([1.0, 2.0], 1)["ttft_p50"] == 2.0


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=30), st.integers(0, 30), st.sampled_from([50, 90]))
def test_a_percentile_with_lost_values_is_that_of_all(times: list[float], lost: int, percent: int) -> None:
    found = facts._percentile(times, lost, percent)
    known = sorted(times) + [1e9] * lost
    assert (found is None) == (np.percentile(known, percent, method="higher") == 1e9)
    assert found is None or found == pytest.approx(np.percentile(known, percent))


def test_why_the_baseline_was_not_measured_is_told(bench: Bench) -> None:
    assert bench("strategy=fp8").code == 0
    baseline, again, _ = bench.file("bench.json")["points"][0]["arms"]
    for arm, why in ((baseline, "Late: by a second"), (again, "MemoryError: no room")):
        lost = Measurement(arm["address"], "x-9", 0, 1.0, None, why)
        ResultStore(bench.results).load(arm["address"]).append([lost])
    assert bench("strategy=fp8").code == 0
    told = bench.file("payoff.json")["notes"]
    assert {"full: a measurement failed: Late: by a second", "full: a measurement failed: MemoryError: no room"} <= set(
        told
    )


def test_a_load_of_which_nothing_was_measured_has_no_picture() -> None:
    verdict = _verdict("x")
    nothing = {"values": dict.fromkeys(reports.METRICS), "cached_share": None}
    for arm in (verdict["baseline"], *verdict["candidates"]):
        arm["points"] = [{**at, **nothing} for at in arm["points"]]
    assert curves.draw(verdict) is None


@pytest.mark.slow
def test_a_worker_does_not_outlive_a_run_that_is_killed(bench: Bench, layer: Callable[[str], list[str]]) -> None:
    """It is killed while a measurement lasts, which nobody then waits for."""
    words = layer("(HERE / 'pid').write_text(str(os.getpid())); import time; time.sleep(600)")
    usual = [f"model.path={bench.kvgate.model}", f"results_dir={bench.results}", "load.warmup=0"]
    command = [sys.executable, "-m", "harness.cli", "bench", "model=hf", "load=offline_tiny", *usual, *words]
    paths = os.pathsep.join(sys.path)
    note = bench.results.parent / "pid"
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as run:
        try:
            _until(note.exists)
        finally:
            run.kill()
    worker = Path("/proc") / note.read_text()
    _until(lambda: not worker.exists() or "State:\tZ" in (worker / "status").read_text())


def _until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_another_slo_at_the_same_measurements_is_told(bench: Bench) -> None:
    for limit in (1000, 2000):
        assert bench("strategy=fp8", "gate.payoff.goodput=0.01", f"gate.payoff.slo.e2e_s={limit}").code == 0
    told = " ".join(bench.file("payoff.json")["notes"])
    assert "fp8: gate.payoff.slo was" in told and "e2e_s 1000" in told.partition("and is now")[0]


def test_what_a_server_does_not_tell_is_not_asked_of_it(bench: Bench) -> None:
    where = [
        f"model.path={bench.kvgate.model}",
        f"results_dir={bench.results}",
        "engine.baseline=http://127.0.0.1:9/v1",
    ]
    wanted = ["gate.payoff.peak=1.1", "gate.payoff.itl_p99=1", "gate.payoff.slo.itl_s=0.1"]
    said = bench.kvgate("bench", "strategy=fp8", "model=hf", "engine=endpoint", *where, *wanted)
    assert said.code == 2
    for field, kind in (("peak", "peak"), ("itl_p99", "itl"), ("slo.itl_s", "itl")):
        assert f"gate.payoff.{field} must be null on engine endpoint, which does not see {kind}" in said.err
