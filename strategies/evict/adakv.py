"""Ada-KV (arXiv 2407.11550): SnapKV's scores, and more of the budget for heads that look at many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.evict.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class AdaKV(SnapKV):
    """SnapKV as the Ada-KV code sets it up (window 32, max pooling over 7), with budgets by head (``spread=heads``).

    A head's budget is (1 - floor) * (its tokens among the best of all heads) + floor * (uniform budget), as in the paper's
    code. Windows are among the best in every head, so that the formula holds for the rest of the budget too. The original
    rounds each head's budget; here their sum is exactly that of uniform ones. One choice is made for each key/value head,
    of the mean over its query heads, taken before pooling.
    """

    name: ClassVar[str] = "adakv"

    kernel: int = 7
    pool: str = "max"
    spread: str = "heads"
