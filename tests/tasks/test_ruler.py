"""RULER's tasks: the answers are worked out again from the text alone, and the metrics are held against plain definitions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.types import Response, Sample, State
from tasks.retrieval import ruler
from tasks.retrieval.ruler_frequent import RulerFrequent
from tasks.retrieval.ruler_needle import RulerNeedle
from tasks.retrieval.ruler_qa import RulerQA
from tests.tasks.task_doubles import ROOT, Pieces, load

TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("ruler_*.yaml"))
WORDS = st.text("abAB ", max_size=6)


def said(text: str) -> Response:
    return Response(text, (), "length")


@given(text=st.text("abAB ", max_size=30), answers=st.lists(WORDS, min_size=1, max_size=5, unique=True))
def test_metrics_are_the_plain_definitions(text: str, answers: list[str]) -> None:
    sample = Sample("", "", "", tuple(answers), 1)
    hits = [1.0 if answer.lower() in text.lower() else 0.0 for answer in answers]
    assert ruler.match_all(sample, said(text)).value == sum(hits) / len(hits)
    assert ruler.match_part(sample, said(text)).value == max(hits)


def test_a_score_tells_what_stands_alone() -> None:
    judged = ruler.match_all(Sample("", "", "", ("art", "barn"), 1), said("a party in the barn"))
    assert (judged.state, judged.value) == (State.SCORED, 1.0)
    assert judged.parts == {"alone": 0.5}


def test_the_experiment_runs_all_thirteen() -> None:
    swept = yaml.safe_load((ROOT / "conf" / "experiment" / "ruler.yaml").read_text())["hydra"]["sweeper"]["params"][
        "task"
    ]
    assert sorted(swept.replace(" ", "").split(",")) == TASKS
    assert len(TASKS) == 13


@pytest.mark.parametrize(
    ("name", "told", "asked"),
    [
        ("single_1", 1, 1),
        ("single_2", 1, 1),
        ("single_3", 1, 1),
        ("multikey_1", 4, 1),
        ("multikey_2", None, 1),
        ("multikey_3", None, 1),
        ("multivalue", 4, 4),
        ("multiquery", 4, 4),
    ],
)
def test_needles_are_as_many_as_the_original_has(name: str, told: int | None, asked: int) -> None:
    task = load(f"ruler_niah_{name}", lengths=[1500])
    assert isinstance(task, RulerNeedle)
    sample = task.samples(Pieces(), 1, seed=0)[0]
    needles = dict[str, list[str]]()
    for key, value in re.findall(r"secret (?:number|code)s? of (\S+) is (\S+)\.", sample.context):
        needles.setdefault(key, []).append(value)
    lines = sum(map(len, needles.values()))
    assert lines == told if told else lines > 10
    assert len(sample.answers) == asked
    assert set(sample.answers) == {
        value for key, values in needles.items() if key in sample.question for value in values
    }
    assert task.graded == (asked > 1)
    assert task.score(sample, said(" ".join(sample.answers[: asked // 2 or 1]))).value == (0.5 if asked > 1 else 1.0)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("hops", [1, 4, 7])
def test_variables_are_those_that_hold_the_number(chains: int, hops: int) -> None:
    for sample in load("ruler_vt", lengths=[1500], chains=chains, hops=hops).samples(Pieces(), 5, seed=0):
        held: dict[str, str] = {}
        text = sample.context.split("\n\nText: ")[1]
        for name, value in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)\.", text):
            held[name] = held.get(value, value)  # what is passed on was set before: the order is kept
        number = re.findall(r"\d{5}", sample.question)[0]
        assert len(held) == chains * (hops + 1)
        assert tuple(name for name, value in held.items() if value == number) == sample.answers
        assert len(sample.answers) == hops + 1


@pytest.mark.parametrize(
    ("length", "common", "other", "shown"), [(1300, 6, 1, 3), (4095, 6, 1, 3), (4096, 30, 3, 10), (6000, 30, 3, 10)]
)
def test_common_words_are_common_and_no_other_is(length: int, common: int, other: int, shown: int) -> None:
    for sample in load("ruler_cwe", lengths=[length]).samples(Pieces(), 2, seed=0):
        example, text = sample.context.split("\n\n")[1:]
        counts = Counter(re.findall(r"\d+\. (\S+)", text))
        assert {word for word, count in counts.items() if count == common} == set(sample.answers)
        assert set(counts.values()) == {common, other}
        numbers = [int(number) for number in re.findall(r"(\d+)\. ", text)]
        assert numbers == list(range(1, len(numbers) + 1))
        listed, answer = example.split("\n")
        shown_counts = Counter(re.findall(r"\d+\. (\S+)", listed))
        assert {word for word, count in shown_counts.items() if count == shown} == set(
            re.findall(r"\d\. (\S+)", answer)
        )
        assert counts.keys().isdisjoint(shown_counts)


@pytest.mark.parametrize("length", [700, 4096])
def test_the_three_most_frequent_words_are_told_by_counting(length: int) -> None:
    for sample in load("ruler_fwe", lengths=[length]).samples(Pieces(), 5, seed=0):
        counts = Counter(sample.context.split("\n\n")[1].split())
        ranked = counts.most_common(5)
        assert ranked[0][0] == "..."
        assert tuple(word for word, _ in ranked[1:4]) == sample.answers
        assert ranked[3][1] > ranked[4][1]
        assert all(re.fullmatch("[a-z]{6}", word) for word in counts if word != "...")


@given(words=st.integers(1, 20_000), vocabulary=st.integers(5, 500))
def test_frequencies_follow_the_law(words: int, vocabulary: int) -> None:
    counts = RulerFrequent(name="demo").counts(words, vocabulary)
    law = [math.floor(words / rank**2 / (math.pi**2 / 6)) for rank in range(1, vocabulary + 1)]
    assert counts == tuple(count for count in law if count)


@pytest.mark.parametrize("hops", [1, 2])
def test_the_invented_world_tells_the_answer_in_so_many_paragraphs(hops: int) -> None:
    ways = set()
    for sample in load("ruler_qa_1", lengths=[1500], hops=hops).samples(Pieces(), 30, seed=0):
        documents = [document.partition(": ")[2] for document in sample.context.split("\n\n")[1:]]
        way, answer = walked(sample.question, documents)
        ways.add(way)
        assert (answer,) == sample.answers
        subjects = [re.split(r" was born| lies on| makes", document)[0] for document in documents]
        assert len(set(subjects)) == len(subjects)
        assert sample.meta["gold"] == hops
    assert len(ways) == {1: 4, 2: 3}[hops]


def walked(question: str, documents: list[str]) -> tuple[str, str]:
    """The form of the question and its answer, read off the documents one relation after another."""
    text = "\n".join(documents)

    def tell(pattern: str) -> str:
        found = re.findall(pattern, text)
        assert len(found) == 1
        return str(found[0])

    def seat(firm: str) -> str:
        return tell(rf"{firm} makes \w+\. Its head office stands in ([\w ]+)\.")

    def firm(name: str) -> str:
        return tell(rf"{name} was born in [\w ]+\. \w+ trained as a \w+ and works for ([\w ]+)\.")

    def birth(name: str) -> str:
        return tell(rf"{name} was born in ([\w ]+)\.")

    def river(town: str) -> str:
        return tell(rf"{town} lies on the river (\w+)\.")

    forms = {
        r"In which town is the head office of the firm that ([\w ]+) works for\?": lambda name: seat(firm(name)),
        r"On which river lies the town where ([\w ]+) was born\?": lambda name: river(birth(name)),
        r"On which river lies the town with the head office of ([\w ]+)\?": lambda name: river(seat(name)),
        r"In which town was ([\w ]+) born\?": birth,
        r"For which firm does ([\w ]+) work\?": firm,
        r"In which town is the head office of ([\w ]+)\?": seat,
        r"On which river does ([\w ]+) lie\?": river,
    }
    for form, answer in forms.items():
        if match := re.fullmatch(form, question):
            return form, answer(match[1])
    raise AssertionError(question)


def paragraph(subject: str, count: int) -> str:
    return " ".join(f"The {subject} is told about in sentence {number}." for number in range(count))


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    def asked(text: str, *answers: str) -> dict[str, object]:
        found = [{"text": answer, "answer_start": 0} for answer in answers]
        return {"question": text, "id": text, "answers": found, "is_impossible": not answers}

    articles = [
        {
            "title": f"title {article}",
            "paragraphs": [
                {
                    "context": paragraph(f"thing {article}.{at}", 9),
                    "qas": [
                        asked(f"Which is {article}.{at}?", f"thing {article}.{at}", f"{article}.{at}"),
                        asked("None?"),
                    ],
                }
                for at in range(3)
            ],
        }
        for article in range(4)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path


@pytest.fixture
def hotpot(tmp_path: Path) -> Path:
    items = [
        {
            "question": f"What joins {item}?",
            "answer": f"thing {item}.1",
            "supporting_facts": [[f"T{item}.0", 0], [f"T{item}.1", 2]],
            "context": [[f"T{item}.{at}", [paragraph(f"thing {item}.{at}", 4), " And more."]] for at in range(5)],
        }
        for item in range(5)
    ]
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps(items))
    return path


def test_squad_gives_the_gold_paragraph_then_its_own_article(squad: Path) -> None:
    task = load("ruler_qa_1", lengths=[640], path=str(squad))
    samples = task.samples(Pieces(), 24, seed=0)
    for sample in samples:
        documents = re.split(r"Document \d+: ", sample.context)[1:]
        told = [re.findall(r"thing (\d)\.(\d)", document)[0] for document in documents]
        article, at = re.findall(r"(\d)\.(\d)", sample.question)[0]
        assert (article, at) in told
        assert sum(other == article for other, _ in told) == min(3, len(told))
        assert len(set(told)) == len(told)
        assert sample.answers == (f"thing {article}.{at}", f"{article}.{at}")
        assert sample.cluster == f"title {article}"
    assert len({sample.question for sample in samples[:12]}) == 12  # all, before any comes again
    assert task.score(samples[0], said(f"It is {samples[0].answers[1]}")).value == 1.0
    assert not task.graded


def test_hotpot_gives_both_gold_paragraphs_and_what_was_found_with_them(hotpot: Path) -> None:
    for sample in load("ruler_qa_2", lengths=[640], path=str(hotpot)).samples(Pieces(), 5, seed=0):
        item = re.findall(r"\d", sample.question)[0]
        told = re.findall(r"Document \d+: T(\d)\.(\d)\n", sample.context)
        assert {(item, "0"), (item, "1")} <= set(told)
        assert sum(other == item for other, _ in told) == min(5, len(told))
        assert sample.answers == (f"thing {item}.1",)


def test_a_file_is_what_it_holds_wherever_it_lies(squad: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.json"
    moved.write_bytes(squad.read_bytes())
    one, other = (load("ruler_qa_1", lengths=[640], path=str(path)) for path in (squad, moved))
    assert one.spec() == other.spec()
    assert one.samples(Pieces(), 3, seed=0) == other.samples(Pieces(), 3, seed=0)
    assert one.spec() != load("ruler_qa_1", lengths=[640]).spec()


@pytest.mark.parametrize("text", [None, "no json", "{}", "[]", "[1]", '{"data": []}', '{"data": [{"title": "x"}]}'])
def test_a_file_that_is_no_such_set_is_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    (problem,) = RulerQA(name="demo", path=str(path)).problems(Pieces())
    assert problem.startswith("task.path must be a SQuAD v2 or HotpotQA distractor JSON file")
    assert str(path) in problem


def test_a_file_that_is_too_short_is_named(squad: Path) -> None:
    (problem,) = load("ruler_qa_1", lengths=[8000], path=str(squad)).problems(Pieces())
    assert re.fullmatch(r"task\.lengths must be at most \d+, all that task\.path holds, got 8000", problem)


def test_a_world_that_is_too_small_is_named() -> None:
    (problem,) = load("ruler_qa_2", lengths=[10**6]).problems(Pieces(10**6))
    assert re.fullmatch(r"task\.lengths must be at most \d{6}, all that the invented world holds, got 1000000", problem)


def test_every_broken_option_is_named() -> None:
    assert load("ruler_vt", chains=0, hops=0).problems(Pieces()) == [
        "task.chains must be a whole number of 1 or more, got 0",
        "task.hops must be a whole number of 1 or more, got 0",
    ]
    assert load("ruler_fwe", alpha=1).problems(Pieces()) == ["task.alpha must be a number above 1 and at most 4, got 1"]
    assert load("ruler_qa_2", hops=3).problems(Pieces()) == ["task.hops must be 1 or 2, got 3"]
