"""Links, codes and copies: published arithmetic, brute force, and laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sizing import placement
from harness.sizing.hardware import Coding, Hardware, Tier
from harness.sizing.sections import (
    SECTIONS,
    coding,
    cxl,
    near_storage,
    object_store,
    overlap,
    reload,
    sites,
    small,
    staged,
    tiers,
)
from harness.sizing.shapes import shape_of
from harness.sizing.transfer import (
    break_even_bytes_s,
    coded_s,
    coding_break_even_bytes_s,
    drives,
    gbit_s,
    overlapped_s,
    staged_s,
    transfer_s,
    ttft_s,
)
from tests.sizing.conftest import LLAMA_8B, LOAD, case, exact

MODEL = shape_of("8B", LLAMA_8B, 2)
RATES = st.floats(1e6, 1e13)


def test_links_of_a_data_path() -> None:
    """Four links of 100 Gbit/s are 50 GB/s, a quarter of the 200 GB/s that four GPUs were quoted to take."""
    assert gbit_s(100, 4) == 50e9 and gbit_s(400) == 50e9 and gbit_s(100, 4) / 200e9 == 0.25


def test_prefixes_from_an_object_store() -> None:
    """ObjectCache (arXiv 2605.22850): an 8B model over 100 Gbit/s, 4k and 64k tokens."""
    assert transfer_s(MODEL.exact_bytes(4096), gbit_s(100)) == pytest.approx(43e-3, rel=0.01)
    assert transfer_s(MODEL.exact_bytes(65536), gbit_s(100)) == pytest.approx(0.69, rel=0.01)


def test_many_small_transfers() -> None:
    """124,928 operations of 3 us are 0.375 s a token; their 0.14 GB alone take 2.9 ms at 50 GB/s."""
    operations = 2048 * 61
    assert operations == 124_928
    assert transfer_s(operations * 1152, 50e9) == pytest.approx(2.9e-3, rel=0.01)
    assert transfer_s(operations * 1152, 50e9, operations, 3e-6) == pytest.approx(0.375 + 2.9e-3, rel=0.001)


def test_load_or_compute_again() -> None:
    """8B at 20,000 tokens/s: 2.62 GB/s; 70B at 10,000: 3.28 GB/s."""
    assert break_even_bytes_s(131_072, 20_000) == pytest.approx(2.62e9, rel=1e-3)
    assert break_even_bytes_s(327_680, 10_000) == pytest.approx(3.28e9, rel=1e-3)


@given(st.integers(2, 100_000), st.floats(0, 1), st.floats(10, 1e6), st.floats(1e9, 1e12))
def test_at_the_break_even_loading_takes_as_long_as_computing(
    tokens: int, share: float, speed: float, link: float
) -> None:
    even = break_even_bytes_s(131_072, speed)
    hit = int(tokens * share)
    assert ttft_s(tokens, hit, speed, 131_072, even) == pytest.approx(tokens / speed)
    assert (ttft_s(tokens, hit, speed, 131_072, link) <= tokens / speed * (1 + 1e-9)) == (link >= even or hit == 0)


LAYERS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*(st.lists(st.floats(0, 10), min_size=n, max_size=n) for _ in range(2)))
)


@given(LAYERS)
def test_overlap_by_brute_force(layers: tuple[list[float], list[float]]) -> None:
    """A link that loads one layer ahead of a device that computes them in order."""
    loads, computes = layers
    loaded = loads[0]
    at = loaded
    for layer, compute in enumerate(computes):
        ahead = loads[layer + 1] if layer + 1 < len(loads) else 0.0
        loaded = at + ahead
        at = max(at + compute, loaded)
    assert overlapped_s(loads, computes) == pytest.approx(at)
    assert max(sum(loads), sum(computes)) - 1e-9 <= overlapped_s(loads, computes) <= sum(loads) + sum(computes) + 1e-9


@given(RATES, st.floats(1, 100), st.floats(1, 1e12), RATES, st.integers(1, 1000), st.floats(0, 1))
def test_more_bandwidth_is_never_slower(
    rate: float, times: float, moved: float, host: float, ops: int, alpha: float
) -> None:
    more, cost = rate * times, Coding(rate, host)
    assert transfer_s(moved, more, ops, alpha) <= transfer_s(moved, rate, ops, alpha)
    assert transfer_s(moved, rate) < staged_s(moved, rate, host)
    assert staged_s(moved, more, host) <= staged_s(moved, rate, host)
    assert coded_s(moved, moved / 4, cost, more) <= coded_s(moved, moved / 4, cost, rate)
    assert drives(moved, more) <= drives(moved, rate)


@given(st.floats(1e6, 1e12), st.floats(0.01, 0.99), RATES, RATES)
def test_coding_pays_below_its_break_even(full: float, share: float, code: float, decode: float) -> None:
    cost = Coding(code, decode)
    even = coding_break_even_bytes_s(full, share * full, cost)
    assert coded_s(full, share * full, cost, even) == pytest.approx(full / even)
    assert coded_s(full, share * full, cost, even / 2) < full / (even / 2)
    assert coded_s(full, share * full, cost, even * 2) > full / (even * 2)


def test_near_storage_moves_vectors() -> None:
    """Llama-3.1-8B: 655,360 B a token and step, the cache's bytes at 5 tokens; 4.29 GB at 32,768."""
    assert placement.vectors_bytes(MODEL.layers, 2) == 655_360 == MODEL.exact_bytes(5)
    assert MODEL.exact_bytes(32768) == pytest.approx(4.29e9, rel=2e-3)
    assert placement.x_cache_elements(4096, MODEL.layers[0]) == (4096, 2048)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0.001, 10))
