"""A generation task of lm-eval as a task here: ``task=lm_eval task.name=gsm8k``, or one's own YAML with ``task.include_path``.

lm-eval makes the prompt and judges the answer, with the task's own filter and metric. The model's side is ours: greedy, with
the model's chat template around the prompt, and never from lm-eval's response cache, which knows no strategies. Scores are
for pairs, not for comparison with lm-eval's own runs.

Needs the extra ``lmeval``; written for lm-eval 0.4.13.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from numbers import Real
from typing import Any

from harness.types import Response, Sample, Score, State, digest, until
from tasks import checks
from tasks.admit import admitted
from tasks.base import Task, Tokenizer

MAX_GEN_TOKS = 256  # lm-eval's own default
BINARY = ("exact_match", "acc")  # metrics that are 0 or 1 for one answer


@dataclass(frozen=True, kw_only=True)
class LmEval(Task):
    """Documents of one lm-eval task, in an order that depends on the seed; the first n are taken.

    Attributes:
        name: The task's name in lm-eval.
        include_path: A folder with YAML files of one's own.
        filter: Which of the task's filters reads the answer. None: its first.
        metric: Which of its metrics is the score; it must be in [0, 1], and higher is better.
        num_fewshot: Examples before the question. None: as many as the task says.
        max_new_tokens: Tokens that an answer may have. None: as many as the task says.
    """

    include_path: str | None = None
    filter: str | None = None
    metric: str = "exact_match"
    num_fewshot: int | None = None
    max_new_tokens: int | None = None

    @property
    def graded(self) -> bool:  # type: ignore[override]
        return self.metric not in BINARY

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        found = []
        if self.num_fewshot is not None:
            found += checks.whole("task.num_fewshot", self.num_fewshot, 0)
        if self.max_new_tokens is not None:
            found += checks.whole("task.max_new_tokens", self.max_new_tokens)
        if found:
            return found
        try:
            return self._unfit() or self._trial()
        except ValueError as error:
            return str(error).splitlines()

    def samples(self, tokenizer: Tokenizer, n: int, seed: int) -> list[Sample]:
        if found := self.problems(tokenizer):
            raise ValueError("\n".join(found))
        order = sorted(range(len(self._docs)), key=lambda at: digest([self.name, seed, at]))
        return admitted(((at, self._sample(at)) for at in order[:n]), tokenizer, "document")

    def score(self, sample: Sample, response: Response) -> Score:
        answer, results = self._judged(sample.meta["doc"], until(response.text, sample.stop))
        parts = {
            name: float(value) for name, value in results.items() if isinstance(value, int | float) and 0 <= value <= 1
        }
        parts.pop(self.metric, None)
        return Score(State.SCORED, self._value(results), str(answer), parts)

    def sources(self) -> dict[str, str]:
        """Digests of what decides prompts and scores: lm-eval's version, the task as it is configured, its documents."""
        import lm_eval

        config = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(self._task.dump_config(), sort_keys=True, default=str))
        docs = json.dumps([dict(doc) for doc in self._docs], sort_keys=True, default=str)
        return {"lm_eval": str(lm_eval.__version__), "config": digest(config), "docs": digest(docs)}

    @cached_property
    def _task(self) -> Any:
        """lm-eval's own task. Raises ValueError saying why there is none."""
        try:
            from lm_eval.tasks import TaskManager
        except ImportError as error:
            raise ValueError("task: lm-eval is not installed (pip install 'kvgate[lmeval]')") from error
        manager = TaskManager(include_path=self.include_path, include_defaults=False) if self.include_path else None
        if manager is None or self.name not in manager.all_subtasks:  # indexing lm-eval's own tasks takes seconds
            manager = TaskManager(include_path=self.include_path)
        if self.name not in manager.all_subtasks:
            near = get_close_matches(self.name, manager.all_subtasks)
            hint = f"; there are {', '.join(near)}" if near else ""
            raise ValueError(
                f"task.name must be a single task of lm-eval, or of task.include_path, got {self.name!r}{hint}"
            )
        try:
            return manager.load(self.name)["tasks"][self.name]
        except Exception as error:  # of its loader, its template engine, the data set's loader, or the user's code
            raise ValueError(f"task.name: lm-eval cannot load {self.name} ({_reason(error)})") from error

    @cached_property
    def _docs(self) -> Any:
        return self._task.eval_docs

    def _unfit(self) -> list[str]:
        """Why lm-eval's task cannot be one here, whatever its documents."""
        task, kind = self._task, self._task.OUTPUT_TYPE
        if kind != "generate_until":
            reason = "it compares likelihoods of given texts, which are computed in one pass that never reads the cache"
            return [f"task.name must be a generate_until task, but {self.name} is {kind}: {reason}"]
        found = []
        settings = task.config.generation_kwargs or {}
        if settings.get("do_sample") and settings.get("temperature", 1.0):
            found.append(f"task.name: {self.name} samples its answers, and here decoding is greedy")
        if (task.config.repeats or 1) != 1:
            found.append(
                f"task.name: {self.name} asks {task.config.repeats} times, and greedy answers are all the same"
            )
        if not len(self._docs):
            found.append(f"task.name: {self.name} has no documents")
        if self.filter is not None:
            found += checks.one_of("task.filter", self.filter, [ensemble.name for ensemble in task._filters])
        return found

    def _trial(self) -> list[str]:
        """Judge an empty answer to the first document, so that a metric which cannot be used is told before a model is run."""
        try:
            _, results = self._judged(0, "")
        except Exception as error:  # whatever the task's own code raises
            return [f"task.name: {self.name} cannot judge an empty answer ({_reason(error)})"]
        if self.metric not in results:
            return checks.one_of("task.metric", self.metric, results)
        if not self._task.higher_is_better().get(self.metric, True):
            return [f"task.metric must be higher for better answers, got {self.metric!r}"]
        self._value(results)
        return []

    def _sample(self, at: int) -> Sample:
        """One document's prompt. Its examples depend on the document alone, not on which were asked before."""
        task, doc = self._task, self._docs[at]
        task.set_fewshot_seed(int(digest([self.name, at], 8), 16))
        shots = self.num_fewshot if self.num_fewshot is not None else task.config.num_fewshot or 0
        prompt = task.fewshot_context(doc, num_fewshot=shots)
        settings: Mapping[str, Any] = task.config.generation_kwargs or {}
        until = settings.get("until") or ()
        return Sample(
            id=str(at),
            context=prompt,
            question="",
            answers=_texts(task.doc_to_target(doc)),
            max_new_tokens=self.max_new_tokens or settings.get("max_gen_toks") or MAX_GEN_TOKS,
            answer_prefix=task.doc_to_prefix(doc) or "",
            stop=tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop),
            meta={"doc": at},
        )

    def _judged(self, at: int, text: str) -> tuple[Any, Mapping[str, Any]]:
        """What the filter makes of an answer, and the task's own results for it."""
        from lm_eval.api.instance import Instance

        doc = self._docs[at]
        asked = Instance("generate_until", doc, ("", {}), 0, (self.name, at, 1), resps=[text])
        filters = {ensemble.name: ensemble for ensemble in self._task._filters}
        chosen = self.filter or next(iter(filters))
        filters[chosen].apply([asked])
        answer = asked.filtered_resps[chosen]
        return answer, self._task.process_results(doc, [answer])

    def _value(self, results: Mapping[str, Any]) -> float:
        value = results[self.metric]
        number = float(value) if isinstance(value, Real) else -1.0
        if not 0 <= number <= 1:
            raise ValueError(f"task.metric must give numbers in [0, 1] for an answer, but {self.metric} gave {value!r}")
        return number


def _texts(target: Any) -> tuple[str, ...]:
    return tuple(map(str, target)) if isinstance(target, list) else (str(target),)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
