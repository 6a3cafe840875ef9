"""Assembling of an op from a task that was traced at several sizes."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from reference_ops.inputs import inputs_at
from reference_ops.names import TAKEN
from reference_ops.op import COMMON, NORMAL, Number, Op, TensorSpec, Workload
from reference_ops.precision import TORCH_DTYPES
from reference_ops.tasks.smaller import At, Smaller
from reference_ops.tasks.source import TaskError, identifier, named_dims
from reference_ops.tasks.standalone import TaskOrigin, module_text
from reference_ops.tasks.tracing import Fact, Shapes, Traced, reference_of, shapes_of
from reference_ops.tasks.weights import drawing, without_inert

INERT_SHOWN = 5  # largest number of weights without influence that a note names
MOST_TRIED = 1_000_000_000  # largest number of operations of a call that tries a distribution of inputs
MOST_ERROR = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3, torch.float64: 1e-9}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Sizes:
    """A task traced at the sizes that are timed, emulated, and only checked."""

    gpu: Sequence[Traced]
    emulated: Sequence[Traced] = ()
    awkward: Sequence[Traced] = ()
    varied: Sequence[Traced] = ()  # used only to find out which dims are equal
    at: At | None = None  # traces the task at any other sizes

    @property
    def each(self) -> list[Traced]:
        """All sizes that become workloads, each once."""
        return list({shapes_of(found): found for found in (*self.gpu, *self.emulated, *self.awkward)}.values())


def sized(gpu: Sequence[Traced], small: Smaller, at: At | None = None) -> tuple[Sizes, str]:
    """Leave out weights without influence, and return a sentence that names them. `at` traces the task at any sizes."""
    parts = (gpu, small.emulated, small.awkward, small.varied)
    every, inert = without_inert([*itertools.chain(*parts)])
    rest = iter(every)
    kept = [list(itertools.islice(rest, len(part))) for part in parts]
    named = ", ".join(inert[:INERT_SHOWN]) + (f" and {len(inert) - INERT_SHOWN} more" * (len(inert) > INERT_SHOWN))
    gpu, emulated, awkward, varied = kept
    return Sizes(gpu, emulated, awkward, varied, at), f" No output depends on {named}: left out." if inert else ""


@dataclass(frozen=True)
class _Names:
    """The op's names for a task's tensors, constants and dims."""

    tensors: dict[str, str]  # names of inputs and weights; key: the task's name
    outputs: tuple[str, ...]
    parameters: dict[str, str]  # names of constants; key: the task's name
    dims: dict[str, tuple[str, ...]]  # dims of tensors and outputs; key: name
    points: dict[Shapes, dict[str, int]]  # values of symbolic dims; key: the shapes at that size
    # key: symbolic dim; value: the task's sizes that have the same value everywhere
    settable: dict[str, tuple[str, ...]]


def assembled(name: str, sizes: Sizes, note: str, origin: TaskOrigin) -> Op:
    """Return the op of a task."""
    own, names = sizes.gpu[0], _names(sizes)
    points = _Points(sizes, names)
    found_at = points.at

    def output_elements(known: Mapping[str, Any]) -> int:
        return sum(math.prod(fact.shape) for fact in found.outputs) if (found := found_at(known)) else 0

    def product_operations(known: Mapping[str, Any]) -> int:
        return found.operations if (found := found_at(known)) else 0

    op = Op(
        name=name,
        note=note,
        reference=_with_source(reference_of(points.find), names.parameters, origin),
        inputs=_specs([*names.tensors.values()], [[*_given(found).values()] for found in sizes.gpu], sizes, names),
        outputs=_specs(names.outputs, [found.outputs for found in sizes.gpu], sizes, names),
        gpu=_workloads(sizes.gpu, names),
        emulated=_workloads(sizes.emulated, names),
        awkward=_workloads(sizes.awkward, names),
        flops=output_elements,
        matrix_flops=product_operations if _products(own) else None,
        tf32=any(by_convolution for _, _, by_convolution in own.products),
        values=(),
        by_rows=False,
        draw=drawing(points.find, names.tensors, frozenset(own.inputs)),
        valid=points.is_valid,
        only_listed=not points.traceable,
    )
    free = _with_values(op, sizes, own, drawing(points.find, names.tensors, _drawn_by_task(own)))
    return replace(
        free, standalone=lambda: module_text(op, origin, [found.call for found in sizes.gpu], names.parameters)
    )


class _Points:
    """The task at every size traced so far. If sizes can be set freely, further sizes are traced when they are needed.

    Whether a size is found depends only on the size, so that all processes draw the same shapes.
    """

    def __init__(self, sizes: Sizes, names: _Names) -> None:
        self._names, self._trace = names, sizes.at if _can_be_set(sizes, names) else None
        self._symbolic = tuple(names.points[shapes_of(sizes.gpu[0])])
        self._by_shapes = {shapes_of(found): found for found in sizes.each}
        self._by_point: dict[tuple[int, ...], Traced | None]
        self._by_point = {tuple(names.points[shapes].values()): found for shapes, found in self._by_shapes.items()}
        self._bound = _bound(sizes, names)
        self._given = [names.dims[tensor] for tensor in names.tensors.values()]

    @property
    def traceable(self) -> bool:
        """Whether other sizes than those known in advance can be found."""
        return self._trace is not None

    def at(self, known: Mapping[str, Any]) -> Traced | None:
        """Return the task at these values of the symbolic dims, or None if it has no such size."""
        point = tuple(known[dim] for dim in self._symbolic)
        if point not in self._by_point:
            self._by_point[point] = found = self._traced(dict(zip(self._symbolic, point, strict=True)))
            if found:
                self._by_shapes[shapes_of(found)] = found
        return self._by_point[point]

    def is_valid(self, known: Mapping[str, Any]) -> bool:
        """Return whether the task has this size, with the numbers that depend on it, such as a number of columns."""
        found = self.at(known)
        return found is not None and all(
            known[self._names.parameters[constant]] == found.constants[constant] for constant in self._bound
        )

    def find(self, shapes: Shapes) -> Traced | None:
        """Return the task at the size with these shapes of inputs and weights, or None if it has no such size."""
        if shapes not in self._by_shapes and self._trace:
            pairs = zip(itertools.chain(*self._given), itertools.chain(*shapes), strict=True)
            known = {dim: size for dim, size in pairs if dim in self._symbolic}
            if known.keys() == set(self._symbolic):
                self.at(known)
        return self._by_shapes.get(shapes)

    def _traced(self, point: Mapping[str, int]) -> Traced | None:
        sizes = {size: point[dim] for dim in point for size in self._names.settable[dim]} if self._trace else {}
        found = self._trace(sizes) if self._trace else None
        if found is None:
            return None
        shapes = _by_name(found, self._names.tensors, self._names.outputs)
        expected = {
            tensor: tuple(point[dim] if dim in point else int(dim) for dim in self._names.dims[tensor])
            for tensor in shapes
        }
        return found if shapes == expected else None


def _bound(sizes: Sizes, names: _Names) -> tuple[str, ...]:
    """Return the whole numbers among the task's constants that depend on its sizes."""
    return tuple(
        constant
        for constant, value in sizes.gpu[0].constants.items()
        if constant in names.parameters
        and type(value) is int
        and any(found.constants[constant] != value for found in sizes.each)
    )


