"""Plans: a call that was made before is known by its key and amounts to an allocation and launches.

A call's key holds all that a decision depends on: shapes, strides and dtypes of tensors, other arguments by value, and
the modes of PyTorch and the package. What a kernel reads must lie in a caller's tensor, and what it writes must be the
result; where copies or further operations are needed, there is no plan.
"""

from collections.abc import Callable, Mapping, Sequence
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
from evolve.export.template.learning import Run, learned
from reference_ops.op import Number

MOST_PLANS = 4096
NOTHING = type(None)
PLAIN = frozenset((int, float, bool, str, NOTHING, torch.dtype))
UNPLANNED = object()  # the call must be lowered and decided
Key = tuple[Any, ...]
Plan = Callable[[Sequence[Tensor]], Any]  # what a call with a known key does; returns UNPLANNED if it cannot

_tracing = torch._C._get_tracing_state  # noqa: SLF001 - the public way takes a microsecond
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - there is no public way to ask
_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 - there is no public way to ask
_autocast = torch._C._is_any_autocast_enabled  # noqa: SLF001 - the public way takes a type of device
_gradients, _deterministic = torch.is_grad_enabled, torch.are_deterministic_algorithms_enabled
_tf32 = torch._C._get_cudnn_allow_tf32  # noqa: SLF001 - the public way takes half a microsecond


def key_of(arguments: tuple[Any, ...], named: Mapping[str, Any], tensors: list[Tensor]) -> Key | None:
    """Return the key of a call, and add its tensors to a list. Return None if it cannot be known by a key."""
    if (
        _autocast()
        or _dispatch_modes()
        or _tracing() is not None
        or _transform() is not None
        or forward_ad._current_level >= 0  # noqa: SLF001 - there is no public way to ask
    ):
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


def planned(ready: Launchable, made: Made, tensors: Sequence[Tensor], gradients: Gradients) -> Plan:
    """Return the plan of a call that was made: to allocate what the caller gets, and to enqueue the kernel."""
    read, found = _sources(made, tensors), _written(made, tensors)
    if read is None or found is None:
        return lambda _: UNPLANNED
    outputs, order = found
    run = ready.planned(read, outputs, made.parameters)
    if not (_gradients() and any(x.requires_grad for x in tensors)):
        return _gathered(run, made.result, order)
    pairs = zip(gradients.op.outputs, made.outputs, strict=True)
    shapes = [folded(tuple(out.shape), len(spec.dims)) for spec, out in pairs]
    run_with_gradients = learned(run, gradients, made.parameters, read, outputs, shapes, tensors)
    return _gathered(run_with_gradients, made.result, order) if run_with_gradients else lambda _: UNPLANNED


def _gathered(run: Run, result: Any, order: Sequence[int]) -> Plan:
    """Return a plan that makes a result like this one of what is written."""
    if isinstance(result, Tensor):
        (only,) = order

        def one(tensors: Sequence[Tensor]) -> Any:
            outputs = run(tensors)
            return UNPLANNED if outputs is None else outputs[only]

        return one
    kind: Any = type(result)

    def several(tensors: Sequence[Tensor]) -> Any:
        outputs = run(tensors)
        return UNPLANNED if outputs is None else kind([outputs[index] for index in order])

    return several


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


def _written(made: Made, tensors: Sequence[Tensor]) -> tuple[tuple[Written, ...], list[int]] | None:
    """Return how a call's outputs are allocated, and which of them are its result. None if that is more than views."""
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
    allocated = tuple(Written(tuple(x.shape), x.stride(), x.dtype, _twin(x, tensors)) for x in views)
    return allocated, order


def _has_holes(x: Tensor) -> bool:
    """Return whether a tensor's elements are not one behind the other in memory, in any order of dims."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return True
            expected *= size
    return False


def _twin(x: Tensor, tensors: Sequence[Tensor]) -> int | None:
    """Return which of a call's tensors has the same layout: allocating its twin takes half as long."""
    alike = (
        at
        for at, one in enumerate(tensors)
        if one.shape == x.shape and one.stride() == x.stride() and one.dtype == x.dtype and one.device == x.device
    )
    return next(alike, None)
