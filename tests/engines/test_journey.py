"""Stored tokens go to a tier and come back: to the bit, or computed again; never something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf.build import build
from harness.engines.hf.journey import Depot, Journey
from harness.engines.hf.prefill import prefill
from harness.engines.hf.session import HFSession
from harness.types import Evidence, Sample
from strategies.base import Lost, Offload, Tier
from strategies.evict.window import Window
from strategies.offload.disk import Disk
from strategies.offload.host import Host
from strategies.offload.s3 import S3
from strategies.packet import pack
from strategies.prefix.reuse import Reuse
from strategies.quant.flexgen import FlexGen4
from strategies.quant.fp8 import FP8
from strategies.stack import Stack
from strategies.structure.minicache import MiniCache
from tests.contract.layers import EVICTIONS, STACKS
from tests.engines.test_hf import FULL, fitted, open_session, run, sample, tokens
from tests.s3server import BUCKET

PAIRS = Stack("minicache", MiniCache(start=0.0), quant=FlexGen4(group=16))


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


@dataclass(frozen=True, kw_only=True)
class Shelf(Offload):
    """A tier of the test's own: a dictionary, with what happens to it."""

    name: ClassVar[str] = "shelf"

    objects: dict[str, bytes] = field(default_factory=dict, hash=False)
    calls: list[tuple[str, str, str]] = field(default_factory=list, hash=False)  # what, key, thread
    broken: Callable[[str, str], None] = field(default=lambda what, key: None, hash=False)  # raises if this call fails

    def spec(self) -> dict[str, Any]:
        return {"slot": "offload", "name": "shelf"}

    def tier(self) -> Tier:
        return _Shelf(self)


class _Shelf(Tier):
    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def _note(self, what: str, key: str) -> None:
        self.shelf.calls.append((what, key.split("/")[1], threading.current_thread().name))
        self.shelf.broken(what, key)

    def put(self, key: str, data: bytes) -> str:
        self._note("put", key)
        self.shelf.objects[key] = data
        return "shelf"

    def get(self, key: str) -> tuple[bytes, str]:
        self._note("get", key)
        if key not in self.shelf.objects:
            raise Lost(f"shelf: {key}: not there")
        return self.shelf.objects[key], "shelf"

    def delete(self, key: str) -> None:
        self._note("delete", key)
        self.shelf.objects.pop(key, None)


def away(stack: Stack, offload: Offload) -> Stack:
    return replace(stack, name=f"{stack.name} away", offload=offload)


def evidence(answer: Answer) -> Evidence:
    return next(e for e in answer.evidence if e.layer.startswith("offload/"))


def asked(session: HFSession, one: Sample, stacks: list[Stack], **mode: Any) -> dict[str, Answer]:
    rows = [Row(stack.name, fitted(session, stack)) for stack in stacks]
    return {answer.cell: answer for answer in session.run([Ask(one, [rows])], seed=0, **{"compress": "prompt", **mode})}


