"""What only a GPU can show: no decode step copies to the host, and every stack answers there as on the CPU's code path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.build import build
from harness.engines.hf.decode import feed
from harness.engines.hf.prefill import prefill
from harness.engines.hf.session import HFSession
from strategies.stack import Stack
from tests.contract.layers import STACKS
from tests.engines.test_hf import FULL, fitted, open_session, run, sample, tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny, dtype="float32")


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_no_decode_step_waits_for_the_host(session: HFSession, stack: Stack) -> None:
    prompt = prefill(session.model, list(range(2, 150)), query_window=8, chunk=64, seed=0)
    cache = build(prompt, [FULL, fitted(session, stack)], 8)
    step = torch.tensor([[5], [5]], device="cuda")
    with attention(session.model, DECODE):
        feed(session.model, cache, step, prompt.tokens)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for ahead in range(1, 5):
                feed(session.model, cache, step, prompt.tokens + ahead)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("prefill_mode", ["exact", "chunked"])
def test_every_stack_answers_and_weighs_what_its_formula_says(session: HFSession, prefill_mode: str) -> None:
    one = sample(2)
    stacks = [stack for stack in STACKS if prefill_mode == "exact" or not (stack.packs and stack.evict)]
    joint = run(session, one, stacks, "prompt", prefill_mode)
    for stack in stacks:
        assert joint[stack.name].memory is not None
        assert joint[stack.name].memory.stored_bytes == joint[stack.name].memory.formula_bytes  # type: ignore[union-attr]
        assert tokens(joint[stack.name])
