"""Items of somebody's own data: what a row must hold, and all that is wrong with a set of rows.

    {"id": "a7", "context": "...", "question": "Who signed it?", "answers": ["Ada"], "scorer": "f1", "max_new_tokens": 32}

Only context, question and answers are needed. Rows come with their numbers, so that each problem names its row; nothing is
ever left out.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks import checks
from tasks.scorers import SCORERS

Row = Mapping[str, Any]
Rows = Iterable[tuple[int, Row | str]]
"""Numbered rows; a text stands for a row that could not be read, and says why."""

_TALK = (
    "must be texts of a user and an assistant in turn, the user's first and last, after a system's if any; "
    "questions whose answers are still to be given are served one at a time"
)


@dataclass(frozen=True)
class Item:
    """One checked row. ``scorer`` is "" where the task's own judges, ``max_new_tokens`` None where the task decides."""

    number: int
    id: str
    context: str
    question: str
    answers: tuple[str, ...]
    scorer: str
    max_new_tokens: int | None
    answer_prefix: str
    stop: tuple[str, ...]
    cluster: str
    task: str
    instructions: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]
    system: str


class Talk(NamedTuple):
    """A conversation: what the system said, what was asked and answered before, and what is asked now."""

    system: str
    turns: tuple[tuple[str, str], ...]
    question: str


class Items(NamedTuple):
    items: tuple[Item, ...]
    problems: tuple[str, ...]


class Complaints:
    """What is wrong with which rows; a rule that many rows break is told once, with all their numbers."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._numbers: dict[str, list[int]] = {}

    def add(self, number: int, rule: str) -> None:
        self._numbers.setdefault(rule, []).append(number)

    def told(self) -> list[str]:
        """One sentence for each rule, in order of the first row that breaks it."""
        rules = sorted(((rule, sorted(at)) for rule, at in self._numbers.items()), key=lambda entry: entry[1][0])
        return [f"{self._unit}{'s' * (len(at) > 1)} {', '.join(_ranges(at))}: {rule}" for rule, at in rules]


def read(rows: Rows, unit: str, scorer: str) -> Items:
    """Check all ``rows``. ``scorer`` judges the rows that name none; "" if that is no scorer of the table."""
    complaints = Complaints(unit)
    items: dict[str, Item] = {}
    for number, row in rows:
        item, wrong = _item(number, row, scorer)
        for rule in wrong:
            complaints.add(number, rule)
        if item.id in items:
            complaints.add(number, f"id must be unique, but {item.id!r} is also that of {unit} {items[item.id].number}")
        items.setdefault(item.id, item)
    return Items(tuple(items.values()), tuple(complaints.told()))


def _item(number: int, row: Row | str, scorer: str) -> tuple[Item, list[str]]:
    fields = _Fields(row)
    talk = fields.talk()
    item = Item(
        number=number,
        id=fields.word("id") or str(number),
        context=fields.text("context", "" if talk else None),
        question=talk.question if talk else fields.text("question"),
        answers=fields.texts("answers", needed=True),
        scorer=fields.text("scorer", scorer),
        max_new_tokens=fields.whole("max_new_tokens"),
        answer_prefix=fields.text("answer_prefix", ""),
        stop=fields.texts("stop"),
        cluster=fields.word("cluster"),
        task=fields.word("task"),
        instructions=fields.texts("instructions"),
        turns=talk.turns if talk else (),
        system=talk.system if talk else "",
    )
    return item, fields.wrong or list(_misfits(item))


def _misfits(item: Item) -> Iterator[str]:
    """Rules between the fields of an item that are right each by itself."""
    if not (item.context.strip() or item.question.strip()):
        yield "context or question must hold text, got none in both"
    if item.scorer and item.scorer not in SCORERS:
        yield from checks.one_of("scorer", item.scorer, SCORERS)
    elif item.scorer:
        scorer = SCORERS[item.scorer]
        for answer in item.answers:
            if not scorer.fits(answer):
                yield f"answers must each be {scorer.answer} for scorer {item.scorer}, got {_short(answer)}"
    for words in item.instructions:
        if words not in item.context and words not in item.question:
            yield f"instructions must be parts of context or question, got {_short(words)}"


class _Fields:
    """Reads the fields of one row, and collects what is wrong with them. An empty (null) field is one that is not there."""

    def __init__(self, row: Row | str) -> None:
        self.wrong: list[str] = []
        self._unread = not isinstance(row, Mapping)
        if isinstance(row, str):
            self.wrong.append(row)
        self._row = {key: value for key, value in row.items() if value is not None} if isinstance(row, Mapping) else {}

    def talk(self) -> Talk | None:
        """The row's conversation, if it is one."""
        field = next((name for name in ("turns", "messages") if name in self._row), None)
        if field is None:
            return None
        if "question" in self._row:
            self.wrong.append(f"{field} and question are both there; one of them asks")
        talk = _talk(self._row[field])
        if talk is None:
            self.wrong.append(f"{field} {_TALK}")
        return talk or Talk("", (), "")

    def text(self, name: str, default: str | None = None) -> str:
        if name not in self._row:
            if default is None:
                self._miss(name)
            return default or ""
        return self._checked(name, self._row[name], "a text")

    def word(self, name: str) -> str:
        """A text or a whole number, as a text."""
        value = self._row.get(name, "")
        whole = isinstance(value, int) and not isinstance(value, bool)
        return self._checked(name, str(value) if whole else value, "a text or a whole number")

    def texts(self, name: str, needed: bool = False) -> tuple[str, ...]:
        """A list of texts, none of them empty; one text stands for a list of one."""
        if name not in self._row:
            if needed:
                self._miss(name)
            return ()
        value = self._row[name]
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, Sequence) or not all(_is_text(one) for one in given):
            self.wrong.append(f"{name} must be a text or a list of texts, got {_short(value)}")
            return ()
        if (needed and not given) or not all(given):
            self.wrong.append(f"{name} must hold at least one text, and none that is empty, got {_short(value)}")
        return tuple(given)

    def whole(self, name: str) -> int | None:
        if name not in self._row:
            return None
        self.wrong += checks.whole(name, self._row[name])
        return None if self.wrong else int(self._row[name])

    def _checked(self, name: str, value: object, kind: str) -> str:
        if isinstance(value, str) and _is_text(value):
            return value
        self.wrong.append(f"{name} must be {kind}, got {_short(value)}")
        return ""

    def _miss(self, name: str) -> None:
        if not self._unread:
            self.wrong.append(f"{name} is missing" + (', "" says that there is none' if name != "answers" else ""))


def _talk(messages: object) -> Talk | None:
    """Messages as a conversation; None if they are none. A text alone is the user's."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return None
    said = [one if isinstance(one, Mapping) else {"role": "user", "content": one} for one in messages]
    if not all(_is_text(one.get("content")) for one in said):
        return None
    system = said.pop(0)["content"] if said and said[0].get("role") == "system" else ""
    texts = [one["content"] for one in said]
    if [one.get("role") for one in said] != [*["user", "assistant"] * (len(said) // 2), "user"]:
        return None
    return Talk(system, tuple(zip(texts[:-1:2], texts[1::2], strict=True)), texts[-1])


def _is_text(value: object) -> bool:
    """Whether ``value`` is a text that can be written down: half of a surrogate pair cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _short(value: object) -> str:
    return reprlib.repr(value)


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Rising numbers as few words: 1, 2, 3, 7 -> 1-3, 7."""
    bounds: list[list[int]] = []
    for number in numbers:
        if bounds and number == bounds[-1][1] + 1:
            bounds[-1][1] = number
        else:
            bounds.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in bounds]
