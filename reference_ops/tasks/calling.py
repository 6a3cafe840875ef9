"""Calls of a task's module or function with all its tensors as arguments, whose shapes need not be known before.

Exported packages contain a copy of this module, so it imports only PyTorch and `Op`.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from reference_ops.op import Number, Op, Workload, tensors

RANDOM = frozenset([torch.rand, torch.randn, torch.rand_like, torch.randn_like])
NEW = frozenset([
    "rand", "randn", "randint", "randperm", "zeros", "ones", "empty", "full", "eye", "arange", "linspace", "logspace",
    "tensor", "as_tensor", "normal", "tril_indices", "triu_indices", "range", "hann_window", "hamming_window",
])  # fmt: skip


META = "meta"  # PyTorch's device for tensors that have a shape and a dtype, but no values


class OnDevice(TorchFunctionMode):
    """A mode that creates tensors on this device, even where the task names another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in {"cuda", "cpu"} and args and isinstance(args[0], torch.Tensor):
            return args[0].to(self.device)
        if name == "to":
            args = tuple(self.device if _is_device(arg) else arg for arg in args)
        if name in NEW or kwargs.get("device") is not None:
            kwargs["device"] = self.device
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def skeleton(make: Callable[[], nn.Module]) -> tuple[nn.Module, list[str]]:
    """Return the module on the meta device, without values, and a description of its disabled random layers."""
    try:
        with torch.no_grad(), seeded("cpu"), OnDevice(META):
            model = make()
    except Exception:  # noqa: BLE001 - the constructor reads values, which meta tensors lack
        with torch.no_grad(), seeded("cpu"), OnDevice("cpu"):
            model = make()
    switched_off = make_deterministic(model)
    return model.to(META), switched_off


def make_deterministic(model: nn.Module) -> list[str]:
    """Make outputs depend only on inputs, parameters and buffers.

    Return a description of the layers that were switched off. Running statistics are removed, because in training mode
    no output depends on them. Tensors that are plain attributes become buffers, so that the caller can supply them.
    """
    switched_off = []
    for name, part in model.named_modules():
        if isinstance(part, _NormBase) and part.training:
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
        if isinstance(part, _DropoutNd) and part.p > 0 and part.training:
            switched_off.append(f"{name or 'dropout'} (p={part.p:g})")
            part.p = 0.0
        if isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout and part.training:
            switched_off.append(f"{name} (dropout={part.dropout:g})")
            part.dropout = 0.0
        if isinstance(part, nn.RNNBase):  # on a GPU, this would move the weights to other memory
            part.flatten_parameters = lambda: None  # type: ignore[method-assign]
        for key, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                delattr(part, key)
                part.register_buffer(key, value.detach())
    return switched_off


def parameters_and_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their dotted names, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextlib.contextmanager
def seeded(device: str, seed: int = 0) -> Iterator[None]:
    """Seed torch's random numbers, restore their state afterwards, and silence warnings of the task."""
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.startswith("cuda") else []),
    ):
        warnings.simplefilter("ignore")
        # `torch.manual_seed` also seeds devices that are not used, and records a stack trace for each: 0.1 s
        torch.default_generator.manual_seed(seed)
        if device.startswith("cuda"):
            torch.cuda.manual_seed(seed)
        yield


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in {"cuda", "cpu"})


class GivenRandom(TorchFunctionMode):
    """A mode that replaces the random numbers that a forward draws with given tensors, in the same order."""

    def __init__(self, numbers: list[torch.Tensor]) -> None:
        super().__init__()
        self.numbers = numbers

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.numbers.pop(0) if func in RANDOM else func(*args, **(kwargs or {}))


def flat(result: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a forward returns, in order and without None."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, tuple | list):
        return tuple(tensor for part in result if part is not None for tensor in flat(part))
    raise TypeError(f"it returns {type(result).__name__}, but an op's outputs must be tensors")


def module_of(function: Callable[..., Any]) -> nn.Module:
    """Return a module without weights whose forward is this function."""
    made = nn.Module()
    made.forward = function
    return made


def in_order(function: Callable[..., Any], outputs: Sequence[str]) -> Callable[..., Any]:
    """Return the function with its outputs in this order, even if it returns them by name."""

    def ordered(*given: Any) -> Any:
        result = function(*given)
        return [result[name] for name in outputs] if isinstance(result, dict) else result

    return ordered


@dataclass(frozen=True)
class Call:
    """A module, and the parts of a call of it: a function of its inputs and weights, in this order."""

    module: nn.Module
    # arguments of the forward, in order; values of tensors and parameters are replaced
    arguments: tuple[tuple[str, Any], ...]
    inputs: tuple[str, ...]  # arguments that are tensors, and random numbers that the forward draws
    weights: tuple[str, ...] = ()  # dotted names of parameters and buffers
    # weights on which no output depends, with shapes and dtypes
    idle: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    changed: frozenset[str] = frozenset()  # inputs and weights to which the forward writes
    drawn_inside: tuple[str, ...] = ()  # inputs that the forward draws itself

    def __call__(self, tensors: Sequence[torch.Tensor], parameters: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        given = {
            name: tensor.clone() if name in self.changed else tensor
            for name, tensor in zip((*self.inputs, *self.weights), tensors, strict=True)
        }
        arguments = tuple(
            given[name] if name in given else parameters.get(name, fixed) for name, fixed in self.arguments
        )
        weights = {name: given[name] for name in self.weights} | self._without_influence(tensors)
        drawn = [given[name] for name in self.drawn_inside]
        with GivenRandom(drawn) if drawn else contextlib.nullcontext():
            return flat(functional_call(self.module, weights, arguments) if weights else self.module(*arguments))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the weights."""
        own = parameters_and_buffers(self.module)
        return tuple(tuple(own[name].shape) for name in self.weights)

    def _without_influence(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return zeros for the weights on which no output depends."""
        floats = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
        dtypes = {dtype: getattr(torch, dtype) for _, _, dtype in self.idle}
        chosen = {dtype: floats if own.is_floating_point else own for dtype, own in dtypes.items()}
        return {
            name: torch.zeros(shape, dtype=chosen[dtype], device=tensors[0].device) for name, shape, dtype in self.idle
        }


At = tuple[str, dict[str, int], dict[str, Number]]  # a workload as dtype, dims and parameters


def declared(
    calls: Sequence[Call],
    name: str,
    note: str,
    inputs: dict[str, str],
    outputs: dict[str, str],
    workloads: Sequence[At],
) -> Op:
    """Return the op of a task in a package.

    The op accepts inputs of any shapes, and weights with the shapes of one of the modules. Tensors are given by their
    dims, as in "int64[rows k]".
    """
    by_shapes = {call.shapes: call for call in reversed(calls)}
    inputs_before = len(calls[0].inputs)

    def reference(*given: torch.Tensor, **parameters: Number) -> tuple[torch.Tensor, ...]:
        shapes = tuple([tuple(weight.shape) for weight in given[inputs_before:]])
        if shapes not in by_shapes:
            expected = "; or ".join(", ".join(map(str, known)) for known in by_shapes)
            raise ValueError(f"{name} needs weights of the shapes {expected}")
        return by_shapes[shapes](given, parameters)

    return Op(
        name=name,
        note=note,
        reference=reference,
        inputs=tensors(**inputs),
        outputs=tensors(**outputs),
        gpu=tuple(Workload(dtype, (*dims.items(),), (*given.items(),)) for dtype, dims, given in workloads),
        emulated=(),
        flops=lambda _: 0,
    )