@pytest.mark.parametrize("stack", [*STACKS, PAIRS], ids=lambda stack: stack.name)
def test_what_comes_back_is_what_left_to_the_bit(session: HFSession, stack: Stack, tmp_path: Path) -> None:
    """Of two equal caches one travels; then both hold the same, and both go on the same."""
    stack = fitted(session, replace(stack, offload=Disk(path=str(tmp_path))))
    prompt = session.tokenizer.prompt(sample(1, length=190))
    ids = prompt.context + prompt.rest
    needs = stack.evict.needs if stack.evict else frozenset()
    if needs & {"reread", "future"}:
        pytest.skip("what the policy asks for is made by the session; the test below covers it")
    known = prefill(session.model, ids, query_window=64, chunk=40, seed=0, needs=needs)
    stayed, travelled = build(known, [stack], 8), build(known, [stack], 8)
    weight = travelled.stored_bytes(1)
    depot = Depot(stack.offload)  # type: ignore[arg-type]
    journey = Journey(depot, "ab12", travelled, 0, stored=False, afresh=lambda: pytest.fail("nothing was lost"))
    assert all(bucket.keys.device.type == "meta" for layer in travelled.joint for bucket in layer.buckets)
    assert travelled.stored_bytes(1) == weight
    for layer in travelled.joint:
        for bring in layer.arrivals.values():
            bring()
    for mine, theirs in zip(travelled.joint, stayed.joint, strict=True):
        for a, b in zip(mine.buckets, theirs.buckets, strict=True):
            assert torch.equal(a.keys[:, :, : a.length], b.keys[:, :, : b.length])
            assert torch.equal(a.values[:, :, : a.length], b.values[:, :, : b.length])
            for one, other in zip(a.groups, b.groups, strict=True):
                if one.store:
                    held = zip(one.store.tensors(), other.store.tensors(), strict=True)  # type: ignore[union-attr]
                    assert all(x.dtype == y.dtype and torch.equal(_bits(x), _bits(y)) for x, y in held)
    moved = journey.moved()
    assert moved.bytes_in == moved.bytes_out and sum(moved.bytes_in.values()) >= weight[0]
    depot.close()


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_row_that_went_away_answers_as_one_that_stayed(session: HFSession, compress: str, tmp_path: Path) -> None:
    disk = Disk(path=str(tmp_path))
    travelling = [away(stack, disk) for stack in [*STACKS, PAIRS]]
    answers = asked(session, sample(2), [*STACKS, PAIRS, *travelling], compress=compress)
    for stack in [*STACKS, PAIRS]:
        stayed, gone = answers[stack.name], answers[f"{stack.name} away"]
        assert tokens(gone) == tokens(stayed), stack.name
        assert gone.memory == stayed.memory
        one = evidence(gone)
        assert one.acted and one.facts["bytes_in"] == one.facts["bytes_out"] >= gone.memory.stored_bytes  # type: ignore[union-attr]
        assert [e.acted for e in gone.evidence if e.layer != "offload/disk"] == [e.acted for e in stayed.evidence]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]  # nothing was to persist


def test_rows_that_read_their_prompt_through_their_store_go_away_too(session: HFSession, tmp_path: Path) -> None:
    disk = Disk(path=str(tmp_path))
    stacks = [Stack("fp8", quant=FP8()), Stack("lowrank", STACKS[-1].structure)]
    answers = asked(session, sample(2), [FULL, *stacks, *(away(s, disk) for s in stacks)], prefill="chunked")
    for stack in stacks:
        assert tokens(answers[f"{stack.name} away"]) == tokens(answers[stack.name])
        assert evidence(answers[f"{stack.name} away"]).acted


def test_the_next_layer_is_fetched_while_one_computes(session: HFSession) -> None:
    shelf = Shelf()
    asked(session, sample(0), [FULL, away(FULL, shelf)])
    layers = [f"layer{index:03}" for index in range(session.about.shape.layers)]
    assert [(what, layer) for what, layer, _ in shelf.calls] == [
        *(("put", layer) for layer in layers),
        *(("get", layer) for layer in layers),
        *(("delete", layer) for layer in layers),
    ]
    assert {thread for what, _, thread in shelf.calls if what == "get"} == {"kvgate-fetch_0"}


def test_while_one_layer_waits_the_next_is_under_way(session: HFSession) -> None:
    """The last layer cannot be given before the one before it has been attended to: it must have been asked for by then."""
    seen, fetching, asked_for = [], threading.Event(), threading.Event()

    def hook(module: Any, arguments: Any, result: Any) -> None:
        if fetching.is_set():
            seen.append(asked_for.wait(timeout=20))  # after the second layer's attention: is the third on its way?

    def note(what: str, key: str) -> None:
        if what == "get" and key.endswith("layer001"):
            fetching.set()
        if what == "get" and key.endswith("layer002"):
            asked_for.set()

    shelf = Shelf(broken=note)
    handle = session.model.base_model.layers[1].self_attn.register_forward_hook(hook)
    try:
        one = replace(sample(0), max_new_tokens=2)
        run_with_hook = asked(session, one, [FULL, away(FULL, shelf)], compress="prompt")
    finally:
        handle.remove()
    assert seen and all(seen) and evidence(run_with_hook["full away"]).acted


