"""Problems of a reasoning-gym generator by name: ``task=reasoning_gym task.dataset=gsm_symbolic``.

    Each of these problems is followed by its answer.

    Problem: Mia has 4 apples ...
    Answer: 12

    Problem: Leo has 7 pears ...  ->  Answer: [21]

The generator makes problems and judges answers; worked examples before the one that is asked give a cache something to hold.
Refused are those that cannot be used for pairs, or not safely (``REFUSED``), and any that does not take its own answer for right.

Needs the extra ``gym``; written for reasoning-gym 0.1.25 (https://arxiv.org/abs/2505.24760).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import version
from typing import Any, ClassVar

from harness.types import Response, Sample, Score, State, canonical
from tasks import checks, corpus
from tasks.admit import admitted
from tasks.base import Tokenizer
from tasks.sizing import Draft, SizedTask, first_of

OURS = ("seed", "size")  # set here, for each problem apart
ROOM = 16  # tokens that an answer may have beyond the right one
TRIES = 100  # problems in a row that may be the one asked for, before a generator counts as exhausted
UNSTEADY = "codeio isomorphic_strings knight_swap list_functions polynomial_multiplication ransom_note word_ladder"
EVALUATING = (
    "binary_matrix countdown intermediate_integration n_queens "
    "puzzle24 simple_integration spiral_matrix string_insertion"
)
REFUSED = {
    "composite": "it mixes generators; ask them one by one, or as a suite (docs/tasks.md)",
    **dict.fromkeys(UNSTEADY.split(), "its problems or answers are not the same in every process"),
    **dict.fromkeys(EVALUATING.split(), "its scorer evaluates the model's answer as Python, in this process"),
}


@dataclass(frozen=True, kw_only=True)
class ReasoningGym(SizedTask):
    """The score is the generator's own judgement of the answer's first line, or of as many lines as the right answer has.

    Flexible, a part of it: of the whole text, if that is better.

    Attributes:
        dataset: The generator's name in reasoning-gym.
        options: Its own options, but for seed and size. None: as it comes.
        shots: Worked examples, at least.
        lengths: Tokens that more worked examples fill. None: there are ``shots`` of them.
        max_new_tokens: Tokens that an answer may have. None: the right answer's and some room.
        chance: Score of a model that guesses; a baseline must be above it.
    """

    graded: ClassVar[bool] = True

    dataset: str
    options: Mapping[str, Any] | None = None
    shots: int = 0
    lengths: tuple[int, ...] = ()
    max_new_tokens: int | None = None
    chance: float = 0.0  # type: ignore[misc]  # of one generator here

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if self.lengths:
            return super().samples(tokenizer, n, seed)
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        stem = self.stem(seed)
        alone = (replace(self.draft(tokenizer, seed, at)(0), id=f"{stem}-{at:05d}") for at in range(n))
        return admitted(enumerate(alone), tokenizer, "problem")

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        drawn = rng.getrandbits(31)
        asked = self._entry(drawn)
        worked = first_of(self._worked(asked["question"], iter(lambda: rng.getrandbits(31), None)))
        answer = str(asked["answer"])
        budget = self.max_new_tokens or len(tokenizer.encode(f" {answer}")) + ROOM

        def build(units: int) -> Sample:
            count = self.shots + units
            shown = "\n\n".join(worked(count))
            return Sample(
                id="",
                context=f"Each of these problems is followed by its answer.\n\n{shown}" if count else "",
                question=f"Solve this problem; write nothing but its answer.\n\nProblem: {asked['question']}",
                answers=(answer,),
                max_new_tokens=budget,
                answer_prefix="Answer:",
                stop=("\n\nProblem:",),
                meta={"drawn": drawn, "examples": count},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        text = response.text.strip()
        lines = sample.answers[0].strip().count("\n") + 1
        answer = "\n".join(text.split("\n")[:lines]).strip()
        strict = self._judged(answer, sample.meta["drawn"])
        flexible = max(strict, self._judged(text, sample.meta["drawn"]))
        return Score(State.SCORED, strict, answer, {"strict": strict, "flexible": flexible})

    def sources(self) -> dict[str, str]:
        """Versions of what makes problems and judges answers."""
        return {**corpus.sources(), "reasoning_gym": version("reasoning_gym"), "sympy": version("sympy")}

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        return super().problems(tokenizer) if self.lengths else self.broken()

    def broken(self) -> list[str]:
        found = checks.whole("task.shots", self.shots, least=0)
        if self.max_new_tokens is not None:
            found += checks.whole("task.max_new_tokens", self.max_new_tokens)
        if not 0 <= self.chance < 1:
            found.append(f"task.chance must be in [0, 1), got {self.chance}")
        return found + self._unfit()

    def _unfit(self) -> list[str]:
        """Why the generator cannot be used, or not with these options."""
        try:
            from reasoning_gym.factory import DATASETS
        except ImportError:
            return ["task: reasoning-gym is not installed (pip install 'kvgate[gym]')"]
        if self.dataset not in DATASETS:
            near = get_close_matches(self.dataset, DATASETS)
            hint = f"; there are {', '.join(near)}" if near else ""
            return [f"task.dataset must be a generator of reasoning-gym, got {self.dataset!r}{hint}"]
        if self.dataset in REFUSED:
            return [
                f"task.dataset must be a generator whose answers can be paired, got {self.dataset}: {REFUSED[self.dataset]}"
            ]
        known = [option.name for option in fields(DATASETS[self.dataset][1]) if option.name not in OURS]
        if unknown := sorted(set(self.options or ()) - set(known)):
            return [f"task.options must be options of {self.dataset} ({', '.join(known)}), got {', '.join(unknown)}"]
        try:
            entry = self._entry(0)
            right = self._judged(str(entry["answer"]), 0) if entry["answer"] is not None else None
        except Exception as error:  # whatever its checks raise
            reason = str(error).split("\n")[0] or "no reason given"
            return [
                f"task.options: {self.dataset} cannot be made with {self._options} ({type(error).__name__}: {reason})"
            ]
        if right is None:
            return [f"task.dataset must be a generator that knows an answer to its problems, got {self.dataset}"]
        if right != 1.0:
            return [
                f"task.dataset must be a generator that takes its own answer for right, got {self.dataset}: {right}"
            ]
        try:
            next(self._worked(entry["question"], iter(range(1, 2 * TRIES))))
        except ValueError as error:
            return [str(error)] if self.shots or self.lengths else []
        return []

    def _worked(self, asked: str, seeds: Iterator[int]) -> Iterator[str]:
        """Other problems with their answers, without end. Raises ValueError if there are none but the one asked."""
        tries = 0
        for seed in seeds:
            entry = self._entry(seed)
            tries = tries + 1 if entry["question"] == asked else 0
            if tries == TRIES:
                raise ValueError(f"task.options must leave {self.dataset} different problems for worked examples")
            if not tries:
                yield f"Problem: {entry['question']}\nAnswer: {entry['answer']}"

    @property
    def _options(self) -> str:
        return canonical(dict(self.options or {}))

    def _entry(self, seed: int) -> Mapping[str, Any]:
        return _made(self.dataset, self._options, seed)[1]

    def _judged(self, answer: str, seed: int) -> float:
        """The generator's score; 0 for an answer that its scorer cannot read."""
        generator, entry = _made(self.dataset, self._options, seed)
        try:
            value = float(generator.score_answer(answer, deepcopy(entry)))
        except Exception:  # each scorer reads answers in its own way, and few expect any text
            return 0.0
        return min(max(value, 0.0), 1.0)


@lru_cache(maxsize=256)
def _made(dataset: str, options: str, seed: int) -> tuple[Any, Mapping[str, Any]]:
    """A generator for one problem, and the problem: alone, it does not depend on how many others there are."""
    from reasoning_gym import create_dataset

    generator = create_dataset(dataset, **json.loads(options), size=1, seed=seed)
    return generator, generator[0]
