"""Judging an answer: pure functions from text to a truth, a share or a number.

Long-context suites test plain containment, which finds "12" in "123" and "no" in "nothing". Here an answer counts only
where it stands alone: not inside a longer word, number or hyphenated name.

``SCORERS`` has them by the names that a user's own data may give. A scorer is called with the text and the answers that
are accepted, and returns a score in [0, 1].
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_GROUPED = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")
_STATED = re.compile(r"(?:####|answer(?:\s+is)?\s*[:=]?)\s*\$?(-?\d+(?:\.\d+)?)(?!\w)", re.IGNORECASE)
_WORD = re.compile(r"\w+(?:-\w+)*")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_UNSPACED = re.compile(r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_AROUND = string.whitespace + "\"'`*_.,;:!?()[]{}“”‘’«»。、，！？"
_STATED_LETTER = re.compile(r"(?i:answer|choice|option)(?:\s+is)?\s*[:=]?\s*[*(\[\"']*([A-Z])(?!\w)")
_LEADING_LETTER = re.compile(r"\W*([A-Za-z])\W*?(?:[.:,;)\n]|$)")
_BRACKETED_LETTER = re.compile(r"\(([A-Z])\)")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LATEX_NOISE = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|\s|\$|\\text\s*(?=\{)")


def contains(text: str, answer: str) -> bool:
    """Whether ``answer`` stands alone somewhere in ``text``, in any case of letters; "1,234" is read as "1234"."""
    text, answer = _spread(_plain(text)), _spread(answer)
    before = r"(?<![\w-])(?<!\d\.)"
    after = r"(?![\w-]|\.\d)" if answer[-1:].isalnum() else ""
    return re.search(before + re.escape(answer) + after, text, re.IGNORECASE) is not None


def share_contained(text: str, answers: Sequence[str]) -> float:
    """The share of ``answers`` that ``text`` contains, in [0, 1]."""
    return sum(contains(text, answer) for answer in answers) / len(answers)


def any_contained(text: str, answers: Sequence[str]) -> bool:
    """Whether ``text`` contains one of ``answers`` or more (answers that are ways of saying the same)."""
    return any(contains(text, answer) for answer in answers)


def by_position(scores: Sequence[float]) -> dict[str, float]:
    """The parts of a score that one answer earns for several things asked in order; none where one thing was asked."""
    return {f"position: {at}": float(score) for at, score in enumerate(scores, 1)} if len(scores) > 1 else {}


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


def normalized(text: str) -> str:
    """``text`` without case, extra spaces, and the marks around it."""
    return " ".join(text.split()).strip(_AROUND).casefold()


def exact(text: str, answers: Sequence[str]) -> bool:
    """Whether ``text`` is one of ``answers`` and nothing else, case and the marks around it aside."""
    return normalized(text) in {normalized(answer) for answer in answers}


def matched(text: str, answers: Sequence[str]) -> bool:
    """Whether one of ``answers``, read as regular expressions, is found in ``text``."""
    return any(re.search(answer, text) for answer in answers)


def f1(text: str, answers: Sequence[str]) -> float:
    """The best F1 of words that ``text`` shares with one of ``answers``, by SQuAD's rules.

    Case, ASCII punctuation and English articles do not count. In scripts without spaces every character is a word.
    """
    words = _squad_words(text)
    return max(_f1(words, _squad_words(answer)) for answer in answers)


def rouge_l(text: str, answers: Sequence[str]) -> float:
    """The best ROUGE-L (F of the longest common subsequence of words, no stemming) of ``text`` with one of ``answers``."""
    words = _rouge_words(text)
    return max(_overlap(words, _rouge_words(answer)) for answer in answers)


def edit_similarity(text: str, answers: Sequence[str]) -> float:
    """The best similarity of ``text`` with one of ``answers``: 1 - insertions and deletions / characters of both."""
    return max(_overlap(text.strip(), answer.strip()) or float(text.strip() == answer.strip()) for answer in answers)


def code_line(text: str) -> str:
    """The first line of ``text`` that is code: not blank, not a comment, not a code fence."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(("#", "//", "`"))), "")


def code_similarity(text: str, answers: Sequence[str]) -> float:
    """``edit_similarity`` of the first line of code in ``text``: the next line was asked for."""
    return edit_similarity(code_line(text), answers)


def found_json(text: str) -> Any:
    """The first JSON object or list that stands in ``text``, in a code fence or not. Raises ValueError if none does."""
    decoder = json.JSONDecoder(parse_constant=_no_number)
    for start in re.finditer(r"[{\[]", text):
        try:
            return decoder.raw_decode(text, start.start())[0]
        except (ValueError, RecursionError):
            continue
    raise ValueError("no JSON object or list")


def same_json(text: str, answers: Sequence[str]) -> bool:
    """Whether the first JSON in ``text`` says the same as one of ``answers``.

    The order of keys does not count, numbers are compared as numbers, and a text that holds an object counts as that
    object (as the arguments of a tool call are often written).
    """
    try:
        said = found_json(text)
    except ValueError:
        return False
    return any(_same(said, found_json(answer)) for answer in answers)


def chosen_letter(text: str) -> str:
    """The letter that ``text`` chooses: the last one it states ("the answer is (B)"), else its first word, else "(B)"."""
    stated = _STATED_LETTER.findall(text)
    leading = _LEADING_LETTER.match(text)
    bracketed = _BRACKETED_LETTER.search(text)
    found = stated[-1] if stated else leading[1] if leading else bracketed[1] if bracketed else ""
    return found.upper()


