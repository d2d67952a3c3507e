"""How much room each paging layer leaves unused, and how many requests a pool admits under it.

Two sets of lengths: one made up, lognormal prompts and answers with the means that are quoted for ShareGPT (161 and 338 tokens;
quoted from memory, and the spread is an assumption; the record states both), and with --trace those of a recorded trace (a
line a request, with input_length and output_length, as Mooncake's have them). Every request is a real store: its prompt packed,
its answer appended, and what it then weighs is counted. Heads are tiny, since what is measured is a ratio that does not depend
on their size. A static room is that of the longest request of the set.

Beside it transformers' own paged cache (continuous batching), in whose allocator the same requests are put, prompt and answer,
until it has no place for the next. No model runs.

    python benchmarks/paging.py [--trace FILE] > benchmarks/results/paging.json
    python benchmarks/paging.py --table benchmarks/results/paging.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.runs import markdown, percent, record
from harness.provenance import versions
from strategies.base import KVShape, Paging
from strategies.columns import exact_store
from strategies.paging.blocks import BlockPool, NoBlocks
from strategies.paging.dynamic import Dynamic
from strategies.paging.paged import Paged
from strategies.paging.static import Static

SHAPE = KVShape(layers=1, kv_heads=1, query_heads=1, head_dim=8, element_bytes=2)
MADE = {"requests": 2000, "prompt_mean": 161, "answer_mean": 338, "sigma": 1.0, "longest": 2048, "seed": 0}
BLOCKS = (8, 16, 32, 128)
PAGES = (16, 32, 256)  # of transformers; 256 is its default
POOL = 32  # the pool has room for so many requests of the longest length


class Request(NamedTuple):
    """Tokens."""

    prompt: int
    answer: int


def made() -> list[Request]:
    """Lognormal lengths of the means and the sigma of ``MADE``; answers are cut where a request would be too long."""
    chance, longest = np.random.default_rng(MADE["seed"]), MADE["longest"]

    def draw(mean: float) -> list[int]:
        sigma = MADE["sigma"]
        drawn = chance.lognormal(np.log(mean) - sigma**2 / 2, sigma, int(MADE["requests"]))
        return [int(length) for length in drawn.round().clip(1, longest - 1)]

    both = zip(draw(MADE["prompt_mean"]), draw(MADE["answer_mean"]), strict=True)
    return [Request(prompt, min(answer, int(longest) - prompt)) for prompt, answer in both]


def traced(path: Path) -> list[Request]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Request(line["input_length"], line["output_length"]) for line in lines]


def weighs(paging: Paging, request: Request) -> int:
    """Bytes of a real store that holds a request's prompt and then its answer."""
    tokens = torch.zeros(1, SHAPE.kv_heads, sum(request), SHAPE.head_dim, dtype=torch.float16)
    format = paging.holding(None)
    prompt, answer = tokens[:, :, : request.prompt], tokens[:, :, request.prompt :]
    store = (format.store if format else exact_store)(prompt, prompt)
    store.append(answer, answer)
    return store.nbytes()


def placed(pool: BlockPool, requests: Sequence[Request]) -> int:
    """How many of ``requests``, in their order, find blocks for all their tokens beside each other."""
    for count, (prompt, answer) in enumerate(requests):
        try:
            table = pool.start(range(prompt), salt=str(count))  # salted, so that nothing is shared
            pool.append(table, range(answer))
        except NoBlocks:
            return count
    return len(requests)


def measured(requests: Sequence[Request]) -> dict[str, Any]:
    """Of one set of lengths: what each layer wastes, and admits into the pool."""
    longest = max(map(sum, requests))
    held = sum(SHAPE.exact_bytes(sum(request)) for request in requests)
    mean = sum(map(sum, requests)) / len(requests)
    pool_bytes = POOL * SHAPE.exact_bytes(longest)
    rows = {}
    for paging in (Static(tokens=longest), *(Paged(block=block) for block in reversed(BLOCKS)), Dynamic()):
        weights = [weighs(paging, request) for request in requests]
        admitted = sum(total <= pool_bytes for total in accumulate(weights))
        if isinstance(paging, Paged):
            pad = (paging.block - 1) / 2
            name, predicted = f"paged {paging.block}", pad / (mean + pad)
            by_pool = placed(BlockPool(POOL * longest // paging.block, paging.block), requests)
            assert abs(by_pool - admitted) <= 1, (by_pool, admitted)  # the pool's last block may be cut off
            admitted = by_pool
        else:
            name, predicted = paging.name, 1 - mean / paging.room(longest) if isinstance(paging, Static) else 0.0
        rows[name] = {
            "waste": round(1 - held / sum(weights), 5),
            "predicted_waste": round(predicted, 5),
            "admitted": admitted,
        }
    rows |= {f"transformers {page}": found for page, found in transformers_admits(requests, POOL * longest)}
    return {
        "requests": len(requests),
        "mean_tokens": round(mean, 1),
        "longest_tokens": longest,
        "pool_tokens": POOL * longest,
        "rows": rows,
    }


def transformers_admits(requests: Sequence[Request], pool_tokens: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """By page size: what transformers' paged cache admits, and leaves unused of the places it has given away."""
    from transformers import LlamaConfig
    from transformers.generation import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.requests import RequestState

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    config = LlamaConfig(**sizes, vocab_size=258, intermediate_size=32)
    config._attn_implementation = "sdpa"
    for page in PAGES:
        options = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=pool_tokens // page,
            max_batch_tokens=512,
            max_blocks_per_request=0,
            max_memory_percent=0.9,
            use_async_batching=False,
        )
        cache = PagedAttentionCache(config, options, "cpu", DistributedHelper(None, None), torch.float16)
        held = admitted = 0
        for number, request in enumerate(requests):
            state = RequestState(str(number), [0] * request.prompt)
            before = cache.compute_free_capacity()
            if not cache.can_store_request_tokens(state, request.prompt):
                break
            state.position_offset = request.prompt
            if not cache.can_store_request_tokens(state, request.answer):
                cache.free_blocks(state.request_id)
                assert cache.compute_free_capacity() == before
                break
            held, admitted = held + sum(request), admitted + 1
        given = (1 - cache.compute_free_capacity()) * cache.num_blocks * page
        yield page, {"waste": round(1 - held / given, 5), "admitted": admitted}


def table(found: Mapping[str, Any]) -> str:
    """The Markdown table of a record."""
    sets = found["lengths"]
    head = ["room", *(f"{name}: {column}" for name in sets for column in ("unused", "by formula", "requests admitted"))]
    body = []
    for room in next(iter(sets.values()))["rows"]:
        cells = []
        for each in sets.values():
            row = each["rows"][room]
            predicted = percent(row["predicted_waste"], 2) if "predicted_waste" in row else ""
            cells += [percent(row["waste"], 2), predicted, f"{row['admitted']:,}"]
        body.append([room, *cells])
    return markdown(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=None, metavar="JSONL", help="also the lengths of this trace")
    parser.add_argument("--table", default=None, metavar="JSON", help="print the table of a record and do nothing else")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    lengths = {"made up": {"distribution": MADE, **measured(made())}}
    if options.trace:
        source = {"file": options.trace.name, "sha256": sha256(options.trace.read_bytes()).hexdigest()}
        lengths["trace"] = {**source, **measured(traced(options.trace))}
    vllm = versions()["vllm"]
    facts = {"pool_longest_requests": POOL, "vllm": f"{vllm}, not measured" if vllm else "not installed"}
    print(json.dumps(record("paging", model="none: only lengths matter", **facts, lengths=lengths), indent=1))


if __name__ == "__main__":
    main()
