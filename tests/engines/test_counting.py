"""Counting by words is counting, for every tokenizer that it is used with; and it is used with no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from harness.engines.hf import counting
from harness.engines.hf.counting import PATTERNS, WordCounter, parts_at_spaces, words
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Sample
from tests.conftest import tiny_tokenizer

CORPUS = ["the cat's mat isn't in the hat. 12 345 6789 cats\n\n  sit; they'll (all) sit.\n\tthe end"] * 4
QWEN2, LLAMA3 = sorted(PATTERNS, key=len)
BYTES = {"add_prefix_space": False, "use_regex": False}
TEXTS = st.lists(
    st.sampled_from(
        [*" \n\t\r.'1a9é", "  ", "the", " cat", "'s", "<mark>", "e\u0301", "\u0301", "\u00a0", "\x1c", "漢", "12"]
    )
).map("".join)


def trained(
    stage: pre_tokenizers.PreTokenizer, *added: str | AddedToken, normalizer: object = None
) -> PreTrainedTokenizerFast:
    """A BPE tokenizer that has learnt what it can of a few words."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizer
    backend.pre_tokenizer = stage
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def split(pattern: str) -> pre_tokenizers.Sequence:
    parts = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([parts, pre_tokenizers.ByteLevel(**BYTES)])


def gpt2(**options: bool) -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


@cache
def known(name: str) -> PreTrainedTokenizerFast:
    match name:
        case "gpt2":
            return trained(gpt2(), "<mark>")
        case "digits":
            return trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()]), "<mark>")
        case "prefixed":
            return trained(gpt2(add_prefix_space=True), "<mark>")
        case "qwen2":
            return trained(split(QWEN2), AddedToken("<mark>", lstrip=True), normalizer=normalizers.NFC())
        case _:
            return trained(split(LLAMA3), AddedToken("<mark>", special=True))


@pytest.mark.parametrize("name", ["gpt2", "digits", "prefixed", "qwen2", "llama3"])
@given(text=TEXTS, after=TEXTS)
def test_words_have_the_tokens_of_the_text(name: str, text: str, after: str) -> None:
    tokenizer = known(name)
    assert parts_at_spaces(tokenizer)
    count = WordCounter(tokenizer.backend_tokenizer)
    for one in (text, text + after, after):  # what was seen before is remembered
        assert count(one) == len(tokenizer.encode(one, add_special_tokens=False))


@given(text=TEXTS)
def test_words_are_cut_at_every_space_after_something_else(text: str) -> None:
    cuts = sum(space == " " and not before.isspace() for before, space in pairwise(text))
    assert len(words(text)) == 1 + cuts
    assert " ".join(words(text)) == text


# Tokenizers whose words are not their own, each with a text that shows it.
JOINING: dict[str, tuple[Callable[[], PreTrainedTokenizerFast], str]] = {
    "sentencepiece": (lambda: trained(pre_tokenizers.Metaspace(split=False)), "the cat's mat"),
    "no stage": (lambda: trained(None), "the cat's mat"),  # type: ignore[arg-type]
    "space behind": (lambda: trained(split(r"\S+ ?")), "the cat's mat"),
    "takes the space behind": (lambda: trained(gpt2(), AddedToken("<mark>", rstrip=True)), "a<mark> <mark>"),
    "holds a space": (lambda: trained(gpt2(), "cat sit"), "cat sit"),
    "looks back": (lambda: trained(gpt2(), AddedToken(" <b", single_word=True)), "the <b"),
    "rewrites": (lambda: trained(gpt2(), normalizer=normalizers.Replace("t c", "x")), "the cat cat"),
}


@pytest.mark.parametrize("name", JOINING)
def test_other_tokenizers_read_whole_texts(name: str) -> None:
    make, text = JOINING[name]
    tokenizer = make()
    assert not parts_at_spaces(tokenizer)
    prompt = PromptTokenizer(tokenizer, 4096, frozenset())
    sample = Sample("s", text, text, ("x",), 4)
    assert prompt.prompt_tokens(sample) == sum(map(len, prompt.prompt(sample)))
    assert WordCounter(tokenizer.backend_tokenizer)(text) != len(tokenizer.encode(text, add_special_tokens=False))


@given(context=TEXTS, question=TEXTS, template=st.sampled_from([None, "{{ messages[0]['content'] }}!"]))
def test_prompt_tokens_is_the_length_of_the_prompt(context: str, question: str, template: str | None) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    prompt = PromptTokenizer(tokenizer, 4096, frozenset())
    for begun in ("", "<s>"):
        sample = Sample("s", begun + context, question, ("x",), 4)
        assert prompt.prompt_tokens(sample) == sum(map(len, prompt.prompt(sample)))
        assert prompt.compressed_tokens(sample, "context") == len(prompt.prompt(sample).context)


def test_a_text_of_many_words_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "KEPT", 5)
    count = WordCounter(known("gpt2").backend_tokenizer)
    count._backend = Mock(wraps=count._backend)
    text = " ".join(map(str, range(100)))
    assert count(text) == count(text)
    assert [len(call.args[0]) for call in count._backend.encode_batch_fast.call_args_list] == [99, 0]


def test_memory_does_not_grow_with_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "KEPT", 50)
    tokenizer = known("gpt2")
    count = WordCounter(tokenizer.backend_tokenizer)
    for start in range(0, 2000, 7):
        text = " ".join(map(str, range(start, start + 30)))
        assert count(text) == len(tokenizer.encode(text, add_special_tokens=False))
        assert len(count._known) <= 50 + 30
