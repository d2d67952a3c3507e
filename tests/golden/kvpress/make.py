"""Writes the goldens of ``tests/strategies/test_kvpress.py``: what kvpress keeps of one prompt, and what it decides by.

kvpress pins an older transformers than kvgate uses, and importing it patches the attention functions of its whole process, so
this runs in an environment of its own:

    python3.11 -m venv /tmp/kvpress
    /tmp/kvpress/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0
    /tmp/kvpress/bin/pip install kvpress==0.5.5 transformers==5.2.0
    /tmp/kvpress/bin/python tests/golden/kvpress/make.py

Tensors in ``golden.safetensors``, with L layers, H key/value heads, Q query heads, n tokens:

    keys, values      [L, H, n, d]  as cached, keys after rotary positions
    queries           [L, Q, 64, d] of the last tokens, after rotary positions
    mean, covariance  [L, Q, d], [L, Q, d, d] of the queries before rotary positions, the first four left out
    frequencies       [d / 2]       a key at position p is turned by p * frequencies
    scores/PRESS      [L, H, n]     the press's own scores
    kept/PRESS/RATIO  [L, H, n]     1 where the press leaves the token, with RATIO of the cache removed

``golden.json`` has the versions, the model, and the options of every press.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from kvpress import (
    AdaKVPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

HERE = Path(__file__).resolve().parent
TOKENS = 151  # odd, so that every budget is rounded
QUERIES = 64
SINKS = 4
RATIOS = (0.25, 0.5, 0.75)
MODEL = {
    "vocab_size": 258,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "attention_bias": True,
}
SNAPKV = {"window_size": 32, "kernel_size": 5}
EXPECTED = {"n_future_positions": 512, "n_sink": SINKS, "use_covariance": True, "use_vnorm": True, "epsilon": 0.0}
PRESSES: dict[str, tuple[type, dict[str, Any]]] = {
    "knorm": (KnormPress, {}),
    "snapkv": (SnapKVPress, SNAPKV),
    "keydiff": (KeyDiffPress, {}),
    "streaming_llm": (StreamingLLMPress, {"n_sink": SINKS}),
    "tova": (TOVAPress, {}),
    "expected_attention": (ExpectedAttentionPress, EXPECTED),
    "expected_attention_keys": (ExpectedAttentionPress, {**EXPECTED, "use_vnorm": False}),
    "expected_attention_near": (ExpectedAttentionPress, {**EXPECTED, "n_future_positions": 16, "epsilon": 0.02}),
}
ADAKV: dict[str, dict[str, Any]] = {  # around one of the above
    "adakv_snapkv": {"press": "snapkv", "alpha_safeguard": 0.2},
    "adakv_knorm": {"press": "knorm", "alpha_safeguard": 0.5},  # no window is protected: the safeguard is needed
}


def random_model() -> LlamaForCausalLM:
    """A random llama whose attention is neither flat nor on one token, and whose queries and keys have a mean."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**MODEL, attn_implementation="sdpa")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
            elif name.endswith("bias"):
                parameter.normal_(std=0.5)
    return model


def plain(model: LlamaForCausalLM, prompt: Tensor) -> tuple[DynamicCache, dict[str, Tensor]]:
    """The whole cache, and what the goldens hold of a run without a press."""
    found: dict[str, list[Tensor]] = {name: [] for name in ("queries", "mean", "covariance")}

    def look(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        hidden = kwargs["hidden_states"]
        queries = module.q_proj(hidden).view(*hidden.shape[:2], -1, module.head_dim).transpose(1, 2)
        turned, _ = apply_rotary_pos_emb(queries, queries, *kwargs["position_embeddings"])
        found["queries"].append(turned[0, :, -QUERIES:])
        counted = queries[0, :, SINKS:].double()
        mean = counted.mean(dim=1)
        spread = counted - mean[:, None]
        found["mean"].append(mean.float())
        found["covariance"].append((spread.transpose(1, 2) @ spread / counted.shape[1]).float())

    hooks = [layer.self_attn.register_forward_hook(look, with_kwargs=True) for layer in model.model.layers]
    cache = DynamicCache()
    model(prompt, past_key_values=cache)
    for hook in hooks:
        hook.remove()
    tensors = {name: torch.stack(values) for name, values in found.items()}
    tensors["keys"] = torch.stack([layer.keys[0] for layer in cache.layers])
    tensors["values"] = torch.stack([layer.values[0] for layer in cache.layers])
    tensors["frequencies"] = model.model.rotary_emb.inv_freq.float()
    return cache, tensors


def positions(left: Tensor, whole: Tensor) -> Tensor:
    """Which keys ``[n, d]`` of ``whole`` are the ones ``left``, ``[n]`` of 0 and 1."""
    same = (left[:, None] == whole[None]).all(dim=-1)
    assert (same.sum(dim=1) == 1).all() and (same.sum(dim=0) <= 1).all(), "a key left is not one of the originals"
    return same.any(dim=0).to(torch.uint8)


def pressed(model: LlamaForCausalLM, prompt: Tensor, press: Any, whole: DynamicCache) -> Tensor:
    """What the cache holds after ``press``, ``[L, H, n]`` of 0 and 1."""
    cache = DynamicCache()
    with press(model):
        model(prompt, past_key_values=cache)
    kept = []
    for at, layer in enumerate(model.model.layers):
        before, after = whole.layers[at].keys[0], cache.layers[at].keys[0]
        heads = torch.stack([positions(*pair) for pair in zip(after, before, strict=True)])
        if isinstance(press, AdaKVPress):  # masks at attention instead of shortening
            assert heads.all()
            _, head, token = layer.self_attn.masked_key_indices
            heads[head, token] = 0
        kept.append(heads)
    return torch.stack(kept)


def scored(model: LlamaForCausalLM, prompt: Tensor, press: Any) -> Tensor:
    """The scores of ``press``, ``[L, H, n]``."""
    found: list[Tensor] = []
    score = press.score

    def noted(*args: Any) -> Tensor:
        scores = score(*args)
        found.append(scores[0].clone())
        return scores

    press.score = noted
    with press(model):
        model(prompt, past_key_values=DynamicCache())
    return torch.stack(found)


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    model = random_model()
    prompt = torch.randint(2, MODEL["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))
    whole, tensors = plain(model, prompt)
    for name, (kind, options) in PRESSES.items():
        for ratio in RATIOS:
            tensors[f"kept/{name}/{ratio}"] = pressed(model, prompt, kind(ratio, **options), whole)
        tensors[f"scores/{name}"] = scored(model, prompt, kind(0.5, **options)).float()
    for name, spread in ADAKV.items():
        kind, options = PRESSES[spread["press"]]
        for ratio in RATIOS:
            press = AdaKVPress(kind(ratio, **options), spread["alpha_safeguard"])
            tensors[f"kept/{name}/{ratio}"] = pressed(model, prompt, press, whole)
    save_file({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}, HERE / "golden.safetensors")
    facts = {
        "versions": {package: version(package) for package in ("kvpress", "transformers", "torch")},
        "model": MODEL,
        "tokens": TOKENS,
        "ratios": RATIOS,
        "presses": {
            **{name: {"class": kind.__name__, **options} for name, (kind, options) in PRESSES.items()},
            **{name: {"class": "AdaKVPress", **options} for name, options in ADAKV.items()},
        },
    }
    (HERE / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
