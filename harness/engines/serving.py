"""What engines that serve have in common: they pack tokens as they come, evict nothing, and tell the likeliest tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from harness.engines import thinned
from harness.engines.base import Ask, Compress, Engine, Prefill, Row, Start, Support
from harness.types import Memory, Sample
from strategies.base import KVShape
from strategies.stack import Stack

Asked = tuple[Row, Sample]
"""One row, and the sample that it is to answer."""


class ServingEngine(Engine):
    """An engine that is, or stands for, what a deployment runs."""

    prefill: ClassVar[Prefill] = "chunked"

    def controls(self, stack: Stack) -> Support:
        if stack.evict is None or len(stack.layers()) > 1:
            return super().controls(stack)
        return Support(True, thinned.HOW)

    def follows(self) -> Support:
        return Support(
            False, "it tells the likeliest tokens only, and distances between whole distributions are measured"
        )

    def prefills(self, stack: Stack, prefill: Prefill, shape: KVShape) -> Support:
        if prefill == "exact" and stack.packs:
            return Support(False, "it packs tokens as they come, and later ones read them packed: prefill=chunked")
        return Support(True, "in chunks, through its cache")

    def compresses(self, compress: Compress, shape: KVShape) -> Support:
        return Support(
            compress == "prompt", "it has no layer to which it matters what of a prompt is known: compress=prompt"
        )


def parted(asks: Sequence[Ask], start: Start) -> tuple[list[Asked], list[Asked]]:
    """Rows that are asked all at once, and those that are asked one by one, after them.

    One by one go the later batches of a sample; and all, where a row is to meet a state of the cache or of a tier that another
    would disturb.
    """
    offloads = any(row.stack.offload for ask in asks for rows in ask.batches for row in rows)
    first = start == "cold" and not offloads
    together = [(row, ask.sample) for ask in asks for row in ask.batches[0]] if first else []
    return together, [(row, ask.sample) for ask in asks for rows in ask.batches[first:] for row in rows]


def memory(
    held: Stack, shape: KVShape, whole: int, given: int, *, stored: int, stored_end: int, peak_bytes: int
) -> Memory:
    """Memory of one sample.

    Args:
        held: The layers that decide how many bytes a stored token takes.
        whole: Tokens of the prompt.
        given: Tokens that were sent of it.
        stored: Bytes held after the prompt.
        stored_end: Bytes held after the answer.
        peak_bytes: The allocator's or the process's; 0 where it is another machine's.
    """
    formula = held.formula_bytes(given, shape)
    wider = held.formula_bytes(given, shape.at(2 * shape.element_bytes))
    kept = held.kept(given, shape)
    return Memory(
        prompt_tokens=whole,
        stored_bytes=stored,
        stored_bytes_end=stored_end,
        formula_bytes=formula,
        working_bytes=0,
        peak_bytes=peak_bytes,
        kept_fraction=sum(map(sum, kept)) / sum(map(len, kept)) / whole if held.evict else given / whole,
        unpacked_elements=(wider - formula) // shape.element_bytes,
        full_elements=Stack("full").formula_bytes(whole, shape) // shape.element_bytes,
    )