# --- restart ---


def restarted(tiny: Path, stack: Stack, offload: Offload, tmp_path: Path, **changes: Any) -> tuple[Answer, Answer]:
    """The answer of a process that stores, and of one that starts anew with other options and looks for what is there."""
    kept = replace(offload, persist=True)
    for before in open_session(tiny):
        first = asked(before, sample(1), [FULL, away(stack, kept)])[f"{stack.name} away"]
    model = changes.pop("path", tiny)
    later = replace(stack, **changes.pop("layers", {}))
    mode = changes.pop("mode", {})
    for after in open_session(model, **changes):
        answers = asked(after, sample(1), [FULL, later, away(later, kept)], start="restarted", **mode)
        assert tokens(answers[f"{later.name} away"]) == tokens(answers[later.name])
    return first, answers[f"{later.name} away"]


@pytest.mark.parametrize("stack", [FULL, Stack("fp8", quant=FP8()), PAIRS, STACKS[-1]], ids=lambda stack: stack.name)
def test_a_restarted_process_finds_what_is_there(tiny: Path, stack: Stack, tmp_path: Path) -> None:
    first, again = restarted(tiny, stack, Disk(path=str(tmp_path)), tmp_path)
    assert evidence(again).acted and tokens(again) == tokens(first)
    assert evidence(again).facts["bytes_out"] == 0
    assert evidence(again).facts["bytes_in"] == evidence(first).facts["bytes_out"]


class Newer(FP8):
    version: ClassVar[int] = 99


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"revision": "another"},
        {"layers": {"quant": FP8(scale="head")}},
        {"layers": {"quant": Newer()}},
        {"layers": {"evict": Window(keep=0.9)}},
        {"mode": {"prefill": "chunked"}},
        {"mode": {"compress": "context"}},
        {"chunk": 64},
    ],
    ids=["dtype", "revision", "format", "layer code", "layout", "prefill", "prompt", "engine"],
)
def test_whatever_decides_a_bit_is_part_of_the_key(tiny: Path, change: dict[str, Any], tmp_path: Path) -> None:
    stack = Stack("s", quant=FP8())
    _, again = restarted(tiny, stack, Disk(path=str(tmp_path)), tmp_path, **change)
    assert not evidence(again).acted and "not there" in evidence(again).why
    assert evidence(again).facts["bytes_in"] == 0


