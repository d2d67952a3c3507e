"""What one plan is about: a model on a device, the settings to compare, and what will be asked of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice

from harness.bench.metrics import SLO
from harness.sizing import reuse
from harness.sizing.capacity import kv_budget_bytes, pool_tokens
from harness.sizing.hardware import Hardware
from harness.sizing.holding import Holding
from harness.sizing.shapes import ModelShape
from harness.sizing.stored import Stored
from harness.sizing.traces import Recorded, Request, lognormal

GIB = 2**30
DEVICE = "device"  # the first room for prefixes, before those of the tiers


@dataclass(frozen=True)
class Workload:
    """What is asked of one replica, a device or several that hold the model together.

    Args:
        context: tokens of a request at its longest.
        output_tokens: of which so many are its answer.
        requests_s: requests a second that come in.
        in_flight: requests that must fit at once.
        hit_share: share of the prompts' tokens that were computed before and kept somewhere; None: not known.
        kept_requests: requests whose caches are kept for later.
        devices: of the replica.
        utilization: share of the device's memory that may be used.
        weight_bits: of a parameter; None: as the model is deployed.
        kv_gib: memory for keys and values of the replica, in the place of what weights leave.
        prefill_tokens_s: measured prompt tokens a second; None: the roofline's.
        sites: places that serve the same requests, for placement.
        site_bytes_s: between two of them.
    """

    context: int
    output_tokens: int
    requests_s: float
    in_flight: int
    hit_share: float | None
    kept_requests: int
    devices: int
    utilization: float
    weight_bits: float | None
    kv_gib: float | None
    prefill_tokens_s: float | None
    sites: int
    site_bytes_s: float

    def problems(self) -> list[str]:
        """Every rule that this breaks: field, rule and value."""
        above = ("requests_s", "weight_bits", "kv_gib", "prefill_tokens_s", "site_bytes_s")
        optional = ("weight_bits", "kv_gib", "prefill_tokens_s", "hit_share")
        whole = ("context", "output_tokens", "in_flight", "devices", "sites")
        found = []
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if name in above and not 0 < value < float("inf"):
                found.append(f"{name} must be above 0, got {value}")
            if name in whole and value < 1:
                found.append(f"{name} must be 1 or more, got {value}")
        if self.kept_requests < 0:
            found.append(f"kept_requests must be 0 or more, got {self.kept_requests}")
        if self.hit_share is not None and not 0 <= self.hit_share <= 1:
            found.append(f"hit_share must be in [0, 1], got {self.hit_share}")
        if not 0 < self.utilization <= 1:
            found.append(f"utilization must be in (0, 1], got {self.utilization}")
        if not found and self.output_tokens >= self.context:
            found.append(f"output_tokens must be below context, {self.context}, got {self.output_tokens}")
        return found

    @property
    def prompt_tokens(self) -> int:
        return self.context - self.output_tokens


@dataclass(frozen=True)
class Simulated:
    """What simulators are asked for.

    Args:
        requests: the trace's first, or made up.
        replicas: that prefill and decode.
        chunks_tokens: of prompts in a step of one that does both.
        link_bytes_s: of one that prefills, to those that decode; None: the hardware's.
        slo: what a request may take.
        policies: which blocks of a cache go first.
    """

    requests: int
    replicas: int
    chunks_tokens: tuple[int, ...]
    link_bytes_s: float | None
    slo: SLO
    policies: tuple[str, ...]

    def problems(self) -> list[str]:
        """Every rule that this breaks."""
        least = {"requests": 1, "replicas": 2}
        found = [
            f"simulated.{name} must be {few} or more, got {getattr(self, name)}"
            for name, few in least.items()
            if getattr(self, name) < few
        ]
        if not self.chunks_tokens or min(self.chunks_tokens) < 1:
            found.append(f"simulated.chunks_tokens must be sizes of 1 or more, got {list(self.chunks_tokens)}")
        if self.link_bytes_s is not None and not 0 < self.link_bytes_s < math.inf:
            found.append(f"simulated.link_bytes_s must be above 0, got {self.link_bytes_s}")
        if unknown := [one for one in self.policies if one not in reuse.CACHES]:
            found.append(f"trace.policies must be of {', '.join(reuse.CACHES)}, got {', '.join(unknown)}")
        return found + self.slo.problems("slo")


@dataclass(frozen=True)
class Case:
    """All that a section may look at. The full-precision cache is the first of ``holdings``."""

    model: ModelShape
    hardware: Hardware
    holdings: tuple[Holding, ...]
    load: Workload
    stored: Stored
    simulated: Simulated
    trace: Recorded | None = None
    scenario: str = ""  # whose strategies, tasks and gates kvgate run tests
    refused: tuple[str, ...] = ()  # settings that cannot be counted on this model, and why

    @property
    def full(self) -> Holding:
        return self.holdings[0]

    @property
    def parameter_bytes(self) -> float:
        return self.load.weight_bits / 8 if self.load.weight_bits else self.model.element_bytes

    @property
    def weight_bytes(self) -> float | None:
        """Of the whole model; None where only its cache is known."""
        return self.model.parameters.total * self.parameter_bytes if self.model.parameters else None

    @property
    def budget_bytes(self) -> float | None:
        """For keys and values, of all devices together; None where it cannot be known."""
        if self.load.kv_gib:
            return self.load.kv_gib * GIB
        if self.hardware.memory_bytes is None or self.weight_bytes is None:
            return None
        memory, reserve = (self.load.devices * one for one in (self.hardware.memory_bytes, self.hardware.reserve_bytes))
        return kv_budget_bytes(memory, self.load.utilization, self.weight_bytes, reserve)

    @cached_property
    def rooms_tokens(self) -> Mapping[str, float]:
        """What the device's memory for keys and values and each tier of known room hold, of all devices, in full precision."""
        rooms = {tier.name: self.load.devices * tier.bytes for tier in self.hardware.tiers if tier.bytes}
        if self.budget_bytes is not None:
            rooms = {DEVICE: self.budget_bytes, **rooms}
        per_token = self.full.bytes_per_token(self.load.context)
        return {name: pool_tokens(room, per_token) for name, room in rooms.items()}

    @cached_property
    def found(self) -> reuse.Curve | None:
        """What LRU caches of these rooms, and one without end, find on the trace. Raises BadInput with what is wrong of it."""
        if self.trace is None:
            return None
        block = self.trace.block_tokens
        sizes = {room for room in self.rooms_tokens.values() if room >= block}
        return reuse.curve(self.trace.requests(), block, [*sizes, math.inf])

    @property
    def hit_share(self) -> float | None:
        """Share of prompt tokens that lie somewhere: of the trace, in the largest room there is; else what was given."""
        if self.found is None:
            return self.load.hit_share
        return reuse.hit_rate(self.found, max(self.rooms_tokens.values(), default=math.inf))

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """Those that are simulated, in blocks of the trace."""
        return tuple(islice(self.trace.requests() if self.trace else self._made_up(), self.simulated.requests))

    @property
    def lengths(self) -> str:
        """Where the lengths of ``requests`` come from."""
        if self.trace:
            part = "all" if len(self.requests) < self.simulated.requests else "the first"
            return f"{part} of {self.trace.path.name}"
        return (
            f"made up: lognormal, prompts of {self.load.prompt_tokens / 4:,.0f} tokens in the mean, "
            f"{self.load.requests_s * self.simulated.replicas:g} a second"
        )

    def _made_up(self) -> Iterator[Request]:
        return lognormal(
            self.simulated.requests,
            prompt_tokens=self.load.prompt_tokens / 4,
            output_tokens=self.load.output_tokens,
            longest=self.load.context,
            rate_s=self.load.requests_s * self.simulated.replicas,
        )
