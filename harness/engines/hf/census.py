"""A model's configuration and how many parameters it has, without its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.engines.hf import fetch
from harness.engines.hf.checkpoint import DTYPES
from harness.sizing.shapes import FIELDS, ModelShape, Parameters, shape_of
from harness.types import BadInput

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
ROUTED = re.compile(r"\.experts\.")  # of a parameter's name; its first dimension counts the experts


def shape_of_model(model: Mapping[str, Any]) -> ModelShape:
    """What a plan needs of the model of ``conf/model``. Raises BadInput.

    Read from the folder or file of ``model.path``, else built from ``model.shape``, else read from the hub or the wheel; of the
    hub only the configuration is fetched.
    """
    deploy = model.get("deploy_dtype", "bfloat16")
    if deploy not in DTYPES:
        raise BadInput(f"model.deploy_dtype must be one of {', '.join(DTYPES)}, got {deploy!r}")
    config = configuration(model)
    fields = {name: getattr(config, name, None) for name in FIELDS}
    fitted = "" if _own_path(model) else str(model.get("fitted") or "")
    element_bytes = DTYPES[deploy].itemsize
    shape = shape_of(
        _display(model), fields, element_bytes
    )  # its rules are told before the library meets what breaks one
    counted = (
        None if fitted else count(config, bool(model.get("trust_remote_code", False)))
    )  # of a fitted shape only the cache is known
    return replace(shape, parameters=counted, fitted=fitted, option=_option(model))


def configuration(model: Mapping[str, Any]) -> Any:
    """The text part of the model's configuration, as the library fills it in."""
    path, shape = model.get("path"), model.get("shape")
    trust = bool(model.get("trust_remote_code", False))
    if shape and not _own_path(model):
        try:
            return AutoConfig.for_model(**shape).get_text_config()
        except Exception as error:
            raise BadInput(f"model.shape must be fields of a transformers configuration: {_reason(error)}") from error
    try:
        where = Path(str(path)).expanduser() if path else fetch.locate(model)
        source = str(where) if where.exists() else str(path)
        options = {} if where.exists() else {"revision": model.get("revision")}
        return AutoConfig.from_pretrained(source, trust_remote_code=trust, **options).get_text_config()
    except BadInput:
        raise
    except Exception as error:  # the library raises many kinds, each means that this is no configuration
        raise BadInput(
            f"model.path must be a folder or file with a transformers configuration, or an id on the hub, got {path}: "
            f"{_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _own_path(model: Mapping[str, Any]) -> bool:
    """Whether the user's own files are there to be read in the place of a built-in shape."""
    return bool(model.get("path")) and Path(str(model["path"])).expanduser().exists()


def _display(model: Mapping[str, Any]) -> str:
    """The name under which runs of this model are stored."""
    if _own_path(model):
        path = Path(str(model["path"])).expanduser().resolve()
        return path.name if path.is_dir() else path.parent.name
    return str(model.get("path") or model["name"])


def _option(model: Mapping[str, Any]) -> str:
    """How a command names this model."""
    own = _own_path(model) or model["name"] == "hf"
    return f"{model['name']} model.path={model['path']}" if own else str(model["name"])


def count(config: Any, trust: bool = False) -> Parameters:
    """Parameters of a causal language model of this configuration, made without memory for them. Raises BadInput."""
    try:
        with torch.device("meta"):
            named = list(AutoModelForCausalLM.from_config(config, trust_remote_code=trust).named_parameters())
    except Exception as error:
        raise BadInput(f"model: transformers cannot build a {config.model_type} of this: {_reason(error)}") from error
    total = sum(one.numel() for _, one in named)
    routed = [one for name, one in named if ROUTED.search(name) and one.dim() > 1]
    experts = sum(one.numel() for one in routed)
    table = config.vocab_size * config.hidden_size
    tables = (
        1 if config.tie_word_embeddings else 2
    )  # an input embedding is looked up, and counts only where it is the head too
    share = _met(config) / routed[0].shape[0] if routed else 1.0
    return Parameters(total, total - experts - tables * table, table, experts, share)


def _met(config: Any) -> int:
    """How many routed experts a token meets in a layer."""
    for name in EXPERTS_PER_TOKEN:
        if number := getattr(config, name, None):
            return int(number)
    raise BadInput(
        f"model: a {config.model_type} has experts, and its configuration has none of {', '.join(EXPERTS_PER_TOKEN)}"
    )