def test_another_rope_setting_or_other_weights_are_another_key(
    tiny: Path, tiny_family: Callable[..., Path], tmp_path: Path
) -> None:
    for changes in ({"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}, {"intermediate_size": 128}):
        other = tiny_family("llama", **changes)
        _, again = restarted(tiny, FULL, Disk(path=str(tmp_path)), tmp_path, path=other)
        assert not evidence(again).acted and "not there" in evidence(again).why


def test_a_restart_finds_objects_of_a_bucket(tiny: Path, s3_server: Any, tmp_path: Path) -> None:
    s3 = S3(bucket=BUCKET, endpoint=s3_server.endpoint, prefix=tmp_path.name)
    first, again = restarted(tiny, Stack("fp8", quant=FP8()), s3, tmp_path)
    assert evidence(again).acted and evidence(again).facts["bytes_in_s3"] == evidence(first).facts["bytes_out_s3"] > 0


# --- what goes wrong ---


def harmed(session: HFSession, harm: Callable[[dict[str, bytes], str], None], on_loss: str) -> dict[str, Answer]:
    """One row's objects are harmed between leaving and coming back."""

    def broken(what: str, key: str) -> None:
        if what == "get" and key.endswith("layer001"):
            harm(shelf.objects, key)

    shelf = Shelf(broken=broken, on_loss=on_loss)
    stack = Stack("fp8", quant=FP8())
    return asked(session, sample(0), [FULL, stack, away(stack, shelf)])


def _flip(objects: dict[str, bytes], key: str) -> None:
    data = bytearray(objects[key])
    data[len(data) // 2] ^= 1
    objects[key] = bytes(data)


HARMS: dict[str, tuple[Callable[[dict[str, bytes], str], None], str]] = {
    "altered": (_flip, "altered"),
    "truncated": (lambda objects, key: objects.update({key: objects[key][:-5]}), "truncated"),
    "another's": (lambda objects, key: objects.update({key: objects[key[:-1] + "0"]}), "misplaced"),
    "gone": (lambda objects, key: objects.pop(key) and None, "not there"),
}


@pytest.mark.parametrize("harm, says", HARMS.values(), ids=HARMS)
def test_what_is_damaged_is_computed_again_and_told(
    session: HFSession, harm: Callable[[dict[str, bytes], str], None], says: str
) -> None:
    answers = harmed(session, harm, "recompute")
    assert tokens(answers["fp8 away"]) == tokens(answers["fp8"])
    one = evidence(answers["fp8 away"])
    assert not one.acted and one.facts["recomputed_layers"] == 1 and says in one.why and "layer 1" in one.why


@pytest.mark.parametrize("harm, says", HARMS.values(), ids=HARMS)
def test_or_the_sample_fails_if_that_was_asked(
    session: HFSession, harm: Callable[[dict[str, bytes], str], None], says: str
) -> None:
    answers = harmed(session, harm, "fail")
    lost = answers["fp8 away"]
    assert lost.response is None and says in lost.error and lost.fault == "infrastructure"
    assert answers["fp8"].response is not None and answers["full"].response is not None


@pytest.mark.parametrize("when", ["put", "get"])
def test_a_tier_that_does_not_answer_is_asked_once_a_sample(session: HFSession, when: str) -> None:
    def broken(what: str, key: str) -> None:
        if what in (when, "delete"):
            raise OSError("shelf: connection timed out")

    shelf = Shelf(broken=broken)
    answers = asked(session, sample(0), [FULL, away(FULL, shelf)])
    assert tokens(answers["full away"]) == tokens(answers["full"])
    one = evidence(answers["full away"])
    assert not one.acted and "connection timed out" in one.why
    assert one.facts["recomputed_layers"] == session.about.shape.layers
    assert [what for what, *_ in shelf.calls].count(when) == 1


def test_a_disk_that_fills_up_half_way_costs_nothing_but_the_journey(session: HFSession) -> None:
    def broken(what: str, key: str) -> None:
        if what == "put" and key.endswith("layer001"):
            raise OSError("shelf: no space left on device")

    answers = asked(session, sample(0), [FULL, away(FULL, Shelf(broken=broken))])
    assert tokens(answers["full away"]) == tokens(answers["full"])
    assert "no space left" in evidence(answers["full away"]).why


def test_without_an_accelerator_nothing_moves_to_host_memory(session: HFSession) -> None:
    answers = asked(session, sample(0), [FULL, away(FULL, Host())])
    assert tokens(answers["full away"]) == tokens(answers["full"])
    one = evidence(answers["full away"])
    assert not one.acted and "no accelerator" in one.why and one.facts["bytes_out"] == 0


def test_an_answer_that_ends_at_once_gets_its_tokens_back_whoever_is_beside(session: HFSession, tmp_path: Path) -> None:
    one, gone = replace(sample(0), max_new_tokens=1), away(FULL, Disk(path=str(tmp_path)))
    for company in ([], [Stack("fp8", quant=FP8()), Stack("more", evict=Window(keep=0.5))]):
        answers = asked(session, one, [FULL, gone, *company])
        assert tokens(answers["full away"]) == tokens(answers["full"])
        assert evidence(answers["full away"]).acted
        assert answers["full away"].memory == answers["full"].memory


def test_an_answer_of_one_token_is_an_answer_whatever_is_away(session: HFSession, tmp_path: Path) -> None:
    """Formats and evictions report about themselves while their tensors are away."""
    one = replace(sample(0), max_new_tokens=1)
    disk = Disk(path=str(tmp_path))
    answers = asked(session, one, [*STACKS, PAIRS, *(away(stack, disk) for stack in [*STACKS, PAIRS])])
    for stack in [*STACKS, PAIRS]:
        gone = answers[f"{stack.name} away"]
        assert gone.response is not None, (stack.name, gone.error)
        assert tokens(gone) == tokens(answers[stack.name]) and gone.memory == answers[stack.name].memory


def test_what_persists_is_not_deleted_by_a_row_that_does_not(session: HFSession, tmp_path: Path) -> None:
    stack, disk = Stack("fp8", quant=FP8()), Disk(path=str(tmp_path))
    stays = replace(away(stack, replace(disk, persist=True)), name="stays")
    asked(session, sample(0), [FULL, stays, replace(away(stack, disk), name="goes")])
    again = asked(session, sample(0), [FULL, stays], start="restarted")["stays"]
    assert evidence(again).acted


@pytest.mark.parametrize("change", [{"compress": "other"}, {"other": "who else?"}, {"instructions": ("what is",)}])
def test_whatever_a_policy_had_in_view_is_part_of_the_key(
    session: HFSession, change: dict[str, Any], tmp_path: Path
) -> None:
    """Tokens that were kept for one question are not those that are kept for another."""
    stack = away(Stack("s", evict=EVICTIONS["adakv"]), Disk(path=str(tmp_path), persist=True))
    one = sample(0, other="and which one came before it?")
    first = "context" if "compress" in change else "other"
    asked(session, one, [FULL, stack], compress=first)
    later = replace(one, **{key: value for key, value in change.items() if key != "compress"})
    mode = {"compress": change.get("compress", first), "start": "restarted"}
    again = asked(session, later, [FULL, stack], **mode)[stack.name]
    assert again.response is not None and "not there" in evidence(again).why


def test_an_object_that_looks_otherwise_is_lost(session: HFSession) -> None:
    def other_shapes(what: str, key: str) -> None:
        if what == "get" and key.endswith("layer001"):
            shelf.objects[key] = pack([torch.zeros(3)], key)

    shelf = Shelf(broken=other_shapes)
    stack = Stack("fp8", quant=FP8())
    answers = asked(session, sample(0), [FULL, stack, away(stack, shelf)])
    assert tokens(answers["fp8 away"]) == tokens(answers["fp8"])
    assert "other shapes" in evidence(answers["fp8 away"]).why


def test_a_tier_that_cannot_be_connected_to_costs_its_row_the_journey_alone(tiny: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Nowhere(Shelf):
        def tier(self) -> Tier:
            raise OSError("nowhere: no route to host")

    for fresh in open_session(tiny):
        answers = asked(fresh, sample(0), [FULL, away(FULL, Nowhere())])
        assert tokens(answers["full away"]) == tokens(answers["full"])
        assert "no route to host" in evidence(answers["full away"]).why


def test_a_reused_prefix_goes_away_like_any_other(session: HFSession, tmp_path: Path) -> None:
    both = Stack("both", prefix=Reuse(), offload=Disk(path=str(tmp_path)), quant=FP8())
    for _ in range(2):
        answers = asked(session, sample(4), [FULL, Stack("fp8", quant=FP8()), both])
    assert tokens(answers["both"]) == tokens(answers["fp8"])
    assert all(e.acted for e in answers["both"].evidence)


def test_follow_goes_through_a_tier(session: HFSession, tmp_path: Path) -> None:
    one = replace(sample(3), follow=True)
    stack = Stack("fp8", quant=FP8())
    answers = asked(session, one, [FULL, stack, away(stack, Disk(path=str(tmp_path)))])
    mine, theirs = (answers[name].response for name in ("fp8 away", "fp8"))
    assert mine is not None and theirs is not None and mine.fidelity == pytest.approx(theirs.fidelity, abs=1e-6)
    assert run(session, sample(3), [FULL])["full"].response is not None
