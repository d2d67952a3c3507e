"""Outcomes of published figures are computed: each kind is met, and follows the number."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines.hf.casts import overflow
from harness.sizing import claims, printed
from harness.sizing.claims import Claim, Outcome
from harness.sizing.reuse import curve
from harness.sizing.stacks import times_smaller
from harness.sizing.traces import Recorded, read
from tests.sizing.conftest import Planner, rows

ROOT = Path(__file__).resolve().parents[2]
MOONCAKE = ROOT / "tests/golden/mooncake.jsonl"
OUTCOMES = {  # part of the claim: what comes out
    "V3.2 holds 9 GB": "reproduced",
    "V4-Pro holds 1 GB": "fitted",
    "MLA cuts the cache by 93.3": "contradicted",
    "MLA stored in 6 bits": "fitted",
    "TransMLA cuts": "reproduced",
    "Paging wastes under": "reproduced",
    "Static room wastes": "reproduced",
    "Disaggregation raises throughput": "contradicted",
    "DistServe serves": "not checkable here",
    "conversation trace reuses": "not checkable here",
    "MiniCache makes the cache 5.02": "contradicted",
    "MiniCache without quantization": "reproduced",
    "KIVI, 2 bits": "reproduced",
    "TurboQuant 4bit_nc makes": "contradicted",
    "TurboQuant 4bit_nc, every": "reproduced",
    "83,488 tokens": "reproduced",
    "Four 100 Gbit/s": "reproduced",
    "Sparse fetches": "reproduced",
    "X-cache": "contradicted",
    "24 times faster": "not checkable here",
}


def test_the_outcomes_of_known_claims(plan: Planner) -> None:
    told = plan("claims")
    found = {one["claim"]: one["outcome"] for one in rows(told, "claims")}
    for part, wanted in OUTCOMES.items():
        assert [outcome for claim, outcome in found.items() if part in claim] == [wanted], part
    assert set(found.values()) == set(map(str, Outcome))
    assert all(one["source"] and one["check"] for one in rows(told, "claims"))
    assert told["sections"]["claims"]["advice"].startswith(f"Of {len(found)} figures")


def test_an_outcome_follows_its_numbers() -> None:
    claim = Claim("c", "s", 4.0, 4.05, "how")
    assert claim.outcome is Outcome.REPRODUCED
    assert replace(claim, fitted=True).outcome is Outcome.FITTED
    assert replace(claim, ours=4.2).outcome is replace(claim, ours=4.2, fitted=True).outcome is Outcome.CONTRADICTED
    assert replace(claim, ours=3.0, relation="<").outcome is Outcome.REPRODUCED
    assert replace(claim, ours=4.0, relation="<").outcome is Outcome.CONTRADICTED
    assert replace(claim, ours=None).outcome is replace(claim, published=None).outcome is Outcome.UNCHECKED
    assert replace(claim, published=math.nan, ours=math.nan).outcome is Outcome.REPRODUCED
    assert replace(claim, published=math.nan).outcome is Outcome.CONTRADICTED


@pytest.mark.parametrize("cast, wanted", [(math.nan, "reproduced"), (448.0, "contradicted")])
def test_a_cast_is_judged_by_what_it_made(cast: float, wanted: str) -> None:
    told = {row["claim"]: row["outcome"] for row in claims.section(times_smaller, cast).rows}
    assert told["FP8 without a clamp makes NaN of outliers"] == wanted
    assert math.isnan(overflow()) or overflow() == 448.0


def test_the_layers_own_bytes_decide() -> None:
    """Formats that shrank nothing would contradict what is reproduced now."""
    told = {row["claim"]: row["outcome"] for row in claims.section(lambda layers, model, tokens: 1.0, 448.0).rows}
    assert told["KIVI, 2 bits, at 4,096 tokens: 4.995 times smaller"] == "contradicted"
    assert told["FP8 doubles the tokens of a pool"] == "contradicted"


def test_a_trace_that_a_claim_is_about_is_counted(plan: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    other = plan("claims", f"trace={MOONCAKE}")["sections"]["claims"]
    assert "no claim is about mooncake.jsonl, 300 requests" in other["notes"][0]
    assert {one["outcome"] for one in other["rows"] if "reuses" in one["claim"]} == {"not checkable here"}
    found = curve(read(MOONCAKE, 512), 512, [math.inf])
    size, share = (300, round(found.prompt_tokens / 300)), 100 * found.points[0].token_hit_rate
    monkeypatch.setattr(claims, "MOONCAKE", {size: ("short", share), (1, 1): ("long", 1.0)})
    told = {row["claim"]: row["outcome"] for row in claims.section(times_smaller, 448.0, Recorded(MOONCAKE)).rows}
    assert [outcome for claim, outcome in told.items() if "reuses" in claim] == ["reproduced", "not checkable here"]


def test_the_documented_table_is_the_one_that_is_computed() -> None:
    """docs/plan.md has what ``kvgate plan claims format=markdown`` prints; PyTorch 2.12 and later make 448 of the cast."""
    documented = (ROOT / "docs/plan.md").read_text()
    section = claims.section(times_smaller, 448.0)
    for line in printed.as_markdown({"claims": section}, ()).splitlines():
        assert line in documented
