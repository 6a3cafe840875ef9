"""Nodes of a graph that a pattern matches: calls by their functions, their arguments, and changes of dtype."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn import functional

from evolve.export.template.forms import Lowered

METHODS_OF_DTYPE = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}
ADD = (operator.add, torch.add, "add")
MULTIPLY = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
DIVIDE = (operator.truediv, torch.div, "div")
# Names of the arguments after the first one, in order, for functions that models also call with keyword arguments.
OF_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
RELU = (functional.relu, torch.relu, torch.relu_, functional.relu_, "relu", "relu_")


class Match(NamedTuple):
    """A match: the calls that one op computes, those whose results are needed, and the replacement's arguments."""

    op: str
    inside: tuple[Node, ...]
    results: tuple[Node, ...]
    given: tuple[Any, ...]
    lower: Callable[..., Lowered]
    autocast: str = ""


Pattern = Callable[[Any], Match | None]


class Cast(NamedTuple):
    """A tensor whose dtype is changed: the dtypes, last one first, and the calls that change it."""

    of: Any
    dtypes: tuple[Any, ...]
    calls: tuple[Node, ...]


def calls(node: Any, targets: Sequence[Any]) -> bool:
    """Return whether a node calls one of these functions, or of these methods by name."""
    return isinstance(node, Node) and (
        (node.op == "call_function" and any(node.target is one for one in targets if callable(one)))
        or (node.op == "call_method" and node.target in [one for one in targets if isinstance(one, str)])
    )


def arguments(node: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a call's arguments by these names."""
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def pair(node: Any, targets: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the operands of a sum or product; None if the node is another operation."""
    found = calls(node, targets) and len(node.args) == 2 and not node.kwargs
    return (node.args[0], node.args[1]) if found else None


def either(operands: tuple[Any, Any] | None) -> Iterator[tuple[Any, Any]]:
    if operands:
        yield operands
        yield operands[::-1]


def uncast(node: Any) -> Cast:
    """Split a node into the node before its last changes of dtype, and these changes."""
    dtypes: list[Any] = []
    found: list[Node] = []
    while (dtype := _dtype_of(node)) is not None:
        dtypes.append(dtype)
        found += [node, *[one for one in node.args[1:] if calls(one, (getattr,))]]
        node = node.args[0]
    return Cast(node, tuple(dtypes), tuple(found))


def _dtype_of(node: Any) -> Any:
    """Return the dtype to which a call changes a tensor, or the tensor that has this dtype; None for any other call."""
    if getattr(node, "op", "") != "call_method":
        return None
    if node.target in METHODS_OF_DTYPE and len(node.args) == 1 and not node.kwargs:
        return METHODS_OF_DTYPE[node.target]
    if node.target == "type_as" and len(node.args) == 2:
        return node.args[1]
    if node.target in {"to", "type"} and (given := (*node.args[1:], *node.kwargs.values())) and len(given) == 1:
        if isinstance(given[0], torch.dtype):
            return given[0]
        if calls(given[0], (getattr,)) and given[0].args[1] == "dtype":  # this is how fx traces `x.dtype`
            return given[0].args[0]
    return None


def is_plain(named: Mapping[str, Any]) -> bool:
    """Return whether the keyword arguments of an activation are its defaults, except perhaps `inplace`."""
    return all((name, value) in (("inplace", False), ("approximate", "none")) for name, value in named.items())
