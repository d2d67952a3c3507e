"""``kvgate plan`` as a user meets it: published numbers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.sizing.sections import SECTIONS
from tests.sizing.conftest import Planner, row, rows

# vLLM docs, "Quantized KV Cache": Qwen3-4B on an L4, vLLM 0.25.1, 11.47 GiB for keys and values
POOL_TOKENS = {"full": 83_488, "fp8": 166_992}
DECODE_TOKENS_S = {2048: (29.1, 29.4), 8192: (26.4, 27.9), 16384: (23.6, 26.2), 32768: (19.4, 23.4)}


def test_qwen3_4b_on_an_l4(plan: Planner) -> None:
    told = plan("model=qwen3_4b", "hardware=l4")
    assert told["model"]["kv_bytes_per_token"] == 147_456
    assert told["model"]["weight_bytes"] == pytest.approx(8.04e9, rel=1e-3)
    found = {name: row(told, "capacity", setting=name)["pool_tokens"] for name in POOL_TOKENS}
    assert found["full"] == 83_522
    for name, published in POOL_TOKENS.items():
        assert found[name] == pytest.approx(published, rel=5e-4)
    assert found["fp8"] / found["full"] == pytest.approx(2.0002, abs=5e-4)
    for tokens, (full, fp8) in DECODE_TOKENS_S.items():
        step = row(told, "decode", context_tokens=tokens, setting="fp8")
        assert step["gain_times"] == pytest.approx(fp8 / full, abs=0.03)
        alone = row(told, "decode", context_tokens=tokens, setting="full")["tokens_s"]
        assert 1.19 < alone / full < 1.26  # the optimism that every plan states


def test_parts_may_be_named(plan: Planner) -> None:
    """Bare words, before or behind options; the order is the plan's."""
    assert list(plan("walk", "-m", "strategy=fp8", "layers")["sections"]) == ["layers", "walk"]
    assert list(plan("show=tiers,reload")["sections"]) == ["tiers", "reload"]
    assert plan.said("claims", "walk").err.count("claims alone") == 1


def test_the_help_and_the_documentation_name_every_part(plan: Planner) -> None:
    told = " ".join(plan.said("--help").out.split())
    assert f"Parts: {', '.join(SECTIONS)};" in told
    documented = (Path(__file__).resolve().parents[2] / "docs/plan.md").read_text()
    assert all(f"`{name}`" in documented for name in SECTIONS)


def test_memory_may_be_given(plan: Planner) -> None:
    told = plan("capacity", "model=qwen3_4b", "kv_gib=11.47", "formats.fp8=null")
    assert list(told["sections"]) == ["capacity"]
    assert row(told, "capacity", setting="full")["pool_tokens"] == 83_521  # 11.47 GiB / 147,456 B = 83,521.99
    assert rows(told, "capacity", setting="fp8") == []


def test_deepseek_at_100k(plan: Planner) -> None:
    v32 = plan("layers", "model=deepseek_v32", "context=100000")
    assert row(v32, "layers", setting="full")["request_kv_gb"] == pytest.approx(8.5888)
    v4 = plan("layers", "model=deepseek_v4_pro", "context=100000")
    assert row(v4, "layers", setting="full")["request_kv_gb"] == pytest.approx(0.9928, rel=1e-3)
    assert v4["model"]["fitted"] and any("fitted, not reproduced" in note for note in v4["sections"]["layers"]["notes"])
    assert (
        v4["model"]["weight_bytes"] is None
        and row(v4, "layers", setting="full")["kv_outweighs_weights_from_tokens"] is None
    )


def test_what_a_format_cannot_pack_is_told(plan: Planner) -> None:
    told = plan("layers", "model=deepseek_v3")
    assert {one["setting"] for one in rows(told, "layers")} == {"full", "fp8", "int8", "flexgen4"}
    assert any("kivi2" in note and "latent" in note for note in told["sections"]["layers"]["notes"])


def test_several_strategies_are_compared(plan: Planner) -> None:
    told = plan("layers", "-m", "strategy=snapkv_fp8,minicache", "formats.kivi2=null")
    assert [one["setting"] for one in rows(told, "layers")] == [
        "full",
        "snapkv_fp8",
        "minicache",
        "fp8",
        "int8",
        "flexgen4",
    ]
    half = row(told, "layers", setting="snapkv_fp8")["times_smaller"]
    assert half == pytest.approx(2 * row(told, "layers", setting="fp8")["times_smaller"], rel=1e-3)
    assert 1.2 < row(told, "layers", setting="minicache")["times_smaller"] <= 4 / 3


def test_every_section_of_a_full_plan_has_rows_with_units_and_one_sentence(plan: Planner) -> None:
    told = plan("sites=3", "hit_share=0.5")
    assert list(told["sections"]) == list(SECTIONS)
    for name, section in told["sections"].items():
        assert section["rows"] and len({tuple(one) for one in section["rows"]}) == 1, name
        assert section["advice"].endswith(".") and section["advice"].count(". ") == 0, section["advice"]
    assert told["load"]["hit_share"] == 0.5 and told["hardware"]["tiers"]["nvme"]["read_bytes_s"] == 14e9


