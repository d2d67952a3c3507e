"""Two attention functions in transformers' registry: one that watches a prefill, one that reads the joint cache.

The registry is the library's own extension point: a model uses an entry only while it is told to, so nothing is patched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from harness.engines.hf.observe import Observer
from harness.types import Unsupported

PREFILL = "kvgate_prefill"
DECODE = "kvgate_decode"
REFUSED = {  # keywords that change the softmax and that neither function implements
    "softcap": "soft-capped attention scores",
    "s_aux": "learned attention sinks",
    "position_bias": "additive position bias",
}


def refuse(keywords: dict[str, Any]) -> None:
    """Raise Unsupported for attention variants that would silently be computed wrongly."""
    for key, meaning in REFUSED.items():
        if keywords.get(key) is not None:
            raise Unsupported(f"engine hf cannot serve a model with {meaning} (attention keyword {key!r})")


def prefill_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kw: Any
) -> tuple[Tensor, None]:
    """The library's SDPA, watched by the ``Observer`` passed as keyword ``kvgate``."""
    refuse(kw)
    observer: Observer = kw.pop("kvgate")
    scaling = kw.get("scaling") or query.shape[-1] ** -0.5
    out = observer.saw(module.layer_idx, query, key, value, scaling, sliding=bool(kw.get("sliding_window")))  # type: ignore[arg-type]
    if out is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kw)
    return out, None


def decode_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kw: Any
) -> tuple[Tensor, None]:
    """Every row on its own store, read from the ``JointCache`` passed as keyword ``kvgate``."""
    refuse(kw)
    layer = kw["kvgate"].layers[module.layer_idx]
    expand = getattr(module, "expand_kv", None)  # MLA: how the model makes keys and values of what it caches
    return layer.attend(query, kw.get("scaling") or query.shape[-1] ** -0.5, expand), None


AttentionInterface.register(PREFILL, prefill_attention)
AttentionMaskInterface.register(PREFILL, sdpa_mask)
AttentionInterface.register(DECODE, decode_attention)  # no mask function: the joint layers mask for themselves


@contextmanager
def attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Switch ``model`` to one of our functions, and back to what it had, whatever happens inside."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
