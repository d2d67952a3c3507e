"""The place in a sample's context that its answer stands in, for a reader who asks why an answer was lost."""

from __future__ import annotations

import re

from harness.types import Sample

AROUND = 160  # characters shown on either side


def excerpt(sample: Sample) -> str:
    """What stands around the first answer that the context, or an earlier question, holds once and as a word of its own.

    Empty if none does: an answer that stands there often, such as a digit, says nothing of which place was meant.
    """
    said = "\n".join((sample.context, *(asked for asked, _ in sample.turns)))
    for answer in filter(None, sample.answers):
        places = re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", said)
        first, second = next(places, None), next(places, None)
        if first and not second:
            start, end = max(0, first.start() - AROUND), first.end() + AROUND
            return f"{'… ' if start else ''}{said[start:end]}{' …' if end < len(said) else ''}"
    return ""
