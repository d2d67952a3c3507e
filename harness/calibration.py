"""The text that calibrating layers learn from: prose that ships with Python, or a file of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.types import digest
from tasks.base import Tokenizer
from tasks.corpus import prose


@cache
def text_of(path: str | None) -> str:
    """The calibration text; ``path`` None stands for Python's own help topics. Raises OSError or UnicodeDecodeError."""
    return Path(path).expanduser().read_text(encoding="utf-8") if path else " ".join(prose())


def spec(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of the configuration decides results: how much of which text."""
    return {"tokens": config["tokens"], "text": digest(text_of(config["text"]))}


def problems(config: Mapping[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Every rule that the configuration breaks: field, rule and value."""
    if config["tokens"] < 1:
        return [f"calibration.tokens must be 1 or more, got {config['tokens']}"]
    try:
        text = text_of(config["text"])
    except (OSError, UnicodeDecodeError) as error:
        return [f"calibration.text must be a UTF-8 text file, got {config['text']}: {error}"]
    there = len(tokenizer.encode(text))
    if there < config["tokens"]:
        return [f"calibration.tokens must be at most the text's {there} tokens, got {config['tokens']}"]
    return []
