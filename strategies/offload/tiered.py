"""Several tiers, the nearest first: what one has no room for goes to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from strategies.base import KVShape, Lost, Offload, Tier
from strategies.offload.bounded import Bounded

GENERAL = ("on_loss", "persist")  # what is decided for all tiers at once


class Chain(Tier):
    """Puts into the first tier that takes it, gets from the first that has it.

    A tier without room hands its least recently used objects down. An object stays where it is found: it is read once a
    prompt, and bringing it up would push down another.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tiers
        for at, tier in enumerate(tiers[:-1]):
            if isinstance(tier, Bounded):
                tier.below = Chain(tiers[at + 1 :])

    def put(self, key: str, data: bytes) -> str:
        reasons = []
        for tier in self.tiers:
            try:
                return tier.put(key, data)
            except OSError as error:
                reasons.append(str(error))
        raise OSError("; ".join(reasons))

    def get(self, key: str) -> tuple[bytes, str]:
        failures: list[Lost | OSError] = []
        for tier in self.tiers:
            try:
                return tier.get(key)
            except (Lost, OSError) as error:
                failures.append(error)
        reasons = "; ".join(map(str, failures))
        unanswered = any(isinstance(failure, OSError) for failure in failures)  # it may still be there
        raise OSError(reasons) if unanswered else Lost(reasons)

    def delete(self, key: str) -> None:
        reasons = []
        for tier in self.tiers:
            try:
                tier.delete(key)
            except OSError as error:
                reasons.append(str(error))
        if reasons:
            raise OSError("; ".join(reasons))


@dataclass(frozen=True, kw_only=True)
class Tiered(Offload):
    """Tiers in order, such as host, disk, s3. One that fails is passed over.

    Args:
        tiers: the parts; what happens on loss and whether objects persist is set here and not on them.
    """

    name: ClassVar[str] = "tiered"

    tiers: tuple[Offload, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name}({','.join(part.label for part in self.tiers)})"

    def tier(self) -> Chain:
        return Chain([part.tier() for part in self.tiers])

    def spec(self) -> dict[str, Any]:
        """With the specs of the parts, which tell their classes and versions."""
        plain = super().spec()
        return {**plain, "options": {**plain["options"], "tiers": [part.spec() for part in self.tiers]}}

    def shown(self) -> Iterator[tuple[str, Any]]:
        words = (" ".join([part.name, *(f"{name}={value}" for name, value in part.shown())]) for part in self.tiers)
        for option, value in super().shown():
            yield option, f"({', '.join(words)})" if option == "tiers" else value

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if not self.tiers:
            found.append(f"{self.option('tiers')} must hold a tier or more, got none")
        for at, part in enumerate(self.tiers):
            where = f"{self.option('tiers')}.{at}."
            for general in GENERAL:
                if getattr(part, general) != getattr(Offload, general):
                    rule = "must be set on tiered and not on a part"
                    found.append(f"{where}{general} {rule}, got {getattr(part, general)}")
            alike = replace(part, on_loss=Offload.on_loss, persist=self.persist)
            for problem in alike.problems(shape):
                mine = problem.replace(self.option(""), where)
                found.append(mine.replace(f"{where}persist", self.option("persist")))
        return found
