"""Rows of known long-context suites as rows of our own: LongBench (v1) and RULER, as their authors publish them.

Contexts, questions and answers stay as they are. What a suite's own scripts add (an instruction, how many tokens an answer may
have, how it is judged) is added here in our words, so scores are not those of a leaderboard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from tasks.items import Row, Rows

FORMATS = ("auto", "kvgate", "longbench", "ruler")


class Kind(NamedTuple):
    """What one kind of LongBench question asks for, and how its answer is judged."""

    ask: str
    scorer: str
    stop: tuple[str, ...] = ()


_QA = Kind("Answer from the text above, in a few words and without explanation. {input}", "f1")
_QA_ZH = Kind("请根据上文，用几个词直接回答，不要解释。{input}", "f1")
_ANSWER_ZH = Kind("请根据上文回答问题。{input}", "rouge_l")
_SUMMARY = Kind("Summarize the text above on one page.", "rouge_l")
_SUMMARY_ZH = Kind("请总结上文。", "rouge_l")
_QUERY = Kind("Answer from the meeting above, in one paragraph. {input}", "rouge_l")
_LIKE_ABOVE = Kind("Go on as in the examples above.\n\n{input}", "contains", ("\n",))
_LIKE_ABOVE_F1 = _LIKE_ABOVE._replace(scorer="f1")
_LIKE_ABOVE_ROUGE = _LIKE_ABOVE._replace(scorer="rouge_l")
_COUNT = Kind(
    "How many different paragraphs stand above, repeated ones counted once? Answer with the number.", "number"
)
_WHICH = Kind("Which paragraph above is this a summary of? Answer with its number.\n\n{input}", "first_number")
_WHICH_ZH = Kind("下面的摘要出自上文的哪一段？请只回答段落编号。\n\n{input}", "first_number")
_CODE = Kind("{input}\n\nWrite the next line of this code, and nothing else.", "code_line")

LONGBENCH: Mapping[str, tuple[Kind, int]] = {  # data set -> its kind, and the tokens that an answer may have
    "narrativeqa": (_QA, 128),
    "qasper": (_QA, 128),
    "multifieldqa_en": (_QA, 64),
    "multifieldqa_zh": (_QA_ZH, 64),
    "hotpotqa": (_QA, 32),
    "2wikimqa": (_QA, 32),
    "musique": (_QA, 32),
    "dureader": (_ANSWER_ZH, 128),
    "gov_report": (_SUMMARY, 512),
    "qmsum": (_QUERY, 512),
    "multi_news": (_SUMMARY, 512),
    "vcsum": (_SUMMARY_ZH, 512),
    "trec": (_LIKE_ABOVE, 64),
    "triviaqa": (_LIKE_ABOVE_F1, 32),
    "samsum": (_LIKE_ABOVE_ROUGE, 128),
    "lsht": (_LIKE_ABOVE, 64),
    "passage_count": (_COUNT, 32),
    "passage_retrieval_en": (_WHICH, 32),
    "passage_retrieval_zh": (_WHICH_ZH, 32),
    "lcc": (_CODE, 64),
    "repobench-p": (_CODE, 64),
}


def translated(rows: Rows, format: str, scored: bool) -> Iterator[tuple[int, Row | str]]:
    """``rows`` of ``format`` as our own; ``auto`` looks at the first one. The suite's scorers are named if ``scored``."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    known = recognized(first[1]) if format == "auto" else format
    if known == "kvgate":
        yield from chain([first], rows)
        return
    translate, needs = {"longbench": (_longbench, _LONGBENCH_NEEDS), "ruler": (_ruler, ("input", "outputs"))}[known]
    for number, row in chain([first], rows):
        if isinstance(row, str):
            yield number, row
        elif missing := [name for name in needs if row.get(name) is None]:
            yield number, f"{' and '.join(missing)} must be there in a row of {known}"
        else:
            made = translate(row)
            yield number, made if scored or isinstance(made, str) else {**made, "scorer": None}


_LONGBENCH_NEEDS = ("dataset", "input", "context", "answers")


def recognized(row: Row | str) -> str:
    """The format that a row is of, by the names of its fields."""
    if isinstance(row, Mapping) and row.keys() >= {"input", "outputs"}:
        return "ruler"
    return "longbench" if isinstance(row, Mapping) and row.keys() >= set(_LONGBENCH_NEEDS) else "kvgate"


def _longbench(row: Row) -> Row | str:
    name = str(row["dataset"]).removesuffix("_e")
    if name not in LONGBENCH:
        return f"dataset must be one of LongBench ({', '.join(LONGBENCH)}), got {row['dataset']!r}"
    kind, budget = LONGBENCH[name]
    return {
        "id": row.get("_id"),
        "context": row["context"],
        "question": kind.ask.replace("{input}", str(row["input"])).strip(),
        "answers": row["answers"],
        "scorer": kind.scorer,
        "max_new_tokens": budget,
        "stop": kind.stop,
        "task": name,
    }


def _ruler(row: Row) -> Row:
    """RULER's input is the whole prompt. Its index is not unique in every file, so the line's number is the id."""
    return {
        "context": row["input"],
        "question": "",
        "answers": row["outputs"],
        "scorer": "all",
        "answer_prefix": row.get("answer_prefix"),
    }