def choice(text: str, answers: Sequence[str]) -> bool:
    """Whether ``text`` chooses the letter of one of ``answers``."""
    return chosen_letter(text) in {re.sub(r"\W", "", answer).upper() for answer in answers}


def boxed(text: str) -> str:
    """What the last \\boxed{...} of ``text`` holds; "" if there is none."""
    starts = list(_BOXED.finditer(text))
    if not starts:
        return ""
    begin, depth = starts[-1].end(), 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return ""


def same_math(text: str, answers: Sequence[str]) -> bool:
    """Whether the boxed result of ``text``, or else its last number, is one of ``answers``, spacing marks aside.

    Forms are compared as they are written: 1/2 is not 0.5.
    """
    said = boxed(text) or last_number(text)
    return bool(said) and any(_latex(said) == _latex(boxed(answer) or answer) for answer in answers)


@dataclass(frozen=True, kw_only=True)
class Number:
    """Whether the number that a text gives is one of the answers.

    Attributes:
        which: The number that counts: first, last, or stated ("#### 7", "the answer is 7").
        tolerance: How far off it may be, as a share of the answer.
    """

    which: Literal["first", "last", "stated"] = "last"
    tolerance: float = 0.0

    def __call__(self, text: str, answers: Sequence[str]) -> bool:
        said = {"first": first_number, "last": last_number, "stated": stated_number}[self.which](text)
        return bool(said) and any(self._close(float(said), float(last_number(answer))) for answer in answers)

    def _close(self, said: float, right: float) -> bool:
        return abs(said - right) <= max(self.tolerance, 1e-9) * abs(right)


Judge = Callable[[str, Sequence[str]], float]


@dataclass(frozen=True)
class Scorer:
    """A way to judge, whether it gives shares, and what an answer must be for it."""

    judge: Judge
    graded: bool = False
    reads: Callable[[str], object] = str  # raises ValueError for, or makes nothing of, an answer that it cannot use
    answer: str = "text"

    def fits(self, answer: str) -> bool:
        """Whether ``answer`` is of the kind that this scorer compares with."""
        try:
            return bool(self.reads(answer))
        except (ValueError, re.error):
            return False


SCORERS: Mapping[str, Scorer] = {
    "contains": Scorer(any_contained, reads=str.strip),
    "any": Scorer(any_contained, reads=str.strip),
    "all": Scorer(share_contained, graded=True, reads=str.strip),
    "exact": Scorer(exact, reads=normalized, answer="more than marks"),
    "regex": Scorer(matched, reads=re.compile, answer="a regular expression"),
    "number": Scorer(Number(), reads=last_number, answer="a number"),
    "first_number": Scorer(Number(which="first"), reads=last_number, answer="a number"),
    "stated_number": Scorer(Number(which="stated"), reads=last_number, answer="a number"),
    "math": Scorer(same_math, reads=lambda answer: _latex(boxed(answer) or answer), answer="a result"),
    "choice": Scorer(choice, reads=re.compile(r"\W*[A-Za-z]\W*").fullmatch, answer="one letter"),
    "f1": Scorer(f1, graded=True, reads=lambda answer: _squad_words(answer), answer="words"),
    "rouge_l": Scorer(rouge_l, graded=True, reads=lambda answer: _rouge_words(answer), answer="words"),
    "edit": Scorer(edit_similarity, graded=True, reads=str.strip),
    "code_line": Scorer(code_similarity, graded=True, reads=str.strip),
    "json": Scorer(same_json, reads=lambda answer: (found_json(answer),), answer="JSON"),
}


def _spread(text: str) -> str:
    """``text`` with single spaces; in scripts that are written without (Chinese, Thai, ...) every character is a word."""
    return " ".join(_UNSPACED.sub(r" \1 ", text).split())


def _squad_words(text: str) -> list[str]:
    return _spread(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION))).split()


def _f1(words: list[str], right: list[str]) -> float:
    if not words or not right:
        return float(words == right)
    same = sum((Counter(words) & Counter(right)).values())
    return 2 * same / (len(words) + len(right))


def _rouge_words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", _spread(text.lower()))


def _overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """The longest common subsequence as a share of the mean length; 0 if both are empty."""
    return 2 * common_subsequence(one, other) / max(len(one) + len(other), 1)


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, by one whole-number addition for each item of ``other``.

    Bits stand for the items of ``one``; a bit that became 0 is one item of the subsequence (Hyyrö, 2004).
    """
    places: dict[str, int] = {}
    for at, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << at
    whole = (1 << len(one)) - 1
    open_bits = whole
    for item in other:
        hits = open_bits & places.get(item, 0)
        open_bits = (open_bits + hits | open_bits - hits) & whole
    return len(one) - open_bits.bit_count()


def _same(one: Any, other: Any) -> bool:
    """Equality of two JSON values; true is not 1, and 1 is 1.0."""
    if isinstance(one, str) != isinstance(other, str):
        text, value = (one, other) if isinstance(one, str) else (other, one)
        return isinstance(value, dict | list) and _written(text, value)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _written(text: str, value: Any) -> bool:
    try:
        return _same(json.loads(text, parse_constant=_no_number), value)
    except (ValueError, RecursionError):
        return False


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _latex(text: str) -> str:
    plain = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
    plain = _LATEX_NOISE.sub("", plain).replace("dfrac", "frac").replace("tfrac", "frac").strip(".")
    try:
        return repr(float(plain))
    except ValueError:
        return plain
