"""What is known of a server before anything is asked of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from harness.engines.endpoint import metrics
from harness.engines.endpoint.client import Client, Failed, served


@dataclass(frozen=True)
class Server:
    """One server, without where it is: it may move."""

    model: str  # the name under which it serves it
    owner: str = ""  # who made the server: vllm, sglang, llamacpp, ...
    version: str = ""
    max_tokens: int | None = None
    cache: Mapping[str, str] = field(default_factory=dict)  # how its cache was set up; empty where it does not tell
    kv_bytes_per_token: float | None = None  # as it has allocated them, where it tells

    @property
    def is_vllm(self) -> bool:
        """Whether it takes vLLM's own request fields."""
        return self.owner == "vllm"

    def facts(self) -> dict[str, Any]:
        """What decides its answers."""
        return {"model": self.model, "owner": self.owner, "version": self.version, "cache": dict(self.cache)}


def read(client: Client, model: str | None) -> Server:
    """Ask a server what it is. Raises Failed, or ValueError if it does not serve ``model`` (None: its only one)."""
    models = {one["id"]: one for one in served(client)}
    if model is None and len(models) != 1:
        raise ValueError(f"must name one of the models served, {', '.join(models) or 'none'}, got null")
    name = next(iter(models)) if model is None else model
    if name not in models:
        raise ValueError(f"must be a model that is served, {', '.join(models) or 'none'}, got {name}")
    told = ""
    with suppress(Failed):
        told = client.get("/metrics")
    return Server(
        model=name,
        owner=str(models[name].get("owned_by") or ""),
        version=_version(client),
        max_tokens=models[name].get("max_model_len"),
        cache=metrics.settings(told),
        kv_bytes_per_token=metrics.kv_bytes_per_token(told),
    )


def _version(client: Client) -> str:
    with suppress(Failed, ValueError, AttributeError):
        return str(json.loads(client.get("/version")).get("version", ""))
    return ""
