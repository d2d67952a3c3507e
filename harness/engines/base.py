"""The engine contract: what the planner asks before anything is loaded, and what a worker asks of a loaded model.

An engine knows samples and stacks; it knows no concrete task, no concrete layer and no store. It answers with raw
responses, evidence and memory; judging them is the task's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from harness.types import Evidence, Fault, Generation, Memory, Response, Sample, Served, Unsupported, digest
from strategies.base import KVShape, Layer
from strategies.stack import Stack
from tasks.base import Tokenizer

Compress = Literal["prompt", "context", "other"]
Prefill = Literal["exact", "chunked"]
Start = Literal["cold", "warm", "reloaded", "restarted"]
CONTROL = "control"  # name of the stack that is the positive control; no strategy is called so


@dataclass(frozen=True)
class Support:
    """An engine's answer about one layer. ``why`` says what it does with it, or why it refuses."""

    yes: bool
    why: str


class EngineTokenizer(Tokenizer, Protocol):
    """A task's tokenizer that also knows which part of a prompt is there when the cache is compressed."""

    def compressed_tokens(self, sample: Sample, compress: str) -> int:
        """Tokens of ``sample`` that are in the cache when it is compressed: of the whole prompt, or of its context."""
        ...

    def new_tokens(self, sample: Sample) -> int:
        """Tokens that may follow the prompt of ``sample``: its thinking with what ends it, and its answer."""
        ...


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights load."""

    shape: KVShape
    deploy_bytes: int  # element size of the unquantized cache where the model will be deployed
    deploy_dtype: str
    max_tokens: int
    display: str  # the model's name for people
    identity: Mapping[str, Any]  # id, revision, weights, tokenizer, chat_template, dtype: part of every address
    tokenizer: EngineTokenizer
    parameters: tuple[int, int] | None = (
        None  # of a step, and those of them that make logits; None where files do not tell
    )


def chance(seed: int, sample: Sample, bits: int) -> int:
    """The seed of every random draw on a sample, the same for all that answer it."""
    return int(digest([seed, sample.id]), 16) % (1 << bits)


@dataclass(frozen=True)
class Row:
    """One stack, decoded for the cell at ``cell``."""

    cell: str
    stack: Stack


@dataclass(frozen=True)
class Ask:
    """One sample, and the rows that are to answer it. Rows of one batch decode together."""

    sample: Sample
    batches: Sequence[Sequence[Row]]


@dataclass(frozen=True)
class Answer:
    """What one row of one sample gave. ``response`` is None when it failed; then ``error`` and ``fault`` say why."""

    cell: str
    sample_id: str
    prompt_hash: str
    response: Response | None
    evidence: tuple[Evidence, ...] = ()
    memory: Memory | None = None
    error: str = ""
    fault: Fault | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Prompt:
    """One request of a load: so many tokens are to follow these, whatever they are; no token ends it sooner.

    It is due ``due_s`` after the start. One that comes ``after`` another is the next turn of a conversation: it is due ``due_s``
    after that one's end, and its tokens follow that one's and its answer.
    """

    id: str
    token_ids: Sequence[int]
    output_tokens: int
    due_s: float = 0.0
    after: str = ""  # id of the turn before


@dataclass(frozen=True)
class Traffic:
    """What is asked of an engine in one measurement, the same whoever answers.

    Args:
        prompts: in the order in which they are due.
        in_flight: requests that are with the engine at a time, at most; None: each is sent when it is due.
        prime: what is asked before the clock starts, one after the other, so that the engine has seen it.
    """

    prompts: Sequence[Prompt]
    in_flight: int | None
    prime: Sequence[Prompt] = ()


@dataclass(frozen=True)
class Demands:
    """What a load asks of whoever serves it."""

    arrives: bool = False  # requests come when they come, or when an answer has come
    mixed: bool = False  # lengths differ
    returns: bool = False  # prompts come back to what was there before
    output_tokens: int = 2  # of the shortest answer


class Session(ABC):
    """A loaded model."""

    together: int = 1  # samples that it answers best when it is asked all at once

    def fit(self, stack: Stack, text: str, tokens: int) -> Stack:
        """``stack`` with what its calibrating layers learn from the first ``tokens`` tokens of ``text``."""
        return stack

    @abstractmethod
    def forget(self) -> None:
        """Samples of another kind follow: what earlier ones left behind for later ones to reuse is not theirs."""

    @abstractmethod
    def run(
        self,
        asks: Sequence[Ask],
        *,
        compress: Compress,
        prefill: Prefill = "exact",
        start: Start = "cold",
        seed: int,
    ) -> Iterator[Answer]:
        """Answer each sample with every one of its rows, as answers come.

        The sample says how: greedily or at its ``temperature``, then with noise of (seed, sample id, step) alone, which all
        rows share; at once or after it has thought (``think``).
        With ``compress="other"`` the context was compressed while ``sample.other`` was asked about it, and is reused.
        With ``prefill="chunked"`` a row that packs its cache reads its prompt chunk by chunk through what it has stored.
        With ``start="warm"`` a row that reuses prefixes has seen this very prompt before; with ``"reloaded"`` a row that
        offloads has lost it on the device since and gets it back from the tier; with ``"restarted"`` it finds in the tier what
        an earlier process put there. ``"cold"`` is none of these.

        The first batch of a sample decodes together with the first batches of other samples, as the engine likes; each later
        batch by itself. Where an engine loads the baseline together with others, it is the first row of the first batch: samples
        that ``follow`` are measured against it. An answer does not depend on which rows decode beside it, up to float rounding.
        """

    def serve(self, stack: Stack, traffic: Traffic, *, seed: int) -> Served:
        """Serve a load with ``stack`` alone and note when each token came. Asked where ``Engine.times`` says yes.

        Nothing that was served before is there to be reused. The clock starts before the first request is sent.
        """
        raise NotImplementedError

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What became known only by loading: resolved dtype, devices, attention; stored beside the cell."""


