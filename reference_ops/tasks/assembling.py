"""An op put together from a task at several sizes."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from reference_ops.inputs import inputs_at
from reference_ops.op import COMMON, NORMAL, Number, Op, TensorSpec, Workload
from reference_ops.precision import TORCH_DTYPES
from reference_ops.tasks.calling import reference_of
from reference_ops.tasks.drawing import drawing
from reference_ops.tasks.errors import TaskError
from reference_ops.tasks.inert import without_inert
from reference_ops.tasks.naming import identifier, named_dims
from reference_ops.tasks.smaller import Smaller
from reference_ops.tasks.tracing import Fact, Traced, shapes_of

INERT_SHOWN = 5
MOST_TRIED = 1_000_000_000  # operations, of a call that finds out which inputs a task stands
SOUND = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3, torch.float64: 1e-9}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Sizes:
    """A task as it is timed, as it is emulated, and at sizes that are only checked."""

    gpu: Sequence[Traced]
    emulated: Sequence[Traced] = ()
    awkward: Sequence[Traced] = ()
    varied: Sequence[Traced] = ()  # neither: they tell which dims go together

    @property
    def each(self) -> list[Traced]:
        """All of them, once."""
        return list({shapes_of(found): found for found in (*self.gpu, *self.emulated, *self.awkward)}.values())


def sized(gpu: Sequence[Traced], small: Smaller) -> tuple[Sizes, str]:
    """Without the weights that make no difference, and which these are, in words."""
    parts = (gpu, small.emulated, small.awkward, small.varied)
    every, inert = without_inert([*itertools.chain(*parts)])
    rest = iter(every)
    kept = [list(itertools.islice(rest, len(part))) for part in parts]
    named = ", ".join(inert[:INERT_SHOWN]) + (f" and {len(inert) - INERT_SHOWN} more" * (len(inert) > INERT_SHOWN))
    return Sizes(*kept), f" No output depends on {named}: left out." if inert else ""


def assembled(name: str, sizes: Sizes, note: str, forward: Callable[..., Any], module: str) -> Op:
    """`forward` and `module` are where a reader finds the task's text."""
    own, each = sizes.gpu[0], sizes.each
    taken: set[str] = set()
    names = {tensor: identifier(tensor, taken) for tensor in (*own.inputs, *own.weights)}
    several = len(own.outputs) > 1
    outputs = [identifier(f"out{index}" if several else "out", taken) for index in range(len(own.outputs))]
    parameters = {constant: identifier(constant, taken) for constant, value in own.constants.items() if _plain(value)}
    compared = [*each, *sizes.varied]
    examples = [_by_name(found, names, outputs) for found in compared]
    dims, values = named_dims(examples, [dict(found.case.sizes) for found in compared], taken)
    points = {shapes_of(found): value for found, value in zip(each, values, strict=False)}
    at = {tuple(value.values()): found for found, value in zip(each, values, strict=False)}
    dtype = _dtype(own)

    def found_at(known: Mapping[str, Any]) -> Traced | None:
        return at.get(tuple(known[dim] for dim in values[0]))

    def workloads(tracings: Sequence[Traced]) -> tuple[Workload, ...]:
        points_of = (tuple(points[shapes_of(found)].items()) for found in tracings)
        constants = (_values(found, parameters) for found in tracings)
        both = zip(points_of, constants, strict=True)
        return tuple(dict.fromkeys(Workload(NAMES[dtype], point, held) for point, held in both))

    def specs(named: Iterable[tuple[str, Fact]]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(tensor, dims[tensor], "" if fact.dtype == dtype else _named(fact.dtype, tensor))
            for tensor, fact in named
        )

    def put_out(known: Mapping[str, Any]) -> int:
        return sum(math.prod(fact.shape) for fact in found.outputs) if (found := found_at(known)) else 0

    def multiplied(known: Mapping[str, Any]) -> int:
        return found.operations if (found := found_at(known)) else 0

    op = Op(
        name=name,
        note=note,
        reference=_told(reference_of(each), parameters, forward, module),
        inputs=specs((names[tensor], fact) for tensor, fact in (*own.inputs.items(), *own.weights.items())),
        outputs=specs(zip(outputs, own.outputs, strict=True)),
        gpu=workloads(sizes.gpu),
        emulated=workloads(sizes.emulated),
        awkward=workloads(sizes.awkward),
        flops=put_out,
        matrix_flops=multiplied if _products(own) else None,
        tf32=any(by_convolution for _, _, by_convolution in own.products),
        values=(),
        by_rows=False,
        draw=drawing(each, names, frozenset(own.inputs)),
        valid=lambda known: found_at(known) is not None,
    )
    return _with_values(op, sizes, own, drawing(each, names, _only_theirs(own)))


