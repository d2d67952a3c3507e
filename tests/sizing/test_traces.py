"""Traces as they are read: forms, sizes of blocks, answers, and what is said of lines that are wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sizing.traces import FORMS, Form, Request, read, synthetic
from harness.types import BadInput

MOONCAKE = Path(__file__).parents[1] / "golden" / "mooncake.jsonl"


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    def write(*lines: Any) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return path

    return write


def test_a_mooncake_trace_has_milliseconds_and_blocks_of_512() -> None:
    requests = list(read(MOONCAKE, 512))
    assert len(requests) == 300
    first, third = requests[0], requests[2]
    assert (first.input_tokens, first.output_tokens, list(first.blocks)) == (
        40160,
        6,
        list(range(78)),
    )  # the 79th is not full
    assert third.timestamp_s == 0.04
    assert all(len(request.blocks) == request.input_tokens // 512 for request in requests)


def test_a_timed_trace_of_vllm_has_seconds_and_blocks_of_16(trace: Any) -> None:
    path = trace({"timestamp": 1.5, "input_length": 40, "output_length": 3, "hash_ids": [7, 8, 9]})
    assert list(read(path, 16, FORMS["timed_trace"])) == [Request(1.5, 40, 3, [7, 8])]
    own = Form(
        block_tokens=4, timestamp_unit_s=60.0, timestamp="at", input_length="in", output_length="out", hash_ids="h"
    )
    assert list(read(trace({"at": 2, "in": 8, "out": 1, "h": [3, 5]}), 4, own)) == [Request(120.0, 8, 1, [3, 5])]


def test_blocks_are_joined_or_cut(trace: Any) -> None:
    path = trace({"input_length": 1100, "output_length": 1, "hash_ids": [5, 6, 7]})
    assert [list(request.blocks) for request in read(path, 1024)] == [[6]]
    assert [list(request.blocks) for request in read(path, 256)] == [[10, 11, 12, 13]]
    (cut,) = read(path, 16)
    assert len(cut.blocks) == 1100 // 16 and len(set(cut.blocks)) == len(cut.blocks)


@given(
    one=st.lists(st.integers(0, 3), min_size=1, max_size=12), other=st.lists(st.integers(0, 3), min_size=1, max_size=12)
)
def test_blocks_of_tokens_are_equal_where_everything_up_to_their_end_is(
    tmp_path_factory: pytest.TempPathFactory, one: list[int], other: list[int]
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "trace.jsonl"
    path.write_text(f"{json.dumps({'tokens': one})}\n{json.dumps({'token_ids': other})}\n")
    first, second = read(path, 2)
    for at, (a, b) in enumerate(zip(first.blocks, second.blocks, strict=False)):
        assert (a == b) == (one[: 2 * at + 2] == other[: 2 * at + 2])
    assert (len(first.blocks), second.input_tokens) == (len(one) // 2, len(other))


def test_what_an_answer_adds_is_known_or_new(trace: Any) -> None:
    """An answer of n tokens leaves n - 1 in the cache: the last is never computed."""
    told = {"tokens": [1, 2, 3], "output_token_ids": [4, 5, 6, 7]}
    again = {"tokens": [1, 2, 3, 4, 5, 6, 7]}
    untold = {"tokens": [1, 2, 3], "output_length": 4}
    known, longer, new, newer = read(trace(told, again, untold, untold), 2, answers=True)
    assert len(known.blocks) == 3 and list(longer.blocks) == list(known.blocks)
    assert new.blocks[0] == known.blocks[0] and len(new.blocks) == 3
    assert not set(new.blocks[1:]) & {*known.blocks, *newer.blocks[1:]}
    assert [len(request.blocks) for request in read(trace(told, untold), 2)] == [1, 1]
    hashed = trace(
        {"input_length": 512, "output_length": 514, "hash_ids": [3]}, {"input_length": 600, "hash_ids": [3, 4]}
    )
    assert [list(request.blocks) for request in read(hashed, 512, answers=True)] == [[3, -1], [3]]


GOOD = {"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ["must be JSON, got '{\\n'"]),
        ("[]", ["must be a JSON object, got []"]),
        ({"timestamp": 5}, ["must have hash_ids or tokens or token_ids, got timestamp"]),
        (
            {**GOOD, "timestamp": 4},
            ["timestamp must be a number, and not below 5, which that of the line before is, got 4"],
        ),
        ({**GOOD, "timestamp": "6"}, ["timestamp must be a number, and not below 5"]),
        ({**GOOD, "timestamp": float("nan")}, ["timestamp must be a number, and not below 5"]),
        (
            {**GOOD, "input_length": 0, "output_length": -1},
            [
                "input_length must be a whole number of 1 or more, got 0",
                "output_length must be a whole number of 0 or more",
            ],
        ),
        ({"hash_ids": [1], "input_length": True}, ["input_length must be a whole number of 1 or more, got True"]),
        ({**GOOD, "hash_ids": [1, "2"]}, ["hash_ids must be a list of whole numbers of 0 or more, got [1, '2']"]),
        ({**GOOD, "hash_ids": [1, -2]}, ["hash_ids must be a list of whole numbers of 0 or more, got [1, -2]"]),
        ({**GOOD, "hash_ids": [1, 1]}, ["hash_ids must not repeat"]),
        (
            {**GOOD, "hash_ids": [1, 2, 3]},
            ["hash_ids must be one for each 512 tokens of input_length 600, got 3 of them"],
        ),
        ({**GOOD, "hash_ids": []}, ["hash_ids must be one for each 512 tokens of input_length 600, got 0 of them"]),
        ({"tokens": []}, ["tokens must have a token, got []"]),
        ({"tokens": [1.5]}, ["tokens must be a list of token ids, whole numbers of 0 or more, got [1.5]"]),
        ({"tokens": [2**63]}, ["tokens must be a list of token ids"]),
        ({"tokens": None}, ["tokens must be a list of token ids"]),
        (
            {"tokens": [1], "output_token_ids": [1], "output_length": 2},
            ["output_length must be as many as output_token_ids has, 1, got 2"],
        ),
    ],
)
def test_a_line_that_is_wrong_is_told_with_its_number_and_all_that_is_wrong(
    trace: Any, line: Any, said: Sequence[str]
) -> None:
    path = trace(GOOD, "", line)
    with pytest.raises(BadInput) as caught:
        list(read(path, 512))
    assert len(caught.value.problems) == len(said)
    for problem, start in zip(caught.value.problems, said, strict=True):
        assert problem.startswith(f"{path} line 3: {start}")


def test_what_is_no_trace_is_told(tmp_path: Path, trace: Any) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, said in [
        (tmp_path / "none", "trace must be a file of UTF-8 text that can be read"),
        (tmp_path, "trace must be a file of UTF-8 text that can be read"),
        (binary, "trace must be a file of UTF-8 text that can be read"),
        (trace(), "trace must have a request a line, got none"),
        (trace("", ""), "trace must have a request a line, got none"),
    ]:
        with pytest.raises(BadInput, match=said):
            list(read(path, 512))
    with pytest.raises(BadInput) as caught:
        list(read(MOONCAKE, 0, Form(block_tokens=512, timestamp_unit_s=0.0)))
    assert caught.value.problems == [
        "block must be 1 token or more, got 0",
        "form.timestamp_unit_s must be a number of seconds above 0, got 0.0",
    ]
    rule = "block must be a multiple or a divisor of the 512 tokens that hash_ids stand for, got 48"
    with pytest.raises(BadInput, match=f"line 1: {rule}"):
        list(read(MOONCAKE, 48))
    assert len(next(read(trace({"tokens": list(range(100))}), 48)).blocks) == 2  # tokens can be cut anywhere


def test_made_up_requests_share_what_is_popular() -> None:
    made = list(synthetic(3000, prefixes=50, zipf=1.0, own_blocks=2, rate_s=4.0, seed=1))
    assert made[:100] == list(islice(synthetic(100, prefixes=50, zipf=1.0, own_blocks=2, rate_s=4.0, seed=1), 100))
    firsts = [request.blocks[0] for request in made]
    counts = sorted((firsts.count(first) for first in set(firsts)), reverse=True)
    assert len(counts) == 50 and 1.5 < counts[0] / counts[1] < 2.6  # 2, give or take chance
    assert 3000 / made[-1].timestamp_s == pytest.approx(4.0, rel=0.1)
    assert all(len(request.blocks) == request.input_tokens // 512 for request in made)
