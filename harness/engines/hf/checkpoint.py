"""What a checkpoint of transformers is to an engine, before its weights load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from harness.engines.base import ModelFacts
from harness.engines.hf import fetch
from harness.engines.hf.kinds import shape_of
from harness.engines.hf.size import parameters
from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import BadInput, digest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def describe(model: Mapping[str, Any], dtype: torch.dtype) -> ModelFacts:
    """Find the model and read its configuration. Raises BadInput or Unsupported.

    Args:
        model: The composed ``conf/model``.
        dtype: In which it will compute and hold its full cache.
    """
    folder = fetch.locate(model)
    trust = bool(model.get("trust_remote_code", False))
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    except (OSError, ValueError) as error:
        raise BadInput(f"model.path: {folder} does not load: {error}") from error
    shape = shape_of(config.get_text_config(), dtype)
    max_tokens = int(config.get_text_config().max_position_embeddings)
    own = model.get("chat_template")
    if own:
        tokenizer.chat_template = fetch.template(str(own))
    prompts = PromptTokenizer(tokenizer, max_tokens, _stop_ids(folder, config, tokenizer))
    if own and (wrong := prompts.misfit()):
        raise BadInput(f"model.chat_template must be a Jinja chat template, got {own}: {wrong}")
    name = str(model["name"])
    path = model.get("path")
    hub_id = path if path and not Path(str(path)).expanduser().is_dir() else None
    identity = {
        "id": hub_id or ("local" if path else name),
        "revision": model.get("revision"),
        "config": _config_digest(config),
        "stop_ids": sorted(prompts.stop_ids),
        "weights": fetch.weights_sha(folder),
        "tokenizer": fetch.tokenizer_sha(folder),
        "chat_template": prompts.template_hash,
        "dtype": str(dtype).removeprefix("torch."),
    }
    deploy = model.get("deploy_dtype", "bfloat16")
    if deploy not in DTYPES:
        raise BadInput(f"model.deploy_dtype must be one of {', '.join(DTYPES)}, got {deploy!r}")
    display = str(hub_id or (folder.name if path else name))
    size = parameters(folder, config.get_text_config())
    return ModelFacts(shape, DTYPES[deploy].itemsize, deploy, max_tokens, display, identity, prompts, size)


def _config_digest(config: Any) -> str:
    """All of a model's configuration that decides results: not where it came from, nor which library wrote it."""
    facts = json.loads(config.to_json_string(use_diff=False))
    return digest({key: value for key, value in facts.items() if key not in ("_name_or_path", "transformers_version")})


def _stop_ids(folder: Path, config: Any, tokenizer: Any) -> frozenset[int]:
    ids = config.eos_token_id
    if (folder / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(folder).eos_token_id or ids
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])
