"""Which kinds of attention this engine serves, and the shape of what they cache; read from a configuration, without weights."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from harness.types import BadInput
from strategies.base import KVShape

SERVED = (DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer)
UNSERVED_OPTIONS = {  # of a configuration, where they are set to anything
    "attn_logit_softcapping": "soft-capped attention scores",
    "attention_chunk_size": "attention within chunks of the text",
    "num_kv_shared_layers": "layers that read other layers' keys and values",
}
FOLLOW_LENGTH = {"dynamic", "longrope"}  # rotary positions
SINKS = "learned attention sinks in the softmax"
UNSERVED_TYPES = {
    "gpt_oss": SINKS,
    "granite_swa": SINKS,
    "granitemoe_swa": SINKS,
    "mimo_v2_flash": SINKS,
    "jamba": "Mamba layers that forget their state when several tokens follow at once, as chunks and questions do",
}
CARRIES_STATE = {  # hybrids whose linear layers go on from their state, whatever the number of tokens that follow
    "bamba",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
}


def shape_of(config: Any, dtype: torch.dtype) -> KVShape:
    """What a model of this text configuration caches for each token; raises BadInput with the reason if it is not served.

    Layers with linear attention cache nothing for a token and are not counted.
    """
    layers = DynamicCache(config=config).layers  # the library's own reading of what each layer is
    if reason := _unserved(config, layers):
        raise BadInput(f"model: engine hf cannot serve {config.model_type} with {reason}")
    caching = [layer for layer in layers if isinstance(layer, CacheLayerMixin)]
    heads = config.num_attention_heads
    common = {
        "layers": len(caching),
        "query_heads": heads,
        "element_bytes": dtype.itemsize,
        "linear_layers": len(layers) - len(caching),
        "window": tuple(getattr(layer, "sliding_window", None) for layer in caching),
    }
    if _latent(config):
        return KVShape(kv_heads=1, head_dim=config.kv_lora_rank, value_dim=config.qk_rope_head_dim, **common)
    return KVShape(
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        **common,
    )


def _unserved(config: Any, layers: list[Any]) -> str | None:
    """What of this model the engine would compute wrongly or count wrongly, if anything."""
    if config.model_type in UNSERVED_TYPES:
        return UNSERVED_TYPES[config.model_type]
    for option, meaning in UNSERVED_OPTIONS.items():
        if getattr(config, option, None):
            return f"{meaning} ({option})"
    if follows := _rope_types(config) & FOLLOW_LENGTH:
        return f"rotary angles that follow the length of the text ({', '.join(follows)}), so that chunks of it would disagree"
    if strange := sorted({type(layer).__name__ for layer in layers if type(layer) not in SERVED}):
        return f"cache layers {', '.join(strange)}"
    if not any(isinstance(layer, CacheLayerMixin) for layer in layers):
        return "linear attention alone, which caches no keys and values"
    if LinearAttentionLayer in map(type, layers) and config.model_type not in CARRIES_STATE:
        return "linear attention (served are " + ", ".join(sorted(CARRIES_STATE)) + ")"
    if _latent(config) and not _expands(config):
        return "a latent (MLA) cache, because its attention has no expand_kv to make keys and values of latents"
    sizes = {
        (getattr(layer, "num_key_value_heads", None), getattr(layer, "head_dim", None))
        for layer in config.per_layer_config
    }
    return f"layers of different (key/value heads, head dimension): {sorted(sizes)}" if len(sizes) > 1 else None


def _rope_types(config: Any) -> set[str]:
    """How keys are rotated, for all kinds of layers."""
    options = getattr(config, "rope_parameters", None) or {}
    by_kind = [options, *(part for part in options.values() if isinstance(part, dict))]
    return {part["rope_type"] for part in by_kind if "rope_type" in part}


def _latent(config: Any) -> bool:
    return getattr(config, "kv_lora_rank", None) is not None


def _expands(config: Any) -> bool:
    """Whether the library's attention for this model says how keys and values are made of what it caches."""
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    code = sys.modules.get(getattr(model, "__module__", ""))
    return any(hasattr(part, "expand_kv") for part in vars(code).values()) if code else False
