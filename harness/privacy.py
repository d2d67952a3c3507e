"""``privacy=redact``: a keyed hash and a length in the place of every text that a report would show.

Equal texts have equal hashes, so that one sees whether an answer is the expected one, or the baseline's. The key is made of
hashes that stay in run.json, so short answers cannot be found by trying.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.store import Damage
from harness.types import canonical

CHOICES = ("show", "redact")
NOTE = "privacy=redact: texts are shown as a keyed hash and their length; equal texts have equal hashes"
TEXTS = ("answer", "baseline_answer", "expected", "excerpt", "text", "error")
HASHES = ("sample_hash", "prompt_hash")  # plain ones of texts: who guesses a text could check the guess
UTTERED = ("gen.stop", "gen.think_open", "gen.think_close")  # overrides whose values are texts that models see or say


def problems(privacy: Any) -> list[str]:
    return [] if privacy in CHOICES else [f"privacy must be {' or '.join(CHOICES)}, got {privacy!r}"]


def redact(
    verdict: Mapping[str, Any], records: pd.DataFrame, manifest: Mapping[str, Any], damaged: Sequence[Damage]
) -> tuple[dict[str, Any], pd.DataFrame]:
    """A verdict and its records without the texts of samples, answers and errors."""
    hide, errors = Hiding(manifest), records["error"]
    records = records.copy()
    for column in (*TEXTS, *HASHES):
        records[column] = records[column].map(hide.inside)
    records["token_ids"] = None  # they are the text, too
    return redact_verdict(verdict, manifest, [*map(str, damaged), *errors]), records


def redact_verdict(verdict: Mapping[str, Any], manifest: Mapping[str, Any], errors: Iterable[str]) -> dict[str, Any]:
    """A verdict in which names, ids of samples, numbers and settings stay; of the command, values with white space in them and
    those that models see or say do not. Notes that quote an error are hidden."""
    hide = Hiding(manifest)
    quoted = {*manifest.get("lost", ()), *errors} - {"", None}
    return {
        **verdict,
        "command": command(verdict["command"], hide),
        "cells": [{**cell, "command": command(cell["command"] or "", hide) or None} for cell in verdict["cells"]],
        "gen": {name: hide.inside(value) for name, value in verdict["gen"].items()},
        "notes": [
            NOTE,
            *(
                f"a problem, told in {hide(note)}" if any(text in note for text in quoted) else note
                for note in verdict["notes"]
            ),
        ],
    }


class Hiding:
    """Puts the same sign in the place of the same text, everywhere in a run."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        sets = [group["samples_set"] for group in manifest.get("groups", ())]  # a run that was only timed has none
        self._key = hashlib.sha256(canonical(sets or manifest).encode()).digest()

    def __call__(self, text: str) -> str:
        """``#3f2ab1c4d5e6f708 (12 characters)``; an empty text stays empty."""
        if not text:
            return text
        code = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), key=self._key, digest_size=8)
        return f"#{code.hexdigest()} ({len(text)} characters)"

    def inside(self, value: Any) -> Any:
        """A text, or the texts of a list, hidden; whatever else it is stays."""
        if isinstance(value, (list, tuple)):
            return [self.inside(item) for item in value]
        return self(value) if isinstance(value, str) else value


def command(words: str, hide: Hiding) -> str:
    """A command without the texts that are in it."""
    return shlex.join(_word(word, hide) for word in shlex.split(words))


def _word(word: str, hide: Hiding) -> str:
    field, parted, value = word.partition("=")
    text = field.lstrip("+~") in UTTERED or re.search(r"\s", value)
    return f"{field}={hide(value)}" if parted and text else word
