"""The run's generation settings: read from the configuration, and given to the samples that a task has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.types import Generation, Sample
from tasks.base import Tokenizer


def generation_of(config: Mapping[str, Any]) -> Generation:
    """The settings of the node ``gen``. In its texts ``\\n`` stands for a line break, which no command line writes with ease."""
    open, close, *stop = (
        text.replace("\\n", "\n") for text in (config["think_open"], config["think_close"], *config["stop"])
    )
    return Generation(**{**config, "think_open": open, "think_close": close, "stop": tuple(dict.fromkeys(stop))})


def num_items(n: int, generation: Generation) -> int:
    """How many items ``n`` samples are drawn from."""
    return -(-n // generation.k)


def drawn(items: Sequence[Sample], n: int, generation: Generation) -> list[Sample]:
    """The first ``n`` samples of ``items``: sample i is draw ``i % k`` of item ``i // k``.

    Draws of one item are a cluster. An item that is answered greedily keeps its id and cluster.
    """
    samples = []
    for item in items:
        stop = tuple(dict.fromkeys((*item.stop, *generation.stop)))
        item = replace(item, stop=stop, temperature=generation.temperature, think=generation.thinking)
        if not generation.temperature:
            samples.append(item)
            continue
        own = replace(item, cluster=item.cluster or item.id)
        samples += [replace(own, id=f"{item.id}~{draw + 1}", draw=draw) for draw in range(generation.k)]
    return samples[:n]


def item_of(sample: Sample) -> str:
    """The id of the item that ``sample`` is a draw of."""
    return sample.id.removesuffix(f"~{sample.draw + 1}")


class Reserving:
    """A model's tokenizer as tasks see it when thinking takes a part of what the model can read."""

    def __init__(self, tokenizer: Tokenizer, generation: Generation) -> None:
        think = generation.thinking
        marks = len(tokenizer.encode(think.open)) + len(tokenizer.encode(think.close)) if think else 0
        self.reserved = generation.think_tokens + marks  # tokens
        self.max_tokens = max(0, tokenizer.max_tokens - self.reserved)
        self.encode, self.decode, self.prompt_tokens = tokenizer.encode, tokenizer.decode, tokenizer.prompt_tokens
        self._most = tokenizer.max_tokens

    def problems(self) -> list[str]:
        rule = f"gen.think_tokens must, with the marks, be below the {self._most} tokens that the model reads"
        return [] if self.max_tokens else [f"{rule}, got {self.reserved}"]
