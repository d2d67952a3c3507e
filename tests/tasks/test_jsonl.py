"""A user's own data: what is read, in which order it is asked, and what is refused with which words."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.make import make
from harness.types import Response, State
from tasks.items import Complaints, read
from tasks.jsonl import Jsonl
from tests.cli import Kvgate
from tests.tasks.task_doubles import Pieces, made_by_task

FIVE = [
    {"context": "The key is 4711. Rain fell on the hills.", "question": "What is the key?", "answers": ["4711"]},
    {"context": "The dog is called Rex. The cat sleeps.", "question": "Who is the dog?", "answers": "Rex"},
    {"context": "Paris is the capital of France.", "question": "The capital?", "answers": ["Paris", "Lutetia"]},
    {"context": "One two three four five six seven.", "question": "The last word?", "answers": ["seven"]},
    {"context": "", "question": "Which star is nearest?", "answers": ["the sun"]},
]
WHOLE = {
    "id": "a7",
    "context": "Answer briefly. The room is red.",
    "question": "Which colour?",
    "answers": ["red", "crimson"],
    "scorer": "f1",
    "max_new_tokens": 9,
    "cluster": 12,
    "task": "colours",
    "answer_prefix": "It is",
    "stop": "\n",
    "instructions": ["Answer briefly."],
}


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def five(tmp_path: Path) -> str:
    return written(tmp_path / "five.jsonl", FIVE)


def problems(path: Path | str, **options: Any) -> list[str]:
    return Jsonl(name="jsonl", path=str(path), **options).problems(Pieces())


def test_five_lines_need_nothing_else(five: str) -> None:
    task = Jsonl(name="jsonl", path=five)
    samples = {sample.id: sample for sample in task.samples(Pieces(), 5, seed=0)}
    assert [samples[str(number)].context for number in range(1, 6)] == [row["context"] for row in FIVE]
    assert samples["2"].answers == ("Rex",)
    assert {sample.max_new_tokens for sample in samples.values()} == {4 + 32}  # "4711", a digit a token
    assert {sample.meta["scorer"] for sample in samples.values()} == {"contains"}
    assert not task.graded
    score = task.score(samples["3"], Response("It is lutetia.", (), "stop"))
    assert (score.state, score.value, score.answer) == (State.SCORED, 1.0, "It is lutetia.")


def test_a_family_is_for_reports_and_no_part_of_the_task(five: str) -> None:
    own, code = (Jsonl(name="jsonl", path=five, **family) for family in ({}, {"family": "code"}))
    assert (own.family, code.family) == ("own", "code")
    assert own.spec() == code.spec() and "family" not in own.spec()["options"]
    assert problems(five, family=" ") == ["task.family must be a name, got ' '"]


def test_every_field_reaches_the_sample(tmp_path: Path) -> None:
    task = Jsonl(name="jsonl", path=written(tmp_path / "one.jsonl", [WHOLE]), scorer="exact", max_new_tokens=3)
    (sample,) = task.samples(Pieces(), 1, seed=0)
    assert (sample.id, sample.cluster, sample.max_new_tokens) == ("a7", "12", 9)
    assert (sample.answer_prefix, sample.stop, sample.instructions) == ("It is", ("\n",), ("Answer briefly.",))
    assert sample.meta == {"scorer": "f1", "item": 1, "task": "colours", "prompt_tokens": sample.meta["prompt_tokens"]}
    assert task.graded and task.score(sample, Response("red room", (), "stop")).value == pytest.approx(2 / 3)


def test_a_seed_draws_an_order_and_more_samples_contain_fewer(tmp_path: Path) -> None:
    rows = [{"id": f"q{at}", "context": "c", "question": f"q {at}", "answers": ["a"]} for at in range(40)]
    task = Jsonl(name="jsonl", path=written(tmp_path / "q.jsonl", rows))
    orders = [[sample.id for sample in task.samples(Pieces(), 40, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(row["id"] for row in rows)
    assert orders[0] != [row["id"] for row in rows]
    assert [sample.id for sample in task.samples(Pieces(), 7, seed=0)] == orders[0][:7]
    more = Jsonl(
        name="jsonl", path=written(tmp_path / "r.jsonl", rows[:20])
    )  # lines that go leave the order of the rest
    kept = {row["id"] for row in rows[:20]}
    assert [sample.id for sample in more.samples(Pieces(), 20, seed=0)] == [key for key in orders[0] if key in kept]


def test_samples_match_the_golden_file(five: str) -> None:
    """A difference means: raise the task's version. Then KVGATE_UPDATE_GOLDEN=1 writes the file anew."""
    path = Path(__file__).resolve().parents[1] / "golden" / "jsonl.json"
    task = Jsonl(name="jsonl", path=five)
    made = {"spec": task.spec(), "samples": [made_by_task(sample) for sample in task.samples(Pieces(), 5, seed=0)]}
    if os.environ.get("KVGATE_UPDATE_GOLDEN"):
        path.write_text(json.dumps(made, indent=1) + "\n")
    assert json.loads(json.dumps(made)) == json.loads(path.read_text())


