"""Questions and the paragraphs that answer them, from a file of SQuAD v2 or of HotpotQA with distractors.

The file is the user's; none is shipped. SQuAD (https://rajpurkar.github.io/SQuAD-explorer/): articles of paragraphs with
questions each; those that have no answer are left out. HotpotQA (https://hotpotqa.github.io/): questions with ten titled
paragraphs each, two of which hold the answer.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.types import digest


class Question(NamedTuple):
    """One question; ``gold`` and ``near`` are places in ``Source.paragraphs``."""

    text: str
    answers: tuple[str, ...]  # ways of saying the same
    gold: tuple[int, ...]  # what must be read
    near: tuple[int, ...]  # what distracts most: of the same article, or found for the same question
    cluster: str  # the article, or "" where questions share nothing


class Source(NamedTuple):
    paragraphs: tuple[str, ...]
    questions: tuple[Question, ...]
    digest: str


@cache
def read(path: str) -> Source:
    """All questions of a file.

    Raises:
        ValueError: the file cannot be read or has neither form; names field, rule and value.
    """
    rule = "task.path must be a SQuAD v2 or HotpotQA distractor JSON file"
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
        paragraphs, questions = _squad(data["data"]) if isinstance(data, dict) else _hotpot(data)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{rule}, got {path!r} ({type(error).__name__}: {error})") from None
    if not questions:
        raise ValueError(f"{rule} with questions that have answers, got {path!r}")
    return Source(tuple(paragraphs), tuple(questions), digest(text))


def _squad(articles: list[dict[str, Any]]) -> tuple[list[str], list[Question]]:
    paragraphs: list[str] = []
    questions = []
    for article in articles:
        first = len(paragraphs)
        paragraphs += [paragraph["context"] for paragraph in article["paragraphs"]]
        for at, paragraph in enumerate(article["paragraphs"], first):
            near = tuple(place for place in range(first, len(paragraphs)) if place != at)
            for asked in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
                if answers and not asked.get("is_impossible"):
                    questions.append(Question(asked["question"], answers, (at,), near, article["title"]))
    return paragraphs, questions


def _hotpot(items: list[dict[str, Any]]) -> tuple[list[str], list[Question]]:
    places: dict[str, int] = {}  # a paragraph found for several questions is one
    questions = []
    for item in items:
        found = {}
        for title, sentences in item["context"]:
            text = f"{title}\n{''.join(sentences)}"
            found[title] = places.setdefault(text, len(places))
        gold = tuple(sorted({found[title] for title, _ in item["supporting_facts"]}))
        near = tuple(sorted(set(found.values()) - set(gold)))
        questions.append(Question(item["question"], (item["answer"],), gold, near, ""))
    return list(places), questions
