"""Numbers as text. A number that is not there is an en dash; it is never 0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def missing(value: Any) -> bool:
    """True for None, NaN and pandas' NA; False for 0, "" and every other value."""
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def number(value: float | None, digits: int = 3) -> str:
    """0.1234 -> ``0.123``."""
    return MISSING if missing(value) else f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 3) -> str:
    """0.1234 -> ``+0.123``; what rounds to zero carries no sign."""
    if missing(value):
        return MISSING
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """``[-0.014, +0.004]`` with the typographic minus; empty if neither end is known."""
    return "" if missing(low) and missing(high) else f"[{signed(low, digits)}, {signed(high, digits)}]"


def p_value(value: float | None) -> str:
    """0.0421 -> ``0.042``; below a thousandth only the bound."""
    return "< 0.001" if not missing(value) and value < 0.001 else number(value)


def general(value: float | None, digits: int = 3) -> str:
    """The shortest text at so many significant digits: a margin, an alpha, a KL."""
    return MISSING if missing(value) else f"{value:.{digits}g}".replace("-", MINUS)


def gain_limits(gain: Mapping[str, float | None]) -> str:
    """``1.21 [1.18, 1.24]``, of a gain with its mean, low and high end; what is not known is left out."""
    if missing(gain["mean"]):
        return MISSING
    ends = "" if missing(gain["low"]) else f" [{general(gain['low'])}, {general(gain['high'])}]"
    return general(gain["mean"]) + ends


def count(value: float | None) -> str:
    """12345 -> ``12,345``."""
    return MISSING if missing(value) else f"{value:,.0f}".replace("-", MINUS)


def percent(value: float | None) -> str:
    """0.2656 -> ``26.6 %``, three significant digits."""
    return MISSING if missing(value) else f"{100 * value:.3g} %"


def percent_range(values: list[float]) -> str:
    """The one percentage, or the smallest and the largest: ``25.1 % to 27 %``."""
    ends = [percent(value) for value in (min(values), max(values))] if values else [MISSING]
    return " to ".join(dict.fromkeys(ends))


def size(value: float | None) -> str:
    """Bytes in binary units: 3 * 2**30 -> ``3.00 GiB``."""
    if missing(value):
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def plain(value: Any) -> str:
    """Any JSON value as a line of text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or MISSING
    if isinstance(value, (list, tuple, set)) or hasattr(value, "tolist"):
        return ", ".join(plain(item) for item in value) or MISSING
    if missing(value):
        return MISSING
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else general(value, 5)
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 100_000 else str(value)


_UNSHOWN = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def visible(text: str) -> str:
    """``text`` with what no page, terminal or XML file may hold (control signs, half a surrogate pair) as escapes."""
    return _UNSHOWN.sub(lambda sign: repr(sign[0])[1:-1], text.replace("\r\n", "\n"))


def shorten(text: str, limit: int, mark: str = "…") -> str:
    """``text`` with its middle cut out, so that both the beginning and the end stay readable."""
    if len(text) <= limit:
        return text
    room = max(limit - len(mark), 2)
    return text[: room - room // 2] + mark + text[len(text) - room // 2 :]


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as fields: ``engine.versions.torch``."""
    fields: dict[str, Any] = {}
    for key, value in facts.items():
        nested = flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
        fields |= nested
    return fields
