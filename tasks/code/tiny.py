"""A tiny language, a part of Python: how a program in it is written, and what it does.

A program is made of these nodes and never read from text, so nothing is ever executed but the methods below. Values are whole
numbers, texts and lists of either, as in Python; a test compares every kind of node with Python itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Scope = dict[str, Any]


class Expression(Protocol):
    """Something that has a value where names have values."""

    def code(self) -> str: ...

    def value(self, scope: Scope, program: Program) -> Any: ...


class Statement(Protocol):
    """Something that changes what names stand for."""

    def lines(self) -> Iterator[str]: ...

    def run(self, scope: Scope, program: Program) -> None: ...


@dataclass(frozen=True)
class Constant:
    """A number, a text or a list."""

    constant: Any

    def code(self) -> str:
        return repr(self.constant)

    def value(self, scope: Scope, program: Program) -> Any:
        return list(self.constant) if isinstance(self.constant, list) else self.constant


@dataclass(frozen=True)
class Name:
    name: str

    def code(self) -> str:
        return self.name

    def value(self, scope: Scope, program: Program) -> Any:
        return scope[self.name]


@dataclass(frozen=True)
class Sum:
    """Two numbers added, subtracted or multiplied, or two texts or lists put together."""

    left: Expression
    sign: str
    right: Expression

    def code(self) -> str:
        return f"{self.left.code()} {self.sign} {self.right.code()}"

    def value(self, scope: Scope, program: Program) -> Any:
        left, right = self.left.value(scope, program), self.right.value(scope, program)
        return left - right if self.sign == "-" else left * right if self.sign == "*" else left + right


@dataclass(frozen=True)
class Item:
    """One item of a list or one letter of a text."""

    of: Expression
    at: int

    def code(self) -> str:
        return f"{self.of.code()}[{self.at}]"

    def value(self, scope: Scope, program: Program) -> Any:
        return self.of.value(scope, program)[self.at]


@dataclass(frozen=True)
class Reverse:
    """A list or a text from its end to its start."""

    of: Expression

    def code(self) -> str:
        return f"{self.of.code()}[::-1]"

    def value(self, scope: Scope, program: Program) -> Any:
        return self.of.value(scope, program)[::-1]


BUILT_IN: Mapping[str, Callable[..., Any]] = {"len": len, "sum": sum, "max": max, "min": min, "sorted": sorted}
METHODS: Mapping[str, Callable[..., str]] = {"upper": str.upper, "title": str.title, "replace": str.replace}


@dataclass(frozen=True)
class BuiltIn:
    """A function that Python brings, of one argument."""

    name: str
    argument: Expression

    def code(self) -> str:
        return f"{self.name}({self.argument.code()})"

    def value(self, scope: Scope, program: Program) -> Any:
        return BUILT_IN[self.name](self.argument.value(scope, program))


@dataclass(frozen=True)
class Method:
    """What a method of a text gives, with arguments that are constants."""

    of: Expression
    name: str
    arguments: tuple[str, ...] = ()

    def code(self) -> str:
        return f"{self.of.code()}.{self.name}({', '.join(map(repr, self.arguments))})"

    def value(self, scope: Scope, program: Program) -> Any:
        return METHODS[self.name](self.of.value(scope, program), *self.arguments)


@dataclass(frozen=True)
class Call:
    """What a function of the program returns."""

    function: str
    arguments: tuple[Expression, ...]

    def code(self) -> str:
        return f"{self.function}({', '.join(each.code() for each in self.arguments)})"

    def value(self, scope: Scope, program: Program) -> Any:
        return program[self.function].returns([each.value(scope, program) for each in self.arguments], program)


@dataclass(frozen=True)
class Assign:
    """A name gets a value, or what it has grows by one (``sign``)."""

    name: str
    expression: Expression
    sign: str = ""

    def lines(self) -> Iterator[str]:
        yield f"{self.name} {self.sign}= {self.expression.code()}"

    def run(self, scope: Scope, program: Program) -> None:
        whole = Sum(Name(self.name), self.sign, self.expression) if self.sign else self.expression
        scope[self.name] = whole.value(scope, program)


@dataclass(frozen=True)
class Append:
    """A list gets one more item."""

    name: str
    expression: Expression

    def lines(self) -> Iterator[str]:
        yield f"{self.name}.append({self.expression.code()})"

    def run(self, scope: Scope, program: Program) -> None:
        scope[self.name].append(self.expression.value(scope, program))


@dataclass(frozen=True)
class Repeat:
    """The body for each number below ``count``."""

    name: str
    count: int
    body: tuple[Statement, ...]

    def lines(self) -> Iterator[str]:
        yield f"for {self.name} in range({self.count}):"
        yield from _indented(self.body)

    def run(self, scope: Scope, program: Program) -> None:
        for number in range(self.count):
            scope[self.name] = number
            _run(self.body, scope, program)


@dataclass(frozen=True)
class Each:
    """The body for each item of a list or letter of a text, which the body must not change."""

    name: str
    of: Expression
    body: tuple[Statement, ...]

    def lines(self) -> Iterator[str]:
        yield f"for {self.name} in {self.of.code()}:"
        yield from _indented(self.body)

    def run(self, scope: Scope, program: Program) -> None:
        for item in self.of.value(scope, program):
            scope[self.name] = item
            _run(self.body, scope, program)


@dataclass(frozen=True)
class IfAbove:
    """One body if a number is above another, else the other body."""

    left: Expression
    right: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]

    def lines(self) -> Iterator[str]:
        yield f"if {self.left.code()} > {self.right.code()}:"
        yield from _indented(self.then)
        yield "else:"
        yield from _indented(self.otherwise)

    def run(self, scope: Scope, program: Program) -> None:
        above = self.left.value(scope, program) > self.right.value(scope, program)
        _run(self.then if above else self.otherwise, scope, program)


@dataclass(frozen=True)
class Function:
    """A function: its statements run in a scope of their own, and its result follows."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    result: Expression

    def code(self) -> str:
        head = f"def {self.name}({', '.join(self.parameters)}):"
        return "\n".join([head, *_indented(self.body), f"    return {self.result.code()}"])

    def returns(self, arguments: Sequence[Any], program: Program) -> Any:
        scope: Scope = dict(zip(self.parameters, arguments, strict=True))
        _run(self.body, scope, program)
        return self.result.value(scope, program)


Program = Mapping[str, Function]


def _run(body: Sequence[Statement], scope: Scope, program: Program) -> None:
    for statement in body:
        statement.run(scope, program)


def _indented(body: Sequence[Statement]) -> Iterator[str]:
    return (f"    {line}" for statement in body for line in statement.lines())
