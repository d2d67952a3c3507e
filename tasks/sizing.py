"""Samples of an exact length: a task draws a question, and filler is added up to the tokens asked for."""

from __future__ import annotations

import random
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, count, islice, takewhile
from typing import TypeVar

from harness.types import Sample, digest
from tasks import checks
from tasks.base import Knob, Task, Tokenizer

Draft = Callable[[int], Sample]
"""A sample in which all is drawn but its size: number of filler units (words, lines) -> sample."""

T = TypeVar("T")

SHORTEST = 256  # tokens that difficulty is looked for from


def largest(cost: Callable[[int], int], limit: int) -> int:
    """The largest number of units with ``cost(units) <= limit``; -1 if not even ``cost(0)`` is.

    ``cost`` must rise with the units, by one or more each. Every round guesses from the price of a unit seen last and
    narrows the bracket between the largest fit and the smallest misfit; every eighth round halves it. So the search
    takes a few rounds when units cost about the same, and ends whatever ``cost`` does.
    """
    fits, used = 0, cost(0)
    misfits = limit - used + 1
    price = 64.0  # dear on purpose: a first guess that is too small is quick to count and tells the true price
    rounds = 0
    while misfits - fits > 1:
        rounds += 1
        step = (misfits - fits) // 2 if rounds % 8 == 0 else int((limit - used) / price)
        units = min(max(fits + step, fits + 1), misfits - 1)
        seen = cost(units)
        price = max((seen - used) / (units - fits), 1.0)
        if seen <= limit:
            fits, used = units, seen
        else:
            misfits = units
    return fits if used <= limit else -1


def fill(draft: Draft, tokenizer: Tokenizer, length: int, field: str) -> Sample:
    """The sample with the most filler whose prompt and answer together have ``length`` tokens or fewer.

    Raises:
        ValueError: not even the sample without filler fits; names ``field``, rule and value.
    """

    @cache
    def cost(units: int) -> int:
        return tokens(draft(units), tokenizer)

    units = largest(cost, length)
    if units < 0:
        raise ValueError(f"{field} must leave room for question and answer ({cost(0)} tokens), got {length}")
    sample = draft(units)
    facts = {"length": length, "prompt_tokens": cost(units) - sample.max_new_tokens}
    return replace(sample, meta={**sample.meta, **facts})


def tokens(sample: Sample, tokenizer: Tokenizer) -> int:
    """Tokens that prompt and answer of ``sample`` take together."""
    return tokenizer.prompt_tokens(sample) + sample.max_new_tokens


def insert(pieces: Sequence[str], inserts: Iterable[tuple[float, str]]) -> list[str]:
    """``pieces`` of text with each ``(depth, text)`` put at the gap nearest to that depth.

    Depth 0 is before the first piece, 1 after the last; in between it is a share of the characters. Texts that fall
    into one gap stand there in order of depth.
    """
    ends = list(accumulate(map(len, pieces), initial=0))
    result = list(pieces)
    for shift, (depth, text) in enumerate(sorted(inserts)):
        after = bisect_left(ends, depth * ends[-1])
        if after > 0 and ends[after] - depth * ends[-1] > depth * ends[-1] - ends[after - 1]:
            after -= 1
        result.insert(after + shift, text)
    return result


def first_of(source: Iterator[T]) -> Callable[[int], list[T]]:
    """The first ``count`` items of ``source``, or all it has; each is drawn when first needed and stays the same.

    A source without end must be the last thing in a draft that draws from its generator: when it does depends on counts.
    """
    seen: list[T] = []

    def first(count: int) -> list[T]:
        seen.extend(islice(source, max(count - len(seen), 0)))
        return seen[:count]

    return first


def shuffled(items: Sequence[T], key: int) -> list[T]:
    """``items`` in an order that ``key`` and their number decide, so that a draft may be built again."""
    return random.Random(key).sample(items, len(items))


def depth_level(turn: int, levels: int) -> float:
    """Depth in [0, 1] of the ``turn``-th sample of a length: ``levels`` even steps from start to end, then over again.

    It depends on the position alone, so a map of length x depth fills evenly while samples are added.
    """
    return round(turn % levels / max(levels - 1, 1), 4)


@dataclass(frozen=True, kw_only=True)
class SizedTask(Task):
    """A task whose samples are filled up to a length.

    A subclass draws a sample and says how it looks with any amount of filler; this class finds the amount. Sample i
    has length ``lengths[i % len(lengths)]``, so that all lengths fill evenly, however many samples are taken.

    Attributes:
        lengths: Tokens of prompt and answer together, chat template included.
    """

    lengths: tuple[int, ...] = (1024,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))  # YAML knows lists only

    @abstractmethod
    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        """Draw everything of sample ``index`` but its id and its amount of filler."""

    def broken(self) -> list[str]:
        """Every rule that the subclass's own options break, whatever the model."""
        return []

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        stem = self.stem(seed)
        return [
            replace(
                fill(self.draft(tokenizer, seed, index), tokenizer, self.length(index), "task.lengths"),
                id=f"{stem}-{index:05d}",
            )
            for index in range(n)
        ]

    def stem(self, seed: int) -> str:
        """What the ids of all samples of these options and this seed begin with."""
        return f"{self.name}-{digest({'options': self.spec()['options'], 'seed': seed}, 8)}"

    def knob(self, tokenizer: Tokenizer) -> Knob | None:
        """One length: the powers of two from ``SHORTEST`` on, and the model's longest."""
        powers = takewhile(lambda length: length < tokenizer.max_tokens, (SHORTEST << k for k in count()))
        return Knob("lengths", tuple([length] for length in (*powers, tokenizer.max_tokens)))

    def length(self, index: int) -> int:
        """Tokens that sample ``index`` is filled to."""
        return self.lengths[index % len(self.lengths)]

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        field = "task.lengths"
        found = self.broken()
        if not self.lengths:
            found.append(f"{field} must name at least one length, got none")
        for length in self.lengths:
            found += checks.whole(field, length)
        if found:
            return found
        for index, length in enumerate(self.lengths):
            least = tokens(self.draft(tokenizer, 0, index)(0), tokenizer)
            if length > tokenizer.max_tokens:
                found.append(f"{field} must be at most {tokenizer.max_tokens}, the model's longest, got {length}")
            if length < least:
                found.append(f"{field} must leave room for question and answer ({least} tokens), got {length}")
        return found
