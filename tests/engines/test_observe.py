"""What is noted while a prompt is read, against attention weights that transformers' eager attention writes out whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from harness.engines.hf import prefill as prefill_module
from harness.engines.hf.attention import attention
from harness.engines.hf.prefill import Prefilled, prefill, reread
from harness.engines.hf.session import HFSession
from harness.types import Sample
from strategies.base import Evict
from strategies.evict.delayed import Delayed
from strategies.evict.expected_attention import ExpectedAttention
from strategies.evict.h2o import H2O
from strategies.evict.hybrid import Hybrid
from strategies.evict.kvzip import KVzip
from strategies.evict.oracle import Oracle
from strategies.evict.two_phase import TwoPhase
from strategies.stack import Stack
from tests.engines.test_hf import FULL, generated, open_session, run, sample, tokens

KV_HEADS = 2  # of every tiny model
BOTH = {"mass", "moments"}
IDS = [(at * at * 7 + 3 * at) % 250 + 2 for at in range(163)]
SLIDING: dict[str, Any] = {
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


def grouped(weights: Tensor) -> Tensor:
    """``[H * G, m, n]`` as ``[H, G, m, n]``."""
    return weights.unflatten(0, (KV_HEADS, -1))


@torch.inference_mode()
def eager(session: HFSession, ids: list[int]) -> list[Tensor]:
    """By layer the weights ``[H * G, n, n]`` of one plain forward."""
    with attention(session.model, "eager"):
        return [layer[0] for layer in session.model(torch.tensor([ids]), output_attentions=True).attentions]


class Plain(NamedTuple):
    """A plain greedy decode with the full cache."""

    said: list[int]
    paid: list[
        list[Tensor]
    ]  # by piece fed after the prompt (the question, then token by token) and layer, [H * G, m, n]


@torch.inference_mode()
def plain_path(session: HFSession, ids: list[int], question: list[int], steps: int) -> Plain:
    cache = DynamicCache(config=session.model.config)
    said: list[int] = []
    paid: list[list[Tensor]] = []

    def feed(piece: list[int]) -> int:
        out = session.model(torch.tensor([piece]), past_key_values=cache, output_attentions=True)
        paid.append([layer[0] for layer in out.attentions])
        return int(out.logits[0, -1].argmax())

    with attention(session.model, "eager"):
        token = feed(ids)
        paid.clear()
        if question:
            token = feed(question)
        while token not in session.tokenizer.stop_ids:
            said.append(token)
            if len(said) == steps:
                break
            token = feed([token])
    return Plain(said, paid)


def asked(session: HFSession, one: Sample, policies: list[Evict], compress: str = "prompt") -> Prefilled:
    """What the engine knows after the prompt."""
    prompt = session.tokenizer.prompt(one)
    exact = prompt.context + prompt.rest if compress == "prompt" else prompt.context
    return session._prefill(prompt, exact, [FULL, *(Stack(p.name, evict=p) for p in policies)], one, 0)


# --- mass and moments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [7, 40, 100, 1000])
def test_mass_is_the_column_sums_of_eager_weights(session: HFSession, chunk: int) -> None:
    prompt = prefill(session.model, IDS, query_window=3, chunk=chunk, seed=0, needs=BOTH)
    for layer, weights in zip(prompt.layers, eager(session, IDS), strict=True):
        assert layer.mass is not None
        torch.testing.assert_close(layer.mass, grouped(weights).sum(dim=(1, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [7, 40, 100, 1000])
def test_attention_in_blocks_leaves_cache_and_logits_as_plain_sdpa_gives(session: HFSession, chunk: int) -> None:
    prompt = prefill(session.model, IDS, query_window=0, chunk=chunk, seed=0, needs={"mass"})
    cache = DynamicCache(config=session.model.config)
    with torch.inference_mode():
        logits = session.model(torch.tensor([IDS]), past_key_values=cache).logits[0, -1]
    torch.testing.assert_close(prompt.logits, logits, rtol=1e-4, atol=1e-4)
    for layer, plain in zip(prompt.layers, cache.layers, strict=True):
        torch.testing.assert_close(layer.keys, plain.keys[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layer.values, plain.values[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("chunk", [3, 40, 1000])
def test_moments_are_those_of_queries_before_rotary_positions(
    tiny_family: Callable[..., Path], family: str, chunk: int
) -> None:
    """The first four are left out, also where a chunk ends among them."""
    for session in open_session(tiny_family(family)):
        seen: list[Tensor] = []

        def keep(module: torch.nn.Module, inputs: Any, output: Tensor, seen: list[Tensor] = seen) -> None:
            heads = output if output.dim() == 4 else output.unflatten(-1, (-1, 32))
            seen.append(heads[0].transpose(0, 1))  # [H * G, n, d]

        attentions = [module for module in session.model.modules() if hasattr(module, "q_proj")]
        handles = [getattr(module, "q_norm", module.q_proj).register_forward_hook(keep) for module in attentions]
        with torch.inference_mode():
            session.model(torch.tensor([IDS]))
        for handle in handles:
            handle.remove()
        prompt = prefill(session.model, IDS, query_window=0, chunk=chunk, seed=0, needs={"moments"})
        for layer, queries in zip(prompt.layers, seen, strict=True):
            assert layer.moments is not None and layer.mass is None
            counted = queries[:, 4:].double()
            covariance = torch.stack([torch.cov(head.T, correction=0) for head in counted])
            torch.testing.assert_close(layer.moments.mean, counted.mean(dim=1).float(), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(layer.moments.covariance, covariance.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("length", [1, 4, 5])
def test_a_prompt_with_hardly_a_query_has_finite_moments(session: HFSession, length: int) -> None:
    for layer in prefill(session.model, IDS[:length], query_window=0, chunk=2, seed=0, needs=BOTH).layers:
        assert layer.moments is not None and layer.mass is not None
        assert bool(layer.moments.mean.isfinite().all()) and bool(layer.moments.covariance.isfinite().all())
        torch.testing.assert_close(layer.mass.sum(dim=1), torch.full((KV_HEADS,), 2.0 * length))


class Largest(TorchDispatchMode):
    """The most bytes that one operation puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                size = min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
                self.bytes = max(self.bytes, size)
        return out


