"""A recorded trace, replayed: when requests came, how long they were, and which beginnings they had in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from harness.bench.loads.base import Load, Prose, named
from harness.engines.base import Demands, Prompt, Traffic
from harness.sizing import traces
from harness.types import BadInput, digest


@dataclass(frozen=True, kw_only=True)
class Trace(Load):
    """The first requests of a JSONL file. It has no texts: an id of a block stands for the same prose wherever it occurs.

    Args:
        path: the file.
        form: ``mooncake`` or ``timed_trace`` (vLLM's); lines of token ids are read in either.
        requests: of one measurement, from the first.
        time_scale: 2 replays it at half its pace.
        shrink: by which lengths and blocks are divided, for a model that takes less than the trace has.
    """

    LEAST: ClassVar[Mapping[str, float]] = {"requests": 1, "shrink": 1}
    ABOVE: ClassVar[Mapping[str, float]] = {"time_scale": 0}

    path: str | None
    form: str
    requests: int
    time_scale: float = 1.0
    shrink: int = 1

    @property
    def block(self) -> int:
        return traces.FORMS[self.form].block_tokens

    @cached_property
    def recorded(self) -> Sequence[traces.Request]:
        """Raises BadInput."""
        path = Path(str(self.path)).expanduser()
        return list(islice(traces.read(path, self.block, traces.FORMS[self.form]), self.requests))

    def problems(self, max_tokens: int | None) -> list[str]:
        if self.path is None:
            return ["load.path must be a trace, a JSONL file, got null"]
        if self.form not in traces.FORMS:
            return [f"load.form must be one of {', '.join(traces.FORMS)}, got {self.form!r}"]
        if self.shrink >= self.block:
            return [f"load.shrink must be below a block's {self.block} tokens, got {self.shrink}"]
        try:
            found = [] if len(self.recorded) == self.requests else [self._too_few()]
        except BadInput as error:
            return [f"load.path: {problem}" for problem in error.problems]
        return found or super().problems(max_tokens)

    def _too_few(self) -> str:
        return f"load.requests must be at most the {len(self.recorded)} of {self.path}, got {self.requests}"

    def spec(self) -> dict[str, Any]:
        """With what is in the trace in the place of where it is."""
        recorded = [(one.timestamp_s, one.input_tokens, one.output_tokens, list(one.blocks)) for one in self.recorded]
        return {key: value for key, value in super().spec().items() if key != "path"} | {"trace": digest(recorded)}

    def describe(self) -> str:
        asked = sum(map(self._asked, self.recorded)) / self.requests
        pace = f", {self.time_scale:g} times as slow" if self.time_scale != 1 else ""
        size = f", lengths over {self.shrink}" if self.shrink != 1 else ""
        return f"{self.name}: {self.requests} requests of {asked:.0f} prompt tokens in the mean{size}{pace}"

    def demands(self) -> Demands:
        blocks = [block for one in self.recorded for block in one.blocks]
        returns = len(set(blocks)) < len(blocks)
        return Demands(arrives=True, mixed=True, returns=returns, output_tokens=min(map(self._given, self.recorded)))

    @property
    def num_requests(self) -> int:
        return self.requests

    @property
    def num_gaps(self) -> int:
        return sum(self._given(one) - 1 for one in self.recorded)

    @property
    def shortest_tokens(self) -> int:
        return min(map(self._asked, self.recorded))

    @property
    def longest_tokens(self) -> int:
        return max(self._asked(one) + self._given(one) for one in self.recorded)

    def _asked(self, one: traces.Request) -> int:
        return max(2, one.input_tokens // self.shrink)

    def _given(self, one: traces.Request) -> int:
        return max(1, one.output_tokens // self.shrink)

    @property
    def paced_s(self) -> float:
        return self.time_scale * (self.recorded[-1].timestamp_s - self.recorded[0].timestamp_s)

    def traffic(self, prose: Prose, seed: int, index: int) -> Traffic:
        start_s = self.recorded[0].timestamp_s
        prompts = []
        for at, one in enumerate(self.recorded):
            name = named(seed, index, at)
            due_s = self.time_scale * (one.timestamp_s - start_s)
            prompts.append(Prompt(name, self._text(prose, seed, index, one, name), self._given(one), due_s))
        return Traffic(prompts, None)

    def _text(self, prose: Prose, seed: int, index: int, one: traces.Request, name: str) -> list[int]:
        """Its blocks, and what follows the last full one."""
        each, tokens = self.block // self.shrink, self._asked(one)
        text: list[int] = []
        for block in one.blocks:
            text += prose.cut(named(seed, index, "block", block), each)
        return text[: tokens - 1] + prose.cut(name, max(1, tokens - len(text)))
