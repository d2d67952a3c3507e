"""Runs inside each of vLLM's workers, to read back what it really holds (``worker_extension_cls``)."""

from __future__ import annotations

from typing import Any


class ReadBack:
    """Mixed into vLLM's worker class, which has a ``model_runner``."""

    def kvgate_facts(self) -> dict[str, Any]:
        """Dtypes, bytes, attention and scales of this worker's cache."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        caches = [cache for cache in runner.kv_caches if hasattr(cache, "untyped_storage")]
        storages = {cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes() for cache in caches}
        groups = [group for groups in runner.attn_groups for group in groups]
        context = runner.vllm_config.compilation_config.static_forward_context
        scales = [
            float(getattr(layer, name))
            for layer in context.values()
            for name in ("_k_scale_float", "_v_scale_float")
            if hasattr(layer, name)
        ]
        return {
            "kv_bytes": sum(storages.values()),
            "kv_dtypes": sorted({str(cache.dtype).removeprefix("torch.") for cache in caches}),
            "attention": sorted({group.backend.get_name() for group in groups}),
            "scales": sorted(set(scales)),
        }
