"""How RULER judges an answer: a reference counts where its letters stand, in any case, also inside a longer word.

Kept as the authors have it, so that scores can be set beside published ones; the part ``alone`` of a score is the share that
stands alone, which is what the other tasks here ask for.

Source: NVIDIA/RULER, scripts/eval/synthetic/constants.py (string_match_all, string_match_part).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.types import Response, Sample, Score, State
from tasks import scorers


def match_all(sample: Sample, response: Response) -> Score:
    """The share of the references that the answer holds."""
    return _score(sample, response, _found(response.text, sample.answers) / len(sample.answers))


def match_part(sample: Sample, response: Response) -> Score:
    """1 if the answer holds a reference or more: they are ways of saying the same."""
    return _score(sample, response, float(_found(response.text, sample.answers) > 0))


def _found(text: str, answers: Sequence[str]) -> int:
    return sum(answer.lower() in text.lower() for answer in answers)


def _score(sample: Sample, response: Response, value: float) -> Score:
    parts = {"alone": scorers.share_contained(response.text, sample.answers)}
    return Score(State.SCORED, value, response.text.strip(), parts)
