"""How a figure came about: every figure of memory or speed in a report is marked with one of these words."""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """From what is only computed to what an engine says of itself."""

    SIMULATED = "simulated"  # by formula; nothing was held
    MATERIALISED = "materialised"  # real tensors of the reference engine, weighed
    ENGINE = "engine-measured"  # a serving engine's, or the process's, own figure


MEASURED = (Source.MATERIALISED, Source.ENGINE)  # other than the formula once more
STORED = {"hf": Source.MATERIALISED, "vllm": Source.ENGINE, "endpoint": Source.SIMULATED}


def stored_by(engine: str | None) -> Source | None:
    """How this engine comes to what it says is stored; None of one that is not known."""
    return STORED.get(engine or "")
