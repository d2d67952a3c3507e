"""A result that is a number: judged strictly, with what a milder reading would take beside it."""

from __future__ import annotations

from harness.types import Response, Sample, Score, State
from tasks import scorers


def score(sample: Sample, response: Response) -> Score:
    """1 if the first number of the answer is the right one; the last number, of a model that calculates aloud, in the detail."""
    strict, flexible = scorers.first_number(response.text), scorers.last_number(response.text)
    detail = {"strict": strict, "flexible": flexible}
    return Score(State.SCORED, float(strict == sample.answers[0]), strict, detail)
