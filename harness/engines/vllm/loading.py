"""Builds vLLM's engine from plain arguments, the same way wherever one is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

EXTENSION = "harness.engines.vllm.extension.ReadBack"


def load(arguments: Mapping[str, Any]) -> LLMEngine:
    """The engine for ``EngineArgs``, of which ``kv_transfer_config`` may be a plain mapping."""
    transfer = arguments.get("kv_transfer_config")
    return LLMEngine.from_engine_args(
        EngineArgs(
            **{**arguments, "kv_transfer_config": KVTransferConfig(**transfer) if transfer else None},
            seed=0,
            generation_config="vllm",  # no sampling settings from the checkpoint: what is asked for is all there is
            disable_log_stats=False,
            worker_extension_cls=EXTENSION,
        )
    )
