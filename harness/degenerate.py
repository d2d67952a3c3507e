"""Answers that no score tells apart from wrong ones, and that serving engines give when their cache is damaged.

What is looked for is what has been reported of real engines: nothing at all, one token over and over, a passage over and over,
and another speaker's turn within the answer. Pure, so stored responses can be looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.types import Response

FEW = 16  # tokens below which a repetition is no loop
TIMES = 4  # as often must a passage stand in a row
SHARE = 0.5  # of the answer that the repetition must fill
_SPEAKER = re.compile(
    r"^(?:user|assistant|system)$", re.MULTILINE
)  # what is left of a turn's mark when special tokens go


def degenerate(response: Response) -> str:
    """What is wrong with the form of an answer, in a word or two; "" for nothing. Followed answers are never degenerate."""
    if response.finish == "followed":
        return ""
    if not response.text.strip():
        return "empty"
    if _SPEAKER.search(response.text):
        return "several turns"
    return _repetition(response.token_ids)


def _repetition(tokens: Sequence[int]) -> str:
    """Whether the answer ends in a passage that stands there many times in a row, and fills much of it."""
    if len(tokens) < FEW:
        return ""
    for length in range(1, len(tokens) // TIMES + 1):
        passage = tokens[-length:]
        times = 1
        while tokens[-(times + 1) * length : -times * length] == passage:
            times += 1
        if times >= TIMES and times * length >= SHARE * len(tokens):
            return "one token" if length == 1 else "a loop"
    return ""
