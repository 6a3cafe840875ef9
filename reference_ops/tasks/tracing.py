"""What a task's tensors are like, found without computing anything or allocating a byte of them."""

import contextlib
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_iter

from reference_ops.tasks.source import TaskError
from reference_ops.tasks.watching import Drawn, Recurrent, Watch, numbers, skeleton


@dataclass(frozen=True)
class Case:
    """One size of a task: how its module is made, and its inputs."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    sizes: tuple[tuple[str, int], ...] = ()  # what the task calls them


@dataclass(frozen=True)
class Fact:
    """A tensor's shape and dtype, and how the task draws it: "rand", "randn", or in a way of its own."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    drawn: str = ""


@dataclass(frozen=True)
class Traced:
    """A task at one size."""

    case: Case
    skeleton: nn.Module
    arguments: tuple[tuple[str, Any], ...]  # of the forward, in order; None in place of a tensor
    inputs: dict[str, Fact]  # arguments, and the random numbers that the forward would draw
    constants: dict[str, Any]
    weights: dict[str, Fact]  # parameters and buffers that outputs depend on
    idle: dict[str, Fact]  # and those that none depends on: what is in them does not matter
    changed: frozenset[str]  # inputs and weights that the forward writes to
    outputs: tuple[Fact, ...]
    products: tuple[tuple[int, int, bool], ...]  # of matrices: operations, elements of the result, by convolution
    structured: bool  # it cuts triangles or diagonals out
    steps: int
    left_out: tuple[str, ...]
    drawn_inside: tuple[str, ...]

    @property
    def elements(self) -> int:
        """Of inputs and outputs."""
        return sum(math.prod(fact.shape) for fact in (*self.inputs.values(), *self.weights.values(), *self.outputs))

    @property
    def operations(self) -> int:
        return sum(count for count, _, _ in self.products)


def traced(case: Case) -> Traced:
    """Raises TaskError for what is no op, and whatever the task itself raises where sizes do not go together."""
    with _quiet():
        return _traced(case)


def _traced(case: Case) -> Traced:
    model, left_out = skeleton(case.model)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
        drawn = Drawn()
        with drawn:
            given = case.inputs()
        if isinstance(given, tuple | list):
            given = [_faked(value, fake, drawn) for value in given]
        arguments, inputs, constants = _arguments(model, given, drawn)
        tensors = {name: arguments[name] for name in inputs}
        own = {name: value.new_empty(value.shape, device="cpu") for name, value in numbers(model).items()}
        watch = Watch()
        for name, value in (*tensors.items(), *own.items()):
            watch.follow(name, value)
        with watch, Recurrent(watch) as forward:
            result = functional_call(model, own, tuple(arguments.values()))
    outputs = flat(result)
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


def shapes_of(found: Traced) -> tuple[tuple[int, ...], ...]:
    """Of its inputs and weights: this is how one size of a task is told from the others."""
    return tuple(fact.shape for fact in (*found.inputs.values(), *found.weights.values()))


def flat(result: object) -> tuple[torch.Tensor, ...]:
    """The tensors that a forward returns, in order; what is None is left out."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, tuple | list):
        return tuple(tensor for part in result if part is not None for tensor in flat(part))
    raise TaskError(f"it returns {type(result).__name__}, and an op's outputs are tensors")


def _faked(value: Any, fake: FakeTensorMode, drawn: Drawn) -> Any:
    """A tensor that was there before counts as any other that is drawn plainly."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    made = fake.from_tensor(value.detach())
    drawn.plain.append(("randn", made))
    return made


def _arguments(model: nn.Module, given: object, drawn: Drawn) -> tuple[dict[str, Any], dict[str, Fact], dict[str, Any]]:
    """The forward's arguments by name; of these the tensors, and the others."""
    if not isinstance(given, tuple | list):
        raise TaskError(f"get_inputs returns {type(given).__name__}, not a list")
    expected = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in expected if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names += [f"x{index}" for index in range(len(names), len(given))]  # *args
    taken = numbers(model).keys()  # an attribute may be called like an argument
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
    """Distributions would look at their parameters, and here there are none; PyTorch logs every shape that fails."""
    kind, log = torch.distributions.Distribution, logging.getLogger("torch._subclasses.fake_tensor")
    before, level = kind._validate_args, log.level  # noqa: SLF001 - there is no public way to ask
    kind.set_default_validate_args(False)
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        kind.set_default_validate_args(before)
        log.setLevel(level)
