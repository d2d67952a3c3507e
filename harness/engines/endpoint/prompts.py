"""A sample as request fields: as token ids, as text, or as messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.engines.hf.tokenizer import PromptTokenizer
from harness.engines.thinned import thinned
from harness.types import BadInput, Sample, digest

PROBE = Sample("probe", "Paris is a city. It lies on a river.", "Where does it lie?", ("river",), 1)


class Budget(NamedTuple):
    """How many of a prompt's tokens the positive control is given, and the chance that draws them."""

    tokens: int
    chance: str


class Prompt(NamedTuple):
    """What is sent, and how many tokens we count in it."""

    fields: dict[str, Any]
    tokens: int


def _fed(tokenizer: PromptTokenizer, sample: Sample, budget: Budget | None) -> list[int]:
    context, rest = tokenizer.prompt(sample)
    return thinned(context + rest, *budget) if budget else context + rest


def ids(tokenizer: PromptTokenizer, sample: Sample, budget: Budget | None) -> Prompt:
    fed = _fed(tokenizer, sample, budget)
    return Prompt({"prompt": fed}, len(fed))


def text(tokenizer: PromptTokenizer, sample: Sample, budget: Budget | None) -> Prompt:
    """Without the marks that a server puts before any text; it cuts the text into tokens without our seam."""
    fed = _fed(tokenizer, sample, budget)
    count = len(tokenizer.encode(tokenizer.text(fed)))
    return Prompt({"prompt": tokenizer.text(tokenizer.unmarked(fed))}, count)


def chat(tokenizer: PromptTokenizer, sample: Sample, budget: Budget | None) -> Prompt:
    """The template is the server's. A begun answer is the last message, to be gone on with: vLLM's extension."""
    messages = tokenizer.messages(sample)
    count = len(tokenizer.encode(tokenizer.text(_fed(tokenizer, sample, None))))
    if budget:
        longest = max(messages, key=lambda message: len(message["content"]))
        content = tokenizer.encode(longest["content"])
        kept = thinned(content, max(0, budget.tokens - count + len(content)), budget.chance)
        longest["content"] = tokenizer.text(kept)
        count -= len(content) - len(kept)
    if not sample.answer_prefix:
        return Prompt({"messages": messages}, count)
    begun = {"role": "assistant", "content": sample.answer_prefix}
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    return Prompt({"messages": [*messages, begun], **goes_on}, count)


Make = Callable[[PromptTokenizer, Sample, Budget | None], Prompt]
MADE: Mapping[str, Make] = {"ids": ids, "text": text, "chat": chat}
PATHS = {"ids": "/completions", "text": "/completions", "chat": "/chat/completions"}


def budget(sample: Sample, tokens: int, seed: int) -> Budget:
    return Budget(tokens, digest([seed, sample.id]))


def needs_vllm(sample: Sample) -> None:
    """Raises BadInput where a chat with any other server cannot begin the answer of ``sample``."""
    if sample.answer_prefix:
        raise BadInput(
            "engine.api must be completions for a task that begins the model's answer, on a server other than vLLM, got chat"
        )
