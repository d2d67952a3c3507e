"""What a model caches, layer by layer, read from the fields of a transformers configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.types import BadInput

FIELDS = (  # of a transformers configuration, under the names that all families answer to
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "multi_query",
    "new_decoder_architecture",
    "hidden_size",
    "head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "index_head_dim",
    "index_topk",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "attention_chunk_size",
    "num_kv_shared_layers",
    "compress_rates",
    "max_position_embeddings",
)
LINEAR = ("linear_attention", "conv")  # hold a state, and cache nothing for a token
SLIDING = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")
INDEXED = ("indexed_attention", "compressed_sparse_attention")  # an indexer's keys say which entries a step reads


@dataclass(frozen=True)
class CacheLayer:
    """What one attention layer caches: an entry a token, or a window of them, or one entry for many tokens and a window."""

    kv_heads: int
    key_width: int
    value_width: int  # 0 where key and value are one
    query_heads: int
    window_tokens: int | None = None  # the newest tokens; None: all
    entry_tokens: int | None = 1  # tokens that an entry stands for; None: what left the window is gone
    index_width: int = 0  # elements of an indexer's key, beside each entry
    read_entries: int | None = None  # the most that a step reads; None: all

    @property
    def width(self) -> int:
        """Elements of an entry, all heads."""
        return self.kv_heads * (self.key_width + self.value_width)

    def entries(self, tokens: int) -> int:
        """Entries cached of ``tokens``; a sliding window holds all but the token that is being computed."""
        if self.window_tokens is None:
            return tokens
        if self.entry_tokens is None:
            return min(tokens, self.window_tokens - 1)
        return tokens // self.entry_tokens + min(tokens, self.window_tokens)

    def indexed(self, tokens: int) -> int:
        """Entries that have an indexer's key."""
        return tokens // (self.entry_tokens or 1) if self.index_width else 0

    def read(self, entries: int) -> int:
        """How many of ``entries`` a decode step reads."""
        return entries if self.read_entries is None else min(entries, self.read_entries + (self.window_tokens or 0))

    @property
    def look_elements(self) -> int:
        """Products of a query token's look at one entry, all heads: with the key, and with the value."""
        latent = self.kv_heads == 1 and self.value_width != self.key_width
        value = self.key_width if latent else self.value_width  # of a latent, values are made of the keys' part
        return self.query_heads * (self.key_width + self.value_width + value if latent else self.key_width + value)

    def exact_bytes(self, tokens: int, element_bytes: int) -> int:
        """Bytes of ``tokens`` in elements of this size, an indexer's keys among them."""
        return (self.entries(tokens) * self.width + self.indexed(tokens) * self.index_width) * element_bytes


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model is made of. A step multiplies a token with ``body``, and with ``head`` where logits are wanted."""

    total: int
    body: int  # without experts
    head: int
    experts: int = 0  # all routed experts together
    expert_share: float = 1.0  # of which a token meets so many

    @property
    def active(self) -> float:
        """Those that one token meets, head and all."""
        return self.body + self.head + self.experts * self.expert_share

    def read(self, rows: int) -> float:
        """Those that a step of ``rows`` tokens reads: experts are taken to be chosen evenly."""
        return self.body + self.head + self.experts * (1 - (1 - self.expert_share) ** rows)


@dataclass(frozen=True)
class ModelShape:
    """What a plan knows of a model."""

    name: str
    layers: tuple[CacheLayer, ...]
    element_bytes: int  # of an unquantized entry, as deployed
    max_tokens: int | None
    linear_layers: int = 0
    parameters: Parameters | None = None  # None: only the cache is known
    fitted: str = ""  # why the shape is fitted to a published number and not read from a configuration
    option: str = ""  # words of a command that name it, model=OPTION

    @property
    def kind(self) -> str:
        """The family of its attention, in the field's words."""
        kinds = dict.fromkeys(map(_kind, self.layers))
        return " + ".join([*kinds, *(["linear"] if self.linear_layers else [])])

    def exact_bytes(self, tokens: int) -> int:
        """Bytes of the full-precision cache of one request of ``tokens``."""
        return sum(layer.exact_bytes(tokens, self.element_bytes) for layer in self.layers)


def _kind(layer: CacheLayer) -> str:
    if layer.entry_tokens not in (1, None):
        return f"compressed {layer.entry_tokens}:1"
    if layer.window_tokens is not None:
        return f"sliding {layer.window_tokens}"
    if layer.value_width != layer.key_width:
        return "sparse MLA" if layer.index_width else "MLA"
    if layer.kv_heads == layer.query_heads:
        return "MHA"
    return "MQA" if layer.kv_heads == 1 else "GQA"


