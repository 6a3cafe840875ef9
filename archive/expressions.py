"""Integer and boolean expressions of a launch plan, evaluated through `ast` with a whitelist.

A plan is untrusted text, so this module does not call `eval`. Each node is looked up in the tables below, and every
intermediate value must fit in 64 bits, which also bounds the time that an expression can take.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from archive.plan import INT64_MAX, INT64_MIN

MAX_CHARACTERS, MAX_NODES = 400, 150


class ExpressionError(ValueError):
    """Raised when an expression cannot be read, or has no 64-bit value at this point."""


@dataclass(frozen=True)
class Scope:
    """The integers that an expression may name, and the element size of each tensor for `itemsize`."""

    integers: Mapping[str, int]
    itemsizes: Mapping[str, int]

    def with_integer(self, name: str, value: int) -> "Scope":
        return Scope({**self.integers, name: value}, self.itemsizes)


def integer(expression: int | str, scope: Scope) -> int:
    """Return the value of an integer expression."""
    if isinstance(expression, int):
        return _bounded(expression, str(expression))
    return _as_integer(expression).value(scope)


def boolean(expression: str, scope: Scope) -> bool:
    """Return the value of a condition: integer comparisons joined by `and`, `or` and `not`."""
    return _as_condition(expression).value(scope)


def check_integer(expression: int | str, scope: Scope) -> None:
    """Raise an ExpressionError unless the expression is well-formed and only uses names in the scope."""
    if isinstance(expression, str):
        _as_integer(expression).check_names(scope)
    else:
        _bounded(expression, str(expression))


def check_boolean(expression: str, scope: Scope) -> None:
    _as_condition(expression).check_names(scope)


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceil_div": ceil_div}

# Each node becomes a closure. Creating it checks the node's form and collects its names; calling it computes the value.
# `check_*` therefore checks a whole expression, including the parts that `and` and `or` would skip.
Integer = Callable[[Scope], int]
Condition = Callable[[Scope], bool]
T = TypeVar("T", int, bool)


@dataclass(frozen=True)
class Names:
    """Names in an expression, in order: the names of integers, and of the tensors whose element sizes it needs."""

    integers: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Read(Generic[T]):
    """An expression that has been read, for use at many points."""

    names: Names
    value_at: Callable[[Scope], T]

    def value(self, scope: Scope) -> T:
        self.check_names(scope)
        return self.value_at(scope)

    def check_names(self, scope: Scope) -> None:
        for name in self.names.integers:
            if name not in scope.integers:
                raise _unknown(name, scope.integers)
        for name in self.names.tensors:
            if name not in scope.itemsizes:
                raise _unknown(name, scope.itemsizes)


@lru_cache(maxsize=4096)
def _as_integer(text: str) -> Read[int]:
    names = Names()
    return Read(names, _integer(_tree(text), names))


@lru_cache(maxsize=4096)
def _as_condition(text: str) -> Read[bool]:
    names = Names()
    return Read(names, _condition(_tree(text), names))


def _tree(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"an expression may have at most {MAX_CHARACTERS} characters, this one has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        c_like = "; write and, or, not" if re.search(r"&&|\|\||!(?!=)", text) else ""
        raise ExpressionError(f"cannot read `{text}` as an expression{c_like}") from error
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:  # evaluation is recursive
        raise ExpressionError(f"`{text[:40]}...` has more than {MAX_NODES} parts; split it with [let]")
    return tree


def _bounded(value: int, text: str) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ExpressionError(f"`{text}` does not fit in 64 bits")
    return value


def _unknown(name: str, known: Mapping[str, int]) -> ExpressionError:
    return ExpressionError(f"unknown name `{name}` (known here: {', '.join(sorted(known)) or 'none'})")


def _integer(node: ast.expr, names: Names) -> Integer:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            _bounded(value, str(value))
            return lambda _: value
        case ast.Name(id=name):
            names.integers.append(name)
            return lambda at: at.integers[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _applied(operator.neg, [_integer(operand, names)], node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return _applied(ARITHMETIC[type(op)], [_integer(left, names), _integer(right, names)], node)
        case ast.Call(func=ast.Name(id="itemsize"), args=[ast.Name(id=tensor)], keywords=[]):
            names.tensors.append(tensor)
            return lambda at: at.itemsizes[tensor]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            if len(arguments) != 2 and (name == "ceil_div" or len(arguments) < 2):
                raise ExpressionError(f"`{ast.unparse(node)}`: {name} takes two values")
            return _applied(FUNCTIONS[name], [_integer(argument, names) for argument in arguments], node)
    dtypes = "; dtypes are listed in `dtypes`" if isinstance(node, ast.Attribute) and node.attr == "dtype" else ""
    raise ExpressionError(
        f"`{ast.unparse(node)}` is not allowed: integers are made of + - * // % min max ceil_div itemsize(tensor) "
        f"over dims, parameters, knobs, lets and sms, and a condition compares such integers{dtypes}"
    )


def _applied(function: Callable[..., int], operands: list[Integer], node: ast.expr) -> Integer:
    def value(at: Scope) -> int:
        try:
            found = function(*(operand(at) for operand in operands))
        except ZeroDivisionError as error:
            raise ExpressionError(f"division by zero in `{ast.unparse(node)}`") from error
        return found if INT64_MIN <= found <= INT64_MAX else _bounded(found, ast.unparse(node))

    return value


def _condition(node: ast.expr, names: Names) -> Condition:
    match node:
        case ast.Constant(value=bool(value)):
            return lambda _: value
        case ast.BoolOp(op=op, values=values):
            parts = [_condition(value, names) for value in values]
            join = all if isinstance(op, ast.And) else any
            # A generator stops early, so that `n > 0` guards the division in `n > 0 and rows % n == 0`.
            return lambda at: join(part(at) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _condition(operand, names)
            return lambda at: not inner(at)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in COMPARISONS for op in ops):
            return _comparison([COMPARISONS[type(op)] for op in ops], [_integer(part, names) for part in (left, *rest)])
    raise ExpressionError(
        f"`{ast.unparse(node)}` is not a condition: write a comparison of integers, or several joined by and, or, not"
    )


def _comparison(compares: list[Callable[[int, int], bool]], operands: list[Integer]) -> Condition:
    def value(at: Scope) -> bool:
        values = [operand(at) for operand in operands]
        return all(compare(a, b) for compare, a, b in zip(compares, values, values[1:], strict=False))

    return value
