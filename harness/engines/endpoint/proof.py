"""Whether the layers of a strategy, which are claims about how a server was started, are shown by what it tells."""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.engines.endpoint.server import Server
from harness.engines.vllm.counters import Counters
from harness.engines.vllm.serving import format_of
from harness.types import Evidence
from strategies.base import Layer
from strategies.stack import Stack

EXACT = ("auto", "float16", "bfloat16", "float32", "half", "float")  # cache_dtype of a cache that packs nothing
ALIKE = {"fp8_e4m3": "fp8"}  # two names of one format
METRICS = "vllm:cache_config_info in /metrics"
LOOKED = {  # where a layer would show, by slot
    "paging": f"block_size of {METRICS}",
    "prefix": "cached_tokens in the answer's usage (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report)",
    "structure": "nothing: no server tells of such a layer",
    "evict": "nothing: no server tells of such a layer",
    "quant": f"cache_dtype of {METRICS}",
    "offload": "tokens that came back from a tier in /metrics (vLLM: prompt_tokens_cached_by_source, SGLang: load_back_tokens)",
}


class Seen(NamedTuple):
    """What one request showed."""

    prompt_tokens: int
    cached_tokens: int | None
    counted: Counters | None  # by the server, during a request that was alone


def problems(stack: Stack, server: Server, layers: int) -> list[str]:
    """Settings that the server tells, and that are not the strategy's, for a model of so many attention layers."""
    told = (
        _format_problem(stack, server),
        _skip_problem(stack, server, layers),
        _block_problem(stack, server),
        _prefix_problem(stack, server),
    )
    return [why for why in told if why]


def _format_problem(stack: Stack, server: Server) -> str | None:
    dtype = server.cache.get("cache_dtype")
    if dtype is None:
        return None
    wanted = (format_of(stack.quant),) if stack.quant else EXACT
    if ALIKE.get(dtype, dtype) in wanted:
        return None
    return f"cache_dtype {dtype}, and {stack.describe()} needs {wanted[0] or 'a format that it has no name for'}"


def _skip_problem(stack: Stack, server: Server, layers: int) -> str | None:
    told = server.cache.get("kv_cache_dtype_skip_layers", "")
    names = re.findall(r"\w+", told)
    if stack.quant is None or not told or not all(name.isdecimal() for name in names):  # it knows kinds of layers too
        return None
    wanted = sorted(stack.quant.skipped(layers))
    if sorted(map(int, names)) == wanted:
        return None
    return f"kv_cache_dtype_skip_layers {told}, and strategy.quant.skip leaves {wanted} exact"


def _block_problem(stack: Stack, server: Server) -> str | None:
    block, wanted = server.cache.get("block_size"), getattr(stack.paging, "block", None)
    if block is None or wanted is None or block == str(wanted):
        return None
    return f"block_size {block}, and strategy.paging.block is {wanted}"


def _prefix_problem(stack: Stack, server: Server) -> str | None:
    if stack.prefix is None or server.cache.get("enable_prefix_caching") != "False":
        return None
    return "prefix caching off, and the strategy reuses prefixes"


def evidence(stack: Stack, server: Server, seen: Seen, claimed: bool, facts: dict[str, float]) -> tuple[Evidence, ...]:
    """Of each layer, whether it acted on one request; where nothing shows it, as the user claims."""
    counted = seen.counted.facts() if seen.counted else {}
    return tuple(
        Evidence(
            f"{layer.slot}/{layer.name}", *(_shown(layer, server, seen) or _claim(layer, claimed)), facts | counted
        )
        for layer in stack.layers()
    )


def _claim(layer: Layer, claimed: bool) -> tuple[bool, str]:
    looked = f"looked for {LOOKED[layer.slot]}"
    if claimed:
        return True, f"claimed, not shown; {looked}"
    return False, f"not shown; {looked}; engine.claimed=true takes your word for it"


def _shown(layer: Layer, server: Server, seen: Seen) -> tuple[bool, str] | None:
    """What the server told of ``layer``, which ``problems`` has not refused; None where it tells nothing."""
    if layer.slot == "quant" and "cache_dtype" in server.cache:
        return True, f"the server's cache_dtype is {server.cache['cache_dtype']}"
    if layer.slot == "paging" and layer.name == "paged" and "block_size" in server.cache:
        return True, f"the server's block_size is {server.cache['block_size']}"
    if layer.slot == "prefix" and seen.cached_tokens is not None:
        return seen.cached_tokens > 0, f"reused {seen.cached_tokens} of {seen.prompt_tokens} prompt tokens"
    if layer.slot == "offload" and seen.counted is not None:
        came = seen.counted.external_tokens
        return came > 0, f"{came:.0f} of {seen.prompt_tokens} prompt tokens came back from a tier"
    return None
