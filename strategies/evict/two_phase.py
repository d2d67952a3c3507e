"""One policy for the prompt and another while decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from strategies.base import Evict, KVShape, LayerView
from strategies.evict.composite import Composite, changed


@dataclass(frozen=True, kw_only=True)
class TwoPhase(Composite):
    """``prefill`` evicts after the prompt, whatever its ``every``; ``decode`` evicts every ``decode.every`` answer tokens.

    All that every policy has (budgets, spread, spans ...) is set on the two and not here. What is asked of this layer itself
    is answered for the prompt.

    Args:
        prefill: the policy for the prompt.
        decode: the policy while decoding.
    """

    name: ClassVar[str] = "two_phase"

    prefill: Evict | None = None
    decode: Evict | None = None

    def inner(self) -> Mapping[str, tuple[Evict, ...]]:
        both = {"prefill": self.prefill, "decode": self.decode}
        return {option: (policy,) for option, policy in both.items() if policy is not None}

    def phases(self) -> tuple[Evict | None, Evict | None]:
        return self.prefill, self.decode

    @property
    def label(self) -> str:
        return f"{self.name}({', '.join(policy.label for policy in self._all())})"

    def problems(self, shape: KVShape) -> list[str]:
        found = [
            f"{self.option(field)} must be set on prefill or decode, got {getattr(self, field)}"
            for field in changed(self)
        ]
        for option, policy in (("prefill", self.prefill), ("decode", self.decode)):
            if policy is None:
                found.append(f"{self.option(option)} must hold a policy, got none")
                continue
            found += self.problems_inside(option, policy, shape)
            if policy.rerotate:
                rule = "must be false: both phases would have to agree on positions"
                found.append(f"{self.option(option)}.rerotate {rule}, got True")
        if self.decode is not None and self.decode.every < 1:
            found.append(f"{self.option('decode')}.every must be 1 or more, got {self.decode.every}")
        if self.prefill is not None and self.prefill.spread == "heads":
            rule = "must not be heads: heads that grew apart are not evicted again"
            found.append(f"{self.option('prefill')}.spread {rule}, got heads")
        return found

    def budget(self, tokens: int) -> int:
        return self._first.budget(tokens)

    def layer_budget(self, tokens: int, layer: int, layers: int) -> int:
        return self._first.layer_budget(tokens, layer, layers)

    @property
    def ranking(self) -> tuple[Any, ...]:
        return self._first.ranking

    def scores(self, view: LayerView) -> Tensor:
        return self._first.scores(view)

    def importance(self, view: LayerView) -> Tensor:
        return self._first.importance(view)

    def chosen(self, importance: Tensor, budget: int) -> tuple[Tensor, ...]:
        return self._first.chosen(importance, budget)

    @property
    def _first(self) -> Evict:
        assert self.prefill is not None
        return self.prefill
