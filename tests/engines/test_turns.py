"""Conversations in the engine: the prompt is the template's own, cut where the context ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Sample
from tests.conftest import tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</{{ m['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ONE = Sample(
    "s",
    "the text",
    "why?",
    ("x",),
    4,
    answer_prefix="since",
    turns=(("who?", "me"), ("when?", "now")),
    system="be kind",
)


def prompts(template: str | None) -> PromptTokenizer:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return PromptTokenizer(tokenizer, 4096, frozenset({1}))


def parts(one: Sample, template: str | None) -> tuple[str, str]:
    prompt = prompts(template).prompt(one)
    decode = prompts(template).decode
    return decode(prompt.context), decode(prompt.rest)


def test_messages_go_through_the_template() -> None:
    assert parts(ONE, TEMPLATE) == (
        "<system>be kind</system><user>the text",
        "\n\nwho?</user><assistant>me</assistant><user>when?</user><assistant>now</assistant><user>why?</user><assistant>since",
    )


def test_or_stand_one_under_another() -> None:
    assert parts(ONE, None) == ("be kind\n\nthe text", "\n\nwho?\nme\n\nwhen?\nnow\n\nwhy?\nsince")


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_turns_of_one_conversation_share_their_context(template: str | None) -> None:
    first = replace(ONE, turns=(), question="who?", answer_prefix="")
    assert prompts(template).prompt(first).context == prompts(template).prompt(ONE).context
    whole, shorter = (prompts(template).prompt(one).rest for one in (ONE, replace(ONE, question="", answer_prefix="")))
    assert whole[:20] == shorter[:20]


@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize(
    "context", ["", "why?", "be kind", "</user><assistant>", "the text the text", "١٢٣ שלום 🙂", " padded "]
)
def test_the_cut_is_where_the_context_ends_whatever_it_says(context: str, template: str | None) -> None:
    """Also where it is empty, or is found again in a question, an answer or the system's words."""
    one = replace(ONE, context=context, turns=(("why?", context),))
    head, tail = parts(one, template)
    assert head.endswith(context) if context.strip() == context else context.strip() in head
    both = prompts(template).prompt(one)
    assert prompts(template).compressed_tokens(one, "context") == len(both.context)
    assert "why?" in tail and tail.endswith("since")


def test_a_template_that_hides_the_text_is_refused(tmp_path: Path) -> None:
    from harness.types import BadInput

    with pytest.raises(BadInput, match="does not carry the user's text verbatim"):
        prompts("{{ messages | length }}").prompt(ONE)
