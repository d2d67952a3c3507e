"""What batching, paging and reuse pay on this machine, as ratios: published ones are "up to 24 times" and "2 to 4 times" for a
server with paged attention over static batches, and 800 against 1,900 tokens a second for FP8 with prefix reuse over neither.

Mixed lengths: prompts of 16 to 256 and answers of 8 to 128 tokens, evenly spread, all there at the start, each of fixed length.
A token counts if it was asked for: padding and what a static batch decodes past an answer's length do not.

- static: transformers' generate, prompts padded to the longest, decoded until the longest answer is done; all at once, and four
  at a time
- continuous: transformers' continuous batching over a paged cache
- vllm: vLLM in this process

Every way serves the same requests, one way after the other, in turned order every second time; ratios are those of one trial.

Shared prompts: `kvgate bench` in vLLM, prompts of which 90 % were there before: FP8 with prefix reuse against neither.

    python benchmarks/batching.py [--trials 5] > benchmarks/results/batching.json
    python benchmarks/batching.py --table benchmarks/results/batching.json
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.runs import MODEL, markdown, record
from harness.bench.loads.base import Prose
from harness.bench.loads.closed import Closed
from harness.engines.base import Prompt, Traffic
from harness.engines.hf.engine import HFEngine
from harness.engines.vllm.engine import VLLMEngine
from harness.stats import student_interval
from strategies.stack import Stack

FULL = Stack("full")
LOAD = Closed(name="mixed", requests=16, prompt_tokens=136, output_tokens=68, spread=15 / 17, in_flight=16)
PAGE, POOL_TOKENS, STEP_TOKENS = 32, 8192, 512  # of transformers' paged cache, and of one of its steps
SHARED = ("load=prefix_mix", "load.hit_rate=0.9", "load.prompt_tokens=1024", "load.output_tokens=32", "load.prefixes=2")
ALPHA = 0.025  # outside each end of an interval

Serve = Callable[[Sequence[Prompt]], None]


@contextmanager
def static(model: Any, pad: int, at_once: int) -> Iterator[Serve]:
    """Batches that are padded on the left and decode until the longest answer is done."""

    def serve(prompts: Sequence[Prompt]) -> None:
        for start in range(0, len(prompts), at_once):
            batch = prompts[start : start + at_once]
            longest = max(len(prompt.token_ids) for prompt in batch)
            padded = [[pad] * (longest - len(one.token_ids)) + list(one.token_ids) for one in batch]
            mask = [[0] * (longest - len(one.token_ids)) + [1] * len(one.token_ids) for one in batch]
            steps = max(prompt.output_tokens for prompt in batch)
            asked = {"max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False, "pad_token_id": pad}
            model.generate(torch.tensor(padded), attention_mask=torch.tensor(mask), **asked)

    yield serve


@contextmanager
def continuous(model: Any, pad: int) -> Iterator[Serve]:
    """Requests join and leave a batch step by step, over a cache in pages."""
    paged = ContinuousBatchingConfig(page_size=PAGE, num_blocks=POOL_TOKENS // PAGE, max_batch_tokens=STEP_TOKENS)
    greedy = GenerationConfig(do_sample=False, max_new_tokens=1, eos_token_id=-1, pad_token_id=pad)

    def serve(prompts: Sequence[Prompt]) -> None:
        with model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=paged, warmup=False
        ) as manager:
            for prompt in prompts:
                manager.add_request(list(prompt.token_ids), max_new_tokens=prompt.output_tokens, eos_token_id=-1)
            answers = [manager.get_result(timeout=600) for _ in prompts]
        given = sorted(len(answer.generated_tokens) for answer in answers)
        assert given == sorted(prompt.output_tokens for prompt in prompts), "every answer has its length"

    yield serve


@contextmanager
def vllm(config: Mapping[str, Any], threads: int) -> Iterator[Serve]:
    engine = VLLMEngine(kv_gib=1.0, threads=threads, max_tokens=512)
    with engine.open(config, FULL) as session:

        def serve(prompts: Sequence[Prompt]) -> None:
            served = session.serve(FULL, Traffic(prompts, LOAD.in_flight), seed=0)
            assert not any(request.error for request in served.requests)

        yield serve


def mixed(config: Mapping[str, Any], threads: int, trials: int) -> dict[str, Any]:
    """Useful tokens a second of each way, trial by trial, and its ratio to static batches."""
    rates: dict[str, list[float]] = {}
    with ExitStack() as stays:
        ways = {"vllm": stays.enter_context(vllm(config, threads))}
        session: Any = stays.enter_context(HFEngine(threads=threads).open(config, FULL))
        pad, prose = session.tokenizer.encode("\n")[0], Prose(session.tokenizer)
        ways |= {
            "static": stays.enter_context(static(session.model, pad, LOAD.requests)),
            "static, 4 at a time": stays.enter_context(static(session.model, pad, 4)),
            "continuous": stays.enter_context(continuous(session.model, pad)),
        }
        for trial in range(-1, trials):
            prompts = LOAD.traffic(prose, 0, trial).prompts
            for name in list(ways) if trial % 2 else reversed(list(ways)):
                began = time.perf_counter()
                ways[name](prompts)
                rate = sum(prompt.output_tokens for prompt in prompts) / (time.perf_counter() - began)
                print(f"{trial} {name} {rate:.1f} tok/s", file=sys.stderr)
                if trial >= 0:  # the first is a warm-up
                    rates.setdefault(name, []).append(rate)
    return {
        "load": LOAD.describe(),
        "tokens_s": rates,
        "to_static": {name: ratio(rates[name], rates["static"]) for name in ways},
    }


def ratio(mine: Sequence[float], base: Sequence[float]) -> dict[str, float | None]:
    """Geometric mean of the trials' ratios, with 95 % limits."""
    logs = np.log(np.array(mine) / np.array(base))
    limits = student_interval(logs, ALPHA)
    low, high = (math.exp(end) for end in limits) if limits else (None, None)
    return {"mean": math.exp(float(logs.mean())), "low": low, "high": high}