def test_memory_grows_linearly_with_the_prompt(tiny_family: Callable[..., Path]) -> None:
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    for session in open_session(tiny_family("llama", max_position_embeddings=16384, hidden_size=32, **small)):
        largest = []
        for length in (2000, 4000, 8000):
            with Largest() as seen:
                ids = [at * at % 250 + 2 for at in range(length)]
                prompt = prefill(session.model, ids, query_window=8, chunk=256, seed=0, needs=BOTH)
            assert prompt.layers[0].mass is not None and prompt.layers[0].moments is not None
            torch.testing.assert_close(prompt.layers[0].mass.sum(), torch.tensor(2.0 * length), rtol=1e-3, atol=0)
            largest.append(seen.bytes)
        assert 0 < largest[0] < 4 * 2000**2
        assert largest[1] <= 2.2 * largest[0] and largest[2] <= 2.2 * largest[1]


# --- the second reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [50, 80, 1000])
def test_the_second_reading_is_a_plain_forward_of_prompt_words_and_prompt(
    session: HFSession, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(prefill_module, "REREAD_CHUNK", chunk)
    ask = [session.tokenizer.encode(words) for words in ("Again:\n", "And on from\n")]
    prompt = prefill(session.model, IDS, query_window=0, chunk=40, seed=0)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in prompt.layers]
    told = reread(session.model, prompt, IDS, ask)
    expected = [torch.zeros(KV_HEADS, len(IDS)) for _ in before]
    for start in range(0, len(IDS), chunk):
        words = ask[0] if start == 0 else ask[1] + IDS[start - 8 : start]
        for most, weights in zip(expected, eager(session, [*IDS, *words, *IDS[start : start + chunk]]), strict=True):
            torch.maximum(most, grouped(weights)[:, :, len(IDS) :, : len(IDS)].amax(dim=(1, 2)), out=most)
    for layer, most, (keys, values) in zip(told.layers, expected, before, strict=True):
        assert layer.reread is not None
        torch.testing.assert_close(layer.reread, most, rtol=1e-3, atol=1e-5)
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)
    assert prompt.cache.get_seq_length() == len(IDS)
    for layer, (keys, _) in zip(prompt.cache.layers, before, strict=True):
        assert torch.equal(layer.keys[0], keys)  # type: ignore[union-attr]


def test_a_second_reading_leaves_what_full_answers(session: HFSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_module, "REREAD_CHUNK", 60)
    for compress in ("prompt", "context"):
        answers = run(session, sample(2), [FULL, Stack("kvzip", evict=KVzip(keep=0.3))], compress)
        assert tokens(answers["full"]) == generated(session, sample(2))
        assert tokens(answers["kvzip"])


# --- sliding layers -----------------------------------------------------------------------------------------------------


