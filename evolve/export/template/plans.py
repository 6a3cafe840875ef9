"""Plans of repeated calls: a call that was made before is known by its key, and needs only an allocation and launches.

A call's key holds everything on which a decision depends: shapes, strides and dtypes of tensors, other arguments by
value, and the modes of PyTorch and the package. A kernel must read the caller's tensors or copies of them, and write
the result itself; if further operations are needed, there is no plan.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from evolve.export.template import options
from evolve.export.template.unrolled import PLAIN, Run, Shape, Source, View, Written, autocast_to
from reference_ops.op import Number

MOST_PLANS = 4096
Key = tuple[Any, ...]

_tracing = torch._C._get_tracing_state  # noqa: SLF001 - the public way takes a microsecond
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - there is no public way to ask
_transform = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 - there is no public way to ask
_is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 - there is no public way to ask
_is_batch = torch._C._functorch.is_legacy_batchedtensor  # noqa: SLF001 - there is no public way to ask
_autocast = torch._C._is_any_autocast_enabled  # noqa: SLF001 - the public way takes a type of device
_gradients, _deterministic = torch.is_grad_enabled, torch.are_deterministic_algorithms_enabled
_tf32 = torch._C._get_cudnn_allow_tf32  # noqa: SLF001 - the public way takes half a microsecond


def modes_are_plain() -> bool:
    """Return whether no mode of PyTorch is on that requires a new decision for each call."""
    return not (
        _dispatch_modes() or _tracing() is not None or _transform() is not None or forward_ad._current_level >= 0  # noqa: SLF001 - there is no public way to ask
    )


def key_of(arguments: tuple[Any, ...], named: Mapping[str, Any], tensors: list[Tensor]) -> Key | None:
    """Return the key of a call, and add its tensors to a list. Return None if no key can identify it."""
    if not modes_are_plain():
        return None
    facts: list[Any] = [
        id(options.current()),  # the id suffices: each combination exists once, and is never deleted
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
        if _autocast():
            facts.append(autocast_to(tensors[0].device.type if tensors else ""))
    except RuntimeError:  # a tensor without strides
        return None
    return tuple(facts)


def _add(values: Sequence[Any], facts: list[Any], tensors: list[Tensor]) -> bool:
    for x in values:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            if _is_wrapper(x) or _is_batch(x):
                return False
            tensors.append(x)
            facts.append((x.shape, x.stride(), x.dtype, x.device, x.requires_grad, x.is_neg(), x.is_inference()))
        elif kind in PLAIN:
            facts.append(kind)  # include the type, because 1, 1.0 and True are equal
            facts.append(x or repr(x))  # include the text of zeros, because 0.0 and -0.0 are equal
        elif isinstance(x, tuple | list):
            facts.append((kind, len(x)))
            if not _add(x, facts, tensors):
                return False
        else:
            return False
    return True


def same(x: Tensor) -> Tensor:
    return x


def saves() -> Any:
    """Return the hooks for tensors that are saved for a backward, as in a checkpoint; None if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - there is no public way to ask


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors of arguments in the order of a call's key."""
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from tensors_in(x)


def with_replaced(run: Run, at: int, make: Callable[[Tensor], Tensor], *tensors: Tensor) -> Any:
    """Run a plan in which one of the call's tensors is replaced by a tensor made from it."""
    return run(*tensors[:at], make(tensors[at]), *tensors[at + 1 :])


def with_casts(run: Run, casts: Sequence[torch.dtype | None], *tensors: Tensor) -> Any:
    """Run a plan on a call's tensors, some of which get another dtype from autocast."""
    return run(*[x if to is None else x.to(to) for x, to in zip(tensors, casts, strict=True)])


def with_records(run: Run, statistics: Sequence[int], *tensors: Tensor) -> Any:
    """Run a plan, copy its outputs other than the first to these tensors of the call, and return the first."""
    found = run(*tensors)
    if found is None:
        return None
    record([tensors[at] for at in statistics], found[1:])
    return found[0]


