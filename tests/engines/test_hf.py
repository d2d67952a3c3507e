"""The reference engine against transformers itself: plain ``generate``, plain caches, and each row alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, QuantizedCache
from transformers.cache_utils import DynamicLayer

from harness.engines.base import Answer, Ask, Row
from harness.engines.hf.attention import DECODE, PREFILL, attention, decode_attention, prefill_attention
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.joint import Bucket
from harness.engines.hf.prefill import prefill
from harness.engines.hf.session import HFSession
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import BadInput, Sample, Unsupported
from strategies.evict.keydiff import KeyDiff
from strategies.evict.window import Window
from strategies.quant.fp8 import FP8
from strategies.quant.hf_cache import HFHQQ, HFQuanto
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from tests.conftest import tiny_tokenizer
from tests.contract.layers import STACKS

FULL = Stack("full")


def open_session(path: Path, chunk: int = 40, **options: object) -> Iterator[HFSession]:
    with HFEngine(prefill_chunk=chunk, threads=1).open(
        {"name": "hf", "path": str(path), **options}, Stack("full")
    ) as session:
        yield session


@pytest.fixture(scope="module")
def session(tiny: Path) -> Iterator[HFSession]:
    yield from open_session(tiny)


def sample(index: int = 0, length: int = 150, new: int = 12, **changes: object) -> Sample:
    text = "".join(chr(97 + (i * i * 7 + i * index + index) % 26) for i in range(length))
    plain = Sample(f"s{index}", text, f"what is {index}?", ("x",), new, answer_prefix="it is")
    return replace(plain, **changes)  # type: ignore[arg-type]


def fitted(session: HFSession, stack: Stack) -> Stack:
    return session.fit(stack, "the quick brown fox jumps over the lazy dog. " * 20, 300) if stack.calibrates else stack


def run(
    session: HFSession, one: Sample, stacks: list[Stack], compress: str = "prompt", prefill: str = "exact"
) -> dict[str, Answer]:
    rows = [Row(stack.name, fitted(session, stack)) for stack in stacks]
    answers = session.run([Ask(one, [rows])], compress=compress, prefill=prefill, seed=0)  # type: ignore[arg-type]
    return {answer.cell: answer for answer in answers}


def tokens(answer: Answer) -> tuple[int, ...]:
    assert answer.response is not None, answer.error
    return answer.response.token_ids


def generated(session: HFSession, one: Sample) -> tuple[int, ...]:
    """What plain ``generate`` answers, without the end of text."""
    prompt = session.tokenizer.prompt(one)
    ids = torch.tensor([prompt.context + prompt.rest])
    out = session.model.generate(ids, do_sample=False, max_new_tokens=one.max_new_tokens)[0, ids.shape[1] :].tolist()
    return tuple(token for token in out if token not in session.tokenizer.stop_ids)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_full_is_plain_generate_on_twenty_prompts(session: HFSession, compress: str) -> None:
    for index in range(20):
        one = sample(index, length=60 + 17 * index)
        assert tokens(run(session, one, [FULL], compress)["full"]) == generated(session, one)


FAMILIES = [
    ("qwen2", {}),
    ("qwen3", {}),
    ("phi3", {}),
    ("mistral", {"sliding_window": 48}),
    (
        "gemma3_text",
        {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
]


@pytest.mark.parametrize("family, changes", FAMILIES, ids=[name for name, _ in FAMILIES])
def test_full_is_plain_generate_on_other_families(
    family: str, changes: dict[str, object], tiny_family: Callable[..., Path]
) -> None:
    for session in open_session(tiny_family(family, **changes), chunk=64):
        for compress in ("prompt", "context"):
            one = sample(3)
            stacks = [FULL, Stack("fp8", quant=FP8()), Stack("keydiff", evict=KeyDiff(keep=0.5))]
            answers = run(session, one, stacks, compress)
            assert tokens(answers["full"]) == generated(session, one)
            for stack in stacks:
                memory = answers[stack.name].memory
                assert memory is not None and memory.stored_bytes == memory.formula_bytes


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_row_of_a_joint_decode_is_the_same_stack_alone(session: HFSession, compress: str) -> None:
    for index in range(3):
        one = sample(index)
        joint = run(session, one, STACKS, compress)
        for stack in STACKS:
            assert tokens(joint[stack.name]) == tokens(run(session, one, [stack], compress)[stack.name]), stack.name


def test_the_order_of_rows_changes_nothing(session: HFSession) -> None:
    one = sample(1)
    forward, backward = run(session, one, STACKS), run(session, one, [FULL, *STACKS[:0:-1]])
    assert {name: tokens(a) for name, a in forward.items()} == {name: tokens(a) for name, a in backward.items()}


@pytest.mark.parametrize(
    ("rows", "heads", "whole"),
    [([0, 1, 2], None, True), ([0, 1], None, False), ([2, 0, 1], None, False), ([0, 1, 2], [1, 0, 1], False)],
)
def test_rows_that_are_the_batch_are_not_copied(rows: list[int], heads: list[int] | None, whole: bool) -> None:
    batch, nothing = torch.randn(3, 2, 4, 5), torch.empty(len(rows), 1 if heads else 2, 4, 5)
    bucket = Bucket(torch.tensor(rows), heads and torch.tensor(heads), nothing, nothing, 0, [])
    mine = bucket.own(batch)
    picked = [batch[row] if heads is None else batch[row, heads[at]][None] for at, row in enumerate(rows)]
    assert torch.equal(mine, torch.stack(picked))
    assert (mine is batch) == whole == bucket.whole(3)
    bucket.rows = torch.tensor([1, 0, 2][: len(rows)])  # they are numbered anew
    assert not bucket.whole(3)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_stored_bytes_equal_the_formula_to_the_byte(session: HFSession, compress: str) -> None:
    for length in (1, 9, 40, 333):
        for name, answer in run(session, sample(2, length=length), STACKS, compress).items():
            assert answer.memory is not None
            assert answer.memory.stored_bytes == answer.memory.formula_bytes, (name, length)
            stack = next(stack for stack in STACKS if stack.name == name)
            if stack.evict and (stack.evict.phases()[1] or stack.evict.spread != "uniform"):
                continue  # what is held at the end depends on more than lengths
            fed = len(session.tokenizer.prompt(sample(2, length=length)).rest) if compress == "context" else 0
            fed += len(tokens(answer)) - (answer.response is not None and answer.response.finish == "length")
            shape = session.about.shape
            held = stack.kept(answer.memory.prompt_tokens, shape)[0][0] + fed
            formats = fitted(session, stack).formats(shape.layers)
            expected = sum(f.layer_bytes(held, shape) if f else shape.exact_bytes(held) for f in formats)
            assert answer.memory.stored_bytes_end == expected, (name, length)


def test_stored_bytes_equal_the_formula_in_bfloat16(tiny: Path) -> None:
    for session in open_session(tiny, dtype="bfloat16"):
        answers = run(session, sample(2, length=200), STACKS)
        for name, answer in answers.items():
            assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes, name


def test_short_prompts_are_answered_by_every_stack(session: HFSession) -> None:
    """One context token (the beginning of text), with a question and without."""
    for question in ("?", ""):
        one = Sample("short", "", question, ("x",), 4)
        for compress in ("prompt", "context"):
            for name, answer in run(session, one, STACKS, compress).items():
                assert answer.response is not None, (name, answer.error)
                assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes


def plain_decode(session: HFSession, one: Sample, keep: Callable[[int], list[int]], steps: int) -> tuple[int, ...]:
    """Evict by hand from transformers' own cache and decode with its own attention, positions kept."""
    model = session.model
    prompt = session.tokenizer.prompt(one)
    ids = prompt.context + prompt.rest
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        out = model(torch.tensor([ids]), past_key_values=cache)
        places = keep(len(ids))
        for layer in cache.layers:
            if isinstance(layer, DynamicLayer):  # and not one with linear attention
                layer.keys, layer.values = layer.keys[:, :, places], layer.values[:, :, places]
        said: list[int] = []
        for step in range(steps):
            token = int(out.logits[0, -1].argmax())
            if token in session.tokenizer.stop_ids:
                break
            said.append(token)
            position = torch.tensor([[len(ids) + step]])
            out = model(torch.tensor([[token]]), past_key_values=cache, position_ids=position)
    return tuple(said)


