"""Retrieval without a needle's form: JSON, associations, and labels learned from examples."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from harness.types import Response, State
from tasks.retrieval.association import KINDS
from tasks.retrieval.many_shot import FORMS, LABELS, TOPICS
from tests.tasks.task_doubles import Pieces, load

# words that say nothing about a subject
PLAIN = "a an the of to for or and in at with without who what that is not as on from every last never back"


def said(text: str) -> Response:
    return Response(text, (), "length")


@pytest.mark.parametrize("queries", [1, 4])
def test_the_object_is_json_and_holds_what_is_asked_for(queries: int) -> None:
    task = load("json_lookup", lengths=[2000], queries=queries, depths=5)
    assert task.graded == (queries > 1)
    for index, sample in enumerate(task.samples(Pieces(), 10, seed=0)):
        pairs = json.loads(sample.context.partition("\n\n")[2])
        keys = re.findall(r'"([^"]+)"', sample.question)
        assert len(keys) == queries
        assert tuple(pairs[key] for key in keys) == sample.answers
        assert len(set(pairs.values())) == len(pairs) == sample.meta["pairs"]
        assert list(pairs).index(keys[0]) == pytest.approx((index % 5) / 4 * (len(pairs) - 1), abs=queries + 1)
        assert re.findall(r'"([^"]+)"', sample.other)[0] in pairs.keys() - set(keys)
        assert task.score(sample, said(sample.answers[0])).value == 1 / queries
        assert task.score(sample, said(sample.answers[0][:-1])).value == 0.0
        assert json.loads(f'{{{sample.answer_prefix.lstrip("{")}{sample.answers[0]}"}}')


def test_no_association_can_be_read_off_the_words() -> None:
    """Not even by their first four letters, so "fishing" would not give "fish" away."""

    def stems(text: str) -> set[str]:
        return {word[:4] for word in re.findall(r"[a-z]+", text.lower()) if word not in PLAIN.split()}

    for kind in KINDS:
        assert len({clue for clue, _ in kind.pairs}) == len({thing for _, thing in kind.pairs}) == len(kind.pairs)
        for clue, thing in kind.pairs:
            told = stems(kind.told.format(name="", clue=clue))
            assert told.isdisjoint(stems(kind.asked.format(thing=thing) + kind.begun.format(thing=thing)))
    assert sum(len(kind.pairs) for kind in KINDS) >= 40


def test_each_association_has_one_person_and_the_others_have_facts_of_its_kind() -> None:
    clues = {thing: (kind, clue) for kind in KINDS for clue, thing in kind.pairs}
    seen = set()
    for sample in load("association", people=4, lengths=[640]).samples(Pieces(), 40, seed=0):
        (thing,) = [thing for thing in clues if f" {thing}? " in sample.question]
        kind, clue = clues[thing]
        seen.add(kind)
        form = (
            re.escape(kind.told.format(name="NAME", clue="CLUE"))
            .replace("NAME", r"([A-Z]\w+)")
            .replace("CLUE", "(.+?)")
        )
        facts = dict(pair[::-1] for pair in re.findall(form, sample.context))
        assert len(set(facts.values())) == 4
        assert facts[clue] == sample.answers[0]
    assert seen == set(KINDS)


@pytest.mark.parametrize("labels", [2, 8])
def test_the_rule_can_be_learned_and_gives_the_answer(labels: int) -> None:
    rules = set()
    for sample in load("many_shot", labels=labels, lengths=[1500]).samples(Pieces(), 12, seed=0):
        examples = re.findall(r"Sentence: (.+)\nLabel: (\w+)", sample.context)
        seen = dict[str, set[str]]()
        for sentence, label in examples:
            for word in re.findall(r"\w+", sentence):
                seen.setdefault(word, set()).add(label)
        asked = re.findall(r"Sentence: (.+)", sample.question)[0]
        telling = [seen[word] for word in re.findall(r"\w+", asked) if len(seen.get(word, ())) == 1]
        assert all(labels == {sample.answers[0]} for labels in telling)
        assert asked not in sample.context
        counts = Counter(label for _, label in examples)
        assert len(counts) == labels and max(counts.values()) - min(counts.values()) <= 1
        rules.add((sample.answers[0], frozenset(asked.split())))
    assert len(rules) == 12


def test_topics_share_no_word_and_forms_none_with_them() -> None:
    words = [word for topic in TOPICS for word in topic]
    assert len(set(words)) == len(words)
    assert set(words).isdisjoint(re.findall(r"\w+", " ".join(FORMS).lower()))
    assert len(LABELS) == len(TOPICS)


@pytest.mark.parametrize("name", ["association", "many_shot"])
def test_the_first_word_counts(name: str) -> None:
    task = load(name)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    (answer,) = sample.answers
    for text, right in [
        (f" {answer}.", 1.0),
        (f"**{answer.upper()}**", 1.0),
        (f"not {answer}", 0.0),
        (f"{answer}x", 0.0),
    ]:
        judged = task.score(sample, said(text))
        assert (judged.state, judged.value) == (State.SCORED, right)
    assert task.chance == 0.25


def test_every_broken_option_is_named() -> None:
    assert load("json_lookup", queries=0, depths=0).problems(Pieces()) == [
        "task.queries must be a whole number of 1 or more, got 0",
        "task.depths must be a whole number of 1 or more, got 0",
    ]
    assert load("association", people=6).problems(Pieces()) == ["task.people must be at most 5, got 6"]
    assert load("many_shot", labels=9).problems(Pieces()) == ["task.labels must be at most 8, got 9"]
    assert load("many_shot", labels=1).problems(Pieces()) == ["task.labels must be a whole number of 2 or more, got 1"]
