"""Every two layers meet in some stack, or are refused with both named: over all six slots, on the engine itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.session import HFSession
from harness.types import Sample
from strategies.base import SLOTS, KVShape, Layer, Offload
from strategies.evict.quest import Quest
from strategies.offload.disk import Disk
from strategies.offload.tiered import Tiered
from strategies.paging.dynamic import Dynamic
from strategies.paging.paged import Paged
from strategies.paging.static import Static
from strategies.prefix.reuse import Reuse
from strategies.quant.hf_cache import HFHQQ
from strategies.stack import Stack
from strategies.structure.minicache import MiniCache
from tests.contract.layers import EVICTIONS, FORMATS, STRUCTURES
from tests.engines.test_hf import FULL, fitted, open_session, sample, tokens

FOLDER = "FOLDER"  # stands for a folder of the test's own
CHOICES: dict[str, dict[str, Layer | None]] = {
    "paging": {"": None, "static": Static(tokens=400), "dynamic": Dynamic(), "paged": Paged(block=16)},
    "prefix": {"": None, "reuse": Reuse(block=16)},
    "structure": {"": None, **STRUCTURES, "minicache": MiniCache(start=0.0)},
    "evict": {"": None, **EVICTIONS, "quest": Quest(keep=0.5, page=8)},
    "quant": {
        "": None,
        **{
            name: FORMATS[name]
            for name in ("fp8", "fp8_text", "int8_head", "kivi4", "per_layer_budget", "flexgen4", "nvfp4")
        },
        "turboquant": FORMATS["turboquant_4bit_nc"],
        "hqq": HFHQQ(group=16, axis_key=1, axis_value=1),
    },
    "offload": {"": None, "disk": Disk(path=FOLDER), "tiered": Tiered(tiers=(Disk(path=FOLDER),))},
}
LOSSLESS = ("paging", "prefix", "offload")


def placed(stack: Stack, folder: Path) -> Stack:
    """The stack with its tiers in a folder that is there."""

    def put(offload: Offload) -> Offload:
        if isinstance(offload, Tiered):
            return replace(offload, tiers=tuple(map(put, offload.tiers)))
        return replace(offload, path=str(folder)) if isinstance(offload, Disk) else offload

    return replace(stack, offload=put(stack.offload)) if stack.offload else stack


SHAPE = KVShape(
    layers=3, kv_heads=2, query_heads=4, head_dim=32, element_bytes=4, window=(None,) * 3
)  # the tiny model's
Pick = tuple[str, str]  # slot and choice


def stack_of(picks: dict[str, str]) -> Stack:
    layers: dict[str, Any] = {slot: CHOICES[slot][name] for slot, name in picks.items()}
    return Stack("+".join(filter(None, (picks.get(slot) for slot in SLOTS))) or "full", **layers)


def refused(picks: dict[str, str]) -> list[str]:
    """Why these layers cannot stand together; the folder of a tier is no matter of theirs."""
    return replace(stack_of(picks), offload=None).problems(SHAPE)


def pairs(picks: dict[str, str]) -> set[tuple[Pick, Pick]]:
    return set(combinations([(slot, picks[slot]) for slot in SLOTS if slot in picks], 2))


def cover() -> list[dict[str, str]]:
    """Stacks over all slots in which every two layers meet that may: each begins with a pair that has not met yet, and takes
    in every other slot what lets the most such pairs meet."""
    every = [
        dict(both) for one, other in combinations(SLOTS, 2) for both in product(*(named(slot) for slot in (one, other)))
    ]
    left = {pair for picks in every if not refused(picks) for pair in pairs(picks)}
    found = []
    while left:
        picks = dict(min(left))
        for slot in SLOTS:
            if slot not in picks:
                tried = [{**picks, slot: name} for name in CHOICES[slot]]
                picks = max((one for one in tried if not refused(one)), key=lambda one: len(pairs(one) & left))
        found.append(picks)
        left -= pairs(picks)
    return found


def named(slot: str) -> list[Pick]:
    return [(slot, name) for name in CHOICES[slot]]


COVER = cover()
LEGAL = [stack_of(picks) for picks in COVER]


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


def test_the_shape_is_the_models(session: HFSession) -> None:
    assert session.about.shape == SHAPE


def test_every_two_layers_meet_in_some_stack_or_are_refused_by_name() -> None:
    met = set().union(*map(pairs, COVER))
    for one, other in combinations(SLOTS, 2):
        for both in product(named(one), named(other)):
            if both not in met:
                told = " ".join(refused(dict(both)))
                for slot, name in both:
                    layer = CHOICES[slot][name]
                    assert layer is not None and slot in told and layer.name in told, (both, told)


def answered(session: HFSession, one: Sample, stacks: list[Stack], **mode: Any) -> dict[str, Answer]:
    rows = [Row(stack.name, fitted(session, stack)) for stack in stacks]
    return {
        a.cell: a for a in session.run([Ask(one, [rows])], seed=0, **{"compress": "prompt", "start": "warm", **mode})
    }


@pytest.mark.parametrize("compress", ["prompt", "context", "other"])
def test_every_legal_stack_runs_and_proves_that_each_of_its_layers_acted(
    session: HFSession, compress: str, tmp_path: Path
) -> None:
    one = sample(1, length=260, other="and which one came before?")
    stacks = [placed(stack, tmp_path) for stack in LEGAL if stack.layers()]
    for stack in stacks:
        assert placed(stack, tmp_path).problems(SHAPE) == [], stack.name
        for layer in stack.layers():
            assert HFEngine().supports(layer).yes
    answers = answered(session, one, [FULL, *stacks], compress=compress)
    for stack in stacks:
        answer = answers[stack.name]
        assert answer.response is not None, (stack.name, answer.error)
        assert [e.layer for e in answer.evidence] == [f"{x.slot}/{x.name}" for x in stack.layers()]
        idle = [e for e in answer.evidence if not e.acted]
        # the groups of KIVI's kind may hold what an eviction has left in their residual; the evidence says so
        assert all(e.layer.startswith("quant/") and "quantized 0 of" in e.why for e in idle), (stack.name, idle)
        assert answer.memory is not None
        assert answer.memory.stored_bytes == answer.memory.formula_bytes, stack.name


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_layers_that_lose_nothing_change_nothing(session: HFSession, compress: str, tmp_path: Path) -> None:
    """A stack and the same one without paging, prefix reuse and offload give the same tokens."""
    one = sample(2, length=240)
    with_them = [placed(stack, tmp_path) for stack in LEGAL if any(getattr(stack, slot) for slot in LOSSLESS)]
    bare = {
        stack.name: replace(stack, name=f"bare {stack.name}", paging=None, prefix=None, offload=None)
        for stack in with_them
    }
    answers = answered(session, one, [FULL, *with_them, *bare.values()], compress=compress)
    for stack in with_them:
        assert tokens(answers[stack.name]) == tokens(answers[f"bare {stack.name}"]), stack.name


def test_a_stack_that_was_stored_is_found_after_a_restart(tiny: Path, tmp_path: Path) -> None:
    """Every legal stack that offloads; those whose tokens are the same are the same objects."""
    stacks = [
        replace(stack, offload=replace(stack.offload, persist=True))  # type: ignore[type-var]
        for stack in (placed(stack, tmp_path) for stack in LEGAL)
        if stack.offload
    ]
    one = sample(3, length=240)
    for before in open_session(tiny):
        first = answered(before, one, [FULL, *stacks], start="cold")
    for after in open_session(tiny):
        again = answered(after, one, [FULL, *stacks], start="restarted")
    for stack in stacks:
        assert tokens(first[stack.name]) == tokens(again[stack.name]), stack.name
        found = next(e for e in again[stack.name].evidence if e.layer.startswith("offload/"))
        assert found.acted and found.facts["bytes_out"] == 0, (stack.name, found.why)


def test_slots_of_a_stack_are_the_slots_there_are() -> None:
    assert set(SLOTS) <= {field.name for field in fields(Stack)} and list(CHOICES) == list(SLOTS)


def test_a_pool_admits_as_many_requests_as_its_bytes_hold(session: HFSession) -> None:
    """By what the request weighs when its answer has ended, room that was set aside included."""
    pool = 2**20 / 2**30
    pagings = {"static": Static(tokens=400), "dynamic": Dynamic(), "paged": Paged(block=16)}
    stacks = [Stack(name, paging=replace(layer, pool_gib=pool)) for name, layer in pagings.items()]  # type: ignore[type-var]
    answers = answered(session, sample(1, length=100), [FULL, *stacks], start="cold")
    admitted = {}
    for name in pagings:
        memory, (one,) = answers[name].memory, answers[name].evidence
        assert memory is not None and one.acted
        admitted[name] = one.facts["admitted_requests"]
        assert admitted[name] == 2**20 // memory.stored_bytes_end
        assert one.facts["unused_share"] == pytest.approx(1 - memory.prompt_tokens / one.facts["reserved_tokens"])
    assert 0 < admitted["static"] < admitted["paged"] <= admitted["dynamic"]
    assert (
        "admitted_requests"
        not in answered(session, sample(1), [FULL, Stack("p", paging=Paged())])["p"].evidence[0].facts
    )
