"""A transformers tokenizer as tasks and engines need it: a prompt in two pieces, the context and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from harness.engines.hf.counting import WordCounter, parts_at_spaces
from harness.types import BadInput, Sample, Thinking, digest

CUT = "\ue000end of context\ue000"  # stands where a prompt is cut while it is rendered; no text holds it
TODAY = datetime(2026, 1, 1, tzinfo=UTC)  # for templates that print the date: a prompt must be the same tomorrow


class PromptTokens(NamedTuple):
    """``context`` holds everything up to the end of the context, ``rest`` the question and the begun answer."""

    context: list[int]
    rest: list[int]

    @property
    def hash(self) -> str:
        return digest([self.context, self.rest])


class PromptTokenizer:
    """Renders samples with the model's chat template, if it has one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int, stop_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self._count: Callable[[str], int] = (
            WordCounter(tokenizer.backend_tokenizer)
            if parts_at_spaces(tokenizer)
            else lambda text: len(self.encode(text))
        )

    @property
    def template_hash(self) -> str:
        return digest(self._tokenizer.chat_template or "")

    def misfit(self) -> str:
        """Why the chat template renders no prompt; empty if it does."""
        try:
            self._render(Sample("", "a context", "a question", (), 1))
        except (TemplateError, TypeError, BadInput) as error:
            return " ".join(str(error).split())
        return ""

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    @property
    def folder(self) -> str:
        """Where its files are."""
        return str(self._tokenizer.name_or_path)

    def decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def verbatim(self, token_ids: list[int]) -> str:
        """Text of ``token_ids`` with the special tokens in it: the mark that ends a thinking may be one."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def text(self, token_ids: list[int]) -> str:
        """The text of a prompt, marks of the template included."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def unmarked(self, token_ids: list[int]) -> list[int]:
        """A prompt without the marks with which this tokenizer by itself begins any text."""
        marks = list(self._tokenizer("")["input_ids"])
        return token_ids[len(marks) :] if marks and token_ids[: len(marks)] == marks else token_ids

    def messages(self, sample: Sample) -> list[dict[str, str]]:
        """What was said before the answer, role by role, as chat APIs take it."""
        return [{**message, "content": message["content"].replace(CUT, "")} for message in _messages(sample)]

    def prompt(self, sample: Sample) -> PromptTokens:
        """Token ids of the two pieces of the prompt. They are tokenized apart, so the cut is the same in every mode."""
        head, tail = self._render(sample)
        return PromptTokens(self._mark(head) + self.encode(head), self.encode(tail))

    def spans(self, sample: Sample) -> list[int]:
        """For each prompt token the number of the instruction of ``sample`` that it belongs to, -1 for none."""
        spans = []
        for piece, text in zip(self.prompt(sample), self._render(sample), strict=True):
            offsets = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            found = [(text.find(words), len(words), number) for number, words in enumerate(sample.instructions)]
            mine = [
                next((number for at, size, number in found if at >= 0 and start < at + size and end > at), -1)
                for start, end in offsets
            ]
            spans += [-1] * (len(piece) - len(mine)) + mine  # the piece may begin with a mark that is not in the text
        return spans

    def prompt_tokens(self, sample: Sample) -> int:
        return self.compressed_tokens(sample, "prompt")

    def compressed_tokens(self, sample: Sample, compress: str) -> int:
        head, tail = self._render(sample)
        context = len(self._mark(head)) + self._count(head)
        return context + (self._count(tail) if compress == "prompt" else 0)

    def _mark(self, head: str) -> list[int]:
        """The beginning of a text, unless it is there or a chat template sees to it."""
        bos = self._tokenizer.bos_token
        there = bos is None or self._tokenizer.chat_template or head.startswith(bos)
        return [] if there else [self._tokenizer.bos_token_id]

    def closing(self, sample: Sample) -> list[int]:
        """Token ids that end the thinking of ``sample`` and begin its answer; none if it does not think."""
        return self.encode(sample.think.close + sample.answer_prefix) if sample.think else []

    def resuming(self, sample: Sample, more: str) -> list[int]:
        """Token ids that begin the answer of ``sample``, which has said what ends its thinking and ``more`` in one token."""
        assert sample.think is not None
        after = sample.think.close.partition(sample.think.mark)[2] + sample.answer_prefix
        rest = self.encode(after.removeprefix(more))
        return min(rest, self.closing(sample), key=len)  # never more than there is room for

    def new_tokens(self, sample: Sample) -> int:
        thinking = sample.think.tokens if sample.think else 0
        return thinking + len(self.closing(sample)) + sample.max_new_tokens

    def _render(self, sample: Sample) -> tuple[str, str]:
        """The text of the two pieces: up to the end of the context, and all that follows."""
        whole = self._templated(sample) if self._tokenizer.chat_template else _plain(sample)
        if whole.count(CUT) != 1:
            raise BadInput(
                "model: its chat template does not carry the user's text verbatim, so prompts cannot be split"
            )
        head, tail = whole.split(CUT)
        return head, tail + (_opening(tail, sample.think) if sample.think else sample.answer_prefix)

    def _templated(self, sample: Sample) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                _messages(sample),
                tokenize=False,
                add_generation_prompt=True,
                date_string=f"{TODAY:%d %b %Y}",
                strftime_now=TODAY.strftime,
            )
        )


def _opening(tail: str, think: Thinking) -> str:
    """What begins a thinking after ``tail``, which some chat templates end with the mark already."""
    return "" if tail.rstrip().endswith(think.open.strip()) else think.open


def _messages(sample: Sample) -> list[dict[str, str]]:
    system = [{"role": "system", "content": sample.system}] if sample.system else []
    return system + [{"role": role, "content": text} for role, text in _said(sample)]


def _said(sample: Sample) -> Iterator[tuple[str, str]]:
    """Role and text of every message: the context with the first question, and the answers and questions that follow."""
    first, *later = (*(question for question, _ in sample.turns), sample.question)
    yield "user", sample.context + CUT + ("\n\n" if sample.context and first else "") + first
    for (_, answer), question in zip(sample.turns, later, strict=True):
        yield "assistant", answer
        yield "user", question


def _plain(sample: Sample) -> str:
    """The messages one under another, for models without a chat template."""
    system = sample.system + "\n\n" if sample.system else ""
    return system + "".join(text + ("\n" if role == "user" else "\n\n") for role, text in _said(sample))
