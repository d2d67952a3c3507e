"""What a model can take of texts that nobody made for it: no special tokens in them, and short enough."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from harness.types import Sample
from tasks.base import Tokenizer
from tasks.items import Complaints

_MARK = re.compile(r"<[^<>\s]{1,60}>|\[[A-Z_/]{1,30}\]")  # what special tokens of chat templates look like


def admitted(samples: Iterable[tuple[int, Sample]], tokenizer: Tokenizer, unit: str) -> list[Sample]:
    """The numbered ``samples``, with the lengths of their prompts. Raises ValueError with all that the model cannot take."""
    special = _Special(tokenizer)
    complaints = Complaints(unit)
    taken = []
    for number, sample in samples:
        for mark in special.found(sample):
            complaints.add(number, f"{mark} is a special token of the model, which would not be read as text")
        prompt, answer = tokenizer.prompt_tokens(sample), sample.max_new_tokens
        if prompt + answer > tokenizer.max_tokens:
            limit = f"{tokenizer.max_tokens} tokens, which task.max_new_tokens may help with"
            complaints.add(number, f"prompt ({prompt} tokens) and answer ({answer}) must fit into the model's {limit}")
        taken.append(replace(sample, meta={**sample.meta, "prompt_tokens": prompt}))
    if found := complaints.told():
        raise ValueError("\n".join(found))
    return taken


class _Special:
    """Finds texts that a tokenizer reads as special tokens: they would end a turn, or begin one, instead of being read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, bool] = {}

    def found(self, sample: Sample) -> list[str]:
        said = (text for turn in sample.turns for text in turn)
        text = "\n".join((sample.system, sample.context, *said, sample.question, sample.answer_prefix))
        return [mark for mark in sorted(set(_MARK.findall(text))) if self._is_special(mark)]

    def _is_special(self, mark: str) -> bool:
        """Special tokens are left out when ids are decoded, so nothing comes back."""
        if mark not in self._known:
            self._known[mark] = not self._tokenizer.decode(self._tokenizer.encode(mark)).strip()
        return self._known[mark]
