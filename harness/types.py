"""The nouns of kvgate, as plain data.

Everything that crosses a room of the house is one of these: a task makes ``Sample``s, an engine turns them into
``Record``s, statistics turn records into ``Verdict``s. Standard library only, so any room may import it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal


class BadInput(Exception):
    """The user asked for something that cannot be done. Carries every problem found, not just the first."""

    def __init__(self, *problems: str) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(problems))


class Unsupported(Exception):
    """A layer, engine or model cannot serve the request; the message names both sides and the reason."""


def canonical(value: Any) -> str:
    """The one JSON text of ``value`` that hashes are taken of: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any, length: int = 16) -> str:
    """The first ``length`` hex digits of the SHA-256 of ``canonical(value)``."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def well_formed(text: str) -> str:
    """``text`` as UTF-8 can hold it: half a surrogate pair, which a server's JSON may have, becomes its escape ``\\ud800``."""
    return text.encode("utf-8", errors="backslashreplace").decode()


def until(text: str, marks: Iterable[str]) -> str:
    """``text`` up to the first place where one of ``marks`` begins; all of it where none does."""
    return text[: min((at for at in map(text.find, marks) if at >= 0), default=None)]


class State(StrEnum):
    """The four outcomes of a sample. None of them is a score of 0.0."""

    SCORED = "scored"
    TRUNCATED = "truncated"  # ran into max_new_tokens before it stopped, and its task needs a finished answer
    FAILED = "failed"  # no response: see Record.error and Record.fault
    NOT_RUN = "not_run"


Fault = Literal["model", "infrastructure"]


@dataclass(frozen=True)
class Thinking:
    """Leave to think before the answer: freely until ``close`` appears or ``tokens`` are used, then ``close`` is fed."""

    tokens: int
    open: str  # ends the prompt, in the place of the sample's answer_prefix, unless the chat template has it there already
    close: str  # followed by the answer_prefix; it is found in what the model says without the white space around it

    @property
    def mark(self) -> str:
        """What ends the thinking when the model says it."""
        return self.close.strip()


@dataclass(frozen=True)
class Sample:
    """One question about one context.

    ``context`` and ``question`` stay apart so that a cache can be compressed before the question is known.
    A conversation is a sample for each turn, with the turns before it as ``turns``.
    ``answer_prefix`` is the text with which the model's answer is begun (part of the prompt, or fed after the thinking).
    ``draw``, ``temperature`` and ``think`` are no task's: the run's ``Generation`` sets them.
    """

    id: str  # stable for (task parameters, seed, index); the pairing key
    context: str
    question: str
    answers: tuple[str, ...]
    max_new_tokens: int
    answer_prefix: str = ""
    stop: tuple[str, ...] = ()  # decoding ends after the first of these strings appears
    cluster: str = ""  # samples that share a context, template or world; "" means the sample stands alone
    follow: bool = False  # teacher-forced: every strategy is fed the baseline's tokens, and fidelity is measured
    meta: Mapping[str, Any] = field(default_factory=dict)  # facts for reports: prompt_tokens, depth, ...
    instructions: tuple[str, ...] = ()  # parts of context or question that tell what to do; evictions may protect them
    other: str = ""  # another question about the context, for which a reused cache may have been compressed
    turns: tuple[tuple[str, str], ...] = ()  # asked and answered before: the first of them follows the context
    system: str = ""  # what the system said first
    draw: int = 0  # which of several answers to the same item this is
    temperature: float = 0.0  # 0: greedy
    think: Thinking | None = None

    @cached_property
    def hash(self) -> str:
        """Digest of all that the model sees and is judged by; two records pair only if it is equal."""
        facts = asdict(self)
        facts.pop("meta")
        # samples without them keep the hash they had before there were such
        for name in ("other", "turns", "system", "draw", "temperature", "think"):
            if not facts[name]:
                facts.pop(name)
        return digest(facts)


@dataclass(frozen=True)
class Response:
    """What a model gave back for one sample, before any judging."""

    text: str
    token_ids: tuple[int, ...]
    finish: Literal["stop", "length", "followed"]  # "followed": the baseline's tokens were fed
    fidelity: Mapping[str, float] | None = None  # kl_mean, kl_p99, top1_agreement, nll_delta (samples that follow)
    thinking_tokens: int = 0  # said before the answer, which ``text`` and ``token_ids`` hold alone
    thinking_cut: bool = False  # the thinking used its budget up

    @property
    def output_tokens(self) -> int:
        """All that was said, thinking and answer."""
        return self.thinking_tokens + len(self.token_ids)


@dataclass(frozen=True)
class Score:
    """A task's judgement of one response: ``value`` in [0, 1] when scored, else None.

    ``parts`` are further scores in [0, 1] by name, such as "strict", "leak", "kind: begins" or "position: 2"; what stands
    before a colon groups them. Reports show them, no decision rests on them.
    """

    state: State
    value: float | None
    answer: str = ""  # what was extracted from the text and compared
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if wrong := [f"{name} = {value}" for name, value in self.parts.items() if not 0 <= value <= 1]:
            raise ValueError(f"parts of a score must be in [0, 1], got {', '.join(wrong)}")