def test_near_storage_gains_no_more_than_the_share_of_moving(host: float, near: float, rest: float) -> None:
    near = min(near, host)
    share = placement.io_share(host, rest)
    assert 0 <= share < 1
    assert placement.near_storage_gain(host, near, rest) <= 1 / (1 - share) * (1 + 1e-9)


def test_copies_and_sites() -> None:
    assert placement.hit_share_of_copies(0.6, 4, 1) == pytest.approx(0.15)
    assert placement.hit_share_of_copies(0.6, 4, 9) == pytest.approx(0.6)
    assert placement.replication_bytes_s(2e9, 1) == 0 and placement.replication_bytes_s(2e9, 3) == 4e9


def failing(tier: Tier, **load: Any) -> str:
    here = case(hardware=Hardware("box", tiers=(tier,)), load=replace(LOAD, hit_share=0.5, **load))
    (row,) = tiers.section(here).rows  # type: ignore[union-attr]
    return str(row["fails_first"])


def test_links_fail_before_drives_and_drives_before_room() -> None:
    """2.15 GB/s of stores and 2.11 of refills, and 1,000 requests of 4.29 GB."""
    wide = Tier("t", 10e9, 10e9, bytes=5e12, drive_bytes_s=5e9)
    assert failing(wide) == "nothing"
    assert failing(replace(wide, bytes=4e12)) == "room"
    assert failing(replace(wide, drive_bytes_s=12e9, bytes=4e12)) == "drives"  # less than one drive is there
    assert failing(replace(wide, read_bytes_s=4e9, write_bytes_s=4e9, bytes=4e12)) == "link"
    assert failing(wide, requests_s=3.0) == "link"
    assert (
        failing(wide, kept_requests=2000) == "room"
        and failing(replace(wide, bytes=None), kept_requests=10**9) == "nothing"
    )


@given(st.floats(0.01, 100), st.floats(1, 50), RATES, st.floats(1, 50))
def test_a_wider_link_is_never_fuller(requests_s: float, times: float, rate: float, more: float) -> None:
    used = []
    for width in (rate, rate * more):
        here = case(
            hardware=Hardware("box", tiers=(Tier("t", width, width),)),
            load=replace(LOAD, hit_share=0.3, requests_s=requests_s),
        )
        used.append(tiers.section(here).rows[0]["link_used_share"])  # type: ignore[union-attr]
    assert used[1] <= used[0]


BARE = Hardware("bare")


@pytest.mark.parametrize("section", [tiers, reload, coding, overlap, small, staged, near_storage, object_store, cxl])
def test_where_nothing_is_known_nothing_is_told(section: Any) -> None:
    assert section.section(case(hardware=BARE)) is None