def shared(pairs: int) -> dict[str, Any]:
    """FP8 with prefix reuse against neither, as `kvgate bench` measures and judges it."""
    with TemporaryDirectory() as results:
        strategy = ("strategy=fp8", "strategy/prefix=reuse")
        words = ["engine=vllm", "engine.kv_gib=0.5", *strategy, *SHARED, f"pairs={pairs}", f"results_dir={results}"]
        subprocess.run([sys.executable, "-m", "harness.cli", "bench", *words, "name=b"], check=True, stdout=sys.stderr)
        verdict = json.loads((Path(results) / "runs/b/payoff.json").read_text())
    (mine,), (full,) = verdict["candidates"][0]["points"], verdict["baseline"]["points"]
    return {
        "load": verdict["points"][0]["describe"],
        "cached_share": mine["cached_share"],
        "tokens_s": {"full": full["values"]["throughput"], "fp8 with reuse": mine["values"]["throughput"]},
        "gains": {name: mine["metrics"][name]["gain"] for name in ("throughput", "ttft_p50", "tpot_p50", "capacity")},
        "noise": mine["metrics"]["throughput"]["noise"],
    }


def table(result: Mapping[str, Any]) -> str:
    mixed_rows = [
        [name, f"{np.mean(result['mixed']['tokens_s'][name]):.1f}", _limits(found)]
        for name, found in result["mixed"]["to_static"].items()
    ]
    gains = result["shared"]["gains"]
    shared_rows = [[name, _limits(gains[name])] for name in gains]
    return "\n\n".join(
        (
            result["mixed"]["load"],
            markdown(("way", "useful tok/s", "times static"), mixed_rows),
            f"{result['shared']['load']}; {result['shared']['cached_share']:.0%} of the prompts were reused",
            markdown(("FP8 with reuse over neither", "gain"), shared_rows),
        )
    )


def _limits(found: Mapping[str, Any]) -> str:
    return f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", type=Path, help="print the tables of a record instead")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    torch.set_num_threads(options.threads)
    found = {
        "mixed": mixed(MODEL, options.threads, options.trials),
        "shared": shared(options.trials),
    }
    print(json.dumps(record("batching", **found), indent=1))


if __name__ == "__main__":
    main()
