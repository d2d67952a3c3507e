"""Either fact can be taken away, and then the answer cannot be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from harness.types import Response, Sample, State
from tasks.base import Tokenizer
from tasks.reasoning.chain import WORDS, Chain
from tasks.sizing import fill
from tests.tasks.task_doubles import Pieces, load

Lost = Literal["first", "second"] | None


def chain(**options: Any) -> Chain:
    task = load("chain", **options)
    assert isinstance(task, Chain)
    return task


def drawn(lost: Lost, tokenizer: Tokenizer, index: int) -> Sample:
    """Sample ``index`` of the default task with one of its two facts never told."""
    task = chain()
    draft = task.draft_without(lost, tokenizer, seed=0, index=index)
    return replace(fill(draft, tokenizer, task.length(index), "task.lengths"), id=f"{lost}-{index}")


@pytest.mark.parametrize("index", range(5))
def test_taking_away_a_fact_changes_nothing_else(index: int) -> None:
    whole, first, second = (drawn(lost, Pieces(), index) for lost in (None, "first", "second"))
    name = whole.answer_prefix.rsplit("The secret word of ", 1)[1].removesuffix(" is")
    word_fact, number_fact = f"The secret word of {name} is", f" is {whole.answers[0]}."
    assert word_fact in whole.context and number_fact in whole.context
    assert word_fact not in first.context and number_fact in first.context
    assert word_fact in second.context and number_fact not in second.context
    for sample in (first, second):
        assert (sample.question, sample.answer_prefix, sample.answers) == (
            whole.question,
            whole.answer_prefix,
            whole.answers,
        )
        assert {key: sample.meta[key] for key in ("steps", "depth_first")} == {
            key: whole.meta[key] for key in ("steps", "depth_first")
        }


def test_the_text_tells_names_numbers_and_examples() -> None:
    sample = chain(names=3, numbers=5, examples=2, lengths=[700]).samples(Pieces(), 1, seed=0)[0]
    assert sample.context.count("The secret word of") == 3 + 2
    assert sample.context.count("The secret number of") == 5 + 2
    assert sample.answer_prefix.count("\n") == 2
    assert sample.meta["steps"] == 2


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" lemon, and the secret number of lemon is {answer}.", 1.0),
        (" lemon, and the secret number of lemon is {answer}1.", 0.0),
        (" lemon, and the secret number of lemon is 10000, not {answer}.", 0.0),
        (" lemon.", 0.0),
    ],
)
def test_the_first_number_counts(text: str, right: float) -> None:
    sample = chain().samples(Pieces(), 1, seed=0)[0]
    judged = chain().score(sample, Response(text.format(answer=sample.answers[0]), (), "length"))
    assert (judged.state, judged.value) == (State.SCORED, right)


def test_every_broken_option_is_named() -> None:
    assert chain(names=0, numbers=0, examples=-1).problems(Pieces()) == [
        "task.names must be a whole number of 1 or more, got 0",
        "task.numbers must be a whole number of 1 or more, got 0",
        "task.examples must be a whole number of 0 or more, got -1",
    ]
    assert chain(names=4, numbers=2).problems(Pieces()) == ["task.numbers must be at least names (4), got 2"]
    assert chain(numbers=len(WORDS)).problems(Pieces()) == [
        f"task.numbers must be at most {len(WORDS) - 1} with 1 examples, got {len(WORDS)}"
    ]


class ChatTokenizer:
    """A real tokenizer behind the task's protocol, with its chat template."""

    max_tokens = 8192

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.hf: Any = AutoTokenizer.from_pretrained(folder)

    def encode(self, text: str) -> list[int]:
        return list(self.hf.encode(text, add_special_tokens=False))

    def decode(self, token_ids: list[int]) -> str:
        return str(self.hf.decode(token_ids, skip_special_tokens=True))

    def prompt(self, sample: Sample) -> list[int]:
        turns = [{"role": "user", "content": f"{sample.context}\n\n{sample.question}"}]
        text = self.hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) + sample.answer_prefix
        head = text.index(sample.context) + len(sample.context)
        return self.encode(text[:head]) + self.encode(text[head:])

    def prompt_tokens(self, sample: Sample) -> int:
        return len(self.prompt(sample))


@pytest.mark.slow
def test_a_real_model_needs_both_facts(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer, task, n = ChatTokenizer(smollm2), chain(), 20
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()

    def accuracy(lost: Lost) -> float:
        right = 0.0
        for index in range(n):
            sample = drawn(lost, tokenizer, index)
            prompt = torch.tensor([tokenizer.prompt(sample)])
            output = model.generate(prompt, max_new_tokens=sample.max_new_tokens, do_sample=False)
            text = tokenizer.decode(output[0, prompt.shape[1] :].tolist()).split("\n")[0]
            right += task.score(sample, Response(text, (), "stop")).value or 0.0
        return right / n

    assert accuracy(None) >= 0.5  # measured: 0.65
    assert accuracy("first") <= 0.2  # measured: 0.05
    assert accuracy("second") <= 0.1  # measured: 0.00
