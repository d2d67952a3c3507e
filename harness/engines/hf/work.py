"""One sample after its prefill: what is known of it while its rows decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.engines.base import Compress, Prefill, Row
from harness.engines.hf.prefill import Prefilled
from harness.engines.hf.rows import Reference
from harness.engines.hf.tokenizer import PromptTokens
from harness.types import Sample
from strategies.base import Prefix
from strategies.stack import Stack

# Where a prompt comes from: computed as a whole, or put together by a prefix layer for policies that vote with so many queries,
# which are computed. What a strategy reuses must not depend on those beside it.
Source = tuple[Prefix, int] | None


def source_of(stack: Stack) -> Source:
    if stack.prefix is None:
        return None
    return stack.prefix, max((policy.query_window for policy in stack.policies), default=0)


@dataclass(frozen=True)
class Work:
    """One sample after its prefill. ``batches`` are those of its rows that could be prefilled, the baseline's first."""

    sample: Sample
    batches: Sequence[Sequence[Row]]
    tokens: PromptTokens
    prompts: Mapping[Source, Prefilled]
    compress: Compress
    prefill: Prefill
    stored: bool  # whether an earlier process has stored what goes to a tier
    seed: int
    most: int  # tokens that a row may say
    reference: Reference
    began: float  # perf_counter, before the prefill

    @property
    def prompt(self) -> Prefilled:
        """Any of the prompts, where only what they have in common matters."""
        return next(iter(self.prompts.values()))

    @property
    def prompt_ids(self) -> list[int]:
        """What is in the cache when it is compressed."""
        return (self.tokens.context + self.tokens.rest)[: self.prompt.tokens]

    @property
    def question(self) -> list[int]:
        """What the exact prefill has not seen and every row still has to read."""
        return (self.tokens.context + self.tokens.rest)[self.prompt.tokens :]
