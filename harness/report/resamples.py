"""pass@k as a table: what more than one answer to an item comes to, the full cache's and each strategy's."""

from __future__ import annotations

from harness.report.format import count, number
from harness.report.outlook import Outlook, at
from harness.report.tables import Table


def pass_at_k(outlook: Outlook, column: tuple[str, str]) -> tuple[Table, ...]:
    """The table of a task, the full cache first; none where items were answered once."""
    cells = [cell for cell in outlook.verdict.get("pass_at_k") or () if at(cell) == column]
    if not cells:
        return ()
    shown = _shown(outlook.generation.k)
    rows = tuple(
        (
            cell["strategy"],
            count(cell.get("items")),
            count(cell.get("left_out")),
            *(number(cell["pass_at"][k - 1] if cell.get("pass_at") else None) for k in shown),
        )
        for cell in cells
    )
    columns = ("strategy", "items", "left out", *(f"pass@{k}" for k in shown))
    return (Table("pass@k: the chance that one of k answers to an item is right", columns, rows),)


def _shown(k: int) -> list[int]:
    """1, 2, 4, ... and k: the verdict holds those between."""
    return sorted({k, *(2**power for power in range(k.bit_length()))})
