"""What vLLM makes of a strategy: its layers as engine arguments, or the reason why it cannot serve them.

Layers are known here by their neutral description alone. State: vLLM 0.32 (CPU) and 0.33 (CUDA).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.engines.base import Support
from strategies.base import Layer
from strategies.stack import Stack

# by name and granularity of a format, the choice of --kv-cache-dtype that stores such numbers
FORMATS = {
    ("fp8", "tensor"): "fp8",
    ("fp8", "token_head"): "fp8_per_token_head",
    ("fp8_e5m2", "tensor"): "fp8_e5m2",
    ("int8", "token_head"): "int8_per_token_head",
    ("nvfp4", None): "nvfp4",
}
GRANULARITY = {"int8": "token_head"}  # what shares a scale where it was left open; else a tensor
# Formats that a platform's kernels compute. A CPU build takes the others too, and answers garbage with a perfect capacity.
SERVED = {
    "cpu": {"fp8", "fp8_e5m2"},
    "cuda": {
        *("fp8", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head", "nvfp4"),
        *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
    },
}
HANDOFF = "handoff"  # the layer whose tokens come from another engine
HOST_GIB = 4.0  # of a host tier for which nobody asks for another size: vLLM wants to know it
BLOCK = {"cpu": 128, "cuda": 16}  # tokens of a block where nobody asks for another size
STEP = {"cpu": 32, "cuda": 16}  # which sizes of a block have kernels: multiples of this


def settled(stack: Stack, platform: str, block: int | None) -> Stack:
    """``stack`` with vLLM's choice for what was left open. Scales come from the checkpoint, or are 1."""
    return stack.settled(
        paging={"block": block or BLOCK[platform]},
        quant=scales(stack),
        offload={"max_gib": HOST_GIB} if stack.offload and stack.offload.name == "host" else {},
    )


def scales(stack: Stack) -> dict[str, str | None]:
    """What shares a scale of the stack's format, and where it comes from, where that was left open."""
    scale = GRANULARITY.get(stack.quant.name, "tensor") if stack.quant else None
    scale = getattr(stack.quant, "scale", None) or scale
    return {"scale": scale, "scale_from": "one" if scale == "tensor" else "prompt"}


def format_of(layer: Layer) -> str | None:
    """The choice of --kv-cache-dtype for a layer of slot ``quant``; None if there is none."""
    options = layer.spec()["options"]
    if layer.name == "turboquant":
        return f"turboquant_{options['preset']}"
    if options.get("scale") == "tensor" and options.get("scale_from") != "one":
        return None
    if options.get("four_over_six"):
        return "nvfp4_4over6"
    return FORMATS.get((layer.name, options.get("scale")))


def arguments(stack: Stack, layers: int) -> dict[str, Any]:
    """Arguments of vLLM's engine that make it serve ``stack``, for a model with so many attention layers."""
    made: dict[str, Any] = {"enable_prefix_caching": stack.prefix is not None or stack.offload is not None}
    if stack.paging:
        options = stack.paging.spec()["options"]
        made["block_size"] = options["block"]
        if options["pool_gib"] is not None:
            made["kv_cache_memory_bytes"] = int(options["pool_gib"] * 2**30)
    if stack.quant:
        made["kv_cache_dtype"] = format_of(stack.quant)
        if skipped := sorted(stack.quant.skipped(layers)):
            made["kv_cache_dtype_skip_layers"] = [str(layer) for layer in skipped]
    return made


def transfer(layer: Layer, platform: str, folder: str) -> dict[str, Any]:
    """vLLM's ``KVTransferConfig`` for a layer of slot ``offload``. ``folder`` is where a tier on a disk lies."""
    options = layer.spec()["options"]
    connector, extra = "OffloadingConnector", dict[str, Any]()
    if layer.name in ("disk", HANDOFF):
        connector, extra = "ExampleConnector", {"shared_storage_path": folder}
    elif layer.name == "lmcache":
        connector = "LMCacheConnectorV1"
    elif layer.name == "tiered":
        host = options["tiers"][0]["options"]
        below = [{"type": "fs", "root_dir": folder}]
        extra = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": below}
        extra["cpu_bytes_to_use"] = int((host["max_gib"] or HOST_GIB) * 2**30)
    elif platform == "cpu":  # where vLLM's own copies refuse to start
        where = {"spec_name": "HostSpec", "spec_module_path": "harness.engines.vllm.host_tier"}
        extra = {"cpu_bytes_to_use": int(options["max_gib"] * 2**30), **where}
    else:
        extra = {"cpu_bytes_to_use": int(options["max_gib"] * 2**30)}
    common = {"kv_role": "kv_both", "kv_load_failure_policy": options["on_loss"]}
    return {**common, "kv_connector": connector, "kv_connector_extra_config": extra}


