"""Decoding of all rows of a joint cache, free or following the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.base import Row
from harness.engines.hf.attention import DECODE, attention
from harness.engines.hf.joint import JointCache
from harness.engines.hf.row import Phase, RowState
from harness.engines.hf.sampling import Sampler
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Sample


@dataclass
class Reference:
    """The baseline's own path and its log-probabilities, which rows that follow are measured against."""

    leader: Row
    tokens: list[int] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)  # [V] before each token; of decode steps only


@torch.inference_mode()
def feed(model: PreTrainedModel, cache: JointCache, tokens: Tensor, position: int) -> Tensor:
    """Append ``[B, m]`` tokens whose first is the ``position``-th of the text; logits ``[B, V]`` after the last."""
    ahead = torch.arange(position, position + tokens.shape[1], device=tokens.device)
    positions = ahead - cache.offsets[:, None]
    out = model(tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1, kvgate=cache)
    cache.settle()
    return out.logits[:, -1]


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    cache: JointCache,
    logits: Tensor,
    position: int,
    sample: Sample,
    tokenizer: PromptTokenizer,
    sampler: Sampler,
    most: int,
) -> list[RowState]:
    """Decode every row from ``logits`` ``[B, V]`` until it stops, has used its budgets or has said ``most`` tokens.

    All rows stand at one position, so what a row is told after it has thought is fed to it one token a step, like its own.
    A finished row stays in the batch until half of the rows have finished; then all finished ones leave it together.
    """
    phase = Phase.THINKING if sample.think else Phase.ANSWERING
    states = [RowState(phase) for _ in range(len(logits))]
    batch = list(range(len(states)))  # which state each batch row belongs to
    with attention(model, DECODE):
        for step in range(most):
            finite = logits.isfinite().all(dim=-1).tolist()
            tokens = sampler.draw(logits, step).tolist()
            for place, index in enumerate(batch):
                if states[index].running:
                    tokens[place] = states[index].go_on(tokens[place], finite[place], sample, tokenizer)
                if step + 1 == most:
                    states[index].finish = states[index].finish or "length"
            _note(cache, [states[index] for index in batch])
            cache.stop_watching([states[index].running for index in batch])
            running = [place for place, index in enumerate(batch) if states[index].running]
            if not running:
                break
            if len(running) <= len(batch) // 2:
                cache.select(running, len(batch))
                batch, tokens = [batch[place] for place in running], [tokens[place] for place in running]
            logits = feed(model, cache, torch.tensor(tokens, device=logits.device)[:, None], position)
            position += 1
    return states


@torch.inference_mode()
def follow(
    model: PreTrainedModel,
    cache: JointCache,
    logits: Tensor,
    position: int,
    sample: Sample,
    tokenizer: PromptTokenizer,
    sampler: Sampler,
    reference: Reference,
    *,
    lead: bool,
    exact_start: bool,
) -> list[tuple[RowState, dict[str, float] | None]]:
    """Feed every row the baseline's own tokens and measure, step by step, how far its predictions are from it.

    With ``lead`` row 0 is the baseline and fills ``reference``; other batches follow it, and cannot if it is empty. With
    ``exact_start`` the first logits came from the exact prefill, which no strategy has touched: they are not measured.

    Returns:
        By row its state and kl_mean, kl_p99, kl_max (nats), top1_agreement and nll_delta (nats a token, candidate minus
        baseline, on the baseline's tokens), over the measured steps.
    """
    if not lead and not reference.tokens:
        raise RuntimeError("the baseline failed on this sample, so there is nothing to follow")
    kl: list[Tensor] = []
    agree: list[Tensor] = []
    nll: list[Tensor] = []
    step = 0
    with attention(model, DECODE):
        while True:
            log_probs = logits.float().log_softmax(dim=-1)
            if lead:
                reference.tokens.append(int(sampler.draw(log_probs[:1], step)))
                reference.log_probs.append(log_probs[0].clone())
            token, expected = reference.tokens[step], reference.log_probs[step]
            if step or not exact_start:
                terms = expected.exp() * (expected - log_probs)
                kl.append(terms.nan_to_num(nan=0.0).sum(dim=-1).clamp_min(0) + log_probs.sum(dim=-1) * 0)
                agree.append((log_probs.argmax(dim=-1) == expected.argmax()).float())
                nll.append(expected[token] - log_probs[:, token])
            step += 1
            done = step == len(reference.tokens) if not lead else step == sample.max_new_tokens
            if done or token in tokenizer.stop_ids:
                break
            logits = feed(model, cache, torch.full((len(logits), 1), token, device=logits.device), position)
            position += 1
    text = tokenizer.decode(reference.tokens)
    states = [RowState(tokens=list(reference.tokens), text=text, finish="followed") for _ in logits]
    _note(cache, states)
    results = []
    for row, state in enumerate(states):
        measures = _fidelity([series[row] for series in kl], [s[row] for s in agree], [s[row] for s in nll])
        if measures is None:
            state.error = "no step could be measured: the baseline ended its answer at once, or logits are not finite"
        results.append((state, measures or {}))
    return results


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


def _note(cache: JointCache, states: Sequence[RowState]) -> None:
    """Write down what the store of each row that has just finished weighs; rows that finished before are left as noted."""
    finished = [row for row, state in enumerate(states) if not state.running and state.stored_bytes_end is None]
    if not finished:
        return
    for row in finished:
        cache.bring_back(row)
    stored, working, facts = (f(len(states)) for f in (cache.stored_bytes, cache.working_bytes, cache.facts))
    for row in finished:
        states[row].stored_bytes_end, states[row].working_bytes = stored[row], working[row]
        states[row].facts, states[row].seen = facts[row], cache.get_seq_length()