UNITS = (
    "tokens",
    "bytes",
    "gb",
    "mb",
    "ms",
    "us",
    "s",
    "times",
    "share",
    "requests",
    "usd",
    "needed",
    "operations",
    "copies",
)
WORDS = (
    "setting",
    "tier",
    "bound",
    "fails_first",
    "hidden",
    "read",
    "step",
    "take",
    "room",
    "deployment",
    "decided_by",
    "value",
    "why",
    "verdict",
    "command",
)


def test_every_number_names_its_unit(plan: Planner) -> None:
    told = plan("sites=3", "hit_share=0.5")
    for section in told["sections"].values():
        for name in section["rows"][0]:
            assert name in WORDS or set(name.split("_")) & set(UNITS), name


def test_the_text_has_the_same_sections(plan: Planner) -> None:
    said = plan.said("model=qwen3_4b", "hardware=l4")
    assert said.code == 0 and "83,522" in said.out
    assert all(f"[{name}]" in said.out for name in SECTIONS if name != "sites")


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "section": (["tires"], ["show must name parts of a plan (claims, layers", "got 'tires'"]),
    "format": (["format=yaml"], ["format must be one of text, markdown, json, got 'yaml'"]),
    "zero bandwidth": (
        ["hardware.memory_bytes_s=0"],
        ["hardware.memory_bytes_s must be null or a rate above 0, got 0"],
    ),
    "heads": (["model.shape.num_key_value_heads=5"], ["must divide the 32", "got 5"]),
    "missing field": (
        ["~model.shape.num_hidden_layers", "model.shape.model_type=none"],
        ["model.shape must be fields of a transformers configuration", "none"],
    ),
    "context": (
        ["context=200000"],
        ["context must be at most the 131072 tokens that meta-llama/Llama-3.1-8B-Instruct reads, got 200000"],
    ),
    "a model that is not there": (
        ["model=hf", "model.path=/no/such"],
        ["model.path must be a folder or file", "/no/such"],
    ),
    "a layer that cannot": (
        ["strategy=snapkv", "model=deepseek_v3"],
        ["strategy.evict: evict/snapkv works on the keys and values"],
    ),
    "a preset that cannot be": (["strategy=kivi2", "strategy.quant.group=48"], ["must divide", "48"]),
    "one that learns": (["strategy=lowrank"], ["learns from a calibration text", "kvgate run"]),
    "a results folder that is a file": (
        [f"results_dir={__file__}"],
        ["results_dir must be a folder, got "],
    ),
    "a format of no class": (
        ["formats.fp8.quant._target_=no.such.Class"],
        ["formats.fp8.quant: no.such.Class cannot be built"],
    ),
    "nothing to say": (["sites"], ["show: sites has nothing to say"]),
    "all at once": (
        [
            "requests_s=0",
            "hit_share=2",
            "utilization=0",
            "devices=0",
            "hardware.tiers.nvme.read_bytes_s=-1",
            "strategy=static",
        ],
        [
            "requests_s must be above 0",
            "hit_share must be in [0, 1]",
            "utilization must be",
            "devices must",
            "nvme",
            "paging/static",
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_planned_is_refused(plan: Planner, name: str) -> None:
    words, says = REFUSED[name]
    given = [] if any(word.startswith("results_dir=") for word in words) else [f"results_dir={plan.kvgate.results}"]
    said = plan.kvgate("plan", *words, *given)
    assert said.code == 2 and said.out == ""
    assert all(one in said.err for one in says), said.err
    assert "Traceback" not in said.err


def test_a_model_of_one_s_own_on_a_machine_of_one_s_own(plan: Planner, tiny: Path, tmp_path: Path) -> None:
    """Neither is in conf/: a folder of transformers, and the file that ``load=links`` writes."""
    (tmp_path / "hardware").mkdir()
    measured: dict[str, Any] = {"name": "box", "measured": "today", "memory_bytes_s": 1e10, "matmul_flop_s": 1e11}
    disk = {"write_large_bytes_s": 1e9, "read_large_bytes_s": 2e9}
    (tmp_path / "hardware/box.yaml").write_text(json.dumps({**measured, "disk": disk}))
    told = plan(
        "--config-dir",
        str(tmp_path),
        "hardware=box",
        "model=hf",
        f"model.path={tiny}",
        "context=2048",
        "output_tokens=64",
    )
    assert told["model"]["name"] == "llama" and told["model"]["kv_bytes_per_token"] == 3 * 2 * 2 * 32 * 2
    assert [one["tier"] for one in rows(told, "reload")] == ["disk"]
    assert "capacity" not in told["sections"]  # a file that was measured does not say how much memory there is