def _can_be_set(sizes: Sizes, names: _Names) -> bool:
    """Return whether the task can be traced at any value of its symbolic dims, with random numbers as inputs."""
    own = sizes.gpu[0]
    constants = [found.constants for found in sizes.each]
    free = {name for name, values in _columns([dict(found.case.sizes) for found in sizes.each]).items() if values}
    settable = [size for dim in names.settable.values() for size in dim]
    return (
        bool(names.settable)
        and all(names.settable.values())
        and free <= set(settable)
        and not (own.weights or _drawn_by_task(own))
        and all(one == constants[0] for one in constants)
    )


def _columns(rows: Sequence[Mapping[str, int]]) -> dict[str, tuple[int, ...]]:
    """Return, for each name, its values in all rows; names whose values do not differ are left out."""
    columns = {name: tuple(row[name] for row in rows) for name in rows[0]}
    return {name: values if len(set(values)) > 1 else () for name, values in columns.items()}


def _names(sizes: Sizes) -> _Names:
    own, each = sizes.gpu[0], sizes.each
    taken = set(TAKEN)
    tensors = {tensor: identifier(tensor, taken) for tensor in (*own.inputs, *own.weights)}
    several = len(own.outputs) > 1
    outputs = [identifier(f"out{index}" if several else "out", taken) for index in range(len(own.outputs))]
    parameters = {constant: identifier(constant, taken) for constant, value in own.constants.items() if _plain(value)}
    compared = [*each, *sizes.varied]
    examples = [_by_name(found, tensors, outputs) for found in compared]
    dims, values = named_dims(examples, [dict(found.case.sizes) for found in compared], taken)
    points = {shapes_of(found): value for found, value in zip(each, values, strict=False)}
    columns = _columns([dict(found.case.sizes) for found in compared])
    settable = {
        dim: tuple(size for size, values_of_size in columns.items() if values_of_size == seen)
        for dim, seen in _columns(values).items()
    }
    return _Names(tensors, tuple(outputs), parameters, dims, points, settable)


def _workloads(tracings: Sequence[Traced], names: _Names) -> tuple[Workload, ...]:
    points = (tuple(names.points[shapes_of(found)].items()) for found in tracings)
    constants = (_values(found, names.parameters) for found in tracings)
    dtypes = (NAMES[_dtype(found)] for found in tracings)
    return tuple(dict.fromkeys(Workload(*parts) for parts in zip(dtypes, points, constants, strict=True)))


def _given(found: Traced) -> dict[str, Fact]:
    return {**found.inputs, **found.weights}