def test_more_than_there_are_is_all_and_is_said(five: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(Jsonl(name="jsonl", path=five).samples(Pieces(), 64, seed=0)) == 5
    assert "n=64, but the data has 5 items; all are used" in capsys.readouterr().err


def test_all_kinds_of_files_hold_the_same_samples(tmp_path: Path) -> None:
    rows = [WHOLE, {**WHOLE, "id": "b", "context": 'Answer briefly. "Red",\nshe said.', "answers": ["red"]}]
    written(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pd.DataFrame([{**row, "stop": ["\n"]} for row in rows]).to_parquet(tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(WHOLE))
        writer.writeheader()
        for row in rows:
            cells = {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()}
            writer.writerow({**cells, "stop": "\n"})

    def hashes(name: str) -> dict[str, str]:
        task = Jsonl(name="jsonl", path=str(tmp_path / name))
        return {sample.id: sample.hash for sample in task.samples(Pieces(), 2, seed=0)}

    assert len(hashes("a.jsonl")) == 2
    assert hashes("a.jsonl") == hashes("a.json") == hashes("a.csv") == hashes("a.parquet")


BAD = {
    "a field is missing": ({"context": "c", "answers": ["a"]}, 'question is missing, "" says that there is none'),
    "no context": ({"question": "q", "answers": ["a"]}, "context is missing"),
    "no answers": ({"context": "c", "question": "q"}, "answers is missing"),
    "null answers": ({"context": "c", "question": "q", "answers": None}, "answers is missing"),
    "an empty list": ({"context": "c", "question": "q", "answers": []}, "answers must hold at least one text"),
    "an empty answer": ({"context": "c", "question": "q", "answers": ["a", ""]}, "none that is empty, got ['a', '']"),
    "a number": (
        {"context": "c", "question": "q", "answers": [7]},
        "answers must be a text or a list of texts, got [7]",
    ),
    "a context that is none": (
        {"context": ["c"], "question": "q", "answers": ["a"]},
        "context must be a text, got ['c']",
    ),
    "an id that is none": ({**WHOLE, "id": 1.5}, "id must be a text or a whole number, got 1.5"),
    "nothing to read": ({"context": " ", "question": "", "answers": ["a"]}, "context or question must hold text"),
    "unknown scorer": ({**WHOLE, "scorer": "f2"}, "scorer must be one of contains, any, all, exact"),
    "a function in the data": ({**WHOLE, "scorer": "os.system"}, "scorer must be one of contains"),
    "an answer the scorer cannot use": (
        {**WHOLE, "scorer": "number", "answers": ["many"]},
        "answers must each be a number for scorer number, got 'many'",
    ),
    "a budget of 0": ({**WHOLE, "max_new_tokens": 0}, "max_new_tokens must be a whole number of 1 or more, got 0"),
    "half a budget": ({**WHOLE, "max_new_tokens": 1.5}, "max_new_tokens must be a whole number of 1 or more, got 1.5"),
    "a lost instruction": ({**WHOLE, "instructions": ["Shout."]}, "instructions must be parts of context or question"),
    "half a character": ({**WHOLE, "context": "\ud800"}, "context must be a text, got '\\ud800'"),
    "two open turns": (
        {"context": "c", "turns": ["one?", "two?"], "answers": ["a"]},
        "turns must be texts of a user and an assistant in turn, the user's first and last",
    ),
    "only a system": (
        {"messages": [{"role": "system", "content": "s"}], "answers": ["a"]},
        "messages must be texts of",
    ),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}], "answers": ["a"]},
        "messages must be",
    ),
    "no messages": ({"messages": [], "answers": ["a"]}, "questions whose answers are still to be given are served one"),
    "a turn and a question": ({**WHOLE, "turns": ["one?"]}, "turns and question are both there"),
}