@dataclass(frozen=True)
class Evidence:
    """What one layer did to one sample, in numbers. ``acted`` is the layer's own condition, ``why`` says it in words."""

    layer: str  # "evict/snapkv"
    acted: bool
    why: str
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """KV memory of one sample in one cell, in bytes. ``stored`` is measured, ``formula`` is predicted."""

    prompt_tokens: int
    stored_bytes: int  # held by the store after the prompt
    stored_bytes_end: int  # held by the store after the last decoded token
    formula_bytes: int  # predicted for the same moment as stored_bytes, same element sizes
    working_bytes: int  # dense copy that this engine computes on; scratch, not storage
    peak_bytes: int  # allocator peak (GPU) or process peak (CPU) of the joint decode while this sample was part of it
    kept_fraction: float  # tokens kept / prompt tokens, over all layers and heads
    unpacked_elements: int  # formula_bytes grows by so much for each byte that an unquantized element is larger
    full_elements: int  # elements of the full cache of the same prompt


@dataclass(frozen=True)
class Record:
    """The facts of one sample in one cell: raw response, score, evidence and memory. One JSON line in the store."""

    cell: str  # address of the cell
    sample_id: str
    sample_hash: str
    prompt_hash: str  # of the token ids that were fed; pairs must agree
    state: State
    score: float | None = None
    answer: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)  # see Score; of a record from before there were any: none
    response: Response | None = None
    evidence: tuple[Evidence, ...] = ()
    memory: Memory | None = None
    error: str = ""
    fault: Fault | None = None
    seconds: float = 0.0  # wall time from prefill to answer, with all that ran beside it; never a speed of the cell

    @property
    def final(self) -> bool:
        """Whether another try would say the same: no machine failed, and nothing that was stored elsewhere was lost."""
        lost = any(evidence.facts.get("recomputed_layers", 0.0) for evidence in self.evidence)
        return not lost and not (self.state is State.FAILED and self.fault == "infrastructure")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Inverse of ``to_json``. Raises KeyError, TypeError or ValueError on a damaged record."""
        data = dict(data)
        data["state"] = State(data["state"])
        if data.get("response"):
            response = dict(data["response"])
            response["token_ids"] = tuple(response["token_ids"])
            data["response"] = Response(**response)
        data["evidence"] = tuple(Evidence(**item) for item in data.get("evidence", ()))
        if data.get("memory"):
            data["memory"] = Memory(**data["memory"])
        return cls(**data)


class Decision(StrEnum):
    GO = "GO"
    NO_GO = "NO-GO"
    INCONCLUSIVE = "INCONCLUSIVE"
    VOID = "VOID"
    MEASURED = "MEASURED"  # fidelity cells: sorted and shown, never a ground for GO


@dataclass(frozen=True)
class Gate:
    """What was promised before the run. See statistics in docs/verdict.md for each rule."""

    margin: float = 0.02
    margin_kind: Literal["absolute", "relative"] = "absolute"  # relative: margin * baseline score
    alpha: float = 0.05  # one-sided, over all looks
    looks: int = 2
    power: float = 0.8  # joint over the gating tasks
    tasks: tuple[str, ...] = ()  # gating tasks; empty means all that are not fidelity
    strict: bool = False  # exit code tells the decision
    early_stop: bool = False  # a candidate is asked no more on a task on which it is shown harmful

    def problems(self) -> list[str]:
        """All rules this gate breaks, as one sentence each."""
        found = []
        if not 0 < self.margin <= 1:
            found.append(f"gate.margin must be in (0, 1], got {self.margin}")
        if self.margin_kind not in ("absolute", "relative"):
            found.append(f"gate.margin_kind must be absolute or relative, got {self.margin_kind!r}")
        if not 0 < self.alpha < 0.5:
            found.append(f"gate.alpha must be in (0, 0.5), got {self.alpha}")
        if not (isinstance(self.looks, int) and self.looks >= 1):
            found.append(f"gate.looks must be a whole number of 1 or more, got {self.looks}")
        if not 0.5 <= self.power < 1:
            found.append(f"gate.power must be in [0.5, 1), got {self.power}")
        return found


@dataclass(frozen=True)
class Generation:
    """How all answers of a run are generated, baseline's and candidates' alike. The default is greedy."""

    temperature: float = 0.0  # 0: greedy
    k: int = 1  # answers drawn to each item
    think_tokens: int = 0  # 0: no thinking
    think_open: str = "<think>\n"
    think_close: str = "\n</think>\n\n"
    stop: tuple[str, ...] = ()  # end every answer, beside the sample's own

    @property
    def thinking(self) -> Thinking | None:
        return Thinking(self.think_tokens, self.think_open, self.think_close) if self.think_tokens else None

    def spec(self) -> str | dict[str, Any]:
        """What of this decides an answer. How many are drawn does not: more of them are a top-up."""
        facts = {"temperature": self.temperature, "think": self.thinking and asdict(self.thinking), "stop": self.stop}
        return {name: fact for name, fact in facts.items() if fact} or "greedy"

    def problems(self) -> list[str]:
        """All rules this breaks, as one sentence each."""
        found = []
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            found.append(f"gen.temperature must be 0 (greedy) or more, and finite, got {self.temperature}")
        if self.k < 1:
            found.append(f"gen.k must be 1 or more, got {self.k}")
        if self.k > 1 and self.temperature == 0:
            found.append(f"gen.k must be 1 while gen.temperature is 0: greedy says the same each time, got {self.k}")
        if self.think_tokens < 0:
            found.append(f"gen.think_tokens must be 0 or more, got {self.think_tokens}")
        for name in ("think_open", "think_close") if self.thinking else ():
            if not (text := getattr(self, name)).strip():
                found.append(f"gen.{name} must be a text that is more than white space, got {text!r}")
        if "" in self.stop:
            found.append(f"gen.stop must hold texts that are not empty, got {list(self.stop)}")
        return found

    def describe(self) -> str:
        """In words, for people: ``temperature 0.7, 4 draws an item, up to 200 thinking tokens``."""
        parts = [f"temperature {self.temperature:g}" if self.temperature else "greedy"]
        parts += [f"{self.k} draws an item"] * (self.k > 1)
        parts += [f"up to {self.think_tokens} thinking tokens"] * bool(self.think_tokens)
        parts += [f"stop at {', '.join(map(repr, self.stop))}"] * bool(self.stop)
        return ", ".join(parts)


def strangers(gate: Gate, fidelity: Mapping[str, bool]) -> list[str]:
    """What is wrong with ``gate.tasks``, given the run's tasks and which of them only measure fidelity."""
    names = ", ".join(fidelity)
    return [
        f"gate.tasks must name tasks of this run ({names}), got {name!r}"
        if name not in fidelity
        else f"gate.tasks must name tasks that can be judged; {name!r} measures fidelity, which never grants GO"
        for name in gate.tasks
        if fidelity.get(name, True)
    ]


