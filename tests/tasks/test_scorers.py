"""Tricky answers, and what each scorer must say of them."""

from __future__ import annotations

import pytest

from tasks import scorers


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("The number is 12.", "12", True),
        ("It is 123", "12", False),
        ("It is 112", "12", False),
        ("12.5 kg", "12", False),
        ("0.12", "12", False),
        ("12, 13 and 14", "13", True),
        ("11,12,13", "12", True),
        ("4,827,193", "4827193", True),
        ("1,234", "234", False),
        ("1,234", "1", False),
        ("4827193,5553331", "5553331", True),
        ("-12", "12", False),
        ("- 12", "12", True),
        ("**12**", "12", True),
        ("(12)", "12", True),
        ("$12", "12", True),
        ("x=12;", "12", True),
        ("12%", "12", True),
        ("v12", "12", False),
        ("12_000", "12", False),
        ("nothing", "no", False),
        ("No, it is not", "no", True),
        ("QUIET-Harbor", "quiet-harbor", True),
        ("unquiet-harbor", "quiet-harbor", False),
        ("quiet-harbors", "quiet-harbor", False),
        ("quiet-harbor-2", "quiet-harbor", False),
        ("6F9619FF-8b86-d011-b42d-00cf4fc964ff.", "6f9619ff-8b86-d011-b42d-00cf4fc964ff", True),
        ("6f9619ff-8b86-d011-b42d-00cf4fc964f", "6f9619ff-8b86-d011-b42d-00cf4fc964ff", False),
        ("the cost is a.b", "a.b", True),
        ("the cost is aXb", "a.b", False),
        ("", "12", False),
    ],
)
def test_contains(text: str, answer: str, right: bool) -> None:
    assert scorers.contains(text, answer) is right


def test_shares_and_any() -> None:
    assert scorers.share_contained("1 and 3", ["1", "2", "3", "4"]) == 0.5
    assert scorers.share_contained("123 and 4", ["1", "2", "3", "4"]) == 0.25
    assert scorers.any_contained("It is Paris", ["Lutetia", "paris"])
    assert not scorers.any_contained("It is Parisian", ["Lutetia", "paris"])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("  **Yes**, it is", "Yes"),
        ("quiet-harbor.", "quiet-harbor"),
        ("...", ""),
        ("", ""),
        ('"no"', "no"),
        ("12.", "12"),
    ],
)
def test_first_word(text: str, word: str) -> None:
    assert scorers.first_word(text) == word
    assert scorers.first_word_is(text, word.upper())


@pytest.mark.parametrize(
    ("text", "first", "last", "stated"),
    [
        ("the iron key. The number is 48271.", "48271", "48271", ""),
        ("3 + 4 = 7. The answer is 7.", "3", "7", "7"),
        ("It was 1,200 then. #### 1,300", "1200", "1300", "1300"),
        ("The answer: $12.50 and then 9 more", "12.50", "9", "12.50"),
        ("from -5 to 5", "-5", "5", ""),
        ("3-4", "3", "4", ""),
        ("room12 or v2", "", "", ""),
        ("The answer is unknown", "", "", ""),
        ("", "", "", ""),
    ],
)
def test_numbers(text: str, first: str, last: str, stated: str) -> None:
    assert scorers.first_number(text) == first
    assert scorers.last_number(text) == last
    assert scorers.stated_number(text) == stated
