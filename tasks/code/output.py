"""What a call prints: a small function among many others of a long module.

    def calm_otter(amount, count):
        total = 17 - count
        for step in range(3):
            total += amount
        return total * 4

    What does print(calm_otter(52, 8)) print?  ->  [660]

Most of the module is about other functions. Some call another one (``calls``), which stands anywhere else. Programs are made
of the nodes in ``tasks/code/tiny.py``, which also say what a program does.

After the output prediction of LiveCodeBench and CRUXEval (arXiv 2401.03065), with own programs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Knob, Tokenizer
from tasks.code.tiny import (
    Append,
    Assign,
    BuiltIn,
    Call,
    Constant,
    Each,
    Expression,
    Function,
    IfAbove,
    Item,
    Method,
    Name,
    Repeat,
    Reverse,
    Statement,
    Sum,
)
from tasks.sizing import Draft, SizedTask, depth_level, first_of, insert

_LONGEST = 48  # characters of what is printed

Made = tuple[Function, tuple[Expression, ...]]
"""A function, and arguments to call it with."""


@dataclass(frozen=True, kw_only=True)
class OutputPrediction(SizedTask):
    """A sample is right when the answer's first line is what the call prints, quotation marks around it aside.

    Attributes:
        steps: Statements that change the result, one after another; more, harder.
        calls: Functions that the function asked for calls one through another; each stands anywhere in the module.
        depths: Number of depth levels of the function asked for, from the start (0) to the end (1) of the module.
    """

    steps: int = 1
    calls: int = 1
    depths: int = 10

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        names = first_of(_names(rng.randrange(2**32)))
        chain, call, answer = _asked(rng, names(self.calls + 1), self.steps)
        depth = depth_level(index // len(self.lengths), self.depths)
        places = [depth, *(rng.random() for _ in chain[1:])]
        told = list(zip(places, (function.code() for function, _ in chain), strict=True))
        distract, key = rng.randrange(2, 4), rng.randrange(2**32)
        others = first_of(_others(names, len(chain), distract, key))
        budget = len(tokenizer.encode(f" '{answer}'\n")) + 8

        def build(units: int) -> Sample:
            module = "\n\n\n".join(insert([function.code() for function, _ in others(units)], told))
            return Sample(
                id="",
                context=f"Read this Python module.\n\n```python\n{module}\n```",
                question=_question(call),
                answers=(answer,),
                max_new_tokens=budget,
                answer_prefix="It prints:",
                stop=("\n",),
                meta={"depth": depth, "functions": units + len(chain), "steps": self.steps, "calls": self.calls},
                other=_question(Call(*_other_call(others))),
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        line = next(iter(response.text.strip().splitlines()), "").strip(" `'\".")
        parts = {"contained": float(scorers.contains(response.text, sample.answers[0]))}
        return Score(State.SCORED, float(_tight(line) == _tight(sample.answers[0])), line, parts)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("steps", (1, 2, 4, 8, 16))

    def sources(self) -> dict[str, str]:
        return corpus.sources("words")

    def broken(self) -> list[str]:
        found = checks.whole("task.steps", self.steps) + checks.whole("task.calls", self.calls, least=0)
        return found + checks.whole("task.depths", self.depths)


def _tight(printed: str) -> str:
    """``printed`` without spaces, which stand between the items of a list only."""
    return printed.replace(" ", "")


def _question(call: Call) -> str:
    return f"What does print({call.code()}) print?"


def _names(key: int) -> Iterator[str]:
    """Different names of functions without end."""
    rng, seen = random.Random(key), set[str]()
    while True:
        name = corpus.name(rng).replace("-", "_")
        if name not in seen:
            seen.add(name)
            yield name


def _others(names: Callable[[int], list[str]], start: int, steps: int, key: int) -> Iterator[Made]:
    """Functions without end that are not asked about, each alone."""
    rng = random.Random(key)
    while True:
        start += 1
        yield from _chain(rng, [names(start)[-1]], steps)


def _other_call(others: Callable[[int], list[Made]]) -> tuple[str, tuple[Expression, ...]]:
    function, arguments = others(1)[0]
    return function.name, arguments


def _asked(rng: random.Random, names: list[str], steps: int) -> tuple[list[Made], Call, str]:
    """Functions, the call of the first, and what it prints, which is short: lists may grow with every call."""
    while True:
        chain = _chain(rng, names, steps)
        call = Call(names[0], chain[0][1])
        printed = str(call.value({}, {function.name: function for function, _ in chain}))
        if len(printed) <= _LONGEST:
            return chain, call, printed


def _chain(rng: random.Random, names: list[str], steps: int) -> list[Made]:
    """Functions of one kind, each of which begins with what the next one returns for the same arguments."""
    make = rng.choice((_of_numbers, _of_texts, _of_lists))
    made = [make(rng, name, steps) for name in reversed(names)]
    chain = made[:1]
    for function, arguments in made[1:]:
        inner, _ = chain[0]
        first, *_ = function.parameters
        begin = Assign(first, Call(inner.name, tuple(map(Name, function.parameters))))
        chain.insert(
            0, (Function(function.name, function.parameters, (begin, *function.body), function.result), arguments)
        )
    return chain


def _of_numbers(rng: random.Random, name: str, steps: int) -> Made:
    """A function of two numbers that returns a number."""
    amount, count, total, step = Name("amount"), Name("count"), Name("total"), Name("step")

    def small() -> Constant:
        return Constant(rng.randrange(2, 10))

    kinds: tuple[Callable[[], Statement], ...] = (
        lambda: Assign("total", rng.choice((amount, count, small())), rng.choice("+-")),
        lambda: Repeat("step", rng.randrange(2, 5), (Assign("total", rng.choice((step, count, small())), "+"),)),
        lambda: IfAbove(
            total, Constant(rng.randrange(10, 90)), (Assign("total", small(), "-"),), (Assign("total", amount, "+"),)
        ),
        lambda: Assign("total", BuiltIn(rng.choice(("max", "min")), Constant(_numbers(rng))), "+"),
    )
    body = [rng.choice(kinds)() for _ in range(steps)]
    begin = Assign("total", Sum(amount, rng.choice("+-*"), rng.choice((count, small()))))
    arguments = (Constant(rng.randrange(100, 1000)), Constant(rng.randrange(2, 10)))
    return Function(
        name, ("amount", "count"), (begin, *body), Sum(total, "+", Constant(rng.randrange(1000, 9000)))
    ), arguments


def _of_texts(rng: random.Random, name: str, steps: int) -> Made:
    """A function of two texts that returns a text."""
    word, label, text, letter = Name("word"), Name("label"), Name("text"), Name("letter")

    def other() -> Constant:
        return Constant(rng.choice(corpus.words("noun")))

    kinds: tuple[Callable[[], Statement], ...] = (
        lambda: Assign("text", rng.choice((word, label, other())), "+"),
        lambda: Assign("text", Reverse(text)),
        lambda: Assign("text", Method(text, rng.choice(("upper", "title")))),
        lambda: Assign("text", Method(text, "replace", (rng.choice("aeiou"), rng.choice("aeiou")))),
        lambda: Each("letter", Constant(rng.choice(("ab", "xyz", "no"))), (Assign("text", letter, "+"),)),
        lambda: IfAbove(
            BuiltIn("len", label),
            Constant(rng.randrange(4, 8)),
            (Assign("text", Item(label, 0), "+"),),
            (Assign("text", Item(label, -1), "+"),),
        ),
    )
    body = [rng.choice(kinds)() for _ in range(steps)]
    begin = Assign("text", Sum(word, "+", rng.choice((label, other()))))
    return Function(name, ("word", "label"), (begin, *body), text), (other(), other())


def _of_lists(rng: random.Random, name: str, steps: int) -> Made:
    """A function of a list of numbers and a number that returns such a list."""
    items, extra, found, item = Name("items"), Name("extra"), Name("found"), Name("item")

    def number() -> Constant:
        return Constant(rng.randrange(10, 100))

    kinds: tuple[Callable[[], Statement], ...] = (
        lambda: Append(
            "found", rng.choice((extra, number(), Item(items, 0), BuiltIn("sum", items), BuiltIn("len", items)))
        ),
        lambda: Assign("found", rng.choice((Reverse(found), BuiltIn("sorted", found)))),
        lambda: Assign("found", Constant(_numbers(rng)[:2]), "+"),
        lambda: Each("item", items, (IfAbove(item, number(), (Append("found", item),), (Append("found", extra),)),)),
    )
    body = [rng.choice(kinds)() for _ in range(steps)]
    begin = Assign("found", Sum(items, "+", Constant([rng.randrange(10, 100)])))
    return Function(name, ("items", "extra"), (begin, *body), found), (Constant(_numbers(rng)), number())


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randrange(10, 100) for _ in range(3)]