@dataclass(frozen=True)
class Pair:
    """One sample as the baseline and a candidate saw it; the input of every paired test."""

    sample_id: str
    cluster: str
    baseline: float | None  # None: not scored, see the states
    candidate: float | None
    baseline_state: State
    candidate_state: State
    baseline_fault: Fault | None = None
    candidate_fault: Fault | None = None
    baseline_degenerate: bool = False  # the answer is empty, a loop, ... (harness.degenerate), whatever its score
    candidate_degenerate: bool = False
    prompts_agree: bool = True
    acted: bool = True  # every layer of the candidate's stack acted on this sample
    acts_by_prompt: bool = True  # acting depends on the prompt alone, so samples where it did not may be left out


@dataclass(frozen=True)
class Request:
    """What was seen of one timed request: seconds of one clock that starts before the load does, None where nothing was seen."""

    id: str
    tokens_in: int
    tokens_out: int
    queued_s: float | None = None  # it was due
    sent_s: float | None = None  # it was handed to the engine
    first_token_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None  # it was known to be over, well or not
    token_s: tuple[float, ...] | None = None  # each output token's arrival, where each was seen
    cached_tokens: int | None = None  # of the prompt, not computed for this request
    error: str = ""  # it failed, or gave other than what was asked for


@dataclass(frozen=True)
class LoadMemory:
    """Memory of one setting while it served one load, in bytes."""

    stored_bytes: int  # held for all prompts of the load, as measured
    formula_bytes: int  # predicted for the same
    kv_bytes_per_token: float  # of prompts and answers: allocated where the engine tells, else by formula as deployed
    peak_bytes: int | None  # of allocator (GPU) or process (CPU) since the load began; None where nobody tells


@dataclass(frozen=True)
class Served:
    """What one setting made of one load, alone on its engine."""

    requests: tuple[Request, ...]
    evidence: tuple[Evidence, ...]
    memory: LoadMemory


@dataclass(frozen=True)
class Measurement:
    """One load, served once. One JSON line in the store.

    What is compared was measured in one ``trial``, one setting after the other; a trial that was broken off leaves measurements
    that pair with nothing.
    """

    cell: str
    trial: str
    place: int  # which of its trial it was, from 0
    began: float  # Unix time
    served: Served | None
    error: str = ""  # why nothing was served

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Inverse of ``to_json``. Raises KeyError, TypeError or ValueError on a damaged measurement."""
        data = dict(data)
        if served := data["served"]:
            requests = tuple(
                Request(**{**one, "token_s": None if one["token_s"] is None else tuple(one["token_s"])})
                for one in served["requests"]
            )
            evidence = tuple(Evidence(**one) for one in served["evidence"])
            data["served"] = Served(requests, evidence, LoadMemory(**served["memory"]))
        return cls(**data)