def shape_of(
    name: str,
    config: Mapping[str, Any],
    element_bytes: int,
) -> ModelShape:
    """The shape that the fields of a configuration describe. Raises BadInput with every rule that they break."""
    if problems := _problems(config):
        raise BadInput(*problems)
    types = _layer_types(config)[: config["num_hidden_layers"] - (config.get("num_kv_shared_layers") or 0)]
    layers = tuple(_layer(kind, config) for kind in types if kind not in LINEAR)
    if not layers:
        raise BadInput("model: its layers hold a state alone and cache no keys and values: there is nothing to plan")
    longest = config.get("max_position_embeddings")
    return ModelShape(name, layers, element_bytes, longest, len(types) - len(layers))


def _problems(config: Mapping[str, Any]) -> list[str]:
    wanted = ["num_hidden_layers", "num_attention_heads"]
    latent = config.get("kv_lora_rank") is not None
    wanted += ["kv_lora_rank", "qk_rope_head_dim"] if latent else []
    wanted += [] if latent or config.get("head_dim") is not None else ["hidden_size"]
    given = [*wanted, *(one for one in ("num_key_value_heads", "head_dim") if config.get(one) is not None)]
    found = [
        f"model.{field} must be a whole number of 1 or more, got {config.get(field)!r}"
        for field in given
        if not _whole(config.get(field))
    ]
    if found:
        return found
    heads, hidden = config["num_attention_heads"], config.get("hidden_size")
    kv_heads = _kv_heads(config)
    if heads % kv_heads:
        found.append(f"model.num_key_value_heads must divide the {heads} num_attention_heads, got {kv_heads}")
    if not latent and config.get("head_dim") is None and hidden % heads:
        found.append(
            f"model.num_attention_heads must divide hidden_size {hidden} where head_dim is not given, got {heads}"
        )
    types = _layer_types(config)
    if len(types) != config["num_hidden_layers"]:
        found.append(f"model.layer_types must name {config['num_hidden_layers']} layers, got {len(types)}")
    for kind in dict.fromkeys(types):
        found += _kind_problems(kind, config)
    return found


def _kind_problems(kind: str, config: Mapping[str, Any]) -> list[str]:
    if kind in SLIDING and not _whole(config.get(SLIDING[kind])):
        field = SLIDING[kind]
        return [f"model.{field} must be a whole number of 1 or more for layers with {kind}, got {config.get(field)!r}"]
    if kind in COMPRESSED:
        rates = config.get("compress_rates") or {}
        return (
            []
            if _whole(rates.get(kind)) and _whole(config.get("sliding_window"))
            else [
                f"model.compress_rates must give the tokens an entry of {kind}, and sliding_window the newest, got {rates}"
                f" and {config.get('sliding_window')}"
            ]
        )
    known = ("full_attention", "indexed_attention", *SLIDING, *LINEAR)
    return [] if kind in known else [f"model.layer_types must be of {', '.join((*known, *COMPRESSED))}, got {kind!r}"]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _kv_heads(config: Mapping[str, Any]) -> int:
    if config.get("num_key_value_heads"):
        return int(config["num_key_value_heads"])
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return int(config.get("num_kv_heads") or config["num_attention_heads"])


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    """What each layer is; a configuration that does not say has one kind of layer."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    sliding = config.get("sliding_window") and config.get("use_sliding_window", True) is not False
    return ["sliding_attention" if sliding else "full_attention"] * config["num_hidden_layers"]


def _layer(kind: str, config: Mapping[str, Any]) -> CacheLayer:
    heads = config["num_attention_heads"]
    index: dict[str, Any] = {
        "index_width": (config.get("index_head_dim") or 0) if kind in INDEXED else 0,
        "read_entries": config.get("index_topk") if kind in INDEXED else None,
    }
    if kind in COMPRESSED:  # key and value are one vector, shared by all heads
        rate, window = config["compress_rates"][kind], config["sliding_window"]
        return CacheLayer(1, config["head_dim"], 0, heads, window, rate, **index)
    if config.get("kv_lora_rank") is not None:
        return CacheLayer(1, config["kv_lora_rank"], config["qk_rope_head_dim"], heads, **index)
    width = config.get("head_dim") or config["hidden_size"] // heads
    layer = CacheLayer(_kv_heads(config), width, width, heads)
    if kind in SLIDING:
        return replace(layer, window_tokens=config[SLIDING[kind]], entry_tokens=None)
    return layer
