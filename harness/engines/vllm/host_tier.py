"""A host tier for vLLM on a CPU, where its own refuses to start: its scheduler, manager and metrics, with plain copies.

vLLM loads this through ``spec_module_path``. The device's memory is host memory here, so what it shows is that blocks leave,
come back and are right; no speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostWorker(OffloadingWorker):
    """Copies blocks of the cache to places of the tier and back, at once, one place a block."""

    def __init__(self, caches: CanonicalKVCaches, places: int) -> None:
        self.caches = [cache.tensor for cache in caches.tensors]
        self.tier = [torch.empty((places, *cache.shape[1:]), dtype=cache.dtype) for cache in self.caches]
        self.done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        def copy(blocks: torch.Tensor, places: torch.Tensor, cache: torch.Tensor, tier: torch.Tensor) -> None:
            tier[places] = cache[blocks]

        return self._copied(job_id, src_spec, dst_spec, copy)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        def copy(blocks: torch.Tensor, places: torch.Tensor, cache: torch.Tensor, tier: torch.Tensor) -> None:
            cache[blocks] = tier[places]

        return self._copied(job_id, dst_spec, src_spec, copy)

    def _copied(self, job_id: int, device: GPULoadStoreSpec, host: LoadStoreSpec, copy: Callable[..., None]) -> bool:
        assert isinstance(host, BlockIDsLoadStoreSpec)
        began = time.perf_counter()
        blocks, places = (torch.from_numpy(spec.block_ids).long() for spec in (device, host))
        for cache, tier in zip(self.caches, self.tier, strict=True):
            copy(blocks, places, cache, tier)
        size = len(blocks) * sum(cache[0].nbytes for cache in self.caches)
        self.done.append(TransferResult(job_id, True, size, time.perf_counter() - began))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self.done = self.done, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Copies are over before they are waited for."""


class HostSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's own host tier with ``HostWorker`` in place of its copies by a GPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self.blocks_per_chunk != 1:
            raise ValueError(f"a place of the tier holds one block, got {self.blocks_per_chunk} a chunk")
        if self._worker is None:
            self._worker = HostWorker(kv_caches, self.num_chunks)
        return self._worker
