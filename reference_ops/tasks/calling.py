"""Calls a task's module with all its numbers given from outside."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from reference_ops.tasks.source import TaskError
from reference_ops.tasks.tracing import Traced, flat, shapes_of
from reference_ops.tasks.watching import RANDOM

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ROUNDING = {"float", "half", "bfloat16"}


class Given(TorchFunctionMode):
    """What the forward draws is what came in from outside instead, in the order in which it draws."""

    def __init__(self, numbers: list[torch.Tensor]) -> None:
        super().__init__()
        self.numbers = numbers

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.numbers.pop(0) if func in RANDOM else func(*args, **(kwargs or {}))


class Doubled(TorchFunctionMode):
    """What the task computes in a precision of its own is computed in float64 too: this is the truth, not a call."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ROUNDING and args and isinstance(args[0], torch.Tensor):
            return args[0].double()
        doubled = tuple(torch.float64 if _is_float(arg) else arg for arg in args)
        named = {name: torch.float64 if _is_float(value) else value for name, value in (kwargs or {}).items()}
        return func(*doubled, **named)


def reference_of(tracings: Sequence[Traced]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The task as a function of tensors; their shapes tell which of its sizes is meant."""
    by_shapes = {shapes_of(found): found for found in tracings}

    def reference(*tensors: torch.Tensor, **parameters: Any) -> tuple[torch.Tensor, ...]:
        found = by_shapes.get(tuple([tuple(tensor.shape) for tensor in tensors]))
        if found is None:
            raise TaskError("these sizes are not the task's")
        if tensors and tensors[0].dtype == torch.float64:
            return _in_float64(found, tensors, parameters)
        return _called(found, tensors, parameters)

    return reference


def _called(found: Traced, tensors: tuple[torch.Tensor, ...], parameters: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    names = (*found.inputs, *found.weights)
    given = {
        name: tensor.clone() if name in found.changed else tensor for name, tensor in zip(names, tensors, strict=True)
    }
    float_dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    weights = {name: given[name] for name in found.weights}
    for name, fact in found.idle.items():  # no output depends on what is in there
        dtype = float_dtype if fact.dtype.is_floating_point else fact.dtype
        weights[name] = torch.zeros(fact.shape, dtype=dtype, device=tensors[0].device)
    arguments = tuple(given[name] if name in given else parameters.get(name, value) for name, value in found.arguments)
    with Given([given[name] for name in found.drawn_inside]) if found.drawn_inside else contextlib.nullcontext():
        if not weights:
            return flat(found.skeleton(*arguments))
        return flat(functional_call(found.skeleton, weights, arguments))


def _in_float64(
    found: Traced, tensors: tuple[torch.Tensor, ...], parameters: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Doubled():
            return _called(found, tensors, parameters)
    finally:
        torch.set_default_dtype(before)


def _is_float(value: object) -> bool:
    return isinstance(value, torch.dtype) and value in FLOATS
