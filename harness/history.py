"""Conversations in which each strategy hears what it has said itself (``history=own``), not what should have been said.

A conversation is a few samples of one cluster that share context and system. The sample that asks turn t has the questions of
turns 1 to t-1 before it, with the answers as they should have been; the samples that ask those questions are its earlier turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.engines.base import Answer, EngineTokenizer
from harness.types import Record, Sample

HISTORIES = ("reference", "own")
Before = Mapping[str, Sequence[Sample]]
"""By the id of each sample, those that ask its earlier turns, the first turn first."""


def link(history: str, samples: Sequence[Sample]) -> Before:
    """Who asks the turns before each sample; nobody, where these are told as they should have been answered.

    Raises ValueError naming every turn that no sample asks, one a line.
    """
    if history == "reference":
        return {}
    asked: dict[tuple[object, ...], Sample] = {}
    for sample in samples:
        asked.setdefault((*_talk(sample), sample.turns, sample.question), sample)
    before: dict[str, list[Sample]] = {}
    problems = []
    for sample in samples:
        wanted = [(*_talk(sample), sample.turns[:at], question) for at, (question, _) in enumerate(sample.turns)]
        before[sample.id] = [asked[turn] for turn in wanted if turn in asked]
        if missing := [at for at, turn in enumerate(wanted, 1) if turn not in asked or not sample.cluster]:
            problems.append(_unasked(sample, missing))
    if problems:
        raise ValueError("\n".join(problems))
    return before


def _talk(sample: Sample) -> tuple[str, str, str, int]:
    """What the turns of one conversation share. Each draw of its answers is a conversation of its own."""
    return sample.cluster, sample.context, sample.system, sample.draw


def _unasked(sample: Sample, missing: Sequence[int]) -> str:
    turns = f"turn{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return (
        f"history=own must find each earlier turn of a sample asked by another sample of its cluster with the same context; "
        f"sample {sample.id!r} (cluster {sample.cluster!r}) has {turns} that none asks"
    )


def in_order(samples: Iterable[Sample], before: Before) -> list[Sample]:
    """The samples in their order, but each after those that ask its earlier turns."""
    order: dict[str, Sample] = {}
    for sample in samples:
        for one in (*before.get(sample.id, ()), sample):
            order.setdefault(one.id, one)
    return list(order.values())


def waves(samples: Sequence[Sample], before: Before, size: int) -> Iterator[list[Sample]]:
    """``samples``, in order, in groups of at most ``size`` in which none is an earlier turn of another."""
    wave: list[Sample] = []
    for sample in samples:
        earlier = {one.id for one in before.get(sample.id, ())}
        if len(wave) == size or any(one.id in earlier for one in wave):
            yield wave
            wave = []
        wave.append(sample)
    if wave:
        yield wave


def most_tokens(sample: Sample, before: Before, tokenizer: EngineTokenizer) -> int:
    """Tokens that ``sample`` and all that may follow take, with the longest answers that its earlier turns may have."""
    earlier = before.get(sample.id, ())
    begun = tuple((one.question, one.answer_prefix) for one in earlier) or sample.turns
    answers = sum(one.max_new_tokens for one in earlier)
    return tokenizer.prompt_tokens(replace(sample, turns=begun)) + answers + tokenizer.new_tokens(sample)


class Heard:
    """What the cells of a group have said so far, as far as later turns need it."""

    def __init__(self, before: Before) -> None:
        self.before = before
        self._needed = {one.id for earlier in before.values() for one in earlier}
        self._said: dict[str, dict[str, Record]] = defaultdict(dict)

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.sample_id in self._needed:
                self._said[record.cell][record.sample_id] = record

    def failures(self, sample: Sample, cells: Iterable[str]) -> Iterator[Answer]:
        """Why some of ``cells`` cannot be asked ``sample``: they have no answer to an earlier turn."""
        for cell in cells:
            for at, one in enumerate(self.before.get(sample.id, ()), 1):
                record = self._said[cell].get(one.id)
                if record is None or record.response is None:
                    error = f"turn {at} of this conversation, sample {one.id}, has no answer in this cell"
                    fault = record.fault if record else "infrastructure"
                    yield Answer(cell, sample.id, "", None, error=error, fault=fault)
                    break

    def told(self, sample: Sample, cells: Iterable[str]) -> list[tuple[Sample, list[str]]]:
        """``sample`` as those of ``cells`` that can be asked hear it, once for each different history, with who shares it."""
        cells = list(cells)
        deaf = {answer.cell for answer in self.failures(sample, cells)}
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for cell in (cell for cell in cells if cell not in deaf):
            alike.setdefault(self._turns(sample, cell), []).append(cell)
        return [(replace(sample, turns=turns), mine) for turns, mine in alike.items()]

    def _turns(self, sample: Sample, cell: str) -> tuple[tuple[str, str], ...]:
        earlier = self.before.get(sample.id, ())
        return tuple((one.question, self._answer(one, cell)) for one in earlier) or sample.turns

    def _answer(self, sample: Sample, cell: str) -> str:
        response = self._said[cell][sample.id].response
        assert response is not None, "cells that lack one are not asked"
        return sample.answer_prefix + response.text
