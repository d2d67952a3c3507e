"""What policies that are made of other policies share: what they ask of the engine, and how they are described."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from strategies.base import Evict, KVShape


@dataclass(frozen=True, kw_only=True)
class Composite(Evict):
    """A policy whose options hold policies."""

    @abstractmethod
    def inner(self) -> Mapping[str, tuple[Evict, ...]]:
        """The policies inside, by the option that holds them."""

    def _all(self) -> tuple[Evict, ...]:
        return tuple(policy for policies in self.inner().values() for policy in policies)

    @property
    def per_head(self) -> bool:  # type: ignore[override]
        return any(policy.per_head for policy in self._all())

    @property
    def on_latents(self) -> bool:  # type: ignore[override]
        return all(policy.on_latents for policy in self._all())

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset().union(*(policy.needs for policy in self._all()))

    @property
    def query_window(self) -> int:
        return max((policy.query_window for policy in self._all()), default=0)

    @property
    def future_steps(self) -> int:
        return max((policy.future_steps for policy in self._all()), default=0)

    def spec(self) -> dict[str, Any]:
        """With the specs of the policies inside, which tell their classes and versions."""
        plain = super().spec()
        specs = {option: [policy.spec() for policy in policies] for option, policies in self.inner().items()}
        return {**plain, "options": {**plain["options"], **specs}}

    def shown(self) -> Iterator[tuple[str, Any]]:
        inner = {option: "+".join(map(_words, policies)) for option, policies in self.inner().items()}
        for option, value in super().shown():
            yield option, inner.get(option, value)

    def problems_inside(self, option: str, policy: Evict, shape: KVShape) -> list[str]:
        """What is wrong with a policy inside, by the names under which the user set its options."""
        if policy.selects_reads:
            return [f"{self.option(option)} must hold a policy that evicts, got {policy.name}"]
        return [problem.replace(self.option(""), f"{self.option(option)}.") for problem in policy.problems(shape)]


def changed(policy: Evict) -> list[str]:
    """Which of the options that every policy has were set, for where they would do nothing."""
    defaults = {field.name: field.default for field in fields(policy)}
    return [f.name for f in fields(Evict) if getattr(policy, f.name) != defaults[f.name]]


def _words(policy: Evict) -> str:
    options = " ".join(f"{name}={value}" for name, value in policy.shown())
    return f"{policy.name}({options})" if options else policy.name
