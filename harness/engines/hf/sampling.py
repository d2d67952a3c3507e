"""Which token follows: the likeliest, or one drawn by Gumbel noise that every row of a sample shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from harness.types import Sample, digest


@dataclass(frozen=True)
class Sampler:
    """Draws tokens of softmax(logits / temperature) as argmax(logits / temperature + g), g standard Gumbel (Gumbel 1954;
    Maddison et al. 2014, arXiv 1411.0030).

    The noise of a step depends on ``seed``, ``sample`` and the step alone: common random numbers, so two rows with the same
    logits say the same, and a row's answer does not depend on the rows beside it.
    """

    temperature: float  # 0: greedy
    seed: int
    sample: str  # its id

    @classmethod
    def of(cls, sample: Sample, seed: int) -> Self:
        return cls(sample.temperature, seed, sample.id)

    def draw(self, logits: Tensor, step: int) -> Tensor:
        """The next token ``[B]`` of every row, from its logits ``[B, V]``."""
        if not self.temperature:
            return logits.argmax(dim=-1)
        noise = self.gumbel(logits.shape[-1], step).to(logits.device)
        return (logits.double() / self.temperature + noise).argmax(dim=-1)

    def gumbel(self, size: int, step: int) -> Tensor:
        """The noise ``[V]`` of a step, made on the CPU so that every device draws alike."""
        chance = torch.Generator().manual_seed(int(digest([self.seed, self.sample, step]), 16) % 2**63)
        return -torch.empty(size, dtype=torch.float64).exponential_(generator=chance).log()
