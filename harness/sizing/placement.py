"""Attention where the cache lies, other things to keep than keys and values, and sites that share a cache. Pure."""

from __future__ import annotations

from harness.sizing.shapes import CacheLayer


def vectors_bytes(layers: tuple[CacheLayer, ...], element_bytes: int) -> int:
    """What crosses the link a token and step when attention is computed beside the storage (INF2, arXiv 2502.09921).

    Query, new key, new value and output of every layer: it does not grow with the context.
    """
    return element_bytes * sum(
        layer.query_heads * (layer.key_width + layer.value_width) + layer.width for layer in layers
    )


def io_share(moved_s: float, computed_s: float) -> float:
    """Share of a step that moving takes where nothing is hidden behind computing."""
    return moved_s / (moved_s + computed_s) if moved_s + computed_s else 0.0


def near_storage_gain(host_s: float, near_s: float, rest_s: float) -> float:
    """How many times faster a step is with attention near storage; at most 1 / (1 - I/O share)."""
    return (rest_s + host_s) / (rest_s + near_s)


def x_cache_elements(hidden: int, layer: CacheLayer) -> tuple[int, int]:
    """Elements a token and layer of hidden states kept in the place of keys and values, and of the latter."""
    return hidden, layer.width


def hit_share_of_copies(share: float, sites: int, copies: int) -> float:
    """Hits where each prefix lies at ``copies`` of ``sites`` and requests arrive anywhere: of what one shared cache would hit."""
    return share * min(copies, sites) / sites


def replication_bytes_s(new_bytes_s: float, copies: int) -> float:
    """What a site sends so that what it computed lies at ``copies`` sites, its own among them."""
    return new_bytes_s * (copies - 1)
