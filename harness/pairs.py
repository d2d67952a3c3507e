"""From the records of two cells to pairs: each sample as the one and the other saw it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.degenerate import degenerate
from harness.types import Pair, Record, Sample, State


def pair_up(
    samples: Iterable[Sample], baseline: Mapping[str, Record], other: Mapping[str, Record], history: str
) -> tuple[Pair, ...]:
    """A pair for each sample, in their order, from the records of two cells by sample id.

    Where each was told its own earlier answers (``history`` is own), a later turn is a pair whatever these were.
    """
    pairs = []
    for sample in samples:
        a, b = baseline.get(sample.id), other.get(sample.id)
        hashes = {record.prompt_hash for record in (a, b) if record and record.prompt_hash}
        pairs.append(
            Pair(
                sample_id=sample.id,
                cluster=sample.cluster,
                baseline=a.score if a else None,
                candidate=b.score if b else None,
                baseline_state=a.state if a else State.NOT_RUN,
                candidate_state=b.state if b else State.NOT_RUN,
                baseline_fault=a.fault if a else None,
                candidate_fault=b.fault if b else None,
                baseline_degenerate=is_degenerate(a),
                candidate_degenerate=is_degenerate(b),
                prompts_agree=len(hashes) < 2 or (history == "own" and bool(sample.turns)),
                acted=all(evidence.acted for record in (a, b) if record for evidence in record.evidence),
            )
        )
    return tuple(pairs)


def is_degenerate(record: Record | None) -> bool:
    """Whether there is an answer, and its form is broken."""
    return bool(record and record.response and degenerate(record.response))
