"""Tricky answers, and what each scorer must say of them."""

from __future__ import annotations

import json
import random
import re
import string
import subprocess
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz

from tasks import scorers
from tasks.scorers import SCORERS


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
        ("in New\nYork today", " New York ", True),
        ("答案是北京。", "北京", True),
        ("答案是12。", "12", True),
        ("答案是120。", "12", False),
        ("התשובה היא ירושלים.", "ירושלים", True),
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


WORDS = st.text(alphabet="aAbB the.,-'12 ", max_size=24)
TEXTS = st.one_of(WORDS, st.text(max_size=24))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict | list))

# an answer of each kind, and texts that are right and wrong by it
CASES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "contains": (["Paris", "Lutetia"], ["It is Paris.", "lutetia"], ["", "Parisian"]),
    "any": (["Paris", "Lutetia"], ["It is Paris.", "lutetia"], ["", "Parisian"]),
    "all": (["3", "5"], ["5 and 3"], ["", "35"]),
    "exact": (["Quiet Harbor"], ["quiet  harbor.", "**Quiet Harbor**\n"], ["", "the quiet harbor", "quiet-harbor"]),
    "regex": ([r"^v\d+$", "x+y"], ["v12", "an xxy"], ["", "v", "x+y"]),
    "number": (["1,200"], ["first 7, then 1200.", "1,200.0"], ["", "1200 and 7", "120"]),
    "first_number": (["the sum is 12"], ["12 and 7", " 12.00"], ["", "7 and 12"]),
    "stated_number": (["#### 72"], ["8*9. The answer is 72. Check: 3", "#### 72"], ["", "72", "answer: 7"]),
    "math": ([r"\frac{1}{2}"], [r"so \boxed{\dfrac{1}{2}}.", r"\boxed{7} no: $\boxed{ \frac{1}{2} }$"], ["", "0.5"]),
    "choice": (
        ["B"],
        ["(B)", "b. no: the answer is (B)", "B", "**B.** Because", "It is (B)"],
        ["", "A", "Boys", "(A)", "The answer is a B", "A bee"],
    ),
    "f1": (["the quiet harbor"], ["A quiet, harbor!"], ["", "loud sea"]),
    "rouge_l": (["quiet harbor"], ["Quiet harbor."], ["", "loud sea"]),
    "edit": (["x = 1"], [" x = 1\n"], ["", "?"]),
    "code_line": (["return x"], ["```python\n# so\n    return x\n    y = 2"], ["", "# return x"]),
    "json": (
        ['{"name": "add", "arguments": {"a": 1, "b": [2.0, "x"]}}'],
        [
            'Sure: ```json\n{"arguments": {"b": [2, "x"], "a": 1.0}, "name": "add"}\n```',
            '{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": [2, \\"x\\"]}"}',
        ],
        ["", "{", '{"name": "add", "arguments": {"a": true, "b": [2, "x"]}}', '{"name": "add"}', "[1]"],
    ),
}


def test_every_scorer_has_its_cases() -> None:
    assert CASES.keys() == SCORERS.keys()


@pytest.mark.parametrize("name", SCORERS)
def test_right_is_one_and_wrong_is_zero(name: str) -> None:
    answers, right, wrong = CASES[name]
    assert all(SCORERS[name].fits(answer) for answer in answers)
    assert [float(SCORERS[name].judge(text, answers)) for text in right] == [1.0] * len(right)
    assert [float(SCORERS[name].judge(text, answers)) for text in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize("name", SCORERS)
@given(text=TEXTS, answers=st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_are_in_range_and_an_answer_is_right_by_itself(name: str, text: str, answers: list[str]) -> None:
    scorer = SCORERS[name]
    usable = [answer for answer in answers if scorer.fits(answer)]
    if not usable:
        return
    score = float(scorer.judge(text, usable))
    assert 0.0 <= score <= 1.0
    assert scorer.graded or score in (0.0, 1.0)
    if name not in ("regex", "all", "stated_number", "math", "first_number", "code_line"):  # these read one otherwise
        assert float(scorer.judge(usable[0], usable)) == 1.0


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *((name, "") for name in SCORERS if name != "regex"),
        ("contains", "  "),
        ("regex", "(x"),
        ("number", "many"),
        ("choice", "BC"),
        ("json", "{'a': 1}"),
        ("json", "NaN"),
        ("f1", "the"),
        ("rouge_l", "..."),
        ("exact", "**"),
    ],
)
def test_answers_that_a_scorer_cannot_use_are_told(name: str, answer: str) -> None:
    assert not SCORERS[name].fits(answer)


