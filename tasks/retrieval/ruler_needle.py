"""RULER's eight needle tasks: the needles of this folder, judged as RULER judges.

Which of the eight is a matter of options, see ``conf/task/ruler_niah_*.yaml``. Two things differ from the original on purpose.
The first needle asked for goes through the depths in even steps, where RULER draws all of them from 40 levels: so the map of
length x depth fills evenly however few samples are taken; the others stand anywhere. And an answer may be as long as its
values need, not 128 tokens whatever is asked.

Source: https://arxiv.org/abs/2404.06654, with own wording and texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.types import Response, Sample, Score
from tasks.base import Knob, Tokenizer
from tasks.retrieval import ruler
from tasks.retrieval.needle import Needle
from tasks.sizing import SizedTask


@dataclass(frozen=True, kw_only=True)
class RulerNeedle(Needle):
    """The score is the share of the values asked for that the answer holds."""

    @property
    def graded(self) -> bool:  # type: ignore[override]
        """One value is found or not; of several a share may be."""
        return self.values * self.queries > 1

    def knob(self, tokenizer: Tokenizer) -> Knob | None:
        """The length: how many needles there are makes it the task that it is."""
        return SizedTask.knob(self, tokenizer)

    def score(self, sample: Sample, response: Response) -> Score:
        return ruler.match_all(sample, response)