def _with_values(op: Op, sizes: Sizes, own: Traced, draw: Callable[..., None]) -> Op:
    """With every distribution of inputs under which the task stays what it is: finite, and no matter of rounding.

    Tried where that costs little, or else, and where not even normal numbers will do, the task draws all its inputs.
    """
    large = [*sizes.awkward, *(found for found in sizes.gpu if found.operations + found.elements < MOST_TRIED // 50)]
    small = sizes.emulated or large
    cheap = min(small, key=lambda found: found.elements, default=None)
    if cheap is None or _only_theirs(own) == frozenset(own.inputs) or cheap.operations > MOST_TRIED:
        return op
    free = replace(op, values=COMMON, draw=draw)
    workload = next(w for w in (*op.emulated, *op.awkward, *op.gpu) if _matches(op, w, cheap))
    if not sound(free, workload, NORMAL):
        return op
    return replace(free, values=tuple(name for name in COMMON if sound(free, workload, name)))


def _matches(op: Op, workload: Workload, found: Traced) -> bool:
    return tuple(op.shape(spec, workload) for spec in op.inputs) == shapes_of(found)


def sound(op: Op, workload: Workload, values: str) -> bool:
    """Whether PyTorch's results on such inputs are finite and close to the truth."""
    try:
        with torch.no_grad():
            inputs = inputs_at(op, workload, 0, "cpu", values)
            theirs, expected = op.call(inputs, workload), op.call_in_float64(inputs, workload)
    except Exception:  # noqa: BLE001 - what the task does not stand
        return False
    return all(_close(own, truth) for own, truth in zip(theirs, expected, strict=True))


def _close(own: torch.Tensor, truth: torch.Tensor) -> bool:
    if not own.is_floating_point():
        return True
    if not bool(own.isfinite().all()) or not bool(truth.isfinite().all()):
        return False
    error, size = (own.double() - truth.double()).norm(), truth.double().norm()
    return bool(error <= SOUND.get(own.dtype, 0.3) * size)


def _only_theirs(own: Traced) -> frozenset[str]:
    """The inputs that only the task knows how to draw."""
    return frozenset(name for name, fact in own.inputs.items() if not (fact.drawn and fact.dtype.is_floating_point))


def _products(own: Traced) -> bool:
    """Whether nobody can do with less arithmetic than the task's one product: nothing is cut out of its factors, and
    all of it is put out."""
    if len(own.products) != 1 or own.structured or any(not fact.drawn for fact in own.inputs.values()):
        return False
    _, elements, _ = own.products[0]
    return sum(math.prod(fact.shape) for fact in own.outputs) >= elements


def _dtype(own: Traced) -> torch.dtype:
    """The workload's: that of the first tensor that holds real numbers."""
    floats = [fact.dtype for fact in (*own.inputs.values(), *own.weights.values()) if fact.dtype.is_floating_point]
    return floats[0] if floats and floats[0] in NAMES else torch.float32


def _named(dtype: torch.dtype, tensor: str) -> str:
    if dtype not in NAMES:
        raise TaskError(f"`{tensor}` is of dtype {str(dtype).removeprefix('torch.')}, which kernels do not know")
    return NAMES[dtype]


def _by_name(found: Traced, names: Mapping[str, str], outputs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    given = {names[tensor]: fact.shape for tensor, fact in (*found.inputs.items(), *found.weights.items())}
    return {**given, **{name: fact.shape for name, fact in zip(outputs, found.outputs, strict=True)}}


def _plain(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(found: Traced, parameters: Mapping[str, str]) -> tuple[tuple[str, Number], ...]:
    return tuple((name, found.constants[constant]) for constant, name in parameters.items())


def _told(
    reference: Callable[..., Any], parameters: Mapping[str, str], forward: Callable[..., Any], module: str
) -> Callable[..., Any]:
    """The reference with the op's names for its parameters, and with the task's text as its source."""
    theirs = {name: constant for constant, name in parameters.items()}

    def told(*tensors: torch.Tensor, **given: Number) -> Any:
        return reference(*tensors, **{theirs[name]: value for name, value in given.items()})

    told.__wrapped__ = forward  # type: ignore[attr-defined]
    told.__module__ = module
    return told