def test_one_site_has_nothing_to_place() -> None:
    assert sites.section(case()) is None
    told = sites.section(case(load=replace(LOAD, sites=4, hit_share=0.5)))
    assert told and [row["copies"] for row in told.rows] == [1, 2, 4]
    assert told.rows[-1]["local_hit_share"] == 0.5 and told.rows[0]["replication_gb_s_per_site"] == 0


def test_measured_coding_comes_before_an_assumption() -> None:
    model = MODEL
    quant = replace(exact(model), name="fp8", by_layer=lambda tokens: (tokens * 65536,), slots=("quant",))
    box = Hardware("box", memory_bytes_s=1e12, host_bytes_s=5e10, tiers=(Tier("nvme", 1e9, 1e9),))
    assumed = coding.coding_of(case(hardware=box, holdings=(exact(model), quant)), quant)
    assert assumed and assumed.code_bytes_s == pytest.approx(1e12 / 1.5)
    measured = replace(box, coding={"fp8": Coding(1e9, 2e9)})
    here = case(hardware=measured, holdings=(exact(model), quant))
    assert coding.coding_of(here, quant) == Coding(1e9, 2e9)
    told = coding.section(here)
    # half of the bytes saved over 1 / 1 GB/s + 1 / 2 GB/s
    assert told and told.rows[0]["break_even_gb_s"] == pytest.approx(0.5 / 1.5)
    assert told.rows[0]["coded_s"] > told.rows[0]["exact_s"]


def test_a_prompt_that_is_all_hits_still_computes_its_last_token() -> None:
    told = overlap.section(case(load=replace(LOAD, hit_share=1.0)))
    assert told and "other 1 tokens" in told.advice and told.rows[0]["layer_compute_ms"] > 0


def test_an_object_store_beside_computing_and_without() -> None:
    tier = Tier("object", 12.5e9, 12.5e9, 15e-3, price_gb_month=0.02)
    box = Hardware("box", memory_bytes_s=3e12, matmul_flop_s=1e15, tiers=(tier,))
    told = object_store.section(case(hardware=box))
    assert told and told.rows[0]["whole_s"] == pytest.approx(15e-3 + MODEL.exact_bytes(4096) / 12.5e9)
    assert told.rows[0]["usd_per_request_month"] == pytest.approx(0.02 * 0.537, rel=1e-3)
    assert told.advice.startswith("Loading is faster")
    slow = replace(box, tiers=(replace(tier, read_bytes_s=1e8),))
    again = object_store.section(case(hardware=slow))
    assert again and again.advice.startswith("Computing again is faster")
    unknown = object_store.section(case(hardware=replace(box, memory_bytes_s=None)))
    assert unknown and "not known here" in unknown.advice and unknown.rows[0]["added_behind_equal_compute_s"] is None


def test_small_reads_are_faster_over_cxl() -> None:
    fast = Hardware("box", tiers=(Tier("cxl", 28e9, 28e9, 0.6e-6), Tier("rdma", 50e9, 50e9, 3e-6)))
    told = cxl.section(case(hardware=fast))
    assert (
        told and told.rows[0]["cxl_ms"] < told.rows[0]["rdma_ms"] and told.rows[2]["cxl_ms"] > told.rows[2]["rdma_ms"]
    )
    even = (3e-6 - 0.6e-6) / (1 / 28e9 - 1 / 50e9)
    assert f"less than {even / 1e3:,.0f} kB" in told.advice


@given(st.floats(0.05, 5), st.integers(1, 200), st.floats(0.0, 1.0), st.integers(0, 10**6), st.integers(1, 8))
def test_no_section_breaks_on_a_load(requests_s: float, in_flight: int, share: float, kept: int, devices: int) -> None:
    load = replace(
        LOAD,
        requests_s=requests_s,
        in_flight=in_flight,
        hit_share=share,
        kept_requests=kept,
        devices=devices,
        sites=devices,
    )
    for name, section in SECTIONS.items():
        told = section(case(load=load))
        assert told is None or (told.rows and told.advice.endswith(".")), name
