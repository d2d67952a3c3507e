"""Servers as an engine: a small one that fails as told, for the protocol; real vLLM servers for the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openai")

from harness.doctor import engines, legality
from harness.engines.base import CONTROL, Answer, Ask, Row
from harness.engines.endpoint import metrics, proof
from harness.engines.endpoint.client import Failed, _whole
from harness.engines.endpoint.engine import EndpointEngine
from harness.engines.endpoint.server import Server
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.make import make
from harness.store import ResultStore
from harness.types import BadInput, Record, Sample, State
from strategies.evict.random import Random
from strategies.offload.host import Host
from strategies.paging.paged import Paged
from strategies.prefix.reuse import Reuse
from strategies.quant.fp8 import FP8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from tests.cli import Kvgate, Said
from tests.conftest import tiny_tokenizer
from tests.servers import CONFIG, FakeServer, Hang, vllm_servers

FULL = Stack("full")
TINY_CONTROL = Stack(CONTROL, evict=Random(keep=0.5))
PREFIX = Stack("prefix", prefix=Reuse(block=None, tokens=None))
QUICK = {"timeout_s": 5.0, "retries": 1}
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    """Starts small servers, and stops them."""
    with ExitStack() as running:

        def start(**options: Any) -> FakeServer:
            server = FakeServer(**options)
            running.callback(server.stop)
            return server

        yield start


def sample(index: int = 0, **changes: Any) -> Sample:
    plain = Sample(f"s{index}", f"{'word ' * 20}it is {1000 + index}. {'more ' * 20}", "what is it?", ("x",), 12)
    return replace(plain, **changes)


def ask(
    server: FakeServer,
    tiny: Path,
    stacks: list[Stack],
    samples: list[Sample] | None = None,
    start: str = "cold",
    **options: Any,
) -> list[Answer]:
    """Answers of one session to all samples with all stacks, which share a load."""
    engine = EndpointEngine(baseline=server.url, **{**QUICK, **options})
    rows = [Row(stack.name, engine.resolve(stack)) for stack in stacks]
    asks = [Ask(one, [rows]) for one in samples or [sample()]]
    with engine.open({"name": "hf", "path": str(tiny)}, rows[0].stack) as session:
        server.bodies.clear()  # of the probe
        server.headers.clear()
        return list(session.run(asks, compress="prompt", start=start, seed=0))  # type: ignore[arg-type]


def text(answer: Answer) -> str:
    assert answer.response is not None, answer.error
    return answer.response.text


# --- what counts as an answer ---------------------------------------------------------------------------------------------

WHOLE = {
    "choices": [{"text": "a", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


def choice(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, "choices": [{**WHOLE["choices"][0], **changes}]}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"error": {"message": "EngineCore encountered an issue"}}, "EngineCore encountered"),
        ({**WHOLE, "error": {"message": "late"}}, "late"),
        (["a"], "error"),
        ({}, "finish_reason is None"),
        ({**WHOLE, "choices": []}, "finish_reason is None"),
        (choice(finish_reason=None), "finish_reason is None"),
        (choice(finish_reason="abort"), "finish_reason is 'abort'"),
        ({**WHOLE, "usage": None}, "usage is None"),
        ({**WHOLE, "usage": {"prompt_tokens": 3}}, "how many tokens"),
        (choice(text=None), "no text, though it took 1 tokens"),
        (choice(text=None, message={"content": None}), "no text"),
    ],
    ids=str,
)
def test_what_is_not_whole_is_no_answer(said: Any, why: str) -> None:
    with pytest.raises(Failed, match=why):
        _whole(said)


def test_an_empty_answer_is_an_answer() -> None:
    nothing = {"prompt_tokens": 3, "completion_tokens": 0}
    for empty in ("", None):
        assert _whole({**choice(text=empty), "usage": nothing})[:5] == ("", None, "stop", 3, 0)
    assert _whole({**choice(text="a", finish_reason="length", token_ids=[5])})[:3] == ("a", [5], "length")
    assert _whole(choice(text=None, message={"content": "b"})).text == "b"


# --- faults on the way ----------------------------------------------------------------------------------------------------


def once(fault: Any) -> Callable[[int, dict[str, Any]], Any]:
    """The first request for an answer fails, whichever it is after the probe."""
    left = [fault]

    def happens(number: int, body: dict[str, Any]) -> Any:
        if body["max_tokens"] == 1 or not left:
            return None
        happening = left.pop()
        if happening is Hang:
            raise Hang
        return happening

    return happens


@pytest.mark.parametrize("fault", [429, 408, 409, 500, 503, Hang], ids=str)
def test_what_may_go_by_is_tried_again(serve: Callable[..., FakeServer], tiny: Path, fault: Any) -> None:
    server = serve(fault=once(fault))
    (answer,) = ask(server, tiny, [FULL])
    assert text(answer) == " 1000." and len(server.bodies) == 2


@pytest.mark.parametrize(
    ("fault", "why", "tries"),
    [
        (500, "status 500", 2),
        (400, "status 400", 1),
        (Hang, "Server disconnected", 2),
        ('{"error": {"message": "EngineCore encountered an issue"}}', "EngineCore encountered an issue", 1),
        ('{"choices": [{"text": "a", "finish_re', "no JSON", 1),
        ('{"choices": [{"text": "a", "finish_reason": "stop"}]}', "usage is None", 1),
        ('{"choices": [{"text": "a", "finish_reason": null}], "usage": {}}', "not finished", 1),
    ],
    ids=str,
)
def test_what_stays_is_a_failed_sample_and_no_answer(
    serve: Callable[..., FakeServer], tiny: Path, fault: Any, why: str, tries: int
) -> None:
    def happens(number: int, body: dict[str, Any]) -> Any:
        if body["max_tokens"] == 1:
            return None
        if fault is Hang:
            raise Hang
        return fault

    server = serve(fault=happens)
    (answer,) = ask(server, tiny, [FULL])
    assert answer.response is None and answer.fault == "infrastructure" and why in answer.error
    assert answer.evidence == () and answer.memory is None
    assert len(server.bodies) == tries


def test_a_slow_answer_is_given_up_after_the_timeout_and_others_go_on(
    serve: Callable[..., FakeServer], tiny: Path
) -> None:
    gone = threading.Event()

    def slow(number: int, body: dict[str, Any]) -> None:
        if body["max_tokens"] == 13:
            gone.wait(20)

    answers = ask(serve(fault=slow), tiny, [FULL], [sample(0, max_new_tokens=13), sample(1)], timeout_s=0.5, retries=0)
    gone.set()
    by_id = {answer.sample_id: answer for answer in answers}
    assert text(by_id["s1"]) == " 1001."
    assert "Timeout" in by_id["s0"].error and by_id["s0"].fault == "infrastructure"
    assert [answer.sample_id for answer in answers] == ["s1", "s0"]  # as they come


def test_many_are_in_flight_at_once_and_never_more_than_asked(serve: Callable[..., FakeServer], tiny: Path) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def counted(number: int, body: dict[str, Any]) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.1)
        with lock:
            now[0] -= 1

    answers = ask(serve(fault=counted), tiny, [FULL], [sample(i) for i in range(9)], concurrency=3)
    assert sorted(map(text, answers)) == [f" {1000 + i}." for i in range(9)]
    assert most[0] == 3


def test_an_answer_of_another_setting_is_not_taken_for_one(serve: Callable[..., FakeServer], tiny: Path) -> None:
    server = serve()

    def restarted(number: int, body: dict[str, Any]) -> None:
        server.fingerprint = "fake-1" if body["max_tokens"] == 1 else "fake-2"

    server.fault = restarted
    (answer,) = ask(server, tiny, [FULL])
    assert answer.response is None and "was fake-1" in answer.error and answer.fault == "infrastructure"


def test_the_key_goes_to_the_server_and_into_no_message(
    serve: Callable[..., FakeServer], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    server = serve(fault=lambda number, body: None if body["max_tokens"] == 1 else 400)  # and quotes the header
    (answer,) = ask(server, tiny, [FULL], key_env="MY_KEY")
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "Bearer ***" in answer.error and "very-secret" not in answer.error


# --- ways to ask ----------------------------------------------------------------------------------------------------------


def test_a_prompt_goes_as_token_ids_where_they_are_taken_and_else_as_text(
    serve: Callable[..., FakeServer], tiny: Path
) -> None:
    by_ids, by_text = serve(), serve(takes_ids=False, owner="other")
    one = ask(by_ids, tiny, [FULL])[0], ask(by_text, tiny, [FULL])[0]
    (ids,), (plain,) = ([body["prompt"] for body in server.bodies] for server in (by_ids, by_text))
    assert isinstance(ids, list) and tiny_tokenizer().decode(ids) == plain
    assert text(one[0]) == text(one[1]) and one[0].prompt_hash == one[1].prompt_hash
    assert one[0].response is not None and one[1].response is not None
    assert one[0].response.token_ids == one[1].response.token_ids  # told, and our own reading of the text
    assert by_ids.bodies[0]["return_token_ids"] and by_ids.bodies[0]["ignore_eos"]
    extensions = {"cache_salt", "ignore_eos", "stop_token_ids", "return_token_ids", "repetition_penalty"}
    assert not extensions & by_text.bodies[0].keys()
    assert by_text.bodies[0]["temperature"] == 0.0 and by_text.bodies[0]["max_tokens"] == 12


def test_a_draw_has_a_seed_that_both_sides_share_and_the_whole_distribution(
    serve: Callable[..., FakeServer], tiny: Path
) -> None:
    server = serve()
    drawn = [sample(id=name, temperature=0.7) for name in ("s~1", "s~2")]
    said = []
    for stack in (FULL, PREFIX):
        ask(server, tiny, [stack], drawn)
        said += [(body["temperature"], body["top_p"], body["top_k"], body["seed"]) for body in server.bodies]
    assert {one[:3] for one in said} == {(0.7, 1.0, -1)}
    seeds = [one[3] for one in said]
    assert len(seeds) == 4 and len(set(seeds)) == 2 and seeds.count(seeds[0]) == 2


def test_a_chat_goes_as_messages_and_goes_on_with_a_begun_answer(serve: Callable[..., FakeServer], tiny: Path) -> None:
    server = serve()
    begun = sample(system="be brief", turns=(("a?", "b"),), answer_prefix="it is", stop=("\n",))
    ask(server, tiny, [FULL], [begun], api="chat")
    (body,) = server.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert body["messages"][-1]["content"] == "it is" and body["continue_final_message"]
    assert body["add_generation_prompt"] is False and body["stop"] == ["\n"]
    assert "\ue000" not in json.dumps(body, ensure_ascii=False)
    with pytest.raises(BadInput, match=r"engine\.api must be completions .* got chat"):
        ask(serve(owner="other"), tiny, [FULL], [begun], api="chat")
    assert text(ask(serve(owner="other"), tiny, [FULL], api="chat")[0]) == " 1000."


def test_marks_that_a_server_puts_before_a_text_are_not_sent_twice() -> None:
    from tokenizers.processors import TemplateProcessing

    adding = tiny_tokenizer()
    adding.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    for tokenizer, sent in ((tiny_tokenizer(), "<s>ab"), (adding, "ab")):
        prompts = PromptTokenizer(tokenizer, 100, frozenset())
        ids = [0, *prompts.encode("ab")]
        assert prompts.text(prompts.unmarked(ids)) == sent
        assert tokenizer(sent)["input_ids"] == ids


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_server_that_reads_other_tokens_is_refused_with_both_numbers(
    serve: Callable[..., FakeServer], tiny: Path, api: str
) -> None:
    server = serve()
    server.extra_tokens = 1
    with pytest.raises(BadInput, match=r"reads (\d+) tokens in a prompt that has (\d+)"):
        ask(server, tiny, [FULL], api=api)


def test_another_tokenizer_is_noticed_where_token_ids_are_taken(serve: Callable[..., FakeServer], tiny: Path) -> None:
    server = serve()

    def reads(number: int, body: dict[str, Any]) -> None:
        server.extra_tokens = 3 if isinstance(body["prompt"], str) else 0

    server.fault = reads
    with pytest.raises(BadInput, match="both must be of the same checkpoint"):
        ask(server, tiny, [FULL])


def test_a_prompt_that_is_read_otherwise_pairs_with_none(serve: Callable[..., FakeServer], tiny: Path) -> None:
    server = serve()

    def cut(number: int, body: dict[str, Any]) -> None:
        server.extra_tokens = 0 if body["max_tokens"] in (1, 12) else -40

    server.fault = cut
    one = ask(server, tiny, [FULL], [sample()])[0]
    other = ask(server, tiny, [FULL], [sample(max_new_tokens=13)])[0]
    assert one.prompt_hash != other.prompt_hash


@pytest.mark.parametrize(
    ("way", "options"), [("ids", {}), ("text", {"takes_ids": False}), ("chat", {})], ids=["ids", "text", "chat"]
)
def test_the_control_is_asked_with_fewer_tokens(
    serve: Callable[..., FakeServer], tiny: Path, way: str, options: dict[str, Any]
) -> None:
    server = serve(**options)
    api = "chat" if way == "chat" else "completions"
    answers = {answer.cell: answer for answer in ask(server, tiny, [FULL, TINY_CONTROL], api=api)}
    whole, less = answers["full"].memory, answers[CONTROL].memory
    assert whole is not None and less is not None
    assert less.stored_bytes == pytest.approx(whole.stored_bytes / 2, rel=0.02)
    assert less.prompt_tokens == whole.prompt_tokens and less.kept_fraction == pytest.approx(0.5, abs=0.01)
    assert whole.stored_bytes == whole.formula_bytes and less.stored_bytes == less.formula_bytes
    (shown,) = answers[CONTROL].evidence
    assert shown.acted and "was given" in shown.why and answers["full"].evidence == ()
    again = {answer.cell: answer for answer in ask(server, tiny, [FULL, TINY_CONTROL], api=api)}
    assert again[CONTROL].response == answers[CONTROL].response
    assert answers[CONTROL].prompt_hash == answers["full"].prompt_hash


# --- what is shown --------------------------------------------------------------------------------------------------------


def test_cold_meets_nothing_and_warm_meets_its_own_prompt(serve: Callable[..., FakeServer], tiny: Path) -> None:
    server = serve()
    same = [sample(0), sample(0, id="again")]
    cold = ask(server, tiny, [PREFIX], same, concurrency=1)
    assert len({body["cache_salt"] for body in server.bodies}) == 1  # what came before may be reused
    assert [answer.evidence[0].acted for answer in cold] == [False, True]
    (warm,) = ask(server, tiny, [PREFIX], [sample(1)], start="warm")
    assert [body["max_tokens"] for body in server.bodies] == [1, 12]
    assert warm.evidence[0].acted and warm.evidence[0].facts["hit_tokens"] > 0
    ask(server, tiny, [FULL], same)
    assert len({body["cache_salt"] for body in server.bodies}) == 2  # the baseline reuses nothing


def test_samples_of_another_kind_do_not_find_what_earlier_ones_left(
    serve: Callable[..., FakeServer], tiny: Path
) -> None:
    engine = EndpointEngine(baseline=serve().url, **QUICK)
    rows = [Row("p", PREFIX)]
    with engine.open({"name": "hf", "path": str(tiny)}, PREFIX) as session:
        acted = []
        for _ in range(2):
            session.forget()
            (answer,) = session.run([Ask(sample(), [rows])], compress="prompt", seed=0)
            acted.append(answer.evidence[0].acted)
    assert acted == [False, False]


def test_a_layer_that_nothing_shows_acts_on_the_user_s_word_alone(serve: Callable[..., FakeServer], tiny: Path) -> None:
    silent = serve()
    silent.tells_cached = False
    stack = Stack("all", prefix=Reuse(block=None), evict=Random(keep=0.5), quant=FP8(), paging=Paged(block=16))
    stack = replace(stack, offload=Host())
    for claimed in (False, True):
        (answer,) = ask(silent, tiny, [stack], claimed=claimed)
        assert len(answer.evidence) == 5
        assert all(one.acted == claimed for one in answer.evidence)
        words = "claimed, not shown; looked for " if claimed else "engine.claimed=true takes your word"
        assert all(words in one.why for one in answer.evidence)
    assert answer.memory is not None and answer.memory.kept_fraction == pytest.approx(0.5, abs=0.01)


def test_layers_that_the_server_tells_of_are_shown(serve: Callable[..., FakeServer], tiny: Path) -> None:
    server = serve(config={**CONFIG, "cache_dtype": "fp8_e4m3"})
    server.counters = {"device": 0.0, "host": 5.0}

    def moves(number: int, body: dict[str, Any]) -> None:
        server.counters = {**server.counters, "host": server.counters["host"] + 32}

    server.fault = moves
    stack = Stack("s", quant=FP8(), paging=Paged(), offload=Host())
    baseline = serve(config=CONFIG)
    engine = EndpointEngine(baseline=baseline.url, candidate=server.url, **QUICK)
    settled = engine.resolve(stack)
    with engine.open({"name": "hf", "path": str(tiny)}, settled) as session:
        (answer,) = session.run([Ask(sample(), [[Row("s", settled)]])], compress="prompt", seed=0)
    shown = {one.layer.split("/")[0]: one for one in answer.evidence}
    assert all(one.acted for one in answer.evidence) and len(shown) == 3
    assert "32 of" in shown["offload"].why and shown["offload"].facts["cached_tokens_host"] == 32
    assert not baseline.bodies


TOLD = Server("m", "vllm", "1", None, CONFIG)


@pytest.mark.parametrize(
    ("stack", "told", "why"),
    [
        (Stack("s", quant=FP8(scale="tensor", scale_from="one")), {}, "cache_dtype auto, .* needs fp8"),
        (Stack("s", quant=FP8(scale="tensor", scale_from="one")), {"cache_dtype": "fp8_e5m2"}, "cache_dtype fp8_e5m2"),
        (Stack("s", quant=KIVI(bits=2)), {"cache_dtype": "fp8"}, "a format that it has no name for"),
        (FULL, {"cache_dtype": "fp8"}, "cache_dtype fp8, and full needs auto"),
        (PREFIX, {"cache_dtype": "fp8"}, "cache_dtype fp8"),
        (PREFIX, {"enable_prefix_caching": "False"}, "prefix caching off"),
        (Stack("s", paging=Paged(block=32)), {}, "block_size 16, .* is 32"),
        (
            Stack("s", quant=FP8(scale="tensor", scale_from="one", skip=1)),
            {"cache_dtype": "fp8", "kv_cache_dtype_skip_layers": "['0']"},
            r"skip_layers \['0'\], .* leaves \[0, 2\]",
        ),
    ],
    ids=str,
)
def test_what_a_server_tells_otherwise_is_a_problem(stack: Stack, told: dict[str, str], why: str) -> None:
    import re

    (problem,) = proof.problems(stack, replace(TOLD, cache={**CONFIG, **told}), 3)
    assert re.search(why, problem)


def test_what_a_server_tells_or_does_not_tell_is_no_problem() -> None:
    fp8 = FP8(scale="tensor", scale_from="one", skip=1)
    for stack, told in (
        (FULL, CONFIG),
        (replace(PREFIX, paging=Paged(block=16)), CONFIG),
        (
            Stack("s", quant=fp8),
            {**CONFIG, "cache_dtype": "fp8_e4m3", "kv_cache_dtype_skip_layers": "['2', '0']"},
        ),
        (Stack("s", quant=fp8), {**CONFIG, "cache_dtype": "fp8", "kv_cache_dtype_skip_layers": "['sliding_window']"}),
        (Stack("s", quant=KIVI(bits=2), paging=Paged(block=99)), {}),
    ):
        assert proof.problems(stack, replace(TOLD, cache=told), 3) == []


NAMES = st.from_regex(r"[a-z]{1,6}:[a-z_]{1,12}", fullmatch=True).filter(lambda name: not name.endswith("_total"))
LABELS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text("ab1{}, .[]'=", max_size=12), max_size=4
)


@given(st.lists(st.tuples(NAMES, LABELS, st.floats(allow_nan=False, allow_infinity=False), st.booleans()), max_size=6))
def test_metrics_are_read_as_they_were_written(written: list[tuple[str, dict[str, str], float, bool]]) -> None:
    lines = ["# HELP x y", "# TYPE x counter"]
    for name, labels, value, total in written:
        inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
        lines.append(f"{name}{'_total' * total}{'{' + inside + '}' if inside else ''} {value!r}")
    assert list(metrics.parsed("\n".join(lines))) == [(name, labels, value) for name, labels, value, _ in written]


def test_settings_are_what_decides_and_counters_know_both_servers() -> None:
    told = 'vllm:cache_config_info{cache_dtype="fp8",engine="0",num_gpu_blocks="9",block_size="16"} 1.0\n'
    assert metrics.settings(told) == {"block_size": "16", "cache_dtype": "fp8"}
    assert metrics.settings("up 1\n") == {} and metrics.counters(told) is None
    vllm = metrics.counters('vllm:prompt_tokens_cached_by_source_total{source="host",engine="0"} 7.0\n')
    sglang = metrics.counters('sglang:load_back_tokens_total{model_name="m"} 7.0\n')
    assert vllm is not None and sglang is not None and vllm.external_tokens == sglang.external_tokens == 7.0


# --- the engine as planners know it ---------------------------------------------------------------------------------------


def test_every_layer_is_the_server_s_to_do_and_needs_no_server() -> None:
    answers = {layer: engines["endpoint"] for layer, engines in legality(engines()).items()}
    refused = {layer for layer, answer in answers.items() if not answer["yes"]}
    assert refused == {"structure/lowrank"}  # what it learned is not known here
    assert all("the server's to do" in answers[layer]["why"] for layer in answers.keys() - refused)


def test_wrong_options_are_told_all_at_once() -> None:
    wrong = {"baseline": "localhost:8000", "candidate": "http://u:p@host", "api": "messages", "retries": -1}
    node = {"_target_": "harness.engines.endpoint.engine.EndpointEngine", **wrong, "timeout_s": 0, "concurrency": 0}
    with pytest.raises(BadInput) as refused:
        make(node, "engine")
    for option in (*wrong, "timeout_s", "concurrency"):
        assert f"engine.{option} must" in str(refused.value)
    with pytest.raises(ValueError, match=r"silence_s must be above 1500 s"):
        EndpointEngine(silence_s=1500.0)


def test_addresses_follow_the_server_that_answers(serve: Callable[..., FakeServer]) -> None:
    one, two = serve(config=CONFIG), serve(config={**CONFIG, "cache_dtype": "fp8"})
    stack = Stack("s", quant=FP8())

    def spec(stack: Stack, **options: Any) -> dict[str, Any]:
        engine = EndpointEngine(**{"baseline": one.url, "candidate": two.url, **options})
        return {**engine.spec(), **engine.spec_for(stack)}

    before = spec(FULL), spec(stack), spec(TINY_CONTROL)
    assert (
        before[0]["server"]["cache"]["cache_dtype"] == "auto" and before[1]["server"]["cache"]["cache_dtype"] == "fp8"
    )
    assert "127.0.0.1" not in json.dumps(before)
    evicts = replace(TINY_CONTROL, name="random")
    assert spec(evicts) != before[2] and spec(evicts)["server"] == before[1]["server"]
    two.config = {**CONFIG, "cache_dtype": "fp8", "block_size": "32"}  # started again
    assert (spec(FULL), spec(TINY_CONTROL)) == (before[0], before[2]) and spec(stack) != before[1]
    two.config = {**CONFIG, "cache_dtype": "fp8", "num_gpu_blocks": "7"}
    assert spec(stack) == before[1] and spec(stack, claimed=True) != before[1]
    assert spec(FULL, claimed=True, timeout_s=9.0, retries=0) == before[0]


# --- the command ----------------------------------------------------------------------------------------------------------


def run(kvgate: Kvgate, server: FakeServer | str, *words: str, n: int = 6) -> Said:
    url = server if isinstance(server, str) else server.url
    options = ["engine.timeout_s=5", "engine.retries=1", "engine.concurrency=2"]
    plain = [
        "engine=endpoint",
        f"engine.baseline={url}",
        "task=needle_single",
        "task.lengths=[420]",
        f"n={n}",
        "name=r",
    ]
    where = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}"]
    return kvgate("run", *plain, *options, *where, *words)


def verdict(kvgate: Kvgate) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    return whole


def records(kvgate: Kvgate) -> list[Record]:
    store = ResultStore(kvgate.results)
    return [r for cell in (kvgate.results / "cells").glob("*") for r in store.cell(cell.name).read()[0].values()]


@pytest.mark.slow
def test_a_run_judges_a_setting_of_a_server(kvgate: Kvgate, serve: Callable[..., FakeServer]) -> None:
    server = serve(config=CONFIG)
    said = run(kvgate, server, "strategy=prefix_reuse", "start=warm", n=8)
    assert said.code == 0, said.err
    (cell,) = verdict(kvgate)["cells"]
    assert (cell["baseline"], cell["delta"], cell["control_delta"]) == (1.0, 0.0, -1.0)
    assert cell["decision"] == "INCONCLUSIVE"  # 8 samples cannot promise 2 points
    asked = len(server.bodies)
    assert run(kvgate, server, "strategy=prefix_reuse", "start=warm", n=8).code == 0
    assert len(server.bodies) == asked  # nothing is asked twice, not even a probe


def test_a_run_is_refused_before_anything_is_asked(kvgate: Kvgate, serve: Callable[..., FakeServer]) -> None:
    server = serve(config=CONFIG)
    dead = "engine.candidate=http://127.0.0.1:9/v1"
    for words, why in (
        (["strategy=fp8"], "refuses fp8: the server at"),
        (["strategy=prefix_reuse", dead], "engine.candidate must be a server that answers, got http://127.0.0.1:9/v1"),
        (["strategy=prefix_reuse", "engine.model=big"], "engine.model must be a model that is served, fake, got big"),
        (["strategy=prefix_reuse", "engine.baseline=null"], "engine.baseline must be the URL of a server"),
        (["strategy/offload=disk", "strategy.offload.path=/x", "start=reloaded"], "no request makes a server lose"),
        (["strategy=fp8", "prefill=exact"], "prefill=exact"),
        (["strategy=fp8", "compress=context"], "compress=context"),
        (["strategy=fp8", "task=fidelity"], "refuses fidelity"),
        (["strategy=prefix_reuse", "gen.think_tokens=64"], "servers are asked for answers, given at once"),
        (["strategy=fp8", "+gate.control.quant={_target_:strategies.quant.fp8.FP8}"], "a control is an eviction"),
        (["strategy=prefix_reuse", "task.lengths=[5000]"], "4096"),
    ):
        said = run(kvgate, server, *words)
        assert said.code == 2 and why in said.err, said.err
    server.config = {**CONFIG, "cache_dtype": "fp8"}
    said = run(kvgate, server, "strategy=prefix_reuse")
    assert said.code == 2 and "engine.baseline: the server at" in said.err and "full needs auto" in said.err
    assert not server.bodies and not list(kvgate.results.glob("cells/*/part-*"))


@pytest.mark.slow
def test_a_layer_that_is_not_shown_is_void_and_its_reason_names_the_option(
    kvgate: Kvgate, serve: Callable[..., FakeServer]
) -> None:
    server = serve()  # no metrics
    assert run(kvgate, server, "strategy=fp8", n=8).code == 0
    (cell,) = verdict(kvgate)["cells"]
    assert cell["decision"] == "VOID" and "acted on none" in str(cell["reasons"])
    assert "engine.claimed=true" in json.dumps(cell)
    assert run(kvgate, server, "strategy=fp8", "engine.claimed=true", n=8).code == 0
    (cell,) = verdict(kvgate)["cells"]
    assert cell["decision"] == "INCONCLUSIVE" and "claimed, not shown" in json.dumps(cell)


@pytest.mark.slow
def test_states_of_samples_and_a_second_run_that_asks_only_for_what_failed(
    kvgate: Kvgate, serve: Callable[..., FakeServer]
) -> None:
    """A prompt in five fails for good, until it does not."""
    server = serve(config=CONFIG)
    server.fault = lambda number, body: (
        400 if body["max_tokens"] > 1 and sum(map(ord, str(body["prompt"]))) % 5 == 0 else None
    )
    assert run(kvgate, server, "strategy=prefix_reuse", "start=warm", n=12).code in (0, 2)
    first = records(kvgate)
    failed = [record for record in first if record.state is State.FAILED]
    assert failed and all(r.fault == "infrastructure" and r.score is None and "400" in r.error for r in failed)
    scored = {(r.cell, r.sample_id): r.seconds for r in first if r.state is State.SCORED}
    assert scored
    server.fault = lambda number, body: None
    said = run(kvgate, server, "strategy=prefix_reuse", "start=warm", n=12)
    assert said.code == 0, said.err
    after = {(r.cell, r.sample_id): r for r in records(kvgate)}
    assert len(after) == 4 * 12 and {r.state for r in after.values()} == {State.SCORED}
    assert all(after[key].seconds == seconds for key, seconds in scored.items())


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back(kvgate: Kvgate, serve: Callable[..., FakeServer]) -> None:
    """The run ends with a reason and loses nothing; started again it ends as if nothing had happened."""
    server = serve(config=CONFIG)

    def dies(number: int, body: dict[str, Any]) -> None:
        if number >= 20:
            raise Hang

    server.fault = dies
    said = run(kvgate, server, "strategy=prefix_reuse", "start=warm", n=12)
    assert said.code == 2 and "3 samples in a row failed in every row" in said.err and "disconnected" in said.err
    before = {(r.cell, r.sample_id): r.seconds for r in records(kvgate) if r.state is State.SCORED}
    assert 0 < len(before) < 48
    server.fault = lambda number, body: None
    assert run(kvgate, server, "strategy=prefix_reuse", "start=warm", n=12).code == 0
    after = {(r.cell, r.sample_id): r for r in records(kvgate)}
    assert len(after) == 48 and all(r.state is State.SCORED for r in after.values())
    assert all(after[key].seconds == seconds for key, seconds in before.items())


@pytest.mark.slow
def test_no_result_holds_the_key(
    kvgate: Kvgate, serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    server = serve(config=CONFIG)
    server.fault = lambda number, body: (
        400 if body["max_tokens"] > 1 and sum(map(ord, str(body["prompt"]))) % 5 == 0 else None
    )
    said = run(kvgate, server, "strategy=prefix_reuse", "start=warm")
    assert "very-secret" not in said.out + said.err
    for file in kvgate.results.rglob("*"):
        assert not file.is_file() or b"very-secret" not in file.read_bytes(), file
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"


# --- real servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two vLLM servers: the cache exact, and in FP8."""
    with vllm_servers(smollm2, tmp_path_factory.mktemp("vllm"), (), ("--kv-cache-dtype", "fp8")) as servers:
        yield servers


