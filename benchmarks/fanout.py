"""What judging 16 strategies costs against running the full cache alone, on the reference engine.

Prints one JSON object. ``ratio`` is the wall time of one prefill and one joint decode of 16 strategies and the baseline
(17 rows), over the wall time of the baseline alone: the median of paired repeats, alternating, each on another prompt.
``one_by_one`` is the same 16 strategies and the baseline run one after another, each with its own prefill.

    python benchmarks/fanout.py [--tokens 1024] [--long 4096] [--answer 16] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the workers of `kvgate run` do

import torch

from benchmarks.runs import MODEL, record
from harness.engines.base import Ask, Row
from harness.engines.hf.engine import HFEngine
from harness.engines.hf.session import HFSession
from harness.types import Sample
from strategies.evict.keydiff import KeyDiff
from strategies.evict.random import Random
from strategies.evict.snapkv import SnapKV
from strategies.evict.window import Window
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.stack import Stack
from tasks.corpus import prose

FULL = Stack("full")
STACKS = [
    Stack("fp8", quant=FP8()),
    Stack("int8", quant=INT8()),
    Stack("kivi4", quant=KIVI(bits=4)),
    Stack("kivi2", quant=KIVI(bits=2)),
    *(Stack(f"snapkv@{keep}", evict=SnapKV(keep=keep)) for keep in (0.5, 0.25)),
    *(Stack(f"keydiff@{keep}", evict=KeyDiff(keep=keep)) for keep in (0.5, 0.25)),
    *(Stack(f"window@{keep}", evict=Window(keep=keep)) for keep in (0.5, 0.25)),
    *(Stack(f"random@{keep}", evict=Random(keep=keep)) for keep in (0.5, 0.25)),
    Stack("snapkv@0.5+fp8", evict=SnapKV(keep=0.5), quant=FP8()),
    Stack("snapkv@0.5+kivi2", evict=SnapKV(keep=0.5), quant=KIVI(bits=2)),
    Stack("keydiff@0.25+int8", evict=KeyDiff(keep=0.25), quant=INT8()),
    Stack("window@0.5+kivi4", evict=Window(keep=0.5), quant=KIVI(bits=4)),
]


def sample(session: HFSession, tokens: int, answer: int, index: int) -> Sample:
    """A prompt of ``tokens`` tokens of prose, another stretch for every index."""
    text = " ".join(prose())
    ids = session.tokenizer.encode(text[index * 20_000 % 200_000 :][: 8 * tokens])
    empty = session.tokenizer.prompt_tokens(Sample(f"f{index}", "x", "Go on.", (), answer))
    return Sample(f"f{index}", session.tokenizer.decode(ids[: tokens - empty + 1]), "Go on.", (), answer)


def seconds(session: HFSession, one: Sample, stacks: Sequence[Stack]) -> float:
    """Wall time of answering ``one`` with these stacks decoded together; every row says all its tokens."""
    start = time.perf_counter()
    answers = list(session.run([Ask(one, [[Row(s.name, s) for s in stacks]])], compress="prompt", seed=0))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    assert all(a.response is not None and len(a.response.token_ids) == one.max_new_tokens for a in answers), answers
    return took


def measure(session: HFSession, tokens: int, answer: int, repeats: int) -> dict[str, float | int]:
    """Paired times of the baseline alone and of all together."""
    alone, joint = [], []
    for index in range(repeats + 1):
        one = sample(session, tokens, answer, index)
        first, second = seconds(session, one, [FULL]), seconds(session, one, [FULL, *STACKS])
        if index:  # the first pair warms up
            alone.append(first)
            joint.append(second)
    ratios = [b / a for a, b in zip(alone, joint, strict=True)]
    return {
        "prompt_tokens": session.tokenizer.prompt_tokens(one),
        "repeats": repeats,
        "full_alone_s": round(statistics.median(alone), 3),
        "joint_s": round(statistics.median(joint), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024, help="prompt length")
    parser.add_argument("--long", type=int, default=4096, help="a second prompt length; 0 leaves it out")
    parser.add_argument("--answer", type=int, default=16, help="tokens every row says")
    parser.add_argument("--repeats", type=int, default=5, help="paired repeats")
    parser.add_argument("--model", default=None, help="a model folder instead of the default model")
    options = parser.parse_args()
    with HFEngine().open({**MODEL, "path": options.model}, Stack("full")) as session:
        session.tokenizer.stop_ids = frozenset()  # every row says all its tokens
        result = measure(session, options.tokens, options.answer, options.repeats)
        one = sample(session, options.tokens, options.answer, 1)
        singles = sum(seconds(session, one, [stack]) for stack in [FULL, *STACKS])
        alone = seconds(session, one, [FULL])
        facts = {
            "dtype": str(session.model.dtype).removeprefix("torch."),
            "strategies": len(STACKS),
            "answer_tokens": options.answer,
            **result,
            "one_by_one": {"s": round(singles, 3), "ratio": round(singles / alone, 2)},
        }
        if options.long:
            facts["long"] = measure(session, options.long, options.answer, max(2, options.repeats // 2))
    print(json.dumps(record("fanout", **facts)))


if __name__ == "__main__":
    main()
