"""Samples that decode in one batch, and what becomes of them when something breaks."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.base import Answer, Row
from harness.engines.hf import device_memory
from harness.engines.hf.decode import Batch
from harness.engines.hf.joint import JointCache
from harness.engines.hf.journey import Journey
from harness.engines.hf.rows import Rows
from harness.engines.hf.tokenizer import PromptTokens
from harness.engines.hf.work import Work
from harness.types import Sample


@dataclass(eq=False)
class Seat:
    """Rows of one sample in a batch."""

    work: Work
    rows: Sequence[Row]
    said: Rows
    stored: Sequence[int]  # bytes, by row, after the prompt
    kept: Sequence[Sequence[tuple[int, ...]]]  # tokens, by row and layer, of each head
    journeys: dict[int, Journey]  # by row whose tokens went to a tier
    peak_bytes: int = 0  # so far

    def forget(self) -> None:
        """Delete what went to a tier and is for nobody else."""
        for at, journey in self.journeys.items():
            if not self.rows[at].stack.offload.persist:  # type: ignore[union-attr]
                journey.forget()


class Company:
    """The first batches of samples decode together; each later batch of a sample decodes by itself once the first has ended.

    Args:
        seat: fills the stores of some rows and lets them read their question; their cache and logits ``[R, V]`` go into a batch.
        answers: of a seat whose rows have finished.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        seat: Callable[[Work, Sequence[Row]], tuple[Seat, JointCache, Tensor]],
        answers: Callable[[Seat], list[Answer]],
    ) -> None:
        self.device = model.device
        self.batch, self.model = Batch(model), model
        self.seat, self.answers = seat, answers
        self.seats: dict[Rows, Seat] = {}

    def __len__(self) -> int:
        """Rows that decode together."""
        return len(self.batch)

    def take_in(self, work: Work) -> Iterator[Answer]:
        """One more sample. There are answers at once only if something breaks."""
        rows = work.batches[0]
        try:
            seat, cache, logits = self._seated(work, rows)
        except Exception as error:
            yield from self._one_by_one(work, rows, error)
            yield from self._later(work)
            return
        self.seats[seat.said] = seat
        try:
            self.batch.join(seat.said, cache, logits)
        except Exception as error:
            yield from self._broken(error)

    def advance(self) -> Iterator[Answer]:
        """Decode until some sample is answered, and give its answers."""
        try:
            done = self.batch.advance()
        except Exception as error:
            yield from self._broken(error)
            return
        for said in done:
            seat = self.seats.pop(said)
            try:
                answers = self._told(seat)
            except Exception as error:
                answers = self._one_by_one(seat.work, seat.rows, error)
            yield from answers
            yield from self._later(seat.work)

    def leave(self) -> None:
        """Nobody waits for the answers that are left."""
        for seat in self.seats.values():
            seat.forget()

    def _seated(self, work: Work, rows: Sequence[Row]) -> tuple[Seat, JointCache, Tensor]:
        """Everyone's peak so far is noted first: that of each begins anew with every seat."""
        self._note_peak()
        device_memory.forget_peak(self.device)
        return self.seat(work, rows)

    def _note_peak(self, *alone: Seat) -> None:
        peak = device_memory.peak_bytes(self.device)
        for seat in (*self.seats.values(), *alone):
            seat.peak_bytes = max(seat.peak_bytes, peak)

    def _told(self, seat: Seat) -> list[Answer]:
        self._note_peak(seat)
        seat.forget()
        return self.answers(seat)

    def _later(self, work: Work) -> Iterator[Answer]:
        for rows in work.batches[1:]:
            yield from self._apart(work, rows)

    def _apart(self, work: Work, rows: Sequence[Row]) -> list[Answer]:
        """Answer rows in a batch of their own; if that raises (out of memory, a broken layer), one by one."""
        try:
            seat, cache, logits = self._seated(work, rows)
            batch = Batch(self.model)
            try:
                batch.join(seat.said, cache, logits)
                batch.advance()
            except Exception:
                seat.forget()
                raise
            return self._told(seat)
        except Exception as error:
            return self._one_by_one(work, rows, error)

    def _one_by_one(self, work: Work, rows: Sequence[Row], error: Exception) -> list[Answer]:
        """What broke together with ``error`` is tried apart; what broke alone has failed."""
        if work.reference.leader in rows:
            work.reference.forget()
        if len(rows) > 1:
            error.__traceback__ = None  # its frames hold what the broken batch took
            return [answer for row in rows for answer in self._apart(work, [row])]
        traceback.print_exception(error)
        return [failed(rows[0], work.sample, work.tokens, error, time.perf_counter() - work.began)]

    def _broken(self, error: Exception) -> Iterator[Answer]:
        """Whose fault it was shows when each sample decodes by itself."""
        seats, self.seats = list(self.seats.values()), {}
        self.batch = Batch(self.model)
        for seat in seats:
            seat.forget()
            if seat.work.reference.leader in seat.rows:
                seat.work.reference.forget()
        for seat in seats:
            if len(seats) > 1:
                error.__traceback__ = None  # its frames hold what the broken batch took
                yield from self._apart(seat.work, seat.rows)
            else:
                yield from self._one_by_one(seat.work, seat.rows, error)
            yield from self._later(seat.work)


def failed(row: Row, sample: Sample, tokens: PromptTokens, error: Exception, seconds: float) -> Answer:
    """The answer of a row that has broken down."""
    text = f"{type(error).__name__}: {error}"
    return Answer(row.cell, sample.id, tokens.hash, None, error=text, fault="infrastructure", seconds=seconds)