def environment(layer: Layer | None, folder: str) -> dict[str, str]:
    """What a library that moves the tokens of ``layer`` reads from the environment."""
    if layer is None or layer.name != "lmcache":
        return {}
    options = layer.spec()["options"]
    disk = {"LMCACHE_LOCAL_DISK": f"file://{folder}/", "LMCACHE_MAX_LOCAL_DISK_SIZE": str(options["disk_gib"])}
    return {
        "LMCACHE_CHUNK_SIZE": str(options["chunk"]),
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": str(options["host_gib"]),
        **(disk if folder else {}),
    }


def prefilling(layer: Layer, decoding: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the engine that prefills for the one with these arguments; None where the layer asks for none."""
    if layer.name != HANDOFF:
        return None
    tokens = layer.spec()["options"]["batched_tokens"]
    return {**decoding, **({"max_num_batched_tokens": tokens} if tokens else {})}


def answer(layer: Layer, platform: str, known: tuple[str, ...], forced: tuple[str, ...]) -> Support:
    """Whether vLLM on ``platform`` can serve ``layer``.

    Args:
        known: Choices of --kv-cache-dtype in the installed release; none if it is not installed.
        forced: Formats that are served although the platform is not known to compute them.
    """
    return ANSWERS[layer.slot](layer, platform, known, forced)


def _paging(layer: Layer, platform: str, known: tuple[str, ...], forced: tuple[str, ...]) -> Support:
    if layer.name != "paged":
        return Support(False, "vLLM always allocates in blocks: use paging/paged")
    block = layer.spec()["options"]["block"] or BLOCK[platform]
    if block % STEP[platform]:
        return Support(
            False, f"its attention here has kernels for blocks of a multiple of {STEP[platform]}, got {block}"
        )
    return Support(True, "its own blocks, of this size")


def _prefix(layer: Layer, platform: str, known: tuple[str, ...], forced: tuple[str, ...]) -> Support:
    options = layer.spec()["options"]
    if options["block"] is not None or options["tokens"] is not None:
        return Support(
            False, "it reuses the blocks of its cache, in its pool: leave strategy.prefix.block and tokens null"
        )
    return Support(True, "its automatic prefix caching; it says which tokens of a prompt hit")


def _quant(layer: Layer, platform: str, known: tuple[str, ...], forced: tuple[str, ...]) -> Support:
    name = format_of(layer)
    if name is None:
        return Support(False, "it has no such format")
    if known and name not in known:
        return Support(False, f"the installed release has no --kv-cache-dtype {name}")
    if name in SERVED[platform] or name in forced:
        return Support(True, f"--kv-cache-dtype {name}; memory is freed")
    return Support(False, f"--kv-cache-dtype {name} is not known to work on {platform}; engine.allow_formats forces it")


def _offload(layer: Layer, platform: str, known: tuple[str, ...], forced: tuple[str, ...]) -> Support:
    if layer.name == "host":
        copies = "with plain copies, no speed" if platform == "cpu" else "its native connector"
        return Support(True, f"blocks go to host memory ({copies}); it says how many tokens came back")
    if layer.name == "disk":
        if layer.spec()["options"]["max_gib"] is not None:
            return Support(False, "its disk connector never deletes: leave strategy.offload.max_gib null")
        return Support(
            True, "its example connector, a folder a prompt; one request at a time, as it is not safe for more"
        )
    if layer.name == HANDOFF:
        return Support(True, "two engines over its example connector, one prompt at a time")
    if layer.name == "tiered":
        parts = [part["name"] for part in layer.spec()["options"]["tiers"]]
        if platform == "cpu" or parts != ["host", "disk"]:
            return Support(False, f"its tiers are host, then disk, on a GPU; got {', '.join(parts)} on {platform}")
        return Support(True, "its native connector, with files below host memory")
    if layer.name == "lmcache":
        why = "LMCache has no connector for a CPU: vLLM would go on without it, some seconds slower a request"
        return Support(platform == "cuda", "its in-process connector" if platform == "cuda" else why)
    return Support(False, f"no connector for {layer.name} is known to work on {platform}")


def _never(layer: Layer, platform: str, known: tuple[str, ...], forced: tuple[str, ...]) -> Support:
    why = {
        "evict": "it frees whole requests, never tokens under a budget",
        "structure": "its layers' caches cannot be merged or factorized",
    }
    return Support(False, f"{why[layer.slot]}; judge it with engine=hf")


ANSWERS: Mapping[str, Any] = {
    "paging": _paging,
    "prefix": _prefix,
    "structure": _never,
    "evict": _never,
    "quant": _quant,
    "offload": _offload,
}