def test_eviction_is_what_a_cut_cache_of_transformers_gives(session: HFSession) -> None:
    window = Stack("window", evict=Window(keep_tokens=30, sinks=4))
    for index in range(5):
        one = sample(index)
        expected = plain_decode(session, one, lambda n: [0, 1, 2, 3, *range(n - 26, n)], one.max_new_tokens)
        assert tokens(run(session, one, [FULL, window])["window"]) == expected


def test_compressing_the_context_differs_from_compressing_the_prompt(session: HFSession) -> None:
    stack = Stack("window", evict=Window(keep_tokens=20))
    answers = [run(session, sample(4), [FULL, stack], compress)["window"] for compress in ("prompt", "context")]
    assert answers[0].memory is not None and answers[1].memory is not None
    assert answers[0].memory.prompt_tokens > answers[1].memory.prompt_tokens
    assert answers[0].prompt_hash == answers[1].prompt_hash


def test_stop_strings_end_and_cut_the_text(session: HFSession) -> None:
    free = run(session, sample(0, new=20), [FULL])["full"]
    assert free.response is not None
    mark = free.response.text[5:7]
    stopped = run(session, sample(0, new=20, stop=(mark,)), [FULL])["full"]
    assert stopped.response is not None and stopped.response.finish == "stop"
    assert stopped.response.text == free.response.text[: free.response.text.index(mark)]
    assert free.response.finish in ("length", "stop")


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_following_measures_the_distance_to_the_baseline_step_by_step(session: HFSession, compress: str) -> None:
    one = sample(1, new=10, follow=True)
    stacks = [
        FULL,
        Stack("again"),
        Stack("kivi2", quant=KIVI(bits=2, group=8, residual=16)),
        Stack("int8", quant=INT8()),
    ]
    answers = run(session, one, stacks, compress)
    assert len({tokens(answer) for answer in answers.values()}) == 1
    measures = {name: a.response.fidelity for name, a in answers.items() if a.response and a.response.fidelity}
    assert measures["full"]["kl_mean"] == pytest.approx(0, abs=1e-6)
    assert measures["again"]["top1_agreement"] == 1.0
    assert abs(measures["again"]["nll_delta"]) < 1e-5
    assert measures["kivi2"]["kl_mean"] > 10 * measures["int8"]["kl_mean"] > 0
    if compress == "prompt":
        assert measures["full"]["steps"] == len(tokens(answers["full"])) - 1  # the first token is the exact prefill's


