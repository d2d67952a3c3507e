"""Small traces for simulators: requests of few texts, so that beginnings are often alike."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from harness.sizing.traces import Request

BLOCK = 2
Texts = Sequence[tuple[list[int], int]]  # (tokens of a prompt, of which there are two kinds; tokens of the answer)
TEXTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(0, 4)), min_size=1, max_size=25
)


def requests(texts: Texts, block: int = BLOCK, answers: bool = False) -> list[Request]:
    """As a trace would tell them: a block's id is a number for everything up to its end. Answers, if known, are ones."""
    ids: dict[tuple[int, ...], int] = {}
    made = []
    for tokens, answer in texts:
        known = [*tokens, *[1] * (answer - 1)] if answers else tokens
        ends = range(block, len(known) + 1, block)
        made.append(Request(0.0, len(tokens), answer, [ids.setdefault(tuple(known[:end]), len(ids)) for end in ends]))
    return made


def reusable(request: Request, block: int = BLOCK) -> int:
    """At least one token is computed."""
    return (request.input_tokens - 1) // block


def held(request: Request, block: int = BLOCK) -> int:
    """Places of a request: an answer's last token is never computed."""
    return -(-(request.input_tokens + max(request.output_tokens, 1) - 1) // block)
