"""Traces of requests, as simulators read them: who came when, how long, and which beginnings were alike.

Two kinds of lines, in JSONL. *Hashes*: lengths, and an id for each block of the prompt, equal where everything up to there is
equal; Mooncake's traces (kvcache-ai/Mooncake, FAST25-release/traces) and those that vLLM replays as ``timed_trace`` are such,
and differ in the size of a block and the unit of time. *Tokens*: the prompt's token ids, and the answer's where they are
known.

What a trace does not tell is taken as new: an answer without tokens, and tokens of a trace's blocks that are only partly
alike.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from harness.types import BadInput
from strategies.paging.blocks import chained, root


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``blocks`` has an id for each full block, of the prompt and, where it was asked for, of what follows.

    An id stands for all tokens up to the end of its block, so that equal ids are equal prefixes.
    """

    timestamp_s: float  # it arrived; 0 for all where the trace does not tell
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int]

    def full_blocks(self, block: int) -> int:
        """Blocks that the prompt fills."""
        return self.input_tokens // block

    def reusable_blocks(self, block: int) -> int:
        """Blocks that need not be computed if all are cached: at least one token of a prompt is."""
        return min((self.input_tokens - 1) // block, len(self.blocks))

    def held_blocks(self, block: int) -> int:
        """Blocks that it takes in the end, the last of which may have room; an answer's last token is never computed."""
        return -(-(self.input_tokens + max(self.output_tokens, 1) - 1) // block)


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the lines of a trace with hashes are to be read; the unit of time holds for those with tokens too."""

    block_tokens: int
    timestamp_unit_s: float
    timestamp: str = "timestamp"
    input_length: str = "input_length"
    output_length: str = "output_length"
    hash_ids: str = "hash_ids"


FORMS = {
    "mooncake": Form(block_tokens=512, timestamp_unit_s=0.001),
    "timed_trace": Form(block_tokens=16, timestamp_unit_s=1.0),  # vLLM's defaults
}
TOKENS = ("tokens", "token_ids")
ANSWER = "output_token_ids"


def read(path: Path, block: int, form: Form = FORMS["mooncake"], answers: bool = False) -> Iterator[Request]:
    """The requests of a trace in their order, in blocks of ``block`` tokens.

    With ``answers`` the full blocks that an answer adds are in ``blocks`` too (its last token is never computed).
    Raises BadInput with every problem of the first line that has one.
    """
    if problems := _form_problems(block, form):
        raise BadInput(*problems)
    lines = _Lines(block, form, answers)
    number = None
    for number, text in _texts(path):
        try:
            request = lines.request(text)
        except BadInput as error:
            raise BadInput(*(f"{path} line {number}: {problem}" for problem in error.problems)) from error
        yield request
    if number is None:
        raise BadInput(f"trace must have a request a line, got none in {path}")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, and their numbers."""
    try:
        with path.open(encoding="utf-8") as lines:
            yield from ((number, text) for number, text in enumerate(lines, start=1) if text.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"trace must be a file of UTF-8 text that can be read, got {path}: {error}") from error


def _form_problems(block: int, form: Form) -> list[str]:
    sizes = {"block": block, "form.block_tokens": form.block_tokens}
    found = [f"{name} must be 1 token or more, got {size}" for name, size in sizes.items() if size < 1]
    if not (math.isfinite(form.timestamp_unit_s) and form.timestamp_unit_s > 0):
        found.append(f"form.timestamp_unit_s must be a number of seconds above 0, got {form.timestamp_unit_s}")
    return found


class _Lines:
    """What is known from line to line: when the last request came, and which ids are taken for what nobody knows."""

    def __init__(self, block: int, form: Form, answers: bool) -> None:
        self.block, self.form, self.answers = block, form, answers
        self._fresh = count(-1, -1)  # a trace's own are 0 or more
        self._before: float = 0  # in the trace's unit

    def request(self, text: str) -> Request:
        """Raises BadInput."""
        fields = _fields(text)
        named = next((name for name in (self.form.hash_ids, *TOKENS) if name in fields), None)
        if named is None:
            raise BadInput(
                f"must have {self.form.hash_ids} or {' or '.join(TOKENS)}, got {', '.join(fields) or 'nothing'}"
            )
        hashes = named == self.form.hash_ids
        problems = self._time_problems(fields) + (
            self._hash_problems(fields) if hashes else self._token_problems(fields, named)
        )
        if problems:
            raise BadInput(*problems)
        self._before = fields.get(self.form.timestamp, self._before)
        input_tokens = fields[self.form.input_length] if hashes else len(fields[named])
        answer = fields.get(ANSWER, ())
        output_tokens = fields.get(self.form.output_length, len(answer))
        blocks = self._rehashed(fields[named], input_tokens) if hashes else self._hashed(fields[named], answer)
        if self.answers:
            computed = input_tokens + max(output_tokens, 1) - 1
            missing = computed // self.block - len(blocks)
            blocks += [next(self._fresh) for _ in range(missing)]
        return Request(self._before * self.form.timestamp_unit_s, input_tokens, output_tokens, blocks)

    def _rehashed(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Ids of the trace's blocks as ids of ours; a block of the trace is cut in equal pieces, or several make one."""
        theirs = self.form.block_tokens
        if self.block >= theirs:
            each = self.block // theirs
            return list(ids[each - 1 :: each][: tokens // self.block])
        pieces = theirs // self.block
        return [one * pieces + piece for one in ids for piece in range(pieces)][: tokens // self.block]

    def _hashed(self, tokens: Sequence[int], answer: Sequence[int]) -> list[int]:
        """63 bits of the hashes by which the paging layer knows blocks."""
        known = [*tokens, *answer[:-1]] if self.answers else tokens
        return [int.from_bytes(chain[:8], "big") >> 1 for chain in chained(root(), known, self.block)]

    def _time_problems(self, fields: Mapping[str, Any]) -> list[str]:
        value = fields.get(self.form.timestamp, self._before)
        if isinstance(value, int | float) and not isinstance(value, bool) and self._before <= value < math.inf:
            return []
        rule = f"must be a number, and not below {self._before}, which that of the line before is"
        return [f"{self.form.timestamp} {rule}, got {value!r}"]

    def _hash_problems(self, fields: Mapping[str, Any]) -> list[str]:
        form, ids = self.form, fields[self.form.hash_ids]
        found = [*_whole(fields, form.input_length, 1), *_whole(fields, form.output_length, 0, default=0)]
        if self.block % form.block_tokens and form.block_tokens % self.block:
            rule = f"must be a multiple or a divisor of the {form.block_tokens} tokens that {form.hash_ids} stand for"
            found.append(f"block {rule}, got {self.block}")
        if not _all_whole(ids):
            found.append(f"{form.hash_ids} must be a list of whole numbers of 0 or more, got {_short(ids)}")
        elif len(set(ids)) < len(ids):
            found.append(f"{form.hash_ids} must not repeat, as an id stands for all up to its block, got {_short(ids)}")
        elif not found and len(ids) not in (full := fields[form.input_length] // form.block_tokens, full + 1):
            rule = f"must be one for each {form.block_tokens} tokens of {form.input_length} {fields[form.input_length]}"
            found.append(f"{form.hash_ids} {rule}, got {len(ids)} of them")
        return found

    def _token_problems(self, fields: Mapping[str, Any], named: str) -> list[str]:
        found = _whole(fields, self.form.output_length, 0, default=0)
        found += [
            f"{name} must be a list of token ids, whole numbers of 0 or more, got {_short(fields[name])}"
            for name in (named, ANSWER)
            if name in fields and not _all_whole(fields[name], below=2**63)
        ]
        if fields[named] == []:
            found.append(f"{named} must have a token, got []")
        if (
            not found
            and ANSWER in fields
            and fields.get(self.form.output_length, len(fields[ANSWER])) != len(fields[ANSWER])
        ):
            rule = f"must be as many as {ANSWER} has, {len(fields[ANSWER])}"
            found.append(f"{self.form.output_length} {rule}, got {fields[self.form.output_length]}")
        return found


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise BadInput(f"must be JSON, got {_short(text)}: {error}") from error
    if not isinstance(fields, dict):
        raise BadInput(f"must be a JSON object, got {_short(fields)}")
    return fields


def _whole(fields: Mapping[str, Any], name: str, least: int, default: int | None = None) -> list[str]:
    value = fields.get(name, default)
    if type(value) is int and least <= value < 2**31:
        return []
    return [f"{name} must be a whole number of {least} or more, got {value!r}"]


def _all_whole(values: Any, below: float = math.inf) -> bool:
    whole = isinstance(values, list) and all(type(one) is int for one in values)
    return whole and min(values, default=0) >= 0 and max(values, default=0) < below


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


@dataclass(frozen=True)
class Recorded:
    """A trace in a file, and how it is read."""

    path: Path
    form: str = "mooncake"  # one of ``FORMS``; lines of token ids are read in either
    block: int | None = None  # tokens of a block; None: as many as the form's ids stand for

    @property
    def block_tokens(self) -> int:
        return FORMS[self.form].block_tokens if self.block is None else self.block

    def problems(self) -> list[str]:
        """What can be told without reading it."""
        found = [] if self.path.is_file() else [f"trace must be a file of JSONL, a request a line, got {self.path}"]
        if self.form not in FORMS:
            return [*found, f"trace.form must be one of {', '.join(FORMS)}, got {self.form!r}"]
        own, block = FORMS[self.form].block_tokens, self.block_tokens
        if block < 1 or (block % own and own % block):
            found.append(f"trace.block must be a multiple or a divisor of the {own} tokens of {self.form}, got {block}")
        return found

    def requests(self, block: int | None = None) -> Iterator[Request]:
        """In blocks of ``block`` tokens, else of its own. Raises BadInput."""
        return read(self.path, self.block_tokens if block is None else block, FORMS[self.form])


def lognormal(
    requests: int,
    *,
    prompt_tokens: float,
    output_tokens: float,
    longest: int,
    rate_s: float = 10.0,
    sigma: float = 1.0,
    seed: int = 0,
) -> Iterator[Request]:
    """Requests that have nothing in common. Lengths are lognormal with these means, and cut where a request would be longer than
    ``longest``; ``rate_s`` arrive a second, in a Poisson process."""
    chance, now_s = random.Random(seed), 0.0

    def draw(mean: float, most: int) -> int:
        return min(max(round(chance.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)), 1), most)

    for _ in range(requests):
        now_s += chance.expovariate(rate_s)
        prompt = draw(prompt_tokens, longest - 1)
        yield Request(now_s, prompt, draw(output_tokens, longest - prompt), ())


def synthetic(
    requests: int,
    *,
    block: int = 512,
    prefixes: int = 1000,
    zipf: float = 1.0,
    prefix_blocks: int = 16,
    own_blocks: int = 4,
    output_tokens: int = 128,
    rate_s: float = 10.0,
    seed: int = 0,
) -> Iterator[Request]:
    """Requests that begin with one of ``prefixes`` shared texts, the k-th as popular as 1 / k^``zipf``, and end with their own.

    A shared text has 1 to ``2 * prefix_blocks - 1`` blocks, what follows 0 to ``2 * own_blocks`` and part of another, all equally
    likely; ``rate_s`` requests arrive a second, in a Poisson process.
    """
    chance = random.Random(seed)
    lengths = [chance.randrange(1, 2 * prefix_blocks) for _ in range(prefixes)]
    starts = [0, *accumulate(lengths)]
    texts = [range(start, start + length) for start, length in zip(starts, lengths, strict=False)]
    weights = list(accumulate((rank + 1) ** -zipf for rank in range(prefixes)))
    new, now_s = starts[-1], 0.0
    for _ in range(requests):
        now_s += chance.expovariate(rate_s)
        (text,) = chance.choices(texts, cum_weights=weights)
        own = chance.randrange(2 * own_blocks + 1)
        tokens = (len(text) + own) * block + chance.randrange(1, block)
        yield Request(now_s, tokens, output_tokens, (*text, *range(new, new + own)))
        new += own
