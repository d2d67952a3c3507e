"""The pictures of a report, drawn without pyplot or any global state. A picture that has no data is not drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.report.outlook import Outlook
from harness.report.plots import fidelity, ladder, matrix, needle, payoff
from harness.report.plots.theme import Plot

__all__ = ["FILES", "Plot", "draw"]

FILES = (matrix.FILE, payoff.FILE, ladder.FILE, needle.FILE, fidelity.FILE)


def draw(verdict: Mapping[str, Any], samples: pd.DataFrame) -> list[Plot]:
    """Every picture that this verdict and these samples have data for, in the order of the report."""
    outlook = Outlook(verdict)
    pictures = (matrix.draw(outlook), payoff.draw(outlook), ladder.draw(outlook))
    drawn = (*pictures, needle.draw(outlook, samples), fidelity.draw(outlook))
    return [plot for plot in drawn if plot]