def test_fidelity_equals_a_plain_decode_of_a_cut_cache(session: HFSession) -> None:
    one, keep = sample(2, new=8, follow=True), 25
    stack = Stack("window", evict=Window(keep_tokens=keep, sinks=0))
    answer = run(session, one, [FULL, stack])["window"]
    assert answer.response is not None and answer.response.fidelity is not None
    prompt = session.tokenizer.prompt(one)
    ids, model = prompt.context + prompt.rest, session.model
    logs = []
    with torch.inference_mode():
        for places in (slice(None), slice(len(ids) - keep, None)):
            cache = DynamicCache(config=model.config)
            model(torch.tensor([ids]), past_key_values=cache)
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, places], layer.values[:, :, places]
            steps = []
            for step, token in enumerate(tokens(answer)[:-1]):
                at = torch.tensor([[len(ids) + step]])
                out = model(torch.tensor([[token]]), past_key_values=cache, position_ids=at)
                steps.append(out.logits[0, -1].log_softmax(-1))
            logs.append(torch.stack(steps))
    kl = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    assert answer.response.fidelity["kl_mean"] == pytest.approx(float(kl.mean()), rel=1e-3)
    assert answer.response.fidelity["kl_max"] == pytest.approx(float(kl.max()), rel=1e-3)
    agreement = (logs[0].argmax(-1) == logs[1].argmax(-1)).float().mean()
    assert answer.response.fidelity["top1_agreement"] == pytest.approx(float(agreement))


def test_a_baseline_decoded_apart_follows_the_same_tokens(session: HFSession) -> None:
    one = sample(1, new=10, follow=True)
    batches = [[Row("full", FULL), Row("fp8", Stack("fp8", quant=FP8()))], [Row("apart", FULL)]]
    answers = {a.cell: a for a in session.run([Ask(one, batches)], compress="prompt", seed=0)}
    assert tokens(answers["apart"]) == tokens(answers["full"])
    assert answers["apart"].response is not None and answers["apart"].response.fidelity is not None
    assert answers["apart"].response.fidelity["kl_max"] < 1e-4


