"""Settings from configuration as a plan counts them: each layer's own byte formula, on the model's cache.

The only file of this folder that knows layers, and so torch; what it makes are plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.engines.hf.engine import HFEngine
from harness.engines.vllm import serving
from harness.plan import Job, stacks_of, strategy_key
from harness.sizing.holding import Holding
from harness.sizing.shapes import CacheLayer, ModelShape
from harness.stacks import make_stack
from harness.types import BadInput, canonical
from strategies.base import KVShape
from strategies.stack import Stack


def stack_of(name: str, config: Any, field: str = "strategy") -> Stack:
    """A strategy with vLLM's choice for what its preset leaves open: a plan is for serving. Raises BadInput."""
    return serving.settled(make_stack(name, config, field), "cuda", None)


def strategies_of(jobs: Sequence[Job]) -> dict[str, Mapping[str, Any]]:
    """What was asked about, under the names that a run would give it. Raises BadInput."""
    stacks, problems = stacks_of(jobs, HFEngine())
    if problems:
        raise BadInput(*problems)
    configs = {strategy_key(job.config["strategy"]): job.config["strategy"] for job in jobs}
    return {stack.name: configs[key] for key, stack in stacks.items()}


def specs_of(name: str, config: Any) -> tuple[str, ...]:
    """The canonical descriptions under which runs of either engine judge it."""
    open_ones = make_stack(name, config)
    both = (
        HFEngine().resolve(open_ones),
        serving.settled(open_ones, "cuda", None),
        serving.settled(open_ones, "cpu", None),
    )
    return tuple(dict.fromkeys(canonical(stack.spec()) for stack in both))


def refusals(stack: Stack, model: ModelShape) -> list[str]:
    """Why this stack cannot be counted on this model."""
    if stack.calibrates:
        return [
            f"strategy {stack.name} learns from a calibration text, and what it weighs is known only then: kvgate run"
        ]
    if stack.paging and stack.paging.name == "static":
        return [
            "strategy.paging: paging/static sets aside one room for all requests, whatever they hold: kvgate run strategy=static"
        ]
    compressed = [layer for layer in model.layers if layer.entry_tokens not in (1, None)]
    if compressed and (stack.evict or stack.structure):
        return [
            f"strategy {stack.name} drops or merges tokens, and a layer of {model.name} keeps one entry for several of them"
        ]
    return stack.problems(kv_shape(model))


def holding(name: str, stack: Stack, model: ModelShape, specs: tuple[str, ...] = ()) -> Holding:
    """What a stack that is not refused holds and reads of a request. Raises BadInput."""
    if problems := refusals(stack, model):
        raise BadInput(*problems)
    shape = kv_shape(model)
    formats = stack.formats(shape.layers)

    def by_layer(tokens: int, reading: bool = False) -> tuple[int, ...]:
        counts = stack.kept(tokens, shape)
        return tuple(
            _layer_bytes(layer, format, heads[0], model.element_bytes, reading)
            for layer, format, heads in zip(model.layers, formats, counts, strict=True)
        )

    slots = tuple(layer.slot for layer in stack.layers())
    return Holding(name, stack.describe(), by_layer, lambda tokens: by_layer(tokens, reading=True), slots, specs)


def _layer_bytes(layer: CacheLayer, format: Any, tokens: int, element_bytes: int, reading: bool) -> int:
    """One layer that is left ``tokens``; an indexer's keys stay exact, and are read whole."""
    entries = tokens if layer.entry_tokens is None else layer.entries(tokens)
    if reading:
        entries = layer.read(entries)
    value = layer.value_width if layer.value_width != layer.key_width else None
    one = KVShape(1, layer.kv_heads, layer.query_heads, layer.key_width, element_bytes, value_dim=value)
    packed = format.layer_bytes(entries, one) if format else one.exact_bytes(entries)
    return int(packed) + layer.indexed(tokens) * layer.index_width * element_bytes


def kv_shape(model: ModelShape) -> KVShape:
    """The model as its layers see it: what is cached has one width in all of them."""
    first = model.layers[0]
    return KVShape(
        layers=len(model.layers),
        kv_heads=first.kv_heads,
        query_heads=first.query_heads,
        head_dim=first.key_width,
        element_bytes=model.element_bytes,
        window=tuple(layer.window_tokens if layer.entry_tokens is None else None for layer in model.layers),
        value_dim=None if first.value_width == first.key_width else first.value_width,
        linear_layers=model.linear_layers,
    )


def times_smaller(layers: Mapping[str, Any], model: ModelShape, tokens: int) -> float:
    """By how much these layers, slot by slot, shrink a request of ``tokens``."""
    packed = holding("claim", stack_of("claim", layers), model)
    return model.exact_bytes(tokens) / packed.held_bytes(tokens)


def holdings_of(
    model: ModelShape, strategies: Mapping[str, Any], formats: Mapping[str, Any]
) -> tuple[tuple[Holding, ...], tuple[str, ...]]:
    """The full cache, the strategies that were asked about and the formats beside them; and which formats cannot be counted.

    A strategy that cannot be is refused: it was asked about. Raises BadInput with every problem.
    """
    found, problems, left_out = [holding("full", Stack("full"), model)], [], []
    for name, config in strategies.items():
        try:
            stack = stack_of(name, config)
            if stack.layers():
                found.append(holding(name, stack, model, specs_of(name, config)))
        except BadInput as error:
            problems += error.problems
    named = {one.describe for one in found}
    for name, config in formats.items():
        try:
            stack = stack_of(name, config, f"formats.{name}")
        except BadInput as error:
            problems += error.problems
            continue
        if reasons := refusals(stack, model):
            left_out += [f"{name}: {reason}" for reason in reasons]
        elif stack.describe() not in named:
            found.append(holding(name, stack, model, specs_of(name, config)))
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return tuple(found), tuple(left_out)
