"""Tasks whose questions are given, not made: a user's own file, or a data set of the hub."""

from __future__ import annotations

import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib import import_module
from numbers import Real
from typing import Any, cast

from harness.types import Response, Sample, Score, State, digest
from tasks import checks
from tasks.admit import admitted
from tasks.base import Task, Tokenizer
from tasks.items import Item, Items
from tasks.scorers import SCORERS, Judge

ROOM = 32  # tokens that an answer may have beyond the longest of the answers given


@dataclass(frozen=True, kw_only=True)
class Given(Task):
    """Samples are the items of a data set, in an order that depends on the seed.

    The first n are taken: a random part, the same for every strategy, and one that a larger n contains.

    Attributes:
        scorer: Judges items that name no scorer: a name of ``SCORERS``, a function as ``module.function``, or a dataclass;
            called with a text and the accepted answers, it returns a score in [0, 1]. None: what the data's format says.
        max_new_tokens: Tokens that an answer may have where the item does not say. None: the longest answer and some room.
        chance: Score of a model that guesses; a baseline must be above it.
        family: What reports group the task under.
    """

    scorer: Any = None
    max_new_tokens: int | None = None
    chance: float = 0.0  # type: ignore[misc]  # of all tasks of the class elsewhere, of one data set here
    family: str = "own"  # type: ignore[misc]

    @cached_property
    @abstractmethod
    def data(self) -> Items:
        """The data's items, and all that is wrong with them. Raises ValueError if it cannot be read at all."""

    @abstractmethod
    def unit(self) -> str:
        """What one item is called where it comes from: a line, a row."""

    @abstractmethod
    def scorers_used(self) -> set[str]:
        """Names of the scorers that items have, as far as can be known of data that may be gone; "" for any."""

    @property
    def graded(self) -> bool:  # type: ignore[override]
        """Whether some scorer gives shares; of a scorer that is not in the table, that must be assumed."""
        return any(name not in SCORERS or SCORERS[name].graded for name in self.scorers_used())

    @property
    def scorer_name(self) -> str:
        """The scorer's name in the table; "" if it is the user's own, or none."""
        return self.scorer if isinstance(self.scorer, str) and self.scorer in SCORERS else ""

    @property
    def fallback(self) -> str:
        """Name of the scorer of items that name none; "" if that is the user's own."""
        return self.scorer_name if self.scorer is not None else "contains"

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        found = self.broken()
        if found:
            return found
        try:
            data = self.data
        except ValueError as error:
            return str(error).splitlines()
        if not data.items:
            return ["task.path must hold at least one item, got none"]
        return list(data.problems) or self._scorer_problems(data.items[0])

    def broken(self) -> list[str]:
        """Every rule that the options break, before any data is read."""
        found = [] if self.max_new_tokens is None else checks.whole("task.max_new_tokens", self.max_new_tokens)
        if not 0 <= self.chance < 1:
            found.append(f"task.chance must be in [0, 1), got {self.chance}")
        if not self.family.strip():
            found.append(f"task.family must be a name, got {self.family!r}")
        try:
            self._own_judge  # noqa: B018
        except ValueError as error:
            found.append(str(error))
        return found

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        items = sorted(self.data.items, key=lambda item: digest([self.name, seed, item.id]))
        if n > len(items):
            print(f"task {self.name}: n={n}, but the data has {len(items)} items; all are used", file=sys.stderr)
        budget = self.max_new_tokens or self._longest_answer(tokenizer) + ROOM
        numbered = ((item.number, _sample(item, budget)) for item in items[:n])
        return admitted(numbered, tokenizer, self.unit())

    def score(self, sample: Sample, response: Response) -> Score:
        name = sample.meta["scorer"]
        judge = SCORERS[name].judge if name else self._own_judge
        return Score(State.SCORED, _value(judge, response.text, sample.answers), response.text.strip())

    def spec(self) -> dict[str, Any]:
        """Where the data lies does not count, for ``sources`` knows it by its content, nor what reports group it under."""
        spec = super().spec()
        options = {key: value for key, value in spec["options"].items() if key not in ("path", "family")}
        if is_dataclass(self.scorer):  # which are but its options so far
            options["scorer"] = {"class": _name(type(self.scorer)), "options": options["scorer"]}
        return {**spec, "options": options}

    def sources(self) -> dict[str, str]:
        """Digests of the data and of a scorer of the user's own."""
        own = self.scorer is not None and not self.scorer_name
        return {"data": self.data_digest, **({"scorer": _source(self._own_judge)} if own else {})}

    @cached_property
    @abstractmethod
    def data_digest(self) -> str:
        """Digest of all items, as they were found."""

    @cached_property
    def _own_judge(self) -> Judge:
        """The scorer of items that name none of the table. Raises ValueError if there is no such thing."""
        if self.fallback:
            return SCORERS[self.fallback].judge
        found = _imported(self.scorer) if isinstance(self.scorer, str) else self.scorer
        if callable(found) and (isinstance(self.scorer, str) or is_dataclass(found)):  # whose options can be told apart
            return cast(Judge, found)
        kinds = "a function as module.function, or a dataclass that can be called"
        raise ValueError(f"task.scorer must be one of {', '.join(SCORERS)}, {kinds}, got {self.scorer!r}")

    def _scorer_problems(self, item: Item) -> list[str]:
        """A trial of the user's own scorer on one item's first answer."""
        if item.scorer:
            return []
        try:
            _value(self._own_judge, item.answers[0], item.answers)
        except Exception as error:  # whatever the user's code raises
            return [f"task.scorer: {type(error).__name__} when it judged {self.unit()} {item.number}: {error}"]
        return []

    def _longest_answer(self, tokenizer: Tokenizer) -> int:
        open_items = (item for item in self.data.items if item.max_new_tokens is None)
        return max((len(tokenizer.encode(answer)) for item in open_items for answer in item.answers), default=0)


def _sample(item: Item, budget: int) -> Sample:
    return Sample(
        id=item.id,
        context=item.context,
        question=item.question,
        answers=item.answers,
        max_new_tokens=item.max_new_tokens or budget,
        answer_prefix=item.answer_prefix,
        stop=item.stop,
        cluster=item.cluster,
        meta={"scorer": item.scorer, "item": item.number, **({"task": item.task} if item.task else {})},
        instructions=item.instructions,
        turns=item.turns,
        system=item.system,
    )


def _value(judge: Judge, text: str, answers: tuple[str, ...]) -> float:
    value = judge(text, answers)
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise ValueError(f"a scorer must return a number in [0, 1], got {value!r}")
    return float(value)


def _imported(name: str) -> object:
    """What ``module.function`` names; None if there is no such module or function."""
    module, _, function = name.rpartition(".")
    try:
        return getattr(import_module(module), function, None) if module else None
    except ImportError:
        return None


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _source(judge: Callable[..., Any]) -> str:
    """Digest of the code of a scorer, so that another one under its name is noticed."""
    code = judge if inspect.isroutine(judge) else type(judge)
    try:
        return digest(inspect.getsource(code))
    except (OSError, TypeError):  # typed in, or not written in Python
        return digest(_name(code))