def test_a_broken_row_does_not_lead_the_others_astray(session: HFSession, monkeypatch: pytest.MonkeyPatch) -> None:
    append = INT8.store

    def explode_later(self: INT8, keys: torch.Tensor, values: torch.Tensor) -> object:
        store = append(self, keys, values)
        monkeypatch.setattr(store, "append", lambda *new: [][0])
        return store

    one = sample(1, new=10, follow=True)
    well = run(session, one, [FULL, Stack("fp8", quant=FP8())])
    monkeypatch.setattr(INT8, "store", explode_later)
    answers = run(session, one, [FULL, Stack("int8", quant=INT8()), Stack("fp8", quant=FP8())])
    assert answers["int8"].error.startswith("IndexError")
    assert tokens(answers["full"]) == tokens(well["full"]) == tokens(answers["fp8"])


def test_without_a_baseline_nothing_is_followed(session: HFSession, monkeypatch: pytest.MonkeyPatch) -> None:
    real = session._seat

    def out_of_memory(*arguments: object) -> object:
        rows = arguments[1]
        if rows[0].cell == "full":  # type: ignore[index]
            raise RuntimeError("out of memory")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "_seat", out_of_memory)
    answers = run(session, sample(1, new=10, follow=True), [FULL, Stack("window", evict=Window(keep=0.1))])
    assert answers["full"].response is None and answers["window"].response is None
    assert "nothing to follow" in answers["window"].error and answers["window"].fault == "infrastructure"


def test_the_identity_holds_what_decides_results_and_not_where_it_lies(tiny: Path, tmp_path: Path) -> None:
    def identity(folder: Path) -> object:
        return HFEngine().describe({"name": "hf", "path": str(folder)}).identity

    copy = tmp_path / "elsewhere"
    shutil.copytree(tiny, copy)
    assert identity(copy) == identity(tiny)
    for file, key, value in (
        ("config.json", "rms_norm_eps", 1e-3),
        ("config.json", "rope_parameters", {"rope_theta": 5.0, "rope_type": "default"}),
        ("generation_config.json", "eos_token_id", [1, 7]),
        ("tokenizer_config.json", "chat_template", "{{ messages[0]['content'] }}"),
    ):
        before = (copy / file).read_text()
        (copy / file).write_text(json.dumps({**json.loads(before), key: value}))
        assert identity(copy) != identity(tiny), key
        (copy / file).write_text(before)
    assert identity(copy) == identity(tiny)


def test_a_template_that_prints_the_date_gives_the_same_prompt_tomorrow() -> None:
    fast = tiny_tokenizer()
    fast.chat_template = "{{ strftime_now('%d %B %Y') }} {{ date_string }}: {{ messages[0]['content'] }} -> "
    prompt = PromptTokenizer(fast, 4096, frozenset()).prompt(sample(0, length=10))
    assert fast.decode(prompt.context).startswith("01 January 2026 01 Jan 2026: ")
    assert fast.decode(prompt.rest).endswith("what is 0? -> it is")


def test_later_chunks_read_earlier_ones(session: HFSession) -> None:
    ids = list(range(2, 130))
    changed = [ids[0], 200, *ids[2:]]
    logits = [prefill(session.model, x, query_window=0, chunk=40, seed=0).logits for x in (ids, changed)]
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)


@pytest.mark.parametrize("chunk", [7, 40, 1000])
def test_chunks_change_neither_cache_nor_window_queries(session: HFSession, chunk: int) -> None:
    ids = list(range(2, 130))
    whole = prefill(session.model, ids, query_window=20, chunk=len(ids), seed=0)
    parts = prefill(session.model, ids, query_window=20, chunk=chunk, seed=0)
    for a, b in zip(whole.layers, parts.layers, strict=True):
        torch.testing.assert_close(a.keys, b.keys, rtol=1e-3, atol=1e-4)
        assert a.window_queries is not None and b.window_queries is not None
        torch.testing.assert_close(a.window_queries, b.window_queries, rtol=1e-3, atol=1e-4)
        assert b.window_queries.shape[1] == 20


def test_the_model_is_as_before_also_after_an_exception(session: HFSession) -> None:
    before = session.model.config._attn_implementation
    expected = generated(session, sample(0))
    for name in (PREFILL, DECODE):
        with pytest.raises(RuntimeError, match="on purpose"), attention(session.model, name):
            raise RuntimeError("on purpose")
    assert session.model.config._attn_implementation == before
    assert generated(session, sample(0)) == expected


@pytest.mark.parametrize("function", [prefill_attention, decode_attention])
@pytest.mark.parametrize("keyword", ["softcap", "s_aux", "position_bias"])
def test_attention_that_would_be_computed_wrongly_is_refused(function: Callable[..., object], keyword: str) -> None:
    q = torch.zeros(1, 1, 1, 8)
    with pytest.raises(Unsupported, match=keyword):
        function(torch.nn.Module(), q, q, q, None, **{keyword: torch.ones(1)})


