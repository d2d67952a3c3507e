"""vLLM itself on a list of prompts, one after the other: ``python vllm_replay.py MODEL BLOCK PLACES < prompts > found``.

In goes a JSON line for each request, (token ids, tokens to answer with), and out come its cached tokens and the answer's ids.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def main(model: str, block: int, places: int) -> None:
    told, sys.stdout = sys.stdout, sys.stderr  # vLLM prints
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model,
        dtype="float32",
        block_size=block,
        num_gpu_blocks_override=places + 1,  # one is always empty
        max_model_len=block * places,
        enable_prefix_caching=True,
        enforce_eager=True,
        disable_log_stats=True,
        seed=0,
    )
    for prompt, answer in map(json.loads, sys.stdin):
        options = SamplingParams(temperature=0.0, max_tokens=answer, min_tokens=answer, ignore_eos=True)
        (output,) = llm.generate(TokensPrompt(prompt_token_ids=prompt), options, use_tqdm=False)
        print(json.dumps([output.num_cached_tokens, list(output.outputs[0].token_ids)]), file=told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
