"""One part of a plan: a table, one sentence of advice, and what a reader has to know of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Section:
    """Rows share their names; quantity and unit are in each name, and a value that is not known is None."""

    title: str
    rows: tuple[Mapping[str, Any], ...]
    advice: str
    notes: tuple[str, ...] = ()


def gb(value: float) -> float:
    return value / 1e9


def told(value: float) -> str:
    """A number in a sentence: three significant digits, and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def gb_text(value: float) -> str:
    """``12.5 GB``, three significant digits."""
    return f"{told(value / 1e9)} GB"


def rate_text(value: float) -> str:
    return f"{gb_text(value)}/s"