def squad_f1(text: str, answer: str) -> float:
    """The definition of the SQuAD task, word by word."""

    def words(text: str) -> list[str]:
        kept = "".join(char for char in text.lower() if char not in string.punctuation)
        return [word for word in re.sub(r"\b(a|an|the)\b", " ", kept).split() if word]

    said, right = words(text), words(answer)
    if not said or not right:
        return float(said == right)
    left, same = list(right), 0
    for word in said:
        if word in left:
            left.remove(word)
            same += 1
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(right)
    return 2 * precision * recall / (precision + recall)


@given(text=WORDS, answers=st.lists(WORDS, min_size=1, max_size=3))
def test_f1_is_squads(text: str, answers: list[str]) -> None:
    assert scorers.f1(text, answers) == pytest.approx(max(squad_f1(text, answer) for answer in answers))


def test_f1_reads_scripts_without_spaces_by_the_character() -> None:
    assert scorers.f1("北京市", ["北京"]) == pytest.approx(0.8)


ROUGE = """
import json, sys
from rouge_score.rouge_scorer import RougeScorer
rouge = RougeScorer(["rougeL"], use_stemmer=False)
print(json.dumps([rouge.score(answer, text)["rougeL"].fmeasure for text, answer in json.load(sys.stdin)]))
"""


def test_rouge_l_is_the_packages() -> None:
    """In a process of its own: the package's logging does not go with pytest's."""
    rng = random.Random(0)
    pairs = [["".join(rng.choices("aAbB the.,-'12 ", k=rng.randrange(40))) for _ in range(2)] for _ in range(500)]
    command = [sys.executable, "-c", ROUGE]
    said = subprocess.run(command, input=json.dumps(pairs), capture_output=True, text=True, check=True)
    assert [scorers.rouge_l(text, [answer]) for text, answer in pairs] == pytest.approx(json.loads(said.stdout))
    assert scorers.rouge_l("quiet harbor", ["loud sea", "harbor"]) == pytest.approx(2 / 3)  # the best of them


@given(text=TEXTS, answers=st.lists(TEXTS, min_size=1, max_size=3))
def test_edit_similarity_is_rapidfuzz_s(text: str, answers: list[str]) -> None:
    expected = max(fuzz.ratio(text.strip(), answer.strip()) / 100 for answer in answers)
    assert scorers.edit_similarity(text, answers) == pytest.approx(expected)
    found = SequenceMatcher(None, text.strip(), answers[0].strip(), autojunk=False).ratio()
    assert scorers.edit_similarity(text, answers[:1]) >= found - 1e-9  # its blocks are common, not the most


@given(value=JSON)
def test_json_is_the_same_however_it_is_written(value: Any) -> None:
    turned = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
    assert scorers.same_json(f"Here it is:\n```json\n{turned}\n```", [json.dumps(value)])


@given(one=JSON, other=JSON)
def test_different_json_is_different(one: Any, other: Any) -> None:
    plainly = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert plainly <= scorers.same_json(json.dumps(one), [json.dumps(other)])
    if one != other and "\\" not in json.dumps([one, other]):  # texts that hold JSON count as that JSON
        assert not scorers.same_json(json.dumps(one), [json.dumps(other)])


@pytest.mark.parametrize(
    ("text", "right"), [("It is 99", True), ("101", True), ("102", False), ("98.9", False), ("", False)]
)
def test_a_number_may_be_off_by_its_tolerance(text: str, right: bool) -> None:
    assert scorers.Number(tolerance=0.01)(text, ["100"]) is right


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n\n  x = 1\ny = 2", "x = 1"),
        ("// c\n# py\n```\nz", "z"),
        ("# only a comment", ""),
        ("", ""),
    ],
)
def test_code_line(text: str, line: str) -> None:
    assert scorers.code_line(text) == line


@pytest.mark.parametrize(
    ("text", "result"),
    [(r"\boxed{a}, no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{a", ""), ("a", ""), (r"\fbox {x}", "x")],
)
def test_boxed(text: str, result: str) -> None:
    assert scorers.boxed(text) == result


def test_a_long_answer_is_compared_in_no_time() -> None:
    assert scorers.edit_similarity("ab" * 20_000, ["ba" * 20_000]) > 0.99
