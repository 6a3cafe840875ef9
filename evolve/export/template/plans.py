"""Plans: a call that was made before is known by its key and amounts to an allocation and launches.

A call's key holds all that a decision depends on: shapes, strides and dtypes of tensors, other arguments by value, and
the modes of PyTorch and the package. What a kernel reads must lie in a caller's tensor, and what it writes must be the
result; where copies or further operations are needed, there is no plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from evolve.export.template import options
from evolve.export.template.folding import folded
from evolve.export.template.gradients import Gradients
from evolve.export.template.launching import Launchable, Source, Written
from evolve.export.template.learning import learned
from evolve.export.template.unrolled import PLAIN, Run
from reference_ops.op import Number

MOST_PLANS = 4096
Key = tuple[Any, ...]

_tracing = torch._C._get_tracing_state  # noqa: SLF001 - the public way takes a microsecond
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - there is no public way to ask
_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 - there is no public way to ask
_is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 - there is no public way to ask
_autocast = torch._C._is_any_autocast_enabled  # noqa: SLF001 - the public way takes a type of device
_gradients, _deterministic = torch.is_grad_enabled, torch.are_deterministic_algorithms_enabled
_tf32 = torch._C._get_cudnn_allow_tf32  # noqa: SLF001 - the public way takes half a microsecond


def modes_are_plain() -> bool:
    """Return whether no mode of PyTorch is on in which a call is always decided anew."""
    return not (
        _autocast()
        or _dispatch_modes()
        or _tracing() is not None
        or _transform() is not None
        or forward_ad._current_level >= 0  # noqa: SLF001 - there is no public way to ask
    )


def key_of(arguments: tuple[Any, ...], named: Mapping[str, Any], tensors: list[Tensor]) -> Key | None:
    """Return the key of a call, and add its tensors to a list. Return None if it cannot be known by a key."""
    if not modes_are_plain():
        return None
    facts: list[Any] = [
        id(options.current()),  # each combination exists once, and for good
        _gradients(),
        _deterministic(),
        _tf32(),
    ]
    try:
        if not _add(arguments, facts, tensors):
            return None
        if named:
            facts.append(tuple(named))
            if not _add(tuple(named.values()), facts, tensors):
                return None
    except RuntimeError:  # a tensor without strides
        return None
    return tuple(facts)


def _add(values: Sequence[Any], facts: list[Any], tensors: list[Tensor]) -> bool:
    for x in values:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            if _is_wrapper(x):
                return False
            tensors.append(x)
            facts.append((x.shape, x.stride(), x.dtype, x.device, x.requires_grad, x.is_neg()))
        elif kind in PLAIN:
            facts.append(kind)  # 1, 1.0 and True are equal
            facts.append(x or repr(x))  # and so are 0.0 and -0.0
        elif isinstance(x, tuple | list):
            facts.append((kind, len(x)))
            if not _add(x, facts, tensors):
                return False
        else:
            return False
    return True


@dataclass(frozen=True)
class Made:
    """A call that ran a kernel: what the op's launch got and wrote, and what the caller got."""

    reads: Sequence[Tensor]
    outputs: Sequence[Tensor]
    result: Any
    parameters: Mapping[str, Number]


def planned(ready: Launchable, made: Made, tensors: Sequence[Tensor], gradients: Gradients) -> Run | None:
    """Return what does the same as a call that was made: to allocate what the caller gets, and to enqueue the kernel.

    Return None if there is no plan.
    """
    learns = _gradients() and any(x.requires_grad for x in tensors)
    read, found = _sources(made, tensors), _written(made, all_wanted=learns)
    if read is None or found is None:
        return None
    outputs, order = found
    run: Run | None = ready.planned(read, outputs, made.parameters)
    if run and learns:
        pairs = zip(gradients.op.outputs, made.outputs, strict=True)
        shapes = [folded(tuple(out.shape), len(spec.dims)) for spec, out in pairs]
        run = learned(run, gradients, made.parameters, read, outputs, shapes, tensors)
    wanted = [at for at, out in enumerate(outputs) if out.is_wanted]
    return run and _gathered(run, made.result, [wanted.index(at) for at in order], len(wanted))


def _gathered(run: Run, result: Any, order: Sequence[int], outputs: int) -> Run:
    """Return a plan that makes a result like this one of what is written."""
    kind: Any = type(result)
    is_tensor = isinstance(result, Tensor)
    if (is_tensor and outputs == 1) or (kind is tuple and outputs > 1 and list(order) == list(range(outputs))):
        return run

    def gathered(*tensors: Tensor) -> Any:
        written = run(*tensors)
        if written is None:
            return None
        if outputs == 1:
            return kind((written,))
        return written[order[0]] if is_tensor else kind([written[at] for at in order])

    return gathered


def _sources(made: Made, tensors: Sequence[Tensor]) -> tuple[Source, ...] | None:
    """Return where in a call's tensors a kernel's inputs lie. None if that is not clear, or one was copied."""
    storages = [x.untyped_storage().data_ptr() for x in tensors]
    if len(set(storages)) < len(storages):
        return None
    found = []
    for x in made.reads:
        at = x.untyped_storage().data_ptr()
        if at not in storages:
            return None
        index = storages.index(at)
        found.append(Source(index, x.data_ptr() - tensors[index].data_ptr(), tuple(x.shape)))
    return tuple(found)


def _written(made: Made, *, all_wanted: bool) -> tuple[tuple[Written, ...], list[int]] | None:
    """Return how a call's outputs are allocated, and which of them are its result. None if that is more than views.

    Without `all_wanted`, only the result is wanted.
    """
    results = [made.result] if isinstance(made.result, Tensor) else made.result
    if not isinstance(results, tuple | list) or not all(isinstance(x, Tensor) for x in results):
        return None
    starts = [out.data_ptr() for out in made.outputs]
    views: list[Tensor] = list(made.outputs)
    order: list[int] = []
    for x in results:
        if x.data_ptr() not in starts:
            return None
        index = starts.index(x.data_ptr())
        if x.dtype != made.outputs[index].dtype or x.numel() != made.outputs[index].numel() or index in order:
            return None
        order.append(index)
        views[index] = x
    if any(_has_holes(x) for x in views):
        return None
    wanted = [all_wanted or at in order for at in range(len(views))]
    allocated = [Written(tuple(x.shape), x.stride(), x.dtype, keep) for x, keep in zip(views, wanted, strict=True)]
    return tuple(allocated), order


def _has_holes(x: Tensor) -> bool:
    """Return whether a tensor's elements are not one behind the other in memory, in any order of dims."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return True
            expected *= size
    return False