def command(results: Path, model: Path, servers: list[Any], *words: str, n: int = 8) -> subprocess.Popen[str]:
    where = ["model=smollm2", f"model.path={model}", "model.dtype=float32", f"results_dir={results}", "name=r"]
    urls = [f"engine.baseline={servers[0].url}", f"engine.candidate={servers[1].url}"]
    task = ["task=needle_single", "task.lengths=[420]", f"n={n}"]
    line = [sys.executable, "-m", "harness.cli", "run", "engine=endpoint", *urls, *where, *task, *words]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())


@needs_vllm
@pytest.mark.slow
def test_two_vllm_servers_of_which_one_packs_in_fp8(real: list[Any], smollm2: Path, tmp_path: Path) -> None:
    _, err = (done := command(tmp_path, smollm2, real, "strategy=fp8")).communicate(timeout=400)
    assert done.returncode == 0, err
    (cell,) = json.loads((tmp_path / "runs" / "r" / "verdict.json").read_text())["cells"]
    assert cell["baseline"] >= 0.75 and cell["control_delta"] <= -0.75
    assert cell["decision"] == "INCONCLUSIVE"  # of 8 samples; not VOID: the format is shown
    store = ResultStore(tmp_path)
    shown = [r.evidence[0].why for r in store.cell(cell["address"]).read()[0].values()]
    assert shown == ["the server's cache_dtype is fp8"] * 8
    share = cell["memory"]["deploy_bytes_per_token"] / cell["memory"]["deploy_full_bytes_per_token"]
    assert share == pytest.approx(0.5, abs=1e-3)  # and a scale for each tensor