def test_layers_with_a_sliding_window_are_left_out(tiny_family: Callable[..., Path]) -> None:
    for session in open_session(tiny_family("gemma3_text", **SLIDING)):
        one = sample(3)
        prompt = asked(session, one, [H2O(keep=0.5), ExpectedAttention(keep=0.5), KVzip(keep=0.5), Oracle(keep=0.5)])
        pieces = session.tokenizer.prompt(one)
        weights = eager(session, pieces.context + pieces.rest)
        (futures,) = prompt.futures.values()
        for index, (layer, window) in enumerate(zip(prompt.layers, prompt.windows, strict=True)):
            noted = (layer.mass, layer.moments, layer.reread, futures[index])
            if window is not None:
                assert noted == (None,) * 4
            else:
                assert all(fact is not None for fact in noted)
                expected = grouped(weights[index]).sum(dim=(1, 2))
                torch.testing.assert_close(noted[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_policies_that_need_attention_serve_models_with_sliding_layers(
    tiny_family: Callable[..., Path], compress: str
) -> None:
    policies: list[Evict] = [
        H2O(keep_tokens=40, every=1),
        ExpectedAttention(keep=0.4, future=16, every=3),
        KVzip(keep=0.4),
        Oracle(keep=0.4),
        Delayed(keep=0.4, late=2),
        Hybrid(keep=0.4, parts=(H2O(recent=0.0), ExpectedAttention(future=16)), weights=(1.0, 1.0)),
        TwoPhase(prefill=KVzip(keep=0.4), decode=H2O(keep_tokens=40, every=2)),
    ]
    for session in open_session(tiny_family("gemma3_text", **SLIDING)):
        one = sample(3)
        for name, answer in run(session, one, [FULL, *(Stack(p.name, evict=p) for p in policies)], compress).items():
            assert answer.response is not None, (name, answer.error)
            assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes, name
            if name == "full":
                assert tokens(answer) == generated(session, one)


# --- the future ---------------------------------------------------------------------------------------------------------


def paid_to_prompt(path: Plain, pieces: int, prompt: int, layer: int) -> Tensor:
    """What the first ``pieces`` pieces fed after the prompt pay to its tokens, summed over the group, ``[H, n]``."""
    return sum(grouped(piece[layer])[..., :prompt].sum(dim=(1, 2)) for piece in path.paid[:pieces])  # type: ignore[return-value]


def question_of(session: HFSession, one: Sample, compress: str) -> tuple[list[int], list[int]]:
    pieces = session.tokenizer.prompt(one)
    return (pieces.context + pieces.rest, []) if compress == "prompt" else (pieces.context, pieces.rest)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_the_oracle_s_future_is_what_a_plain_decode_of_the_full_cache_looks_at(
    session: HFSession, compress: str
) -> None:
    """Per head up to a factor, which no ranking sees."""
    for index in range(2):
        one = sample(index, new=10)
        ids, question = question_of(session, one, compress)
        path = plain_path(session, ids, question, one.max_new_tokens)
        assert tuple(path.said) == generated(session, one) and len(path.said) > 4
        oracle = Oracle(keep=0.25)
        prompt = asked(session, one, [oracle], compress)
        for layer, future in enumerate(prompt.futures[oracle.future_steps]):
            expected = paid_to_prompt(path, len(path.paid), len(ids), layer)
            assert future is not None and future.shape == expected.shape
            shares = [x / x.sum(dim=1, keepdim=True) for x in (future, expected)]
            torch.testing.assert_close(*shares, rtol=1e-3, atol=1e-6)


def test_the_future_ends_where_the_answer_ends(session: HFSession) -> None:
    free = run(session, sample(0, new=20), [FULL])["full"]
    assert free.response is not None
    mark = free.response.text[6]
    one = sample(0, new=20, stop=(mark,))
    said = len(tokens(run(session, one, [FULL])["full"]))
    assert said < 10
    ids, question = question_of(session, one, "prompt")
    oracle = Oracle(keep=0.25)
    (future, *_) = asked(session, one, [oracle]).futures[oracle.future_steps]
    expected = paid_to_prompt(plain_path(session, ids, question, said), said, len(ids), 0)
    assert future is not None
    torch.testing.assert_close(future / future.sum(), expected / expected.sum(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("compress", ["prompt", "context"])
@pytest.mark.parametrize("late", [1, 3])
def test_delayed_sees_the_first_queries_of_the_answer_only(session: HFSession, late: int, compress: str) -> None:
    one = sample(0, new=10)
    ids, question = question_of(session, one, compress)
    path = plain_path(session, ids, question, one.max_new_tokens)
    pieces = late + bool(question)
    assert len(path.paid) > pieces
    prompt = asked(session, one, [Delayed(keep=0.25, late=late), Oracle(keep=0.25)], compress)
    for layer, future in enumerate(prompt.futures[late]):
        expected = paid_to_prompt(path, pieces, len(ids), layer)
        assert future is not None
        shares = [x / x.sum(dim=1, keepdim=True) for x in (future, expected)]
        torch.testing.assert_close(*shares, rtol=1e-3, atol=1e-6)


def test_the_second_reading_is_asked_for_with_the_published_words(
    session: HFSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sample(1)
    ids, _ = question_of(session, one, "prompt")
    monkeypatch.setattr(prefill_module, "REREAD_CHUNK", 90)
    told = asked(session, one, [KVzip(keep=0.5)])
    words = (
        "\n\nRepeat the previous context exactly.\n",
        "\n\nRepeat the part of the previous context exactly, starting with\n",
    )
    plain = prefill(session.model, ids, query_window=0, chunk=64, seed=0)
    by_hand = reread(session.model, plain, ids, [session.tokenizer.encode(ask) for ask in words])
    for mine, hand in zip(told.layers, by_hand.layers, strict=True):
        torch.testing.assert_close(mine.reread, hand.reread, rtol=1e-4, atol=1e-6)
