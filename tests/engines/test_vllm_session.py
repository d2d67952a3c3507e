"""What vLLM is asked for, request by request, with a stand-in for its engine that finishes each as it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from harness.engines.base import Answer, Ask, ModelFacts, Row
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.engines.vllm.session import VLLMSession
from harness.types import Sample, Thinking
from strategies.base import KVShape
from strategies.stack import Stack
from tests.conftest import tiny_tokenizer

SHAPE = KVShape(layers=3, kv_heads=2, query_heads=4, head_dim=32, element_bytes=4)
THINK = Thinking(tokens=40, open="<think>\n", close="\n</think>\n\n")
THINKS = Sample("s", "a text", "a question", ("x",), 8, answer_prefix="So:", think=THINK)
LONG = "k>\n\n"  # one token of this tokenizer, which ends the mark and goes on


class Engine:
    """Finishes each request at once, with the tokens and the reason that ``says`` gives to its prompt."""

    def __init__(self, says: Callable[[list[int]], tuple[list[int], str]]) -> None:
        self.says, self.asked, self.waiting = says, list[list[int]](), list[Any]()
        self.parameters = list[Any]()

    def add_request(self, name: str, prompt: dict[str, list[int]], parameters: Any) -> None:
        tokens = prompt["prompt_token_ids"]
        self.asked.append(tokens)
        self.parameters.append(parameters)
        said, reason = self.says(tokens)
        output = SimpleNamespace(token_ids=said, finish_reason=reason)
        self.waiting.append(SimpleNamespace(request_id=name, finished=True, outputs=[output], num_cached_tokens=0))

    def step(self) -> list[Any]:
        done, self.waiting = self.waiting, []
        return done

    def get_metrics(self) -> list[Any]:
        return []

    def reset_prefix_cache(self, reset_connector: bool) -> None:
        self.reset_tier = reset_connector


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    made = tiny_tokenizer()
    made.add_tokens([LONG])
    return PromptTokenizer(made, 4096, frozenset({1}))


def opened(tokenizer: PromptTokenizer, engine: Engine) -> VLLMSession:
    session = object.__new__(VLLMSession)
    session.about = ModelFacts(SHAPE, 2, "bfloat16", 4096, "tiny", {}, tokenizer)
    session.tokenizer, session.together, session.prefiller, session._requests = tokenizer, 1, None, 0
    session.cache = SimpleNamespace(block_size=4, kv_cache_size_tokens=1000)
    session.read_back = {"kv_bytes_per_token": 1536.0, "kv_dtype": "auto", "kv_tensors": ["float32"]}
    session.engine = engine  # type: ignore[assignment]
    return session


def run(
    tokenizer: PromptTokenizer, says: Callable[[list[int]], tuple[list[int], str]], sample: Sample = THINKS
) -> tuple[Answer, Engine]:
    engine = Engine(says)
    session = opened(tokenizer, engine)
    (answer,) = session.run([Ask(sample, [[Row("cell", Stack("full"))]])], compress="prompt", seed=0)
    return answer, engine


@pytest.mark.parametrize("ending", ["</think>", "</think>\n\n"])
def test_white_space_that_came_with_the_end_of_a_thinking_is_not_fed_again(
    tokenizer: PromptTokenizer, ending: str
) -> None:
    context, rest = tokenizer.prompt(THINKS)
    prompt = context + rest
    thought = tokenizer.encode(f"hm{ending}")

    def says(tokens: list[int]) -> tuple[list[int], str]:
        return (thought, "stop") if tokens == prompt else (tokenizer.encode(" 7"), "stop")

    answer, engine = run(tokenizer, says)
    assert tokenizer.verbatim(engine.asked[1][len(prompt) :]) == "hm</think>\n\nSo:"
    assert answer.response is not None
    assert (answer.response.text, answer.response.thinking_tokens) == (" 7", len(thought))
    assert answer.memory is not None
    blocks = -(-(len(engine.asked[1]) + 2) // 4)  # all that was fed, and the answer
    assert answer.memory.stored_bytes_end == blocks * 4 * 1536


def test_a_thinking_that_vllm_gives_up_is_a_failed_sample(tokenizer: PromptTokenizer) -> None:
    """As where a tier has lost blocks and is to fail then: what follows was not thought through."""
    answer, engine = run(tokenizer, lambda tokens: ([], "error"))
    assert answer.response is None and answer.fault == "infrastructure" and "error" in answer.error
    assert len(engine.asked) == 1


def test_thinking_and_answer_are_drawn_with_noise_of_their_own_that_comes_again(tokenizer: PromptTokenizer) -> None:
    """Else what was thought would say how the answer is drawn."""

    def seeds(sample: Sample) -> list[int | None]:
        _, engine = run(tokenizer, lambda tokens: ([5, 6], "length"), sample)
        return [parameters.seed for parameters in engine.parameters]

    sampled = replace(THINKS, temperature=0.7)
    assert len(set(seeds(sampled))) == 2 and seeds(sampled) == seeds(sampled)
    assert not set(seeds(sampled)) & set(seeds(replace(sampled, id="t")))
    assert seeds(THINKS) == [None, None]


def test_samples_of_another_kind_find_nothing_in_the_tier_either(tokenizer: PromptTokenizer) -> None:
    engine = Engine(lambda tokens: ([], "stop"))
    opened(tokenizer, engine).forget()
    assert engine.reset_tier
