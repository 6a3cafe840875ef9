"""Forms: how a call with PyTorch's signature becomes a call of an op of the package.

A form has a function with PyTorch's own arguments, which returns what an op must compute, or says why no op computes
it. Tensors are given as views: their leading dims beyond those of the op are folded into the op's first dim, and copies
are made only once a kernel is chosen.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_ops.op import Number

CALL_US, BYTES_PER_US = 8.0, 1e6  # of a call that adds or copies, and of a slow GPU's memory
INTEGER = str(int)
CHANNELS_LAST = "the channels lie last in memory, and the kernels of this function do not leave them there"
LOW, FLOAT32, NOTHING = "low", "float32", "nothing"  # what autocast makes of a function's tensors


class Call(NamedTuple):
    """A call of an op: its inputs as views, its parameters, and what makes the result of the op's outputs."""

    op: str
    views: tuple[Tensor, ...]
    parameters: Mapping[str, Number]
    finish: Callable[[tuple[Tensor, ...]], Any]
    after_bytes: int = 0  # of results that `finish` copies or adds to; the kernel must save more than that takes
    changes: bool = False  # whether `finish` changes tensors of the caller, such as running statistics
    can_be_planned: bool = True  # whether gradients of the views are those of the caller's tensors


# Arguments of calls of which another one is composed. It is sent each result, and returns its own.
Parts = Generator[tuple[Any, ...], Any, Any]
Lowered = Call | list[Call] | str  # calls in order of preference, or why there is none


@dataclass(frozen=True)
class Form:
    """A function of the package: the ops that it may call, and PyTorch's function of the same arguments."""

    name: str
    ops: tuple[str, ...]
    lower: Callable[..., Lowered]
    pytorch: Callable[..., Any]
    autocast: str = ""  # LOW, FLOAT32 or NOTHING; empty if unknown: PyTorch runs under autocast
    same: tuple[Callable[..., Any], ...] = ()  # functions of torch that take the same arguments
    result: str = "Tensor"  # type of the result
    own: bool = False  # of an op that PyTorch lacks
    parts: Callable[..., Parts | None] | None = None  # the calls of this function of which a call is composed


class Scalars(NamedTuple):
    """The arguments of a form that are no tensors."""

    names: tuple[str, ...]  # of all its arguments
    flags: frozenset[str]
    others: Mapping[str, str]  # the types of numbers and other things

    @classmethod
    def of(cls, lower: Callable[..., Any]) -> "Scalars":
        kinds = {name: kind for name, kind in getattr(lower, "__annotations__", {}).items() if name != "return"}
        flags = frozenset(name for name, kind in kinds.items() if kind is bool)
        # As text, because a graph that is being traced cannot make text of a type.
        others = {name: str(kind) for name, kind in kinds.items() if kind is not Any and "Tensor" not in str(kind)}
        return cls(tuple(kinds), flags, others)

    def fault(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """Return what PyTorch refuses, or takes although it is no part of what a call is known by; empty if nothing."""
        for name, value in (*zip(self.names, arguments, strict=False), *named.items()):
            if name in self.flags and type(value) is not bool:
                return f"`{name}` is neither True nor False"
            if name in self.others and (fault := _misfit(name, self.others[name], value)):
                return f"`{name}` is {fault}"
        return ""


def _misfit(name: str, taken: str, value: Any) -> str:
    """Return what an argument is that should be of another type; empty if it is of this one, as far as known."""
    if isinstance(value, Tensor):
        return "a tensor"
    if value is None and "None" not in taken:
        return "missing"
    if isinstance(value, str) and "str" not in taken:
        return "text"
    if isinstance(value, bool) and "bool" not in taken:
        return "no number"
    is_whole = taken == INTEGER or (name == "dim" and value is not None and not isinstance(value, list | tuple))
    return "" if not is_whole or isinstance(value, int) or hasattr(value, "__index__") else "no integer"


def first(outputs: tuple[Tensor, ...]) -> Tensor:
    return outputs[0]


def whole(outputs: tuple[Tensor, ...]) -> Any:
    """Return a single output as a tensor, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else outputs


def last(x: Tensor, dim: int) -> Tensor:
    """Return a view in which this dim is the last one."""
    return x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)


def back(out: Tensor, dim: int) -> Tensor:
    """Undo `last`."""
    return out if dim in (-1, out.dim() - 1) else out.movedim(-1, dim)


def copying_us(nbytes: int) -> float:
    """Return the time that copying so many bytes takes, or adding to them."""
    return CALL_US + 2 * nbytes / BYTES_PER_US if nbytes else 0.0


def copied_bytes(x: Tensor) -> int:
    """Return how many bytes are copied before a kernel can read a tensor."""
    return 0 if x.is_contiguous() else x.numel() * x.dtype.itemsize


def contiguous(out: Tensor, dim: int) -> Tensor:
    """Undo `last`, and copy the result if that leaves it in another order of memory than PyTorch's."""
    return back(out, dim).contiguous()


def as_input(out: Tensor, x: Tensor) -> Tensor:
    """Return a result in memory as elementwise functions of PyTorch return it: in the order of the input's dims."""
    return out if out.stride() == x.stride() else torch.empty_like(x, dtype=out.dtype).copy_(out)


def has_channels_last(*tensors: Tensor) -> bool:
    """Return whether the channels of some images lie last in memory. PyTorch's results then lie so, too."""
    return any(x.dim() > 2 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous() for x in tensors)


def as_sizes(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return one number per dim, as PyTorch reads `kernel_size=3`."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * count if len(sizes) == 1 else sizes


def single(value: int | Sequence[int], count: int) -> int | None:
    """Return the number that all dims share; None if they differ."""
    sizes = as_sizes(value, count)
    return sizes[0] if len(sizes) == count and len(set(sizes)) == 1 else None


def permuted(x: Tensor) -> tuple[int, ...] | None:
    """Return the order of dims in which a tensor is contiguous; None if there is none."""
    strides = x.stride()
    order = tuple(sorted(range(x.dim()), key=lambda dim: (-strides[dim], dim)))
    return order if x.permute(order).is_contiguous() else None


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def elementwise(op: str, *tensors: Tensor, **parameters: Number) -> Lowered:
    """Return the call of an op on tensors of one shape, in the order in which they lie in memory."""
    x = tensors[0]
    if any(other.shape != x.shape for other in tensors):
        return "the shapes differ"
    if not x.is_contiguous() and (order := permuted(x)):
        back_again = inverse(order)
        views = tuple(tensor.permute(order) for tensor in tensors)
        return Call(op, views, parameters, lambda outputs: outputs[0].permute(back_again))
    return Call(op, tensors, parameters, first)


def floating(*tensors: Tensor | None) -> bool:
    return all(tensor is not None and tensor.is_floating_point() for tensor in tensors)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return arguments with all tensors of up to 32 bits in another dtype, as autocast makes them."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    if isinstance(value, tuple | list):
        return type(value)(cast(one, dtype) for one in value)
    return value