def test_a_row_that_fails_is_an_answer_and_spares_the_others(
    session: HFSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(self: FP8, keys: torch.Tensor, values: torch.Tensor) -> None:
        raise RuntimeError("out of memory, say")

    monkeypatch.setattr(FP8, "store", explode)
    batches = [[Row("full", FULL), Row("fp8", Stack("fp8", quant=FP8()))], [Row("alone", FULL)]]
    answers = {a.cell: a for a in session.run([Ask(sample(0), batches)], compress="prompt", seed=0)}
    assert answers["fp8"].response is None and answers["fp8"].fault == "infrastructure"
    assert "out of memory" in answers["fp8"].error
    assert answers["full"].response is not None and tokens(answers["full"]) == tokens(answers["alone"])


def test_logits_that_are_not_finite_are_the_model_s_fault(session: HFSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def poison(self: KeyDiff, prompt: object) -> torch.Tensor:
        prompt.values.fill_(torch.nan)  # type: ignore[attr-defined]
        return torch.zeros(prompt.keys.shape[:2])  # type: ignore[attr-defined]

    monkeypatch.setattr(KeyDiff, "scores", poison)
    answers = run(session, sample(0), [FULL, Stack("bad", evict=KeyDiff(keep=0.5))])
    assert answers["bad"].fault == "model" and "not finite" in answers["bad"].error


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "config.json"), (tmp_path / "nowhere", "existing folder"), (None, "got nothing")):
        with pytest.raises(BadInput, match=words):
            HFEngine().describe({"name": "hf", "path": path and str(path)})


@pytest.mark.slow
def test_full_is_plain_generate_on_the_real_model(smollm2: Path) -> None:
    """Twenty prompts, and every row of a joint decode as the same stack alone."""
    stacks = [
        FULL,
        Stack("fp8", quant=FP8()),
        Stack("kivi2", quant=KIVI(bits=2)),
        Stack("window", evict=Window(keep=0.25)),
        Stack("keydiff+int8", evict=KeyDiff(keep=0.5), quant=INT8()),
    ]
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    del model  # loads without our classes
    with HFEngine(prefill_chunk=256).open({"name": "hf", "path": str(smollm2)}, Stack("full")) as session:
        for index in range(20):
            one = Sample(
                f"r{index}",
                " ".join(
                    f"Line {i}: the code of box {i * 37 % 101} is {1000 + i * 7919 % 9000}." for i in range(12 + index)
                ),
                f"What is the code of box {index * 37 % 101}?",
                (),
                10,
            )
            joint = run(session, one, stacks)
            assert tokens(joint["full"]) == generated(session, one)
            if index < 3:
                for stack in stacks:
                    assert tokens(joint[stack.name]) == tokens(run(session, one, [stack])[stack.name]), stack.name


@pytest.mark.parametrize("backend", ["hf_quanto", "hf_hqq"])
def test_the_library_s_quantized_cache_is_the_library_s(session: HFSession, backend: str) -> None:
    """A row with the library's cache is plain ``generate`` with it, over several flushes."""
    kind = {"hf_quanto": HFQuanto, "hf_hqq": HFHQQ}[backend]
    quant = kind(bits=4, group=32, residual=8)
    if quant.missing():
        pytest.skip(quant.missing()[0])
    for index in range(4):
        one = sample(index, new=30)
        prompt = session.tokenizer.prompt(one)
        cache = QuantizedCache(
            backend.removeprefix("hf_"), session.model.config, q_group_size=32, residual_length=8, nbits=4
        )
        with torch.inference_mode():
            out = session.model.generate(
                torch.tensor([prompt.context + prompt.rest]),
                past_key_values=cache,
                do_sample=False,
                max_new_tokens=one.max_new_tokens,
                eos_token_id=sorted(session.tokenizer.stop_ids),
            )
        said = out[0, len(prompt.context) + len(prompt.rest) :].tolist()
        said = said[:-1] if said[-1] in session.tokenizer.stop_ids else said
        answer = run(session, one, [FULL, Stack("q", quant=quant)])["q"]
        assert tokens(answer) == tuple(said)
        assert answer.memory is not None and answer.memory.stored_bytes == answer.memory.formula_bytes