@pytest.mark.parametrize("row, says", BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(FIVE[0]) + "\n" + json.dumps(row) + "\n")
    (found,) = problems(path)
    assert found.startswith("line 2: ") and says in found
    with pytest.raises(ValueError, match="line 2: "):
        Jsonl(name="jsonl", path=str(path)).samples(Pieces(), 1, seed=0)


def test_all_bad_lines_are_told_at_once_and_alike_ones_together(tmp_path: Path) -> None:
    good = json.dumps(FIVE[0]).encode()
    lines = [good, b"{", b"", b"[1]", b'{"context": "\xff"}', *[b'{"context": "c", "question": "q"}'] * 3, good, b"{"]
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    assert problems(tmp_path / "bad.jsonl") == [
        "lines 2, 10: not JSON (Expecting property name enclosed in double quotes)",
        "line 4: must be an object, got list",
        "line 5: not UTF-8",
        "lines 6-8: answers is missing",
    ]


def test_ids_must_be_unique_and_a_line_s_number_is_one(tmp_path: Path) -> None:
    rows = [{**FIVE[0], "id": 2}, FIVE[1], {**FIVE[2], "id": "x"}, {**FIVE[3], "id": "x"}]
    assert problems(written(tmp_path / "ids.jsonl", rows)) == [
        "line 2: id must be unique, but '2' is also that of line 1",
        "line 4: id must be unique, but 'x' is also that of line 3",
    ]


@pytest.mark.parametrize("turns", [["Which?"], [{"role": "user", "content": "Which?"}]])
@pytest.mark.parametrize("field", ["turns", "messages"])
def test_a_single_turn_is_the_question(tmp_path: Path, field: str, turns: list[Any]) -> None:
    row = {field: turns, "answers": ["a"]}
    (sample,) = Jsonl(name="jsonl", path=written(tmp_path / "t.jsonl", [row])).samples(Pieces(), 1, seed=0)
    assert (sample.context, sample.question) == ("", "Which?")


def test_a_conversation_is_a_sample_with_its_history(tmp_path: Path) -> None:
    said = [("system", "Be brief."), ("user", "One?"), ("assistant", "1"), ("user", "Two?")]
    row = {"context": "c", "messages": [{"role": role, "content": text} for role, text in said], "answers": ["2"]}
    (sample,) = Jsonl(name="jsonl", path=written(tmp_path / "t.jsonl", [row])).samples(Pieces(), 1, seed=0)
    assert (sample.system, sample.turns, sample.question) == ("Be brief.", (("One?", "1"),), "Two?")
    row["messages"][2]["content"] = "1<|im_end|>"
    with pytest.raises(ValueError, match=r"line 1: <\|im_end\|> is a special token"):
        Jsonl(name="jsonl", path=written(tmp_path / "t.jsonl", [row])).samples(Template(), 1, seed=0)


