"""A result that is a number: judged strictly, with what a milder reading would take beside it."""

from __future__ import annotations

from harness.types import Response, Sample, Score, State
from tasks import scorers


def score(sample: Sample, response: Response) -> Score:
    """1 if the first number of the answer is the right one; "flexible", a part: the last, of a model that calculates aloud."""
    strict, flexible = scorers.first_number(response.text), scorers.last_number(response.text)
    parts = {"strict": float(strict == sample.answers[0]), "flexible": float(flexible == sample.answers[0])}
    return Score(State.SCORED, parts["strict"], strict, parts)
