"""One row's stored tokens on their way to a tier and back: each layer is fetched while the one before it computes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from harness.engines.hf.joint import Bucket, JointCache, JointLayer
from strategies.base import Lost, Moved, Offload, Tier
from strategies.packet import pack, unpack


class Depot:
    """A tier, and the thread that fetches from it."""

    def __init__(self, offload: Offload) -> None:
        try:
            self.tier = offload.tier()
        except OSError as error:
            self.tier = Unreachable(error)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvgate-fetch")

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)


class Unreachable(Tier):
    """A tier that could not be connected to: nothing goes there."""

    def __init__(self, why: OSError) -> None:
        self.why = why

    def put(self, key: str, data: bytes) -> str:
        raise self.why

    def get(self, key: str) -> tuple[bytes, str]:
        raise self.why

    def delete(self, key: str) -> None:
        raise self.why


class Journey:
    """A row's tokens go to a tier under ``key`` and come back when the model reads them.

    Args:
        row: of ``cache``; no other row shares its buckets.
        stored: whether an earlier process has put them there: then they are only fetched.
        afresh: makes the tokens again, as a cache of this row alone.
    """

    def __init__(
        self,
        depot: Depot,
        key: str,
        cache: JointCache,
        row: int,
        *,
        stored: bool,
        afresh: Callable[[], JointCache],
    ) -> None:
        self.depot, self.key = depot, key
        self.layers = [_of(layer, row) for layer in cache.joint]
        self.afresh = afresh
        self.again: JointCache | None = None
        self.sent: list[str] = []  # keys of what was put
        self.out: Counter[str] = Counter()
        self.back: Counter[str] = Counter()
        self.out_s = self.in_s = self.waited_s = 0.0
        self.lost: list[str] = []
        self.broken: OSError | None = None  # what a tier that does not answer said: it is not asked again
        self.coming: dict[int, Future[tuple[list[Tensor], str, int, float]]] = {}
        self.looks: dict[int, list[tuple[torch.Size, torch.dtype]]] = {}  # of the tensors of each layer
        self.away = [index for index in range(len(self.layers)) if self._leave(index, stored)]
        for index, layer in enumerate(cache.joint):
            if index in self.away:
                layer.arrivals[row] = partial(self._arrive, index)

    def moved(self) -> Moved:
        return Moved(self.out, self.back, self.out_s, self.in_s, self.waited_s, self.lost)

    def forget(self) -> None:
        """Delete from the tier what was put there. A tier that does not answer keeps it."""
        wait(self.coming.values())
        with suppress(OSError):
            for key in self.sent:
                self.depot.tier.delete(key)

    def _leave(self, index: int, stored: bool) -> bool:
        """Send one layer away; False if no tier would take it, and it stays."""
        tensors = [tensor for bucket in self.layers[index] for tensor in bucket.leave()]
        self.looks[index] = _looks(tensors)
        if stored:
            return True
        start = time.perf_counter()
        try:
            if self.broken:
                raise self.broken
            data = pack(tensors, self._name(index))
            self.out[self.depot.tier.put(self._name(index), data)] += len(data)
        except OSError as error:
            self.broken = error
            self.lost.append(f"layer {index} stayed: {error}")
            self._put_back(index, tensors)
            return False
        self.sent.append(self._name(index))
        self.out_s += time.perf_counter() - start
        return True

    def _arrive(self, index: int) -> None:
        """Bring one layer back, and have the next one fetched meanwhile."""
        for ahead in self.away[self.away.index(index) :][:2]:
            if ahead not in self.coming:
                self.coming[ahead] = self.depot.thread.submit(self._fetch, ahead)
        start = time.perf_counter()
        try:
            tensors, tier, size, took = self.coming.pop(index).result()
            if _looks(tensors) != self.looks[index]:
                raise Lost(f"{self._name(index)}: what lies there has other shapes than what was stored")
            self.back[tier] += size
            self.in_s += took
        except (Lost, OSError) as error:
            self.lost.append(f"layer {index}: {error}")
            tensors = self._again(index)
        self.waited_s += time.perf_counter() - start
        self._put_back(index, tensors)

    def _fetch(self, index: int) -> tuple[list[Tensor], str, int, float]:
        if self.broken:
            raise self.broken
        start = time.perf_counter()
        try:
            data, tier = self.depot.tier.get(self._name(index))
        except OSError as error:
            self.broken = error
            raise
        return unpack(data, self._name(index)), tier, len(data), time.perf_counter() - start

    def _again(self, index: int) -> list[Tensor]:
        self.again = self.again or self.afresh()
        return [tensor for bucket in _of(self.again.joint[index], 0) for tensor in bucket.leave()]

    def _put_back(self, index: int, tensors: list[Tensor]) -> None:
        held = iter(tensors)
        with torch.inference_mode():
            for bucket in self.layers[index]:
                bucket.come_back(held)

    def _name(self, index: int) -> str:
        return f"{self.key}/layer{index:03}"


def _looks(tensors: list[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _of(layer: JointLayer, row: int) -> list[Bucket]:
    return [bucket for bucket in layer.buckets if row in bucket.rows.tolist()]
