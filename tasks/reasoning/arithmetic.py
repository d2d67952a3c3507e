"""Arithmetic read from text and worked out exactly, without running anything."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

LONGEST = 200  # characters of an expression; no answer needs more

_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Value of an expression of whole numbers, + - * / and brackets, and the numbers in it in order.

    Raises:
        ValueError: anything else, a division by zero too.
    """
    if len(text) > LONGEST:
        raise ValueError(f"an expression may have {LONGEST} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body), _numbers(tree.body)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(f"no arithmetic: {text!r}") from error


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return Fraction(number)
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](_value(left), _value(right))
    raise ValueError(f"no arithmetic: {ast.dump(node)}")


def _numbers(node: ast.expr) -> list[int]:
    match node:
        case ast.BinOp(left, _, right):
            return _numbers(left) + _numbers(right)
        case ast.Constant(value=int(number)):
            return [number]
    return []