def _specs(
    tensors: Sequence[str], facts: Sequence[Sequence[Fact]], sizes: Sizes, names: _Names
) -> tuple[TensorSpec, ...]:
    """Return the declarations of these tensors. Their facts are given for each of the task's own sizes."""
    usual = tuple(_dtype(found) for found in sizes.gpu)
    specs = []
    for tensor, each in zip(tensors, zip(*facts, strict=True), strict=True):
        dtypes = tuple(fact.dtype for fact in each)
        if dtypes != usual and len(set(dtypes)) > 1:
            seen = " and ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in dtypes))
            first = " and ".join(dict.fromkeys(NAMES[dtype] for dtype in usual))
            raise TaskError(
                f"`{tensor}` is {seen} where the first tensor is {first}; give the examples of each dtype in a "
                "separate file"
            )
        specs.append(TensorSpec(tensor, names.dims[tensor], "" if dtypes == usual else _named(dtypes[0], tensor)))
    return tuple(specs)


def _with_values(op: Op, sizes: Sizes, own: Traced, draw: Callable[..., None]) -> Op:
    """Add the distributions of inputs for which PyTorch's results are finite and exact enough for judging.

    They are tried at the smallest size. If that is too costly, or if even normal numbers fail, the task keeps drawing
    all its inputs itself.
    """
    large = [*sizes.awkward, *(found for found in sizes.gpu if found.operations + found.elements < MOST_TRIED // 50)]
    small = sizes.emulated or large
    cheap = min(small, key=lambda found: found.elements, default=None)
    if cheap is None or _drawn_by_task(own) == frozenset(own.inputs) or cheap.operations > MOST_TRIED:
        return op
    free = replace(op, values=COMMON, draw=draw)
    workloads = [one for one in (*op.emulated, *op.awkward, *op.gpu) if _matches(op, one, cheap)]
    if not all(sound(free, one, NORMAL) for one in workloads):
        return op
    return replace(free, values=tuple(name for name in COMMON if all(sound(free, one, name) for one in workloads)))


def _matches(op: Op, workload: Workload, found: Traced) -> bool:
    return tuple(op.shape(spec, workload) for spec in op.inputs) == shapes_of(found)


def sound(op: Op, workload: Workload, values: str) -> bool:
    """Return whether PyTorch's results on such inputs are finite and close to those in float64."""
    try:
        with torch.no_grad():
            inputs = inputs_at(op, workload, 0, "cpu", values)
            theirs, expected = op.call(inputs, workload), op.call_in_float64(inputs, workload)
    except Exception:  # noqa: BLE001 - the task rejects such inputs
        return False
    return all(_close(own, truth) for own, truth in zip(theirs, expected, strict=True))


def _close(own: torch.Tensor, truth: torch.Tensor) -> bool:
    if not own.is_floating_point():
        return True
    if not bool(own.isfinite().all()) or not bool(truth.isfinite().all()):
        return False
    error, size = (own.double() - truth.double()).norm(), truth.double().norm()
    return bool(error <= MOST_ERROR.get(own.dtype, 0.3) * size)


def _drawn_by_task(own: Traced) -> frozenset[str]:
    """Return the inputs that the task must draw itself, because they are not plain random numbers."""
    return frozenset(name for name, fact in own.inputs.items() if not (fact.drawn and fact.dtype.is_floating_point))


def _products(own: Traced) -> bool:
    """Return whether the task is one matrix product that needs all its arithmetic: factors and result are full."""
    if len(own.products) != 1 or own.structured or any(not fact.drawn for fact in own.inputs.values()):
        return False
    _, elements, _ = own.products[0]
    return sum(math.prod(fact.shape) for fact in own.outputs) >= elements


def _dtype(own: Traced) -> torch.dtype:
    """Return the workload's dtype: that of the first floating-point tensor."""
    floats = [fact.dtype for fact in (*own.inputs.values(), *own.weights.values()) if fact.dtype.is_floating_point]
    return floats[0] if floats and floats[0] in NAMES else torch.float32


def _named(dtype: torch.dtype, tensor: str) -> str:
    if dtype not in NAMES:
        raise TaskError(f"`{tensor}` is of dtype {str(dtype).removeprefix('torch.')}, which kernels do not support")
    return NAMES[dtype]


def _by_name(found: Traced, names: Mapping[str, str], outputs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    given = {names[tensor]: fact.shape for tensor, fact in (*found.inputs.items(), *found.weights.items())}
    return {**given, **{name: fact.shape for name, fact in zip(outputs, found.outputs, strict=True)}}


def _plain(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(found: Traced, parameters: Mapping[str, str]) -> tuple[tuple[str, Number], ...]:
    return tuple((name, found.constants[constant]) for constant, name in parameters.items())


def _with_source(
    reference: Callable[..., Any], parameters: Mapping[str, str], origin: TaskOrigin
) -> Callable[..., Any]:
    """Make the reference accept the op's names of parameters, and let `inspect` find the task's source for it."""
    constants = {name: constant for constant, name in parameters.items()}

    def called(*tensors: torch.Tensor, **given: Number) -> Any:
        return reference(*tensors, **{constants[name]: value for name, value in given.items()})

    called.__wrapped__ = origin.forward  # type: ignore[attr-defined]
    called.__module__ = origin.module
    return called
