"""Reading a verdict: which strategies and tasks it holds, in which order, and the cell where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report.format import missing, percent_range
from harness.types import Decision, Generation

SYMBOLS = {
    Decision.GO: "✓",
    Decision.NO_GO: "✗",
    Decision.INCONCLUSIVE: "?",
    Decision.VOID: "∅",
    Decision.MEASURED: "≈",
}
"""Every decision carries a sign and its word: colour is never the only difference."""

ORDER = (Decision.GO, Decision.INCONCLUSIVE, Decision.NO_GO, Decision.VOID, Decision.MEASURED)

Cell = Mapping[str, Any]


class Outlook:
    """A verdict seen as strategies (best first) by tasks (as they were run)."""

    def __init__(self, verdict: Mapping[str, Any]) -> None:
        self.verdict = verdict
        self.gate: Mapping[str, Any] = verdict.get("gate") or {}
        self.model: Mapping[str, Any] = verdict.get("model") or {}
        self.generation = generation_of(verdict)
        self.cells: list[Cell] = list(verdict.get("cells") or ())
        self.comparisons: list[Mapping[str, Any]] = list(verdict.get("comparisons") or ())
        self.ladders: list[Mapping[str, Any]] = list(verdict.get("ladders") or ())
        self.columns: list[tuple[str, str]] = list(dict.fromkeys((cell["task"], cell["mode"]) for cell in self.cells))
        self._at = {(cell["strategy"], cell["task"], cell["mode"]): cell for cell in self.cells}
        self.strategies: list[Mapping[str, Any]] = sorted(verdict.get("strategies") or (), key=self._rank)

    def _rank(self, strategy: Mapping[str, Any]) -> tuple[int, float]:
        """GO first; among equals, the one that stores least. Ties keep the verdict's order."""
        fractions = self.fractions(strategy["name"])
        return ORDER.index(Decision(strategy["decision"])), max(fractions, default=float("inf"))

    def cell(self, strategy: str, column: tuple[str, str]) -> Cell | None:
        return self._at.get((strategy, *column))

    def of(self, strategy: str) -> list[Cell]:
        """The cells of a strategy, in column order."""
        return [cell for column in self.columns if (cell := self.cell(strategy, column))]

    def label(self, column: tuple[str, str]) -> str:
        """The task's name, with its mode where one task was run in several."""
        task, mode = column
        return f"{task} · {mode}" if sum(task == other for other, _ in self.columns) > 1 else task

    def judged(self, column: tuple[str, str]) -> bool:
        """False for a column of fidelity cells, which are measured and not judged."""
        return any(cell["decision"] != Decision.MEASURED for cell in self.cells if at(cell) == column)

    def fractions(self, strategy: str) -> list[float]:
        return [value for cell in self.of(strategy) if (value := fraction(cell)) is not None]

    def memory(self, strategy: str) -> str:
        """``26.6 %``, or a range where it depends on the prompts of a task."""
        return percent_range(self.fractions(strategy))

    @property
    def generated(self) -> str:
        """How answers were generated, in words; empty if greedily and at once."""
        return "" if self.generation.spec() == "greedy" else self.generation.describe()

    @property
    def deploy_dtype(self) -> str:
        return self.model.get("deploy_dtype") or self.model.get("dtype") or "the deployment dtype"


def generation_of(verdict: Mapping[str, Any]) -> Generation:
    """The run's generation settings; greedy where a verdict is older than they are."""
    given = verdict.get("gen") or {}
    return Generation(**{**given, "stop": tuple(given.get("stop", ()))})


def at(cell: Cell) -> tuple[str, str]:
    """The column of a cell."""
    return cell["task"], cell["mode"]


def fraction(cell: Cell) -> float | None:
    """KV bytes a token against the full cache, both predicted at the deployment dtype."""
    memory = cell.get("memory") or {}
    stored, full = memory.get("deploy_bytes_per_token"), memory.get("deploy_full_bytes_per_token")
    return None if missing(stored) or missing(full) or not full else stored / full
