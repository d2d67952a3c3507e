"""What is cached: bytes a token by kind of layer and by format, and from where on it outweighs the model."""

from __future__ import annotations

from typing import Any

from harness.sizing.capacity import crossover_tokens
from harness.sizing.case import Case
from harness.sizing.section import Section, gb, gb_text


def section(case: Case) -> Section:
    context, weights = case.load.context, case.weight_bytes
    full = case.full.held_bytes(context)
    rows: list[dict[str, Any]] = []
    for one in case.holdings:
        by_layer = one.by_layer(context)
        rows.append(
            {
                "setting": one.name,
                "kv_bytes_per_token": one.bytes_per_token(context),
                "least_layer_bytes_per_token": min(by_layer) / context,
                "most_layer_bytes_per_token": max(by_layer) / context,
                "request_kv_gb": gb(sum(by_layer)),
                "times_smaller": full / sum(by_layer),
                "kv_outweighs_weights_from_tokens": weights and crossover_tokens(weights, one.held_bytes),
            }
        )
    crossover = rows[0]["kv_outweighs_weights_from_tokens"]
    return Section(
        f"Bytes of a request of {context:,} tokens: {case.model.name} ({case.model.kind}, {len(case.model.layers)} layers)",
        tuple(rows),
        _advice(case, crossover),
        _notes(case),
    )


def _advice(case: Case, crossover: int | None) -> str:
    request = gb_text(case.full.held_bytes(case.load.context))
    if case.weight_bytes is None:
        return f"A request of this length holds {request}; what the weights of this model take is not known here."
    weights = gb_text(case.weight_bytes)
    if crossover is None:
        return f"Its cache never outweighs {weights} of weights, so a format of the cache gains little for a request alone."
    if crossover > case.load.context:
        return (
            f"Alone, a request of this length holds {request} beside {weights} of weights: its cache outweighs them only from "
            f"{crossover:,} tokens on, or with more than {crossover / case.load.context:.1f} requests at once."
        )
    return (
        f"The cache of one request outweighs {weights} of weights from {crossover:,} tokens on: shrink the cache before the "
        "weights."
    )


def _notes(case: Case) -> tuple[str, ...]:
    notes = [f"shape fitted, not reproduced: {case.model.fitted}"] if case.model.fitted else []
    if case.model.linear_layers:
        notes.append(
            f"{case.model.linear_layers} layers with linear attention hold a state that does not grow, and are not counted"
        )
    if any(layer.index_width for layer in case.model.layers):
        notes.append("the keys of an indexer are counted as exact, whatever the format")
    return (*notes, *(f"not counted, {reason}" for reason in case.refused))
