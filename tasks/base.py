"""The task contract: samples that any engine can answer, and a judge of one response.

A task is a frozen dataclass whose fields are its options in ``conf/task/``. It never imports torch, an engine or a
strategy; all it needs of a model is a ``Tokenizer``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from harness.types import Response, Sample, Score, digest

FAMILIES = ("retrieval", "multi_turn", "reasoning", "code", "instructions", "fidelity")


class Tokenizer(Protocol):
    """What a task may ask of a model's tokenizer."""

    max_tokens: int  # longest prompt plus answer that the model takes

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` without special tokens."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Text of ``token_ids`` without special tokens."""
        ...

    def prompt_tokens(self, sample: Sample) -> int:
        """Length in tokens of the whole prompt that the engine will feed for ``sample``, chat template included."""
        ...


class Knob(NamedTuple):
    """The option that makes a task harder, and values of it from easy to hard, as YAML would have them."""

    option: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """One kind of question.

    ``version`` is raised whenever samples or scores change, so that old cells are not reused for them.
    """

    name: str
    version: ClassVar[int] = 1
    chance: ClassVar[float] = 0.0  # score of a model that guesses
    graded: ClassVar[bool] = False  # True: scores between 0 and 1 occur, so pairs are not binary
    fidelity: ClassVar[bool] = False  # True: measures distance to the baseline; never gates

    @property
    def family(self) -> str:
        """What reports group it under: the folder of ``tasks/`` it lives in, "fidelity", or "own" for data of the user's own."""
        package, _, rest = type(self).__module__.partition(".")
        folder = rest.partition(".")[0]
        return folder if package == "tasks" and folder in FAMILIES else "own"

    @abstractmethod
    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        """The first ``n`` samples of this task for ``seed``. Sample i does not depend on ``n``.

        Raises ValueError naming field, rule and value if the task cannot be built (a length beyond the model, say).
        """

    @abstractmethod
    def score(self, sample: Sample, response: Response) -> Score:
        """Judge one response. Pure: rescoring stored responses later gives the same result."""

    def sources(self) -> dict[str, str]:
        """Hashes of the texts that samples are cut from (name -> digest); part of the cell's address."""
        return {}

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        """Every rule that this task's options break for this model, checked before anything is generated."""
        return []

    def knob(self, tokenizer: Tokenizer) -> Knob | None:
        """What ``task.calibrate=true`` turns, passing over values that ``problems`` refuses; None: nothing can be turned."""
        return None

    def spec(self) -> dict[str, Any]:
        """What makes two tasks the same task: class, version, options and sources."""
        return {
            "class": f"{type(self).__module__}.{type(self).__qualname__}",
            "version": self.version,
            "options": asdict(self),
            "sources": self.sources(),
        }

    def rng(self, seed: int, index: int) -> random.Random:
        """The only source of chance for sample ``index``: seeded by (task, seed, index), equal on every machine."""
        return random.Random(digest({"task": self.name, "seed": seed, "index": index}, 32))
