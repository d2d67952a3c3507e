"""A walk through a graph that is given as a list of edges: which nodes lie a number of steps away?

    harbor -> lemon
    quiet -> harbor
    harbor -> picket
    ...

    Which nodes can be reached from harbor in 1 step?  ->  The nodes are: [lemon, picket]

With one step these are the children of a node, scattered over the list. With more, each step looks up what the one before it
found, and the answer is all nodes at just that distance.

After GraphWalks (https://huggingface.co/datasets/openai/graphwalks), with own graphs and wording.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import ClassVar

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus
from tasks.base import Knob, Tokenizer
from tasks.sizing import Draft, SizedTask, first_of, shuffled

INSTRUCTION = 'These are the edges of a graph. "a -> b" leads from a to b and not back.'
_NODE = re.compile(r"[a-z]+(?:-[a-z]+)*")


@dataclass(frozen=True, kw_only=True)
class GraphWalk(SizedTask):
    """The score is F1 of the nodes that the answer names, in any form, against the right ones.

    Attributes:
        steps: Edges between the node asked for and those to be named; nodes that fewer reach do not count.
        width: Nodes at each distance, so also the number of answers; every other node has as many edges.
    """

    graded: ClassVar[bool] = True

    steps: int = 1
    width: int = 3

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        nodes = (word for word in corpus.all_words(rng) if word not in self._fixed)
        start = next(nodes)
        layers = [[start], *(list(islice(nodes, self.width)) for _ in range(self.steps))]
        walk = [_edge(rng.choice(near), node) for near, far in pairwise(layers) for node in far]
        order = rng.getrandbits(64)
        others = first_of(self._other_edges([node for layer in layers for node in layer], layers[-1], nodes, rng))
        asked = tuple(layers[-1])
        budget = len(tokenizer.encode("".join(f"\n- {node}" for node in asked))) + 8

        def build(units: int) -> Sample:
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n" + "\n".join(shuffled([*walk, *others(units)], order)),
                question=self._question(start),
                answers=asked,
                max_new_tokens=budget,
                answer_prefix="The nodes are:",
                meta={"steps": self.steps, "edges": units + len(walk)},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        nodes = set(_NODE.findall(sample.context.partition("\n\n")[2]))
        named = nodes.intersection(_NODE.findall(response.text.lower()))
        right = len(named & set(sample.answers))
        f1 = 2 * right / (len(named) + len(sample.answers))
        parts = {"precision": right / max(len(named), 1), "recall": right / len(sample.answers)}
        return Score(State.SCORED, f1, ", ".join(sorted(named)), parts)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("steps", (1, 2, 3, 4, 5))

    def sources(self) -> dict[str, str]:
        return corpus.sources("words")

    def broken(self) -> list[str]:
        return checks.whole("task.steps", self.steps) + checks.whole("task.width", self.width)

    def _question(self, start: str) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps, but not in fewer"
        return f"Which nodes can be reached from {start} in {steps}?"

    @property
    def _fixed(self) -> str:
        """Words of the fixed texts are no nodes."""
        return f"{INSTRUCTION} {self._question('')} The nodes are:".lower()

    def _other_edges(
        self, known: list[str], ends: list[str], nodes: Iterator[str], rng: random.Random
    ) -> Iterator[str]:
        """Edges without end that leave the answer as it is: from ``ends`` and from further nodes to any node.

        What lies nearer to the start than ``ends`` gets no further edge, so no distance up to theirs changes.
        """
        known = list(known)
        waiting = list(ends)
        while True:
            if not waiting:
                waiting.append(next(nodes))
                known.append(waiting[0])
            source = waiting.pop(rng.randrange(len(waiting)))
            fresh = next(nodes)
            known.append(fresh)
            waiting.append(fresh)
            targets = rng.sample([node for node in known[-200:] if node not in (source, fresh)], self.width - 1)
            for target in rng.sample([fresh, *targets], self.width):
                yield _edge(source, target)


def _edge(source: str, target: str) -> str:
    return f"{source} -> {target}"
