"""The simulation against closed forms, against plain recursions, and what must hold of any trace."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.metrics import SLO, ttft_s
from harness.sizing import disaggregated
from harness.sizing.disaggregated import Replay, Speeds, compare, outcome, replay_aggregated, replay_disaggregated
from harness.sizing.traces import Request, synthetic
from harness.types import BadInput

SPEEDS = Speeds(
    prefill_tokens_s=1000.0,
    step_s=0.0123456789,  # no round numbers, so that no two things end at one moment
    step_request_s=0.000987654321,
    step_token_s=1.2345679e-5,
    kv_bytes_per_token=1e6,
    layers=4,
    max_batch=3,
)
LINK_GB_S = 2.0  # 2,000 tokens a second: twice as fast as a prefill
TRACES = st.lists(
    st.tuples(st.integers(0, 73).map(lambda steps: steps * 0.0137035999), st.integers(1, 1000), st.integers(0, 5)),
    min_size=1,
    max_size=12,
)  # (gap in s, prompt, answer)
GPUS = st.integers(1, 3)


def trace(gaps: Sequence[tuple[float, int, int]]) -> list[Request]:
    now_s, made = 0.0, []
    for gap_s, prompt, answer in gaps:
        now_s += gap_s
        made.append(Request(now_s, prompt, answer, []))
    return made


def first_tokens(replay: Replay) -> list[float]:
    return [request.first_token_s or 0.0 for request in replay.requests]


@pytest.mark.parametrize("link_gb_s", [0.5, 2.0, math.inf])
def test_without_contention_the_first_token_waits_for_prefill_and_link(link_gb_s: float) -> None:
    """P + S after the prefill; layer by layer P + S / L, or P / L + S where the link is the slower one."""
    request, prefill_s, send_s = Request(3.0, 800, 1, []), 0.8, 800e6 / (link_gb_s * 1e9)
    after, by_layer = (
        replay_disaggregated([request], SPEEDS, 1, 1, link_gb_s, layerwise) for layerwise in (False, True)
    )
    assert ttft_s(after.requests[0]) == pytest.approx(prefill_s + send_s)
    assert ttft_s(by_layer.requests[0]) == pytest.approx(max(prefill_s + send_s / 4, prefill_s / 4 + send_s))
    assert after.added_ttft_s == pytest.approx((send_s,))
    assert ttft_s(replay_aggregated([request], SPEEDS, 1, 100).requests[0]) == pytest.approx(prefill_s)


def test_alone_every_token_takes_one_step() -> None:
    request = Request(0.0, 500, 4, [])
    steps = [SPEEDS.step_s + SPEEDS.step_request_s + SPEEDS.step_token_s * (500 + made) for made in (1, 2, 3)]
    for replay in (
        replay_disaggregated([request], SPEEDS, 1, 1, math.inf, False),
        replay_aggregated([request], SPEEDS, 1, 64),
    ):
        times = replay.requests[0].token_s or ()
        assert times == pytest.approx([0.5 + sum(steps[:made]) for made in range(4)])
        assert replay.busy_s == pytest.approx(times[-1])


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prompts_wait_as_in_an_m_d_1_queue(load: float) -> None:
    """Poisson arrivals, equal prompts, one server: load * service / (2 * (1 - load)) in the mean."""
    chance, now_s, made = random.Random(1), 0.0, []
    for _ in range(30_000):
        now_s += chance.expovariate(load / 0.1)
        made.append(Request(now_s, 100, 1, []))
    waits = replay_disaggregated(made, SPEEDS, 1, 1, math.inf, False).prefill_wait_s
    assert sum(waits) / len(waits) == pytest.approx(load * 0.1 / (2 * (1 - load)), rel=0.05)


@given(gaps=TRACES, layerwise=st.booleans(), link_gb_s=st.sampled_from([0.3, 1.0, 5.0]))
def test_one_prefill_and_one_link_are_two_queues_in_a_row(
    gaps: list[tuple[float, int, int]], layerwise: bool, link_gb_s: float
) -> None:
    """Each layer of each prompt by a plain recursion."""
    made, free_s, sent_s, expected = trace(gaps), 0.0, 0.0, []
    for request in made:
        began_s = max(request.timestamp_s, free_s)
        free_s = began_s + request.input_tokens / 1000
        layer_s = request.input_tokens * 1e6 / (link_gb_s * 1e9) / 4
        for layer in range(1, 5):
            ready_s = began_s + (free_s - began_s) * layer / 4 if layerwise else free_s
            sent_s = max(sent_s, ready_s) + layer_s
        expected.append(sent_s)
    assert first_tokens(replay_disaggregated(made, SPEEDS, 1, 1, link_gb_s, layerwise)) == pytest.approx(expected)


def plain_decode(arrivals: list[tuple[float, Request]]) -> list[list[float]]:
    """Token times of requests whose first token is there at their arrival; one GPU, at most three at a time."""
    tokens = [[at] for at, _ in arrivals]
    waiting = sorted((at, number) for number, (at, request) in enumerate(arrivals) if request.output_tokens > 1)
    batch: list[int] = []
    now = 0.0
    while waiting or batch:
        if not batch:
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now and len(batch) < 3:
            batch.append(waiting.pop(0)[1])
        context = sum(arrivals[number][1].input_tokens + len(tokens[number]) for number in batch)
        now += SPEEDS.step_s + SPEEDS.step_request_s * len(batch) + SPEEDS.step_token_s * context
        for number in batch:
            tokens[number].append(now)
        batch = [number for number in batch if len(tokens[number]) < arrivals[number][1].output_tokens]
    return tokens


@given(gaps=TRACES)
def test_decoding_is_a_plain_loop_over_steps(gaps: list[tuple[float, int, int]]) -> None:
    made = trace(gaps)
    replay = replay_disaggregated(made, SPEEDS, 1, 1, LINK_GB_S, False)
    expected = plain_decode(list(zip(first_tokens(replay), made, strict=True)))
    assert [len(request.token_s or ()) for request in replay.requests] == [len(times) for times in expected]
    for request, times in zip(replay.requests, expected, strict=True):
        assert request.token_s == pytest.approx(times)


@given(gaps=TRACES, chunk=st.sampled_from([1, 7, 100, 5000]))
@settings(max_examples=50)
def test_an_aggregated_gpu_is_a_plain_loop_too(gaps: list[tuple[float, int, int]], chunk: int) -> None:
    speeds = replace(SPEEDS, prefill_tokens_s=1e5)
    made = [replace(request, input_tokens=1 + request.input_tokens // 20) for request in trace(gaps)]
    tokens: list[list[float]] = [[] for _ in made]
    unread = [request.input_tokens for request in made]
    wanted = [max(request.output_tokens, 1) for request in made]
    waiting, batch, now = list(range(len(made))), list[int](), 0.0
    while waiting or batch:
        if not batch:
            now = max(now, made[waiting[0]].timestamp_s)
        while waiting and made[waiting[0]].timestamp_s <= now and len(batch) < 3:
            batch.append(waiting.pop(0))
        decoding = [number for number in batch if not unread[number]]
        left = max(chunk - len(decoding), 0)
        context = sum(made[number].input_tokens + len(tokens[number]) for number in decoding)
        seconds = SPEEDS.step_request_s * len(decoding) + SPEEDS.step_token_s * context
        seconds += SPEEDS.step_s if decoding else 0.0
        telling = decoding
        for number in batch:
            taken = min(left, unread[number])
            left, unread[number], seconds = left - taken, unread[number] - taken, seconds + taken / 1e5
            telling = [*telling, number] if taken and not unread[number] else telling
        now += seconds
        for number in telling:
            tokens[number].append(now)
        batch = [number for number in batch if len(tokens[number]) < wanted[number]]
    replay = replay_aggregated(made, speeds, 1, chunk)
    for request, times in zip(replay.requests, tokens, strict=True):
        assert request.token_s == pytest.approx(times)


@given(gaps=TRACES, prefills=GPUS, decodes=GPUS, layerwise=st.booleans())
def test_nothing_is_lost_and_work_is_conserved(
    gaps: list[tuple[float, int, int]], prefills: int, decodes: int, layerwise: bool
) -> None:
    made = trace(gaps)
    apart = replay_disaggregated(made, SPEEDS, prefills, decodes, LINK_GB_S, layerwise)
    together = replay_aggregated(made, SPEEDS, prefills + decodes, 256)
    least_s = sum(request.input_tokens for request in made) / 1000
    for replay in (apart, together):
        assert [request.tokens_out for request in replay.requests] == [max(answer, 1) for _, _, answer in gaps]
        for request, asked in zip(replay.requests, made, strict=True):
            times = request.token_s or ()
            assert list(times) == sorted(times) and times[0] >= asked.timestamp_s + asked.input_tokens / 1000 - 1e-9
        span_s = max(request.end_s or 0.0 for request in replay.requests)
        assert least_s - 1e-9 <= replay.busy_s <= span_s * (prefills + decodes) + 1e-9
        assert min(replay.prefill_wait_s) >= 0 and min(replay.link_wait_s) >= 0 and min(replay.added_ttft_s) >= 0


@given(gaps=TRACES, prefills=GPUS, slow=st.floats(0.1, 5), more=st.floats(1, 10))
def test_more_bandwidth_is_never_slower_and_layers_are_never_later(
    gaps: list[tuple[float, int, int]], prefills: int, slow: float, more: float
) -> None:
    made = trace(gaps)

    def firsts(link_gb_s: float, layerwise: bool) -> list[float]:
        return first_tokens(replay_disaggregated(made, SPEEDS, prefills, 1, link_gb_s, layerwise))

    for layerwise in (False, True):
        for fast, slower in zip(firsts(slow * more, layerwise), firsts(slow, layerwise), strict=True):
            assert fast <= slower + 1e-9
    for by_layer, after in zip(firsts(slow, True), firsts(slow, False), strict=True):
        assert by_layer <= after + 1e-9


def test_a_long_prompt_holds_up_what_comes_behind_it() -> None:
    """Head-of-line blocking, at the prefill and at the link: two prefill GPUs free the first, not the second."""
    made = [Request(0.0, 1000, 1, []), Request(0.1, 10, 1, []), Request(0.2, 10, 1, [])]
    alone = replay_disaggregated(made, SPEEDS, 1, 1, 0.5, False)
    assert alone.prefill_wait_s == pytest.approx((0.0, 0.9, 0.81))
    assert alone.link_wait_s == pytest.approx((0.0, 1.99, 2.0))  # 2 s of bytes before them, and 0.02 s each
    assert replay_disaggregated(made, SPEEDS, 2, 1, 0.5, False).prefill_wait_s == pytest.approx((0.0, 0.0, 0.0))


def test_disaggregation_tunes_latency_not_throughput() -> None:
    """Under a load that all can serve, tokens a second are equal and gaps are not; over it, the fixed split is the slower one."""
    speeds = Speeds(
        prefill_tokens_s=20_000,
        step_s=0.012,
        step_request_s=1e-5,
        step_token_s=4e-8,
        kv_bytes_per_token=131072,
        layers=32,
    )
    slo = SLO(ttft_s=1.0, itl_s=0.05)
    made = list(synthetic(300, rate_s=5.0, prefix_blocks=6, own_blocks=3, output_tokens=60, seed=3))
    small, together, *apart = compare(made, speeds, 4, 12.5, slo, (256, 2048))
    assert (small.chunk_tokens, together.chunk_tokens) == (256, 2048)
    assert small.itl_p99_s is not None and small.ttft_p50_s > together.ttft_p50_s  # chunks trade one for the other
    assert [(row.prefill_gpus, row.decode_gpus, row.layerwise) for row in apart] == [
        (prefill, 4 - prefill, layerwise) for prefill in (1, 2, 3) for layerwise in (False, True)
    ]
    even = apart[3]
    assert even.output_tokens_s == pytest.approx(together.output_tokens_s, rel=0.02)
    assert even.itl_p99_s is not None and together.itl_p99_s is not None and even.itl_p99_s < together.itl_p99_s / 3
    assert even.itl_p99_s < small.itl_p99_s < together.itl_p99_s
    assert even.goodput_requests_s is not None and together.goodput_requests_s is not None
    assert even.goodput_requests_s > together.goodput_requests_s
    at_once = [replace(request, timestamp_s=0.0) for request in made]
    together, *apart = compare(at_once, speeds, 4, 12.5, slo, [2048])
    assert all(row.output_tokens_s < together.output_tokens_s for row in apart)
    assert compare(at_once, speeds, 4, 12.5, slo, [2048])[0] == together  # nothing is left to chance


def test_answers_of_one_token_have_no_gaps() -> None:
    row = outcome(replay_aggregated([Request(0.0, 10, 0, [])], SPEEDS, 1, 16), SLO(), 0, 1)
    assert row.tpot_p99_s is None and row.itl_p99_s is None and row.goodput_requests_s is None
    assert row.busy_share == pytest.approx(1.0)


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disaggregated, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"disaggregation needs simpy: pip install 'kvgate\[plan\]'"):
        replay_aggregated([Request(0.0, 1, 1, [])], SPEEDS, 1, 1)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    wrong = replace(
        SPEEDS, prefill_tokens_s=0.0, step_s=-1.0, step_token_s=math.nan, kv_bytes_per_token=math.inf, layers=0
    )
    with pytest.raises(BadInput) as caught:
        replay_disaggregated([], wrong, 0, 1, 0.0, True)
    assert caught.value.problems == [
        "prefill_gpus must be 1 or more, got 0",
        "link_gb_s must be a number of GB a second above 0, got 0.0",
        "speeds.prefill_tokens_s must be a number of tokens a second above 0, got 0.0",
        "speeds.step_s must be a number of seconds above 0, got -1.0",
        "speeds.kv_bytes_per_token must be a number of bytes above 0, got inf",
        "speeds.step_token_s must be a number of seconds of 0 or more, got nan",
        "speeds.layers must be 1 or more, got 0",
        "requests must have a request, got none",
    ]
    with pytest.raises(BadInput, match=r"chunk_tokens must be 1 or more, got 0"):
        replay_aggregated([Request(0.0, 1, 1, [])], SPEEDS, 1, 0)
    with pytest.raises(BadInput) as caught:
        compare([Request(0.0, 1, 1, [])], SPEEDS, 0, math.nan, SLO(ttft_s=-1))
    assert caught.value.problems == [
        "slo.ttft_s must be a number of seconds above 0, got -1",
        "gpus must be 1 or more, got 0",
        "link_gb_s must be a number of GB a second above 0, got nan",
    ]
