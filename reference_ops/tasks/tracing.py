"""A task at one size: its tensors and cost, traced without computing anything, and its module as a function."""

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from reference_ops.tasks.calling import META, Call, flat, parameters_and_buffers, skeleton
from reference_ops.tasks.light_imports import light_imports
from reference_ops.tasks.source import TaskError
from reference_ops.tasks.watching import Drawn, Forward, Watch, WithoutValues

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ROUNDING = {"float", "half", "bfloat16"}


@dataclass(frozen=True)
class Case:
    """A task at one size: functions that make its module and its inputs."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    sizes: tuple[tuple[str, int], ...] = ()  # returns inputs by the names that the task gives them


@dataclass(frozen=True)
class Fact:
    """A tensor's shape and dtype, and how the task draws it: "rand", "randn", or "" for any other way."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    drawn: str = ""


@dataclass(frozen=True)
class Traced:
    """The result of tracing a task at one size."""

    case: Case
    skeleton: nn.Module
    arguments: tuple[tuple[str, Any], ...]  # arguments of the forward, in order; None in place of a tensor
    inputs: dict[str, Fact]  # arguments, and the random numbers that the forward draws
    constants: dict[str, Any]
    weights: dict[str, Fact]  # parameters and buffers on which outputs depend
    idle: dict[str, Fact]  # parameters and buffers without influence on any output
    changed: frozenset[str]  # inputs and weights to which the forward writes
    outputs: tuple[Fact, ...]
    # per matrix product: number of operations, number of elements, whether it is a convolution
    products: tuple[tuple[int, int, bool], ...]
    structured: bool  # whether the forward selects triangles or diagonals
    steps: int
    left_out: tuple[str, ...]  # description of the random layers that were switched off
    drawn_inside: tuple[str, ...]  # names of the inputs that the forward draws itself

    @property
    def elements(self) -> int:
        """The number of elements of inputs, weights and outputs."""
        return sum(math.prod(fact.shape) for fact in (*self.inputs.values(), *self.weights.values(), *self.outputs))

    @property
    def operations(self) -> int:
        return sum(count for count, _, _ in self.products)

    @cached_property
    def call(self) -> Call:
        """The task as a function of its inputs and weights."""
        return Call(
            self.skeleton,
            self.arguments,
            tuple(self.inputs),
            tuple(self.weights),
            tuple((name, fact.shape, str(fact.dtype).removeprefix("torch.")) for name, fact in self.idle.items()),
            self.changed,
            self.drawn_inside,
        )


def traced(case: Case) -> Traced:
    """Trace a task. Raises TaskError if it cannot be an op, and any error of the task itself if sizes do not match."""
    with _quiet(), light_imports():  # also where an evaluation traces a task at other sizes
        return _traced(case)


def _traced(case: Case) -> Traced:
    model, left_out = skeleton(case.model)
    with WithoutValues(), torch.no_grad():
        drawn = Drawn()
        with drawn:
            given = case.inputs()
        if isinstance(given, tuple | list):
            given = [_without_values(value, drawn) for value in given]
        arguments, inputs, constants = _arguments(model, given, drawn)
        tensors = {name: arguments[name] for name in inputs}
        # New tensors, because copying the module's own would trace each copy, which takes a third of the time.
        own = {
            name: torch.empty(tuple(value.shape), dtype=value.dtype, device=META)
            for name, value in parameters_and_buffers(model).items()
        }
        watch = Watch()
        for name, value in (*tensors.items(), *own.items()):
            watch.follow(name, value)
        with watch, Forward(watch) as forward:
            result = functional_call(model, own, tuple(arguments.values()))
    try:
        outputs = flat(result)
    except TypeError as error:
        raise TaskError(str(error)) from error
    used = frozenset().union(*(watch.sources(output) for output in outputs))
    facts = {name: Fact(tuple(value.shape), value.dtype) for name, value in own.items()}
    drawn_inside = {
        name: Fact(tuple(value.shape), value.dtype, name.split("_")[0]) for name, value in forward.given.items()
    }
    return Traced(
        case,
        model,
        tuple((name, None if name in inputs else value) for name, value in arguments.items()),
        {**inputs, **drawn_inside},
        constants,
        {name: fact for name, fact in facts.items() if name in used},
        {name: fact for name, fact in facts.items() if name not in used},
        frozenset(watch.changed),
        tuple(Fact(tuple(output.shape), output.dtype) for output in outputs),
        tuple(watch.products),
        watch.structured,
        watch.steps,
        tuple(left_out),
        tuple(drawn_inside),
    )


Shapes = tuple[tuple[int, ...], ...]
Find = Callable[[Shapes], Traced | None]  # returns the task at the size with these shapes of inputs and weights


def shapes_of(found: Traced) -> Shapes:
    """Return the shapes of inputs and weights, which identify one size of a task."""
    return tuple(fact.shape for fact in (*found.inputs.values(), *found.weights.values()))


def _without_values(value: Any, drawn: Drawn) -> Any:
    """Return a tensor that the task has made, without its values. Real numbers count as drawn by `torch.randn`."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return value
    made = value.detach().to(META)
    if made.is_floating_point():
        drawn.plain.append(("randn", made))
    return made


def _arguments(model: nn.Module, given: object, drawn: Drawn) -> tuple[dict[str, Any], dict[str, Fact], dict[str, Any]]:
    """Return the forward's arguments by name, and separately those that are tensors and those that are constants."""
    if not isinstance(given, tuple | list):
        raise TaskError(f"get_inputs returns {type(given).__name__}, not a list")
    expected = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in expected if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names += [f"x{index}" for index in range(len(names), len(given))]  # *args
    taken = parameters_and_buffers(model).keys()  # an attribute may have the name of an argument
    names = [f"{name}_given" if name in taken else name for name in names]
    arguments = dict(zip(names, given, strict=False))
    inputs, constants = {}, {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            inputs[name] = Fact(tuple(value.shape), value.dtype, drawn.how(value))
        elif any(isinstance(part, torch.Tensor) for part in tree_iter(value)):
            raise TaskError(f"its input `{name}` is a {type(value).__name__} of tensors")
        else:
            constants[name] = value
    return arguments, inputs, constants


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Switch off warnings, and checks of the parameters of distributions, which have no values here."""
    kind = torch.distributions.Distribution
    before = kind._validate_args  # noqa: SLF001 - there is no public way to ask
    kind.set_default_validate_args(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        kind.set_default_validate_args(before)


class InFloat64(TorchFunctionMode):
    """A mode that computes in float64 even where the task converts to a lower precision, to get exact results."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ROUNDING and args and isinstance(args[0], torch.Tensor):
            return args[0].double()
        doubled = tuple(torch.float64 if _is_float(arg) else arg for arg in args)
        named = {name: torch.float64 if _is_float(value) else value for name, value in (kwargs or {}).items()}
        return func(*doubled, **named)


def reference_of(find: Find) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the task as a function of tensors, whose shapes select one of the task's sizes."""

    def reference(*tensors: torch.Tensor, **parameters: Any) -> tuple[torch.Tensor, ...]:
        found = find(tuple([tuple(tensor.shape) for tensor in tensors]))
        if found is None:
            raise TaskError("the task has no size with these shapes")
        if tensors and tensors[0].dtype == torch.float64:
            return _in_float64(found, tensors, parameters)
        return found.call(tensors, parameters)

    return reference


def _in_float64(
    found: Traced, tensors: tuple[torch.Tensor, ...], parameters: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            return found.call(tensors, parameters)
    finally:
        torch.set_default_dtype(before)


def _is_float(value: object) -> bool:
    return isinstance(value, torch.dtype) and value in FLOATS
