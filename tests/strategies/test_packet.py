"""A packet gives back every bit, or says what is wrong with it."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from strategies.base import Lost
from strategies.packet import ALIGNMENT, pack, unpack

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
)


def random(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Any bits at all: NaNs with payloads, infinities, negative zeros."""
    chance = torch.Generator().manual_seed(seed)
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (*shape, dtype.itemsize), dtype=torch.uint8, generator=chance)
    return raw.view(dtype).reshape(shape) if raw.numel() else torch.empty(shape, dtype=dtype)


def same(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.contiguous().reshape(-1).view(torch.uint8).equal(b.contiguous().reshape(-1).view(torch.uint8))


some = st.builds(
    random,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
    st.integers(0, 999),
)


@given(st.lists(some, max_size=6), st.text(max_size=12))
def test_tensors_come_back_to_the_bit(tensors: list[Tensor], key: str) -> None:
    back = unpack(pack(tensors, key), key)
    assert len(back) == len(tensors) and all(map(same, tensors, back))


def test_views_and_shared_memory_are_packed_as_they_read() -> None:
    base = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    tensors = [base, base, base.transpose(0, 2), base[:, 1:, ::2], base[:1].expand(4, 3, 4)]
    assert all(map(same, tensors, unpack(pack(tensors, "k"), "k")))


def test_what_comes_back_can_be_written_to_and_is_aligned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of memory that may not be written to
        data = pack([torch.ones(3, dtype=torch.uint8), torch.ones(5)], "k")
        first, second = unpack(data, "k")
        second += 1
    assert (second.data_ptr() - first.data_ptr()) % ALIGNMENT == 0
    assert same(unpack(data, "k")[1], torch.ones(5))  # the packet itself is as it was


def test_every_flipped_bit_is_noticed() -> None:
    data = pack([torch.arange(6), torch.ones(2, 3, dtype=torch.bfloat16)], "ab12/layer003")
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(Lost, match=r"ab12/layer003: (altered|truncated)"):
                unpack(bytes(damaged), "ab12/layer003")


def test_every_length_but_its_own_is_noticed() -> None:
    data = pack([torch.arange(6)], "ab12/layer003")
    for length in range(len(data)):
        with pytest.raises(Lost, match=rf"ab12/layer003: truncated: only {length} bytes"):
            unpack(data[:length], "ab12/layer003")
    with pytest.raises(Lost, match="altered"):
        unpack(data + b"\0", "ab12/layer003")


def test_another_s_packet_is_not_taken() -> None:
    data = pack([torch.arange(6)], "ab12/layer003")
    with pytest.raises(Lost, match="ab12/layer004: misplaced: what lies there was put under ab12/layer003"):
        unpack(data, "ab12/layer004")
