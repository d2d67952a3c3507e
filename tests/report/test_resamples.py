"""pass@k in the report."""

from __future__ import annotations

from typing import Any

import pytest

from harness.report.outlook import Outlook
from harness.report.resamples import pass_at_k

COLUMN = ("needle", "prompt")


def outlook(k: int, *rows: dict[str, Any]) -> Outlook:
    common = {"task": "needle", "mode": "prompt", "left_out": 1}
    return Outlook({"gen": {"temperature": 1.0, "k": k, "stop": []}, "pass_at_k": [{**common, **row} for row in rows]})


@pytest.mark.parametrize(
    ("k", "shown"), [(2, [1, 2]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_doublings_are_shown_and_k_itself(k: int, shown: list[int]) -> None:
    (table,) = pass_at_k(
        outlook(k, {"strategy": "full", "items": 3, "pass_at": [i / k for i in range(1, k + 1)]}), COLUMN
    )
    assert table.columns == ("strategy", "items", "left out", *(f"pass@{j}" for j in shown))
    assert table.rows == (("full", "3", "1", *(f"{j / k:.3f}" for j in shown)),)


def test_what_does_not_exist_is_a_dash() -> None:
    (table,) = pass_at_k(outlook(2, {"strategy": "fp8", "items": 0, "pass_at": None}), COLUMN)
    assert table.rows == (("fp8", "0", "1", "–", "–"),)


def test_other_tasks_and_older_verdicts_have_no_such_table() -> None:
    assert pass_at_k(outlook(2, {"strategy": "full", "items": 1, "pass_at": [0, 1]}), ("chain", "prompt")) == ()
    assert pass_at_k(Outlook({}), COLUMN) == ()