class Engine(ABC):
    """One way to run a model. Frozen options come from ``conf/engine/``."""

    name: ClassVar[str]
    prefill: ClassVar[Prefill] = "exact"  # how it prefills where nobody asks for the other way
    python: str | None = None  # interpreter of the environment that has the engine's library; None for this one
    unseen: ClassVar[frozenset[str]] = frozenset()  # of what is timed: "itl" where single tokens are not seen, "peak"
    silence_s: float | None = None  # a worker that says nothing for so long hangs; None waits for ever
    gpus_per_worker: int | None = None  # None: see ``gpus``

    @property
    def gpus(self) -> int | None:
        """GPUs that a worker of this engine takes; None: all there are if it is alone, else one."""
        return self.gpus_per_worker

    def missing(self) -> str | None:
        """A command that installs what this engine needs; None if it is there."""
        return None

    @abstractmethod
    def describe(self, model: Mapping[str, Any]) -> ModelFacts:
        """Find the model and read its configuration without loading weights. Raises BadInput or Unsupported."""

    @abstractmethod
    def resolve(self, stack: Stack) -> Stack:
        """``stack`` with this engine's choice for every option that was left open. Pure."""

    @abstractmethod
    def supports(self, layer: Layer) -> Support:
        """Whether this engine can serve ``layer``. Pure; answers without the engine's library installed."""

    def controls(self, stack: Stack) -> Support:
        """Whether this engine can serve ``stack`` as a positive control, and how. Pure."""
        answers = [self.supports(layer) for layer in stack.layers()]
        return next((answer for answer in answers if not answer.yes), Support(True, "as any strategy"))

    def follows(self) -> Support:
        """Whether this engine can feed a strategy the baseline's tokens and compare what both predict. Pure."""
        return Support(True, "step by step, over the whole vocabulary")

    def generates(self, generation: Generation) -> Support:
        """Whether this engine can generate answers so. Pure."""
        return Support(True, "as the run says")

    @abstractmethod
    def prefills(self, stack: Stack, prefill: Prefill, shape: KVShape) -> Support:
        """Whether this engine can prefill ``stack`` that way for a model of this shape. Pure."""

    @abstractmethod
    def compresses(self, compress: Compress, shape: KVShape) -> Support:
        """Whether this engine can compress that part of a prompt for a model of this shape. Pure."""

    @abstractmethod
    def starts(self, start: Start, stack: Stack) -> Support:
        """Whether this engine can bring ``stack`` into the state that ``start`` asks for. Pure."""

    def serves(self, stack: Stack, shape: KVShape) -> Support:
        """Whether what runs already, if anything does, was set up as ``stack`` is. Asked after ``describe`` found the model."""
        return Support(True, "each strategy is set up when it is opened")

    def times(self, stack: Stack, demands: Demands, loads: int) -> Support:
        """Whether this engine can serve such a load with ``stack`` alone and time it, with ``loads`` of it in memory at once.
        Pure."""
        return Support(False, "its requests are not timed")

    def rates(self, model: Mapping[str, Any]) -> dict[str, float]:
        """What the device can do at best for a model of this dtype: bytes and operations a second. Raises Unsupported."""
        raise Unsupported(f"engine {self.name} does not measure a device; engine=hf does")

    def on_kernels(self, attention: str) -> dict[str, Any]:
        """Options of this engine that make it compute attention with the kernels that ``Session.facts`` calls so; none if it has
        no choice. Pure."""
        return {}

    @abstractmethod
    def load_key(self, stack: Stack) -> str:
        """Stacks with one key can share a loaded model. Pure."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What of this engine decides results: name, options and library versions; part of every cell's address."""

    def spec_for(self, stack: Stack) -> dict[str, Any]:
        """What beyond ``spec`` decides the results of ``stack`` alone, where strategies are served by different machines."""
        return {}

    @abstractmethod
    def open(self, model: Mapping[str, Any], stack: Stack) -> AbstractContextManager[Session]:
        """Load the model for stacks of one load key, of which ``stack`` is one; free everything on exit, also after an
        exception."""
