"""The simulators as parts of a plan: what they say of a trace, of made-up requests, and what they leave to others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bench.metrics import SLO
from harness.sizing import disaggregated, paging, reuse
from harness.sizing.case import Case
from harness.sizing.hardware import Hardware, Tier
from harness.sizing.sections import SECTIONS, disaggregation, tiers, walk
from harness.sizing.sections import paging as paged_part
from harness.sizing.sections import reuse as reuse_part
from harness.sizing.stored import Stored
from harness.sizing.traces import Recorded
from tests.sizing.conftest import LOAD, SIMULATED, Planner, case, exact, row, rows

MOONCAKE = Path(__file__).parents[1] / "golden" / "mooncake.jsonl"
BOX = Hardware(
    "box",
    80e9,
    3e12,
    1e15,
    tiers=(Tier("host", 50e9, 50e9, bytes=256e9), Tier("rdma", 25e9, 25e9), Tier("nvme", 10e9, 5e9, bytes=4e12)),
)
TRACED = {"hardware": BOX, "trace": Recorded(MOONCAKE)}


def made(name: str, **changes: Any) -> list[Mapping[str, Any]]:
    section = SECTIONS[name](case(**{**TRACED, **changes}))
    assert section is not None
    return list(section.rows)


def test_hits_of_each_room_are_those_of_the_simulator() -> None:
    here = case(**TRACED)
    told = {str(one["room"]): one for one in made("reuse")}
    assert list(told) == ["device", "host", "nvme", "without end"]  # rdma says no room
    for policy in SIMULATED.policies:
        sizes = [*here.rooms_tokens.values(), math.inf]
        points = reuse.curve(here.trace.requests(), 512, sizes, policy).points  # type: ignore[union-attr]
        assert [one[f"{policy}_hit_share"] for one in told.values()] == [point.token_hit_rate for point in points]
    assert sum(one["not_found_nearer_share"] for one in told.values()) == pytest.approx(
        told["without end"]["lru_hit_share"]
    )
    assert told["device"]["cache_tokens"] == int((80e9 * 0.9 - 16.06e9) // 131072)


def test_other_parts_take_hits_from_the_trace_and_not_from_what_was_assumed() -> None:
    here = case(**TRACED, load=replace(LOAD, hit_share=0.9))
    share = reuse.hit_rate(here.found, max(here.rooms_tokens.values()))  # type: ignore[arg-type]
    assert tiers.hits(here) == share != 0.9
    step = next(one for one in walk.section(here).rows if one["step"] == "prefix")
    assert step["value"] == pytest.approx(share) and "in the device's memory" in step["why"]
    assert "on the trace" in tiers.section(here).title  # type: ignore[union-attr]
    assert tiers.hits(case(load=replace(LOAD, hit_share=0.9))) == 0.9


def test_where_nothing_is_asked_again_prefix_reuse_is_left_out(tmp_path: Path) -> None:
    lines = [
        {"timestamp": n, "input_length": 600, "output_length": 1, "hash_ids": [2 * n, 2 * n + 1]} for n in range(3)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    here = case(hardware=BOX, trace=Recorded(tmp_path / "t.jsonl"))
    assert next(one for one in walk.section(here).rows if one["step"] == "prefix")["take"] == "no"
    assert "nothing to find" in reuse_part.section(here).advice  # type: ignore[union-attr]


def test_without_a_trace_reuse_says_what_it_wants() -> None:
    told = reuse_part.section(case(hardware=BOX))
    assert told is not None and "trace=FILE" in told.advice
    assert [one["room"] for one in told.rows] == ["device", "host", "nvme"]
    assert not any("hit" in name for one in told.rows for name in one)
    assert reuse_part.section(case(hardware=Hardware("bare"))) is None


def test_room_is_what_the_paging_simulator_admits() -> None:
    half = replace(exact(case().model), name="fp8", by_layer=lambda tokens: (tokens * 65536,), slots=("quant",))
    here = case(**TRACED)
    here = replace(here, holdings=(here.full, half))
    told = {str(one["room"]): one for one in paged_part.section(here).rows}
    asked = list(Recorded(MOONCAKE).requests(16))[: SIMULATED.requests]
    assert here.budget_bytes is not None
    found = paging.admitted(asked, 16, here.budget_bytes, 131072, 65536)
    assert [one["max_batch_requests"] for one in told.values()] == [
        batches.requests
        for batches in (found.reserved, found.power_of_two, found.paged, found.paged_reuse, found.paged_reuse_format)
    ]
    assert list(told)[-1] == "shared blocks of fp8"
    assert told["blocks"]["unused_share"] == paging.waste(asked, 16).paged


def test_in_flight_decides_what_is_enough() -> None:
    half = replace(exact(case().model), name="fp8", by_layer=lambda tokens: (tokens * 65536,), slots=("quant",))

    def advice(in_flight: int, **changes: Any) -> str:
        load = replace(LOAD, **{"context": 2048, "output_tokens": 64, "kv_gib": 4, "in_flight": in_flight, **changes})
        here = case(load=load, simulated=replace(SIMULATED, requests=300))
        return paged_part.section(replace(here, holdings=(here.full, half))).advice

    assert "they alone admit the 8 requests" in advice(8)
    assert "do not admit the 80 requests that must fit at once, which blocks of fp8 do" in advice(80)
    assert "not even blocks of fp8 admit the 290" in advice(290)
    assert "all 300 simulated requests fit, which are fewer than the 500" in advice(500, kv_gib=5000)
    assert "not even the longest does" in advice(8, kv_gib=0.1)


def test_a_trace_that_all_fits_tells_no_batch() -> None:
    told = {str(one["room"]): one for one in made("paging", load=replace(LOAD, kv_gib=1e6))}
    assert all(one["max_batch_requests"] is None and one["times_more"] is None for one in told.values())


def test_speeds_are_those_of_the_roofline_and_of_stored_gaps() -> None:
    """Llama-3.1-8B in bfloat16 at 3 TB/s: a step reads 7.505e9 parameters of 2 bytes, and 131,072 bytes a token of context."""
    speeds = disaggregation.speeds_of(case(**TRACED))
    assert speeds is not None
    assert speeds.step_s == pytest.approx(7.505e9 * 2 / 3e12, rel=1e-3)
    assert speeds.step_token_s == pytest.approx(131072 / 3e12, rel=1e-3)
    assert speeds.kv_bytes_per_token == 131072 and speeds.layers == 32 and speeds.problems() == []
    gap = lambda what, times: {"what": what, "gap": times}  # noqa: E731
    points = [{"roofline": [gap("prefill", 4.0), gap("decode", 2.0)]}]
    known = Stored(
        payoffs=(({"name": "b", "hardware": {"name": "box"}, "points": []}, {"baseline": {"points": points}}),)
    )
    slower = disaggregation.speeds_of(case(**TRACED, stored=known))
    assert slower is not None
    assert slower.step_s == pytest.approx(2 * speeds.step_s) and slower.step_token_s == pytest.approx(
        2 * speeds.step_token_s
    )
    assert slower.prefill_tokens_s == pytest.approx(speeds.prefill_tokens_s / 4)
    given = disaggregation.speeds_of(case(**TRACED, load=replace(LOAD, prefill_tokens_s=123.0)))
    assert given is not None and given.prefill_tokens_s == 123.0


def test_the_link_is_the_hardware_s_or_the_user_s() -> None:
    two = replace(LOAD, devices=2)
    assert disaggregation.link_bytes_s(case(**TRACED, load=two)) == 50e9
    assert disaggregation.link_bytes_s(case(simulated=replace(SIMULATED, link_bytes_s=1e9))) == 1e9
    assert disaggregation.link_bytes_s(case()) is None and disaggregation.section(case()) is None
    assert SECTIONS["disaggregation"](case(**TRACED, load=replace(LOAD, kv_gib=0.001))) is None  # not one request fits


def test_a_row_is_an_outcome_of_the_simulator() -> None:
    here = case(**TRACED)
    speeds = disaggregation.speeds_of(here)
    assert speeds is not None
    found = disaggregated.compare(here.requests, speeds, 2, 25.0, SIMULATED.slo, SIMULATED.chunks_tokens)
    told = made("disaggregation")
    assert [one["deployment"] for one in told] == [
        "both, chunks of 512",
        "both, chunks of 2,048",
        "1 + 1",
        "1 + 1, by layer",
    ]
    assert [one["output_tokens_s"] for one in told] == [one.output_tokens_s for one in found]
    assert told[3]["added_ttft_mean_ms"] < told[2]["added_ttft_mean_ms"]
    both, apart = disaggregated.best(found)
    assert (both.prefill_gpus, apart.prefill_gpus) == (0, 1)


@pytest.mark.parametrize(
    ("slo", "said"),
    [(SLO(), "no limit is given"), (SLO(ttft_s=1e-9), "no request of one of them is within the limits")],
)
def test_what_cannot_be_compared_within_limits_is_said(slo: SLO, said: str) -> None:
    section = disaggregation.section(case(**TRACED, simulated=replace(SIMULATED, slo=slo)))
    assert section is not None and said in section.advice and section.advice.startswith("Disaggregation tunes latency")


def test_a_plan_on_a_trace(plan: Planner) -> None:
    """As a user asks for it; every part is told, and its numbers name their units."""
    told = plan(f"trace={MOONCAKE}", "trace.policies=lru,lfu", "simulated.requests=30", "simulated.chunks_tokens=[512]")
    assert list(told["sections"]) == [name for name in SECTIONS if name != "sites"]
    assert {"lru_hit_share", "lfu_hit_share"} < set(rows(told, "reuse")[0])
    assert told["trace"]["path"] == str(MOONCAKE) and told["left_out"] == []
    assert row(told, "walk", step="prefix")["value"] == pytest.approx(
        row(told, "reuse", room="without end")["lru_hit_share"]
    )
    assert len(rows(told, "disaggregation")) == 1 + 2 * 3


def test_a_file_may_have_any_name(plan: Planner, tmp_path: Path) -> None:
    odd = tmp_path / "a=b, c (1).jsonl"
    odd.write_text(MOONCAKE.read_text())
    assert rows(plan("reuse", f"trace={odd}", "trace.policies=lru"), "reuse")
    assert "lru_hit_share" not in rows(plan("reuse", "trace=null"), "reuse")[0]


def test_where_simpy_is_not_installed_the_rest_is_told(plan: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disaggregated, "find_spec", lambda name: None)
    told = plan("formats.kivi2=null")
    assert "disaggregation" not in told["sections"] and "pip install 'kvgate[plan]'" in told["left_out"][0]
    assert "left out: disaggregation needs simpy" in plan.said().out
    said = plan.said("disaggregation")
    assert said.code == 2 and "disaggregation needs simpy: pip install" in said.err


def test_a_part_that_was_asked_for_and_has_nothing_to_say_is_named(plan: Planner) -> None:
    told = plan("layers", "disaggregation", "hardware/tiers=none")
    assert list(told["sections"]) == ["layers"] and told["left_out"][0].startswith("disaggregation has nothing to say")


def test_a_trace_that_is_shorter_than_asked_for_says_so() -> None:
    more, fewer = (case(**TRACED, simulated=replace(SIMULATED, requests=count)) for count in (301, 300))
    assert more.lengths == "all of mooncake.jsonl" and fewer.lengths == "the first of mooncake.jsonl"


def test_a_case_reads_its_trace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here: Case = case(**TRACED)
    assert here.found is here.found and here.requests is here.requests
    assert len(here.requests) == SIMULATED.requests
