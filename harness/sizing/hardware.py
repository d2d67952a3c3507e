"""What a device is and what stands around it, from a file of ``conf/hardware`` or one that ``load=links`` measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.bench.roofline import hardware_problems
from harness.types import BadInput

POSITIVE = (
    "memory_bytes",
    "to_device_large_bytes_s",
    "from_device_large_bytes_s",
    "to_device_small_bytes_s",
    "peer_bytes_s",
)
TIER_RATES = ("read_bytes_s", "write_bytes_s")
TIER = {  # of a tier: what a number must be
    **dict.fromkeys(TIER_RATES, "above 0"),
    "latency_s": "0 or more",
    "bytes": "above 0",
    "drive_bytes_s": "above 0",
    "price_gb_month": "0 or more",
}
SMALL_BYTES = 64 * 2**10  # of the small copies that ``load=links`` measures


@dataclass(frozen=True)
class Tier:
    """Somewhere else to keep a cache, as one device sees it: its share of what several devices use together."""

    name: str
    read_bytes_s: float
    write_bytes_s: float
    latency_s: float = 0.0  # of one operation
    bytes: float | None = None  # room; None: not known, or without end
    drive_bytes_s: float | None = None  # of one of the drives behind it; None: it has none
    price_gb_month: float | None = None  # US dollars


@dataclass(frozen=True)
class Coding:
    """How fast a format is made of a full-precision cache and read back, in bytes of the latter."""

    code_bytes_s: float
    decode_bytes_s: float


@dataclass(frozen=True)
class Hardware:
    """One device. What is not known is None, and what needs it is not told."""

    name: str
    memory_bytes: float | None = None
    memory_bytes_s: float | None = None
    matmul_flop_s: float | None = None
    reserve_bytes: float = 0.0  # of its memory that neither weights nor caches get: activations, graphs, the driver
    host_bytes_s: float | None = None  # from the host to the device; None: they are one
    price_hour: float | None = None  # US dollars
    tiers: tuple[Tier, ...] = ()
    coding: Mapping[str, Coding] = field(default_factory=dict)

    def tier(self, name: str) -> Tier | None:
        return next((tier for tier in self.tiers if tier.name == name), None)


def hardware_of(config: Mapping[str, Any]) -> Hardware:
    """The device of a hardware file. Raises BadInput with every rule that the file breaks."""
    if problems := problems_of(config):
        raise BadInput(*problems)
    tiers = {**(_measured_tiers(config) if config.get("measured") else {}), **(config.get("tiers") or {})}
    return Hardware(
        name=str(config.get("name", "here")),
        memory_bytes=config.get("memory_bytes"),
        memory_bytes_s=config.get("memory_bytes_s"),
        matmul_flop_s=config.get("matmul_flop_s"),
        reserve_bytes=config.get("reserve_bytes") or 0.0,
        host_bytes_s=config.get("to_device_large_bytes_s"),
        price_hour=config.get("price_hour"),
        tiers=tuple(_tier(name, one) for name, one in tiers.items() if not _absent(one)),
        coding={name: Coding(**rates) for name, rates in (config.get("coding") or {}).items()},
    )


def _absent(tier: Any) -> bool:
    """Whether a tier is switched off, or hangs on a link that this device does not have: a rate that is null."""
    return not tier or (isinstance(tier, Mapping) and tier.get("read_bytes_s", ...) is None)


def _tier(name: str, config: Mapping[str, Any]) -> Tier:
    known = {key: config[key] for key in TIER if config.get(key) is not None}
    return Tier(name, **{"write_bytes_s": known["read_bytes_s"], **known})


def _measured_tiers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The host's memory and the disk, where ``load=links`` measured them; what a small copy takes longer is its latency."""
    found: dict[str, Any] = {}
    if rate := config.get("to_device_large_bytes_s"):
        small = config.get("to_device_small_bytes_s") or rate
        found["host"] = {
            "read_bytes_s": rate,
            "write_bytes_s": config.get("from_device_large_bytes_s"),
            "latency_s": max(0.0, SMALL_BYTES / small - SMALL_BYTES / rate),
        }
    if disk := config.get("disk"):
        found["disk"] = {"read_bytes_s": disk["read_large_bytes_s"], "write_bytes_s": disk["write_large_bytes_s"]}
    return found


def problems_of(config: Mapping[str, Any]) -> list[str]:
    """Every rule that a hardware file breaks: field, rule and value."""
    found = hardware_problems(config)
    for name in POSITIVE:
        if config.get(name) is not None and not _number(config[name], "above 0"):
            found.append(f"hardware.{name} must be null or above 0, got {config[name]!r}")
    if config.get("reserve_bytes") is not None and not _number(config["reserve_bytes"], "0 or more"):
        found.append(f"hardware.reserve_bytes must be 0 or more, got {config['reserve_bytes']!r}")
    for name in ("read_large_bytes_s", "write_large_bytes_s") if config.get("disk") else ():
        if not _number(config["disk"].get(name), "above 0"):
            found.append(f"hardware.disk.{name} must be above 0, got {config['disk'].get(name)!r}")
    for name, tier in (config.get("tiers") or {}).items():
        found += _tier_problems(f"hardware.tiers.{name}", tier)
    for name, rates in (config.get("coding") or {}).items():
        wanted = ("code_bytes_s", "decode_bytes_s")
        if not isinstance(rates, Mapping) or set(rates) != set(wanted):
            found.append(f"hardware.coding.{name} must have {' and '.join(wanted)}, got {rates!r}")
        else:
            found += [
                f"hardware.coding.{name}.{one} must be above 0, got {rates[one]!r}"
                for one in wanted
                if not _number(rates[one], "above 0")
            ]
    return found


def _tier_problems(where: str, tier: Any) -> list[str]:
    if _absent(tier):
        return []
    if not isinstance(tier, Mapping):
        return [f"{where} must be a node with {', '.join(TIER)}, got {tier!r}"]
    found = [
        f"{where}.{name} is no number of a tier ({', '.join(TIER)}), got {tier[name]!r}"
        for name in tier
        if name not in TIER
    ]
    if "read_bytes_s" not in tier:
        found.append(f"{where}.read_bytes_s must be above 0, got nothing")
    return found + [
        f"{where}.{name} must be {rule}, got {tier[name]!r}"
        for name, rule in TIER.items()
        if tier.get(name) is not None and not _number(tier[name], rule)
    ]


def _number(value: Any, rule: str) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
        return False
    return value > 0 if rule == "above 0" else value >= 0
