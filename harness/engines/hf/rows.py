"""The rows of one sample while they decode: each says what it likes, or all are fed what the baseline says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.engines.base import Row
from harness.engines.hf.row import Phase, RowState
from harness.engines.hf.sampling import Sampler
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Sample


class Rows(ABC):
    """Rows that stand at one position, each with its own state.

    Args:
        states: of each row.
        position: of the next token to be fed.
    """

    def __init__(self, states: list[RowState], position: int) -> None:
        self.states = states
        self.position = position
        self.here = list(range(len(states)))  # which state each of the rows that are in the batch belongs to
        self.step = 0

    @property
    def running(self) -> list[bool]:
        """By row in the batch, whether it goes on."""
        return [self.states[index].running for index in self.here]

    @abstractmethod
    def draw(self, logits: Tensor) -> Tensor:
        """The next token ``[R]`` of each row in the batch, from its logits ``[R, V]``."""

    @abstractmethod
    def take(self, tokens: list[int], finite: list[bool]) -> list[int]:
        """Take in what was drawn; returns what to feed. ``finite`` tells of each row's logits."""

    def staying(self) -> list[int]:
        """Places of the rows that stay in the batch: a row that has finished stays until half of those there have."""
        places = [place for place, running in enumerate(self.running) if running]
        return places if len(places) <= len(self.here) // 2 else list(range(len(self.here)))

    def fidelity(self) -> Sequence[dict[str, float] | None]:
        """By row what was measured on the way."""
        return [None] * len(self.states)


class FreeRows(Rows):
    """Rows that go their own ways until each stops, has used its budgets or has said ``most`` tokens.

    What a row is told after it has thought is fed to it one token a step, like its own.
    """

    def __init__(
        self, count: int, position: int, sample: Sample, tokenizer: PromptTokenizer, sampler: Sampler, most: int
    ) -> None:
        phase = Phase.THINKING if sample.think else Phase.ANSWERING
        super().__init__([RowState(phase) for _ in range(count)], position)
        self.sample, self.tokenizer, self.sampler, self.most = sample, tokenizer, sampler, most

    def draw(self, logits: Tensor) -> Tensor:
        return self.sampler.draw(logits, self.step)

    def take(self, tokens: list[int], finite: list[bool]) -> list[int]:
        self.step += 1
        for place, index in enumerate(self.here):
            state = self.states[index]
            if state.running:
                tokens[place] = state.go_on(tokens[place], finite[place], self.sample, self.tokenizer)
            if self.step == self.most:
                state.finish = state.finish or "length"
        return tokens


@dataclass
class Reference:
    """The baseline's own path and its log-probabilities, which rows that follow are measured against."""

    leader: Row
    tokens: list[int] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)  # [V] before each token; of decode steps only

    def forget(self) -> None:
        """The baseline broke down: where it went is not followed."""
        self.tokens.clear()
        self.log_probs.clear()


class FollowingRows(Rows):
    """Rows that are fed the baseline's own tokens, and how far, step by step, their predictions are from its.

    With ``lead`` row 0 is the baseline and fills ``reference``; other batches follow it, and cannot if it is empty. With
    ``exact_start`` the first logits came from the exact prefill, which no strategy has touched: they are not measured.
    """

    def __init__(
        self,
        count: int,
        position: int,
        sample: Sample,
        tokenizer: PromptTokenizer,
        sampler: Sampler,
        reference: Reference,
        *,
        lead: bool,
        exact_start: bool,
    ) -> None:
        if not lead and not reference.tokens:
            raise RuntimeError("the baseline failed on this sample, so there is nothing to follow")
        super().__init__([RowState() for _ in range(count)], position)
        self.tokenizer, self.sampler, self.reference = tokenizer, sampler, reference
        self.lead, self.exact_start = lead, exact_start
        self.most = sample.max_new_tokens if lead else len(reference.tokens)
        self._kl: list[Tensor] = []
        self._agree: list[Tensor] = []
        self._nll: list[Tensor] = []

    def draw(self, logits: Tensor) -> Tensor:
        log_probs = logits.float().log_softmax(dim=-1)
        if self.lead:
            token = self.sampler.draw(log_probs[:1], self.step)
            self.reference.log_probs.append(log_probs[0].clone())
        else:
            token = torch.tensor([self.reference.tokens[self.step]], device=logits.device)
        if self.step or not self.exact_start:
            expected = self.reference.log_probs[self.step]
            terms = expected.exp() * (expected - log_probs)
            self._kl.append(terms.nan_to_num(nan=0.0).sum(dim=-1).clamp_min(0) + log_probs.sum(dim=-1) * 0)
            self._agree.append((log_probs.argmax(dim=-1) == expected.argmax()).float())
            self._nll.append(expected[token] - log_probs[:, token[0]])
        return token.expand(len(logits))

    def take(self, tokens: list[int], finite: list[bool]) -> list[int]:
        if self.lead:
            self.reference.tokens.append(tokens[0])
        self.step += 1
        if self.step == self.most or tokens[0] in self.tokenizer.stop_ids:
            said = self.reference.tokens
            for state in self.states:
                state.tokens, state.text, state.finish = list(said), self.tokenizer.decode(said), "followed"
        return tokens

    def fidelity(self) -> Sequence[dict[str, float] | None]:
        """kl_mean, kl_p99, kl_max (nats), top1_agreement and nll_delta (nats a token, candidate minus baseline, on the
        baseline's tokens), over the measured steps. A row of which nothing can be told has failed."""
        found = []
        for row, state in enumerate(self.states):
            series = ([steps[row] for steps in kind] for kind in (self._kl, self._agree, self._nll))
            found.append(_fidelity(*series))
            if found[-1] is None:
                state.error = (
                    "no step could be measured: the baseline ended its answer at once, or logits are not finite"
                )
        return found


def _fidelity(kl: Sequence[Tensor], agree: Sequence[Tensor], nll: Sequence[Tensor]) -> dict[str, float] | None:
    if not kl:
        return None
    steps = torch.stack(list(kl)).double()
    if not bool(torch.isfinite(steps).all()):
        return None
    return {
        "kl_mean": float(steps.mean()),
        "kl_p99": float(steps.quantile(0.99)),
        "kl_max": float(steps.max()),
        "top1_agreement": float(torch.stack(list(agree)).double().mean()),
        "nll_delta": float(torch.stack(list(nll)).double().mean()),
        "steps": float(len(steps)),
    }
