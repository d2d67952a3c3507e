"""Instructions: every checker, and that all of them can be kept at once."""

from __future__ import annotations

from itertools import product

import pytest

from harness.types import Response
from tasks.instructions.several import KINDS, Rule
from tests.tasks.task_doubles import Pieces, load

OBJECTS = {"nothing": "", "word": "lemon", "phrase": "quiet harbor", "number": "3", "topic": "rain"}


@pytest.mark.parametrize(
    ("kind", "kept", "broken"),
    [
        ("begins", ["Lemon trees.", '"lemon', "- *Lemon*, rain"], ["Lemons.", "A lemon.", "lemon-tree"]),
        (
            "ends",
            ["... the Quiet harbor.", '"quiet harbor"', "quiet, harbor!"],
            ["a harbor", "quiet harbors", "quiet harbor now"],
        ),
        ("includes", ["One LEMON.", "lemon"], ["lemons", "lemon-tree", "lem on"]),
        ("excludes", ["It was a rainy day.", "Bread"], ["Rain falls.", "no *rain*"]),
        (
            "bullets",
            ["- a\n- b\n- c", '"- a\n\n- b\n- c"'],
            ["- a\n- b", "So:\n- a\n- b\n- c", "- a - b - c", "a\nb\nc"],
        ),
        (
            "sentences",
            ["One. Two! Three?", 'He said "Go." Then. Off', "1.5 km. A. B."],
            ["One. Two.", "Yes", "A. B. C. D."],
        ),
        ("lower", ["all small, 12."], ["All small", "a B"]),
        ("upper", ["ALL BIG, 12."], ["ALL big"]),
        ("quoted", ['"A text."', " “So it\nis.” "], ['"A" text', "A text", '""', '"open']),
        ("no_comma", ["One two."], ["One, two"]),
        ("stressed", ["a *word* here", "*two words*"], ["a **word** here", "2 * 3 * 4", "* item", "a * b"]),
        ("asks", ["Why? So."], ["Why. So."]),
    ],
)
def test_a_checker_tells_what_keeps_to_it(kind: str, kept: list[str], broken: list[str]) -> None:
    rule = Rule(kind, OBJECTS[KINDS[kind].object])
    assert [text for text in kept if not rule.kept(text)] == []
    assert [text for text in broken if rule.kept(text)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_without_words_keeps_to_nothing(kind: str) -> None:
    rule = Rule(kind, OBJECTS[KINDS[kind].object])
    assert not any(rule.kept(text) for text in ("", " \n", '"?"', "*-*"))


def answer(*kinds: str, bullets: str = "3", sentences: str = "3") -> str:
    """An answer that keeps to the rules of ``kinds``, built piece by piece."""
    first, last = ("lemon" if "begins" in kinds else "a"), ("quiet harbor" if "ends" in kinds else "boat")
    middle = ["a boat", "*boat*" if "stressed" in kinds else "boat", "lemon pie" if "includes" in kinds else "pie"]
    ask = "why? " if "asks" in kinds else "so. "
    if "bullets" in kinds:
        parts = [f"{first} {' '.join(middle)} {ask.strip()}", *["a boat"] * (int(bullets) - 2), last]
        text = "\n".join(f"- {part}" for part in parts)
    else:
        parts = [f"{first} {' '.join(middle)} {ask.strip()}", *["a boat."] * (int(sentences) - 2), f"{last}."]
        text = " ".join(parts)
    text = text.upper() if "upper" in kinds else text
    return f'"{text}"' if "quoted" in kinds else text


@pytest.mark.parametrize(("one", "other"), [pair for pair in product(KINDS, KINDS) if pair[0] < pair[1]])
def test_no_two_kinds_that_may_stand_together_contradict_each_other(one: str, other: str) -> None:
    if KINDS[one].aspect == KINDS[other].aspect:
        return
    for number in ("2", "3", "4"):
        objects = {**OBJECTS, "number": number}
        text = answer(one, other, bullets=number, sentences=number)
        for kind in (one, other):
            assert Rule(kind, objects[KINDS[kind].object]).kept(text), (kind, text)


def test_all_aspects_can_be_kept_at_once() -> None:
    for form, case in product(("bullets", "sentences"), ("lower", "upper")):
        kinds = [kind for kind in KINDS if KINDS[kind].aspect not in ("form", "case")] + [form, case]
        text = answer(*kinds)
        assert [kind for kind in kinds if not Rule(kind, OBJECTS[KINDS[kind].object]).kept(text)] == [], text


@pytest.mark.parametrize("where", ["system", "start", "spread"])
def test_instructions_stand_once_and_where_they_were_asked_for(where: str) -> None:
    for sample in load("instructions", lengths=[700], where=where, count=6).samples(Pieces(), 12, seed=1):
        assert len(sample.instructions) == len(set(sample.meta["kinds"])) == 6
        assert len({KINDS[kind].aspect for kind in sample.meta["kinds"]}) == 6
        text = sample.system if where == "system" else sample.context
        places = [text.find(words) for words in sample.instructions]
        assert places == sorted(places) and places[0] >= 0
        assert all((sample.system + sample.context).count(words) == 1 for words in sample.instructions)
        if where == "spread":
            assert sample.meta["depths"] == sorted(sample.meta["depths"])


def test_every_kind_comes_up_and_objects_differ() -> None:
    samples = load("instructions", count=8).samples(Pieces(), 40, seed=0)
    assert {kind for sample in samples for kind in sample.meta["kinds"]} == set(KINDS)
    for sample in samples:
        words = [word for rule in sample.answers for word in rule.split()[1:]]
        assert len(words) == len(set(words))
        assert all(
            word not in sample.question
            for rule in sample.answers
            if rule.split()[0] != "excludes"
            for word in rule.split()[1:]
        )


def test_the_score_is_the_share_and_the_parts_tell_which() -> None:
    task = load("instructions", count=3)
    (sample,) = task.samples(Pieces(), 1, seed=0)
    object.__setattr__(sample, "answers", ("begins lemon", "no_comma", "ends quiet harbor"))
    judged = task.score(sample, Response("Lemon, and more.", (), "stop"))
    assert judged.value == pytest.approx(1 / 3)
    by_kind = {"kind: begins": 1.0, "kind: no_comma": 0.0, "kind: ends": 0.0}
    by_position = {"position: 1": 1.0, "position: 2": 0.0, "position: 3": 0.0}
    assert judged.parts == {**by_kind, **by_position, "all": 0.0}
    assert task.score(sample, Response("Lemon at the quiet harbor.", (), "stop")).parts["all"] == 1.0


@pytest.mark.parametrize(("field", "value"), [("count", 0), ("count", 11), ("where", "end"), ("answer_tokens", 0)])
def test_what_cannot_be_is_named(field: str, value: object) -> None:
    (problem,) = load("instructions", **{field: value}).problems(Pieces())
    assert problem.startswith(f"task.{field} must be") and str(value) in problem
