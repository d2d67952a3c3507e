"""Judging an answer: pure functions from text to a truth, a share or a number.

Long-context suites test plain containment, which finds "12" in "123" and "no" in "nothing". Here an answer counts only
where it stands alone: not inside a longer word, number or hyphenated name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_GROUPED = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")
_STATED = re.compile(r"(?:####|answer(?:\s+is)?\s*[:=]?)\s*\$?(-?\d+(?:\.\d+)?)(?!\w)", re.IGNORECASE)
_WORD = re.compile(r"\w+(?:-\w+)*")


def contains(text: str, answer: str) -> bool:
    """Whether ``answer`` stands alone somewhere in ``text``, in any case of letters; "1,234" is read as "1234"."""
    before = r"(?<![\w-])(?<!\d\.)"
    after = r"(?![\w-]|\.\d)" if answer[-1:].isalnum() else ""
    return re.search(before + re.escape(answer) + after, _plain(text), re.IGNORECASE) is not None


def share_contained(text: str, answers: Sequence[str]) -> float:
    """The share of ``answers`` that ``text`` contains, in [0, 1]."""
    return sum(contains(text, answer) for answer in answers) / len(answers)


def any_contained(text: str, answers: Sequence[str]) -> bool:
    """Whether ``text`` contains one of ``answers`` or more (answers that are ways of saying the same)."""
    return any(contains(text, answer) for answer in answers)


def first_word(text: str) -> str:
    """The first word or number of ``text``, without the marks around it; "" if there is none."""
    found = _WORD.search(text)
    return found[0] if found else ""


def first_word_is(text: str, answer: str) -> bool:
    """Whether ``text`` begins with the one word ``answer``, in any case of letters."""
    return first_word(text).casefold() == answer.casefold()


def first_number(text: str) -> str:
    """The first number of ``text`` as written; "" if there is none."""
    found = _NUMBER.search(_plain(text))
    return found[0] if found else ""


def last_number(text: str) -> str:
    """Flexible extraction: the last number of ``text``, wherever it stands; "" if there is none."""
    found = _NUMBER.findall(_plain(text))
    return found[-1] if found else ""


def stated_number(text: str) -> str:
    """Strict extraction: the number that ``text`` declares as its answer ("#### 7", "the answer is 7"); else ""."""
    found = _STATED.findall(_plain(text))
    return found[-1] if found else ""


def _plain(text: str) -> str:
    """``text`` without commas between groups of three digits."""
    return _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