@needs_vllm
@pytest.mark.slow
def test_a_vllm_server_answers_as_the_library_does(real: list[Any], smollm2: Path) -> None:
    """As token ids, and as a chat that begins the answer, which the server cuts into tokens: greedy, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    one = sample(3, answer_prefix="It is")
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    for api in ("completions", "chat"):
        engine = EndpointEngine(baseline=real[0].url, api=api)
        with engine.open({"name": "smollm2", "path": str(smollm2), "dtype": "float32"}, FULL) as session:
            (answer,) = session.run([Ask(one, [[Row(api, FULL)]])], compress="prompt", seed=0)
            context, rest = session.tokenizer.prompt(one)
        whole = context + rest
        fed = whole if api == "completions" else session.tokenizer.encode(session.tokenizer.text(whole))
        generated = model.generate(torch.tensor([fed]), do_sample=False, max_new_tokens=one.max_new_tokens)[
            0, len(fed) :
        ]
        expected = tuple(token for token in generated.tolist() if token not in session.tokenizer.stop_ids)
        assert answer.response is not None and answer.response.token_ids == expected, api
        assert answer.prompt_hash == session.tokenizer.prompt(one).hash  # the server counts the tokens that we count


@needs_vllm
@pytest.mark.slow
def test_a_vllm_server_that_is_killed_comes_back(real: list[Any], smollm2: Path, tmp_path: Path) -> None:
    words = ["strategy=prefix_reuse", "start=warm", "engine.candidate=null", "engine.retries=1", "engine.concurrency=2"]
    first = command(tmp_path, smollm2, real, *words)
    until = time.monotonic() + 200
    while len(list(tmp_path.glob("cells/*/part-*"))) < 6 and time.monotonic() < until:
        time.sleep(0.05)
    real[0].kill()
    real[0].start()
    _, err = first.communicate(timeout=300)
    assert first.returncode == 2 and "failed in every row" in err, err
    store = ResultStore(tmp_path)

    def scored() -> dict[tuple[str, str], float]:
        cells = [path.name for path in (tmp_path / "cells").glob("*")]
        found = [(cell, r) for cell in cells for r in store.cell(cell).read()[0].values()]
        return {(cell, r.sample_id): r.seconds for cell, r in found if r.state is State.SCORED}

    before = scored()
    assert 0 < len(before) < 32
    real[0].wait()
    _, err = (second := command(tmp_path, smollm2, real, *words)).communicate(timeout=400)
    assert second.returncode == 0, err
    after = scored()
    assert len(after) == 32 and before.items() <= after.items()
