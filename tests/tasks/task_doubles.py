"""A tokenizer without a model, and the tasks as their YAML files make them."""

from __future__ import annotations

import re
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from harness.types import Sample
from tasks.base import Task

ROOT = Path(__file__).resolve().parents[2]
GIVEN = (
    "hub",
    "human_eval",
    "jsonl",
    "lm_eval",
    "reasoning_gym",
)  # their questions come from data that a test must bring, or run programs
HOLDING = ("fidelity_answers", "ruler")  # made of other tasks
NAMES = tuple(sorted({path.stem for path in (ROOT / "conf" / "task").glob("*.yaml")} - {*GIVEN, *HOLDING}))

# Tokens above 320 that the question, answer and examples of a task need: what shortens golden files and tests adds them.
ROOM = {
    "needle_multivalue": 160,
    "needle_multiquery": 240,
    "ruler_niah_multivalue": 160,
    "ruler_niah_multiquery": 240,
    "ruler_niah_multikey_3": 80,
    "ruler_vt": 120,
    "ruler_cwe": 800,
    "ruler_fwe": 240,
    "json_lookup": 160,
    "world": 80,
    "needle_turns": 120,
    "instructions": 160,
    "secret": 80,
    "function_search": 280,
    "next_line": 200,
    "output_prediction": 280,
}

FOLLOWING = {"fidelity", "fidelity_code"}  # nothing is asked

# Tasks whose answer has to be worked out, so it need not stand in the text.
WORKED_OUT = {
    *FOLLOWING,
    "world",
    "ledger",
    "registers",
    "countdown",
    "instructions",
    "secret",
    "next_line",
    "output_prediction",
}

# Tokens of a unit of filler, where it is more than a sentence.
UNIT = {
    "ruler_niah_multikey_3": 96,
    "json_lookup": 96,
    "countdown": 64,
    "function_search": 360,
    "output_prediction": 240,
}


class Pieces:
    """Splits words into pieces of at most five letters and numbers into digits, as real tokenizers roughly do."""

    def __init__(self, max_tokens: int = 8192) -> None:
        self.max_tokens = max_tokens
        self._texts: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in re.findall(r" ?[A-Za-z]{1,5}|\d|\s|[^A-Za-z\d\s]", text)]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(self._texts[token] for token in token_ids)

    def prompt_tokens(self, sample: Sample) -> int:
        template = 12
        said = "".join(f"{question}\n{answer}\n\n" for question, answer in sample.turns)
        text = f"{sample.system}{sample.context}\n\n{said}{sample.question}\n{sample.answer_prefix}"
        return template + len(self.encode(text))

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._texts)
            self._texts.append(piece)
        return self._ids[piece]


def made_by_task(sample: Sample) -> dict[str, Any]:
    """What a task says of a sample; how it is generated is the run's."""
    return {name: fact for name, fact in asdict(sample).items() if name not in ("draw", "temperature", "think")}


def load(name: str, **options: Any) -> Task:
    """The task of ``conf/task/<name>.yaml`` with some options overridden."""
    data = yaml.safe_load((ROOT / "conf" / "task" / f"{name}.yaml").read_text())
    module, cls = data.pop("_target_").rsplit(".", 1)
    task = getattr(import_module(module), cls)(**{**data, **options})
    assert isinstance(task, Task)
    return task


def short(name: str) -> Task:
    """The task at a length that keeps files and tests small."""
    return load(name, lengths=lengths(name, 320))


def lengths(name: str, *wanted: int) -> tuple[int, ...]:
    """The lengths ``wanted``, with the room that the task needs."""
    return tuple(length + ROOM.get(name, 0) for length in wanted)
