"""The positive control of an engine that cannot evict: a prompt with as few tokens as the budget would have kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.types import Evidence
from strategies.stack import Stack

ENDS = (4, 32)  # tokens at the start and the end of a prompt that are left to the positive control
HOW = "as many tokens of the prompt as the budget keeps, drawn at random, are all that it is given"


def thinned(tokens: Sequence[int], budget: int, chance: str) -> list[int]:
    """``budget`` of ``tokens``: both ends, and between them some drawn at random, in their order."""
    first, last = (min(count, budget // 2) for count in ENDS)
    middle = range(first, len(tokens) - last)
    drawn = random.Random(chance).sample(middle, max(0, min(budget - first - last, len(middle))))
    return [tokens[at] for at in (*range(first), *sorted(drawn), *range(len(tokens) - last, len(tokens)))]


def evidence(stack: Stack, given: int, whole: int, facts: dict[str, float]) -> tuple[Evidence, ...]:
    """That ``given`` of ``whole`` prompt tokens were sent, as the act of the control's eviction."""
    assert stack.evict is not None
    why = f"was given {given} of {whole} prompt tokens"
    return (Evidence(f"evict/{stack.evict.name}", given < whole, why, facts),)
