"""What is told of many samples, where samples differ in what they have to tell."""

from __future__ import annotations

import pytest

from harness.judge import _means
from harness.types import Evidence, Record, State


def test_means_are_over_the_samples_that_have_a_number() -> None:
    """An answer of one token has no attention to tell; a sample that was lost has moved no bytes from any tier."""
    facts = [
        {"kept": 4.0, "attention_kept": 0.5, "bytes_in_disk": 90.0},
        {"kept": 2.0},
        {"kept": 3.0, "bytes_in_s3": 30.0},
    ]
    assert _means(facts) == {"kept": 3.0, "attention_kept": 0.5, "bytes_in_disk": 30.0, "bytes_in_s3": 10.0}


@pytest.mark.parametrize(
    "state, fault, lost, final",
    [
        (State.SCORED, None, 0.0, True),
        (State.SCORED, None, 2.0, False),  # computed again: another try may find what was stored
        (State.FAILED, "model", 0.0, True),
        (State.FAILED, "infrastructure", 0.0, False),
        (State.TRUNCATED, None, 0.0, True),
    ],
)
def test_what_another_try_may_better_is_not_final(state: State, fault: str | None, lost: float, final: bool) -> None:
    evidence = Evidence("offload/disk", not lost, "", {"recomputed_layers": lost})
    record = Record("c", "s", "h", "p", state, evidence=(evidence,), fault=fault)  # type: ignore[arg-type]
    assert record.final is final