TEXTS = {
    "unicode": "Žluťoučký kůň 😀 \u2028 \x85 \x0b 数据 \u0000",
    "right to left": "השועל קפץ \u202b(abc)\u202c",
    "one long word": "w" * 100_000,
    "line ends": "a\r\nb\rc\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_texts_come_through_as_they_are(tmp_path: Path, text: str, ends: str, mark: str) -> None:
    lines = [json.dumps({**row, "context": text}, ensure_ascii=False) for row in FIVE]
    (tmp_path / "t.jsonl").write_bytes((mark + ends.join(lines) + ends).encode())
    samples = Jsonl(name="jsonl", path=str(tmp_path / "t.jsonl")).samples(Pieces(10**7), 5, seed=0)
    assert [sample.context for sample in samples] == [text] * 5


@given(st.lists(st.tuples(st.text(min_size=1), st.text(), st.text(min_size=1)), min_size=1, max_size=4))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, triples: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.jsonl"
    rows = [{"context": c, "question": f"{q}?", "answers": [a], "scorer": "edit"} for c, q, a in triples]
    path.write_text("\n".join(map(json.dumps, rows)))
    if any(not a.strip() for *_, a in triples):
        assert problems(path)
        return
    samples = {s.id: s for s in Jsonl(name="jsonl", path=str(path)).samples(Pieces(10**6), 9, seed=3)}
    assert [(s.context, s.question, s.answers) for _, s in sorted(samples.items())] == [
        (c, f"{q}?", (a,)) for c, q, a in triples
    ]


class Template(Pieces):
    """A tokenizer with two special tokens, which are not given back."""

    def decode(self, token_ids: list[int]) -> str:
        return super().decode(token_ids).replace("<|im_end|>", "").replace("[INST]", "")


def test_a_model_s_special_tokens_in_the_data_are_refused(tmp_path: Path) -> None:
    texts = ["plain <b> [A] <|other|>", "ends <|im_end|> here", "[INST] and <|im_end|>"]
    rows = [{**FIVE[0], "context": text} for text in texts]
    task = Jsonl(name="jsonl", path=written(tmp_path / "t.jsonl", rows))
    with pytest.raises(ValueError) as refused:
        task.samples(Template(), 3, seed=0)
    assert str(refused.value).splitlines() == [
        "lines 2-3: <|im_end|> is a special token of the model, which would not be read as text",
        "line 3: [INST] is a special token of the model, which would not be read as text",
    ]


def test_a_prompt_that_is_too_long_is_told_with_both_numbers(tmp_path: Path) -> None:
    rows = [FIVE[0], {**FIVE[0], "context": "1" * 500}]
    task = Jsonl(name="jsonl", path=written(tmp_path / "t.jsonl", rows))
    with pytest.raises(ValueError, match=r"^line 2: prompt \(52\d tokens\) and answer \(36\) must fit .* 400 tokens"):
        task.samples(Pieces(400), 2, seed=0)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("no.jsonl", None, "task.path must be a file, got"),
        ("a.txt", "x", "task.path must end in .jsonl, .json, .csv, .parquet, got"),
        ("a.jsonl", "\n \n", "task.path must hold at least one item, got none"),
        ("a.json", "[1", "is not JSON in UTF-8 (Expecting ',' delimiter"),
        ("a.json", '{"a": 1}', "must hold a list of objects, got dict"),
        ("a.json", "[1]", "item 1: must be an object, got int"),
        ("a.csv", "context,question,answers\nc,q,a,d\n", "line 2: more cells than the header's 3"),
        ("a.csv", 'context,question,answers\n"c\n2",q,a\nc,q\n', "line 4: answers is missing"),
        ("a.parquet", "PAR", "is not a parquet file that can be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    (found,) = problems(tmp_path / name)
    assert says in found


def test_every_broken_option_is_named(five: str) -> None:
    assert problems(five, format="csv", max_new_tokens=0, chance=1.0, scorer="no.such") == [
        "task.max_new_tokens must be a whole number of 1 or more, got 0",
        "task.chance must be in [0, 1), got 1.0",
        "task.scorer must be one of contains, any, all, exact, regex, number, first_number, stated_number, math, choice, f1, "
        "rouge_l, edit, code_line, json, a function as module.function, or a dataclass that can be called, got 'no.such'",
        "task.format must be one of auto, kvgate, longbench, ruler, got 'csv'",
    ]


def half(text: str, answers: Sequence[str]) -> float:
    return 0.5


def too_much(text: str, answers: Sequence[str]) -> float:
    return 2.0


@dataclass(frozen=True)
class Begins:
    """A scorer with an option."""

    letters: int = 1

    def __call__(self, text: str, answers: Sequence[str]) -> bool:
        return any(text[: self.letters] == answer[: self.letters] for answer in answers)


HERE = "tests.tasks.test_jsonl"


def test_a_function_of_the_user_judges(five: str) -> None:
    task = Jsonl(name="jsonl", path=five, scorer=f"{HERE}.half")
    sample = task.samples(Pieces(), 1, seed=0)[0]
    assert task.graded and task.score(sample, Response("x", (), "stop")).value == 0.5
    assert task.spec()["options"]["scorer"] == f"{HERE}.half"
    assert task.sources().keys() == {"data", "scorer"}


def test_an_object_of_the_user_judges(five: str) -> None:
    node = {"_target_": f"{HERE}.Begins", "letters": 3}
    task = make({"_target_": "tasks.jsonl.Jsonl", "name": "jsonl", "path": five, "scorer": node}, "task")
    sample = next(sample for sample in task.samples(Pieces(), 5, seed=0) if sample.answers == ("seven",))
    assert [task.score(sample, Response(text, (), "stop")).value for text in ("sever", "sew")] == [1.0, 0.0]
    assert json.loads(json.dumps(task.spec()))["options"]["scorer"] == {
        "class": f"{HERE}.Begins",
        "options": {"letters": 3},
    }


def test_an_object_whose_options_cannot_be_told_apart_is_refused(five: str) -> None:
    class Hidden:
        def __call__(self, text: str, answers: Sequence[str]) -> float:
            return 1.0

    (found,) = problems(five, scorer=Hidden())
    assert "or a dataclass that can be called, got <" in found


def test_a_scorer_is_tried_before_a_model_is(five: str) -> None:
    (found,) = problems(five, scorer=f"{HERE}.too_much")
    assert found == "task.scorer: ValueError when it judged line 1: a scorer must return a number in [0, 1], got 2.0"
    (found,) = problems(five, scorer=f"{HERE}.written")
    assert found.startswith("task.scorer: AttributeError when it judged line 1: ")


def test_the_same_data_is_the_same_task_wherever_it_lies(five: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(five).read_bytes())
    specs = [Jsonl(name="jsonl", path=path).spec() for path in (five, str(copy))]
    assert json.loads(json.dumps(specs[0])) == specs[1]
    copy.write_bytes(Path(five).read_bytes() + b"\n")
    assert Jsonl(name="jsonl", path=str(copy)).spec() != specs[0]


def test_stored_answers_are_judged_without_the_file(five: str) -> None:
    sample = Jsonl(name="jsonl", path=five).samples(Pieces(), 1, seed=0)[0]
    Path(five).unlink()
    task = Jsonl(name="jsonl", path=five, scorer="contains")
    assert task.score(sample, Response(sample.answers[0], (), "stop")).value == 1.0
    assert not task.graded
    assert Jsonl(name="jsonl", path=five).graded  # a line may have named any scorer


def test_longbench_is_read_as_it_is(tmp_path: Path) -> None:
    row = {
        "input": "Who wrote it?",
        "context": "Ada wrote it.",
        "answers": ["Ada"],
        "length": 3,
        "dataset": "hotpotqa_e",
        "language": "en",
        "all_classes": None,
        "_id": "f00",
    }
    path = written(tmp_path / "lb.jsonl", [row, {**row, "_id": "f01", "dataset": "lcc", "input": ""}])
    task = Jsonl(name="jsonl", path=path)
    one, two = sorted(task.samples(Pieces(), 2, seed=0), key=lambda sample: sample.id)
    assert (one.id, one.context, one.answers, one.max_new_tokens) == ("f00", "Ada wrote it.", ("Ada",), 32)
    assert one.question.endswith(" Who wrote it?") and one.meta["scorer"] == "f1" and one.meta["task"] == "hotpotqa"
    assert two.meta["scorer"] == "code_line" and two.max_new_tokens == 64
    assert Jsonl(name="jsonl", path=path, scorer="any").samples(Pieces(), 1, seed=0)[0].meta["scorer"] == "any"
    found = problems(written(tmp_path / "bad.jsonl", [row, {**row, "dataset": "x"}, {"input": "i"}]))
    assert found[0].startswith("line 2: dataset must be one of LongBench") and "got 'x'" in found[0]
    assert found[1] == "line 3: dataset and context and answers must be there in a row of longbench"


def test_ruler_is_read_as_it_is(tmp_path: Path) -> None:
    row = {
        "index": 0,
        "input": "Hidden: 7 and 8. Which?",
        "outputs": ["7", "8"],
        "length": 9,
        "answer_prefix": " They are",
    }
    task = Jsonl(name="jsonl", path=written(tmp_path / "ruler.jsonl", [row, row]))
    one, two = task.samples(Pieces(), 2, seed=0)
    assert {one.id, two.id} == {"1", "2"}  # its index need not be unique
    assert (one.context, one.question, one.answer_prefix) == (row["input"], "", " They are")
    assert task.graded and task.score(one, Response("8", (), "stop")).value == 0.5
    (found,) = problems(tmp_path / "ruler.jsonl", format="longbench")
    assert found == "lines 1-2: dataset and context and answers must be there in a row of longbench"


def test_numbers_of_rows_are_told_briefly() -> None:
    complaints = Complaints("line")
    for number in (1, 2, 3, 7, 9, 10):
        complaints.add(number, "bad")
    assert complaints.told() == ["lines 1-3, 7, 9-10: bad"]
    assert read([(4, "why")], "row", "contains").problems == ("row 4: why",)


def test_fifty_thousand_lines_are_read_and_few_are_taken(tmp_path: Path) -> None:
    rows = [{"context": f"c {at}", "question": "q", "answers": ["a"]} for at in range(50_000)]
    task = Jsonl(name="jsonl", path=written(tmp_path / "many.jsonl", rows))
    assert len({sample.id for sample in task.samples(Pieces(), 100, seed=0)}) == 100


def test_a_run_on_five_lines(kvgate: Kvgate, tmp_path: Path) -> None:
    rows = [{**row, "context": f"{row['context']} " + "The rain fell on and on. " * 6} for row in FIVE]
    path = written(tmp_path / "my.jsonl", rows)
    words = ["strategy=window", "model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "name=r"]
    said = kvgate("run", *words, "task=jsonl", f"task.path={path}", "engine.threads=1")
    assert said.code == 0, said.err
    verdict = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())
    (cell,) = verdict["cells"]
    assert (cell["task"], cell["n"]) == ("jsonl", 5)
    Path(path).unlink()
    assert kvgate("report", "r", f"results_dir={kvgate.results}").code == 0


def test_a_run_without_a_file_is_refused(kvgate: Kvgate) -> None:
    said = kvgate("run", "strategy=fp8", "model=hf", f"model.path={kvgate.model}", "task=jsonl")
    assert said.code == 2 and "task.path must end in .jsonl" in said.err and "Traceback" not in said.err
