"""What a run's generation settings make of a task's items, and which of them cannot be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import samples as sample_files
from harness.generation import Reserving, drawn, generation_of, item_of, num_items
from harness.types import Generation, Record, Response, Sample, State, Thinking
from tests.tasks.task_doubles import Pieces

THINK = Generation(think_tokens=50)
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "k": 1,
    "think_tokens": 0,
    "think_open": "<think>\\n",
    "think_close": "\n</think>",
    "stop": [],
}


def items(n: int, **changes: Any) -> list[Sample]:
    return [Sample(f"item-{i}", f"text {i}", "q?", ("x",), 5, stop=("\n",), **changes) for i in range(n)]


@pytest.mark.parametrize(
    ("generation", "says"),
    [
        (Generation(temperature=-0.1), ["gen.temperature must be 0 (greedy) or more, and finite, got -0.1"]),
        (Generation(temperature=math.inf), ["gen.temperature must be 0 (greedy) or more, and finite, got inf"]),
        (Generation(temperature=math.nan), ["gen.temperature must be 0 (greedy) or more, and finite, got nan"]),
        (Generation(temperature=1, k=0), ["gen.k must be 1 or more, got 0"]),
        (Generation(k=3), ["gen.k must be 1 while gen.temperature is 0: greedy says the same each time, got 3"]),
        (Generation(think_tokens=-1), ["gen.think_tokens must be 0 or more, got -1"]),
        (
            Generation(think_tokens=1, think_open=""),
            ["gen.think_open must be a text that is more than white space, got ''"],
        ),
        (Generation(think_tokens=1, think_close=" \n"), ["gen.think_close must be a text that is more than white"]),
        (Generation(stop=("x", "")), ["gen.stop must hold texts that are not empty, got ['x', '']"]),
        (Generation(-1, 0, -5, stop=("",)), ["gen.temperature", "gen.k", "gen.think_tokens", "gen.stop"]),
        (Generation(), []),
        (Generation(think_open="", think_close=""), []),  # of no thinking
        (Generation(0.7, 8, 100, "(", ")", ("\n",)), []),
    ],
)
def test_what_cannot_be_is_told_all_at_once(generation: Generation, says: list[str]) -> None:
    found = generation.problems()
    assert len(found) == len(says)
    for problem, words in zip(found, says, strict=True):
        assert problem.startswith(words)


def test_only_what_decides_an_answer_is_asked() -> None:
    assert Generation().spec() == Generation(think_open="(").spec() == "greedy"
    assert Generation(0.7).spec() == Generation(0.7, k=9).spec() == {"temperature": 0.7}
    asked = Generation(think_tokens=5, think_open="(", think_close=")", stop=("x",)).spec()
    assert asked == {"think": {"tokens": 5, "open": "(", "close": ")"}, "stop": ("x",)}


def test_a_line_break_can_be_typed() -> None:
    generation = generation_of({**GREEDY, "stop": ["a\\nb", "c", "c"]})
    assert (generation.think_open, generation.think_close) == ("<think>\n", "\n</think>")
    assert generation.stop == ("a\nb", "c")


def test_a_sample_without_settings_keeps_its_hash() -> None:
    """A golden of before there were any: records of greedy runs are found again."""
    plain = Sample("a", "text", "q?", ("1", "2"), 5, " it is", ("\n",), "doc")
    assert drawn([plain], 1, Generation()) == [plain]
    assert plain.hash == "f57adbb38f0ffd88"
    settings = (THINK, Generation(0.5), Generation(0.7), Generation(stop=("x",)))
    assert len({drawn([plain], 1, one)[0].hash for one in (Generation(), *settings)}) == 5


@given(n=st.integers(1, 40), k=st.integers(1, 9), world=st.booleans())
def test_sample_i_is_draw_i_mod_k_of_item_i_div_k(n: int, k: int, world: bool) -> None:
    made = items(num_items(n, Generation(0.7, k)), cluster="world" if world else "")
    samples = drawn(made, n, Generation(0.7, k))
    assert len(samples) == n and len({sample.hash for sample in samples}) == n
    for i, sample in enumerate(samples):
        item = made[i // k]
        assert (sample.id, sample.draw) == (f"{item.id}~{i % k + 1}", i % k)
        assert item_of(sample) == item.id
        assert sample.cluster == (item.cluster or item.id)
        assert (sample.context, sample.temperature, sample.think) == (item.context, 0.7, None)


def test_more_draws_are_a_top_up() -> None:
    few, many = (drawn(items(3), 3 * k, Generation(0.7, k)) for k in (1, 4))
    assert {sample.hash for sample in few} <= {sample.hash for sample in many}


def test_stop_strings_come_beside_the_task_s_own() -> None:
    (sample,) = drawn(items(1), 1, Generation(stop=("END", "\n")))
    assert sample.stop == ("\n", "END")


def test_samples_come_back_as_they_went_in(tmp_path: Path) -> None:
    samples = drawn(items(2), 4, Generation(0.7, 2, 30)) + items(1)
    sample_files.save(samples, tmp_path / "s.parquet")
    again = sample_files.load(tmp_path / "s.parquet")
    assert again == samples and [one.hash for one in again] == [one.hash for one in samples]
    assert again[0].think == Thinking(30, "<think>\n", "\n</think>\n\n") and again[-1].think is None


def test_records_of_before_there_was_thinking_still_read() -> None:
    record = Record("c", "s", "h", "p", State.SCORED, 1.0, response=Response("x", (1, 2), "stop", None, 7, True))
    assert Record.from_json(record.to_json()) == record
    assert record.response is not None and record.response.output_tokens == 9
    old = record.to_json()
    for name in ("thinking_tokens", "thinking_cut"):
        del old["response"][name]
    assert Record.from_json(old).response == Response("x", (1, 2), "stop")


def test_tasks_see_what_thinking_leaves_of_the_model() -> None:
    pieces = Pieces(1000)
    marks = len(pieces.encode("<think>\n")) + len(pieces.encode("\n</think>\n\n"))
    assert Reserving(pieces, THINK).max_tokens == 1000 - 50 - marks
    assert Reserving(pieces, Generation()).max_tokens == 1000