def record(statistics: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Write running statistics as PyTorch does, which does not count this as a change of the tensors.

    Otherwise the backward of an earlier call would fail if PyTorch made that call and kept the statistics.
    """
    if torch.compiler.is_compiling():
        with torch.no_grad():
            for statistic, value in zip(statistics, new, strict=True):
                statistic.copy_(value)
        return
    of_inference = [statistic.is_inference() for statistic in statistics]
    if all(is_one is torch.is_inference_mode_enabled() for is_one in of_inference):  # entering the mode takes time
        torch._foreach_copy_([statistic.data for statistic in statistics], list(new))
        return
    for statistic, value, is_one in zip(statistics, new, of_inference, strict=True):
        with torch.inference_mode(is_one):
            statistic.data.copy_(value)


def overrides(x: Any) -> bool:
    """Return whether an argument overrides PyTorch's functions, as a subclass or a variable that fx traces does."""
    kind = type(x)
    return kind is not Tensor and kind is not Parameter and hasattr(kind, "__torch_function__")


class Launchable(Protocol):
    """A kernel compiled for one workload on one device."""

    def launch(self, inputs: tuple[Tensor, ...], parameters: Mapping[str, Number]) -> tuple[Tensor, ...]:
        """Enqueue the kernel with these values of its free parameters on the current stream."""

    def planned(self, sources: Sequence[Source], outputs: Sequence[Written], parameters: Mapping[str, Number]) -> Run:
        """Return a function that enqueues the kernel for a call's tensors.

        It returns the requested output, or a tuple of several.
        """


class Reading(NamedTuple):
    """An input of a kernel: a view of a tensor of the call, and the shape in which the kernel reads its elements."""

    view: Tensor
    shape: Shape


@dataclass(frozen=True)
class Made:
    """A call that ran a kernel: the inputs and outputs of the op's launch, and the caller's result."""

    reads: Sequence[Reading]
    outputs: Sequence[Tensor]
    result: Any
    parameters: Mapping[str, Number]


@dataclass(frozen=True)
class Plan:
    """Plan of a repeated call: makes the necessary copies, allocates outputs, and enqueues the kernel."""

    run: Run  # returns the requested outputs
    sources: tuple[Source, ...]
    written: tuple[Written, ...]
    order: tuple[int, ...]  # which of the requested outputs are the result

    def gathered(self, run: Run, result: Any) -> Run:
        """Return a function that makes a result like this one from the outputs of this run."""
        kind: Any = type(result)
        outputs, order = sum(out.is_wanted for out in self.written), self.order
        is_tensor = isinstance(result, Tensor)
        if (is_tensor and outputs == 1) or (kind is tuple and outputs > 1 and order == tuple(range(outputs))):
            return run

        def gathered(*tensors: Tensor) -> Any:
            written = run(*tensors)
            if outputs == 1:
                return kind((written,))
            return written[order[0]] if is_tensor else kind([written[at] for at in order])

        return gathered


def planned(ready: Launchable, made: Made, tensors: Sequence[Tensor], *, all_wanted: bool = False) -> Plan | None:
    """Return the plan of a call of these tensors. Without `all_wanted`, only the result is returned.

    Return None if there is no plan.
    """
    read, found = sources_of(made.reads, tensors), _written(made, all_wanted=all_wanted)
    if read is None or found is None:
        return None
    outputs, order = found
    wanted = [at for at, out in enumerate(outputs) if out.is_wanted]
    run = ready.planned(read, outputs, made.parameters)
    return Plan(run, read, outputs, tuple([wanted.index(at) for at in order]))


def sources_of(reads: Sequence[Reading], tensors: Sequence[Tensor]) -> tuple[Source, ...] | None:
    """Return the places of a kernel's inputs in a call's tensors, or None if they are not clear."""
    storages = [x.untyped_storage().data_ptr() for x in tensors]
    found = []
    for view, shape in reads:
        storage = view.untyped_storage().data_ptr()
        places = [at for at, one in enumerate(storages) if one == storage]
        if len(places) > 1:  # parts of one tensor: the view must be exactly one of the parts
            whole = [at for at in places if tensors[at].numel() == view.numel()]
            places = [at for at in whole if tensors[at].data_ptr() == view.data_ptr()]
        if len(places) != 1 or view.is_neg() or view.dtype != tensors[places[0]].dtype:
            return None
        x = tensors[places[0]]
        stride, is_whole = (
            view.stride(),
            (x.shape, x.stride(), x.data_ptr()) == (view.shape, view.stride(), view.data_ptr()),
        )
        copied = None if view.is_contiguous() else View(tuple(view.shape), stride, is_whole)
        found.append(Source(places[0], view.data_ptr() - x.data_ptr(), tuple(shape), copied))
    return tuple(found)


def _written(made: Made, *, all_wanted: bool) -> tuple[tuple[Written, ...], list[int]] | None:
    """Return the allocation of a call's outputs, and which of them are its result; None if views do not suffice.

    Without `all_wanted`, only the result is needed.
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
    """Return whether a tensor's elements are not contiguous in memory in any order of dims."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return True
            expected *= size
    return False
