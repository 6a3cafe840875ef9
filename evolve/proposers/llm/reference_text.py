"""What a model is shown of an op's reference: the file that defines it, or of a file of many ops what matters here."""

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from reference_ops.op import Op, ops_of

MAX_FILE_CHARACTERS = 10_000


def reference_source(op: Op) -> str:
    """As much as Python can tell of it."""
    reference: Any = inspect.unwrap(op.reference)
    while isinstance(reference, functools.partial):
        reference = reference.func
    if not inspect.isroutine(reference):
        reference = type(reference)
    try:
        if isinstance(reference, FunctionType) and len(ops_of(inspect.getmodule(reference))) > 1:
            return "\n\n".join(dict.fromkeys(map(_source, _used(reference, []))))
        path = inspect.getsourcefile(reference)
        text = Path(path).read_text(encoding="utf-8") if path else ""
        return text if 0 < len(text) <= MAX_FILE_CHARACTERS else inspect.getsource(reference)
    except (OSError, TypeError, ValueError):
        return ""


def _used(function: FunctionType, seen: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The function, and those of our own that it calls, in the order in which they are met."""
    if function in seen:
        return seen
    seen.append(function)
    closed = inspect.getclosurevars(function).nonlocals
    for name in dict.fromkeys(_names(function.__code__)):
        other = closed.get(name, function.__globals__.get(name))
        if isinstance(other, FunctionType) and other.__module__.startswith("reference_ops."):
            _used(other, seen)
    return seen


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: Callable[..., Any]) -> str:
    """Of a function within another, that one's: what it was made with stands there."""
    outer = function.__qualname__.partition(".<locals>")[0]
    home = inspect.getmodule(function)
    return inspect.getsource(getattr(home, outer, function) if outer != "<lambda>" else function).rstrip() + "\n"
