"""pass@k: the chance that one of k answers to a problem passes, from n answers of which c did (Chen et al., 2021, eq. 1)."""

from __future__ import annotations

from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate 1 - C(n-c, k) / C(n, k). Greedy decoding has one answer: pass@1 is then the score itself."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1 - comb(n - c, k) / comb(n, k)
