"""Assembles an op from a traced task: tensors, workloads, how inputs are drawn, and which inputs do not matter."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from reference_ops.inputs import inputs_at
from reference_ops.op import COMMON, NORMAL, Number, Op, Tensors, TensorSpec, Workload
from reference_ops.precision import TORCH_DTYPES
from reference_ops.tasks.calling import reference_of
from reference_ops.tasks.smaller import Smaller
from reference_ops.tasks.source import TaskError, identifier, named_dims
from reference_ops.tasks.tracing import Fact, Traced, shapes_of
from reference_ops.tasks.watching import Placed, numbers, prepared, quiet_random

NEAR = 0.2  # a weight that begins as a constant is drawn so near it, as it would be after some training
NEAR_ZERO = 0.1


@dataclass(frozen=True)
class Law:
    """How a weight is drawn: as it always is, between two numbers, or normally."""

    always: torch.Tensor | None = None
    least: float = 0.0
    greatest: float = 0.0
    mean: float = 0.0
    std: float = 0.0

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        if self.always is not None:
            tensor.copy_(self.always)
        elif self.std:
            tensor.normal_(self.mean, self.std, generator=generator)
        else:
            tensor.uniform_(self.least, self.greatest, generator=generator)


def drawing(
    tracings: Sequence[Traced], names: Mapping[str, str], own: frozenset[str]
) -> Callable[[Tensors, torch.Generator], None]:
    """Overwrites the weights, and the inputs in `own`, which only the task knows how to draw.

    `names` are the op's names for the task's tensors.
    """
    by_shapes = {shapes_of(found): found for found in tracings}
    laws: dict[tuple[int, str], dict[str, Law]] = {}

    def draw(inputs: Tensors, generator: torch.Generator) -> None:
        found = by_shapes[tuple(tuple(tensor.shape) for tensor in inputs.values())]
        device = str(next(iter(inputs.values())).device)
        if found.weights:
            key = (id(found), device)
            if key not in laws:
                laws[key] = laws_of(found, device)
            for name, law in laws[key].items():
                law.fill(inputs[names[name]], generator)
        if own:
            with torch.no_grad(), Placed(device), quiet_random(device, generator.initial_seed()):
                given = dict(zip((name for name, _ in found.arguments), found.case.inputs(), strict=False))
            for name in own:
                if name in given:
                    inputs[names[name]].copy_(given[name])
                else:
                    _plainly(inputs[names[name]], found.inputs[name].drawn, generator)

    return draw


def _plainly(tensor: torch.Tensor, how: str, generator: torch.Generator) -> None:
    tensor.uniform_(generator=generator) if how == "rand" else tensor.normal_(generator=generator)


def laws_of(found: Traced, device: str) -> dict[str, Law]:
    """From the module made twice: what differs is random, and what does not is drawn near where it begins."""
    first, second = (_made(found, device, seed) for seed in (0, 1))
    parameters = {name for name, _ in first.named_parameters()}
    one, other = numbers(first), numbers(second)
    return {name: _law(one[name], other[name], free=name in parameters) for name in found.weights}


def _made(found: Traced, device: str, seed: int) -> nn.Module:
    with torch.no_grad(), Placed(device), quiet_random(device, seed):
        model = found.case.model()
    prepared(model)
    return model


def _law(one: torch.Tensor, other: torch.Tensor, *, free: bool) -> Law:
    if not one.is_floating_point() or not one.numel():
        return Law(always=one)
    least, greatest = (float(value) for value in one.aminmax())
    if torch.equal(one, other):
        if not free or least < greatest:
            return Law(always=one)
        if not least:
            return Law(std=NEAR_ZERO)
        near = sorted((least * (1 - NEAR), least * (1 + NEAR)))
        return Law(least=near[0], greatest=near[1])
    if least >= 0:
        return Law(least=least, greatest=max(greatest, least + NEAR_ZERO * (least == greatest)))
    values = one.float()
    spread = float(values.std()) if one.numel() > 1 else abs(greatest)
    return Law(mean=float(values.mean()) if one.numel() > 1 else 0.0, std=spread)


MOST_OPERATIONS, MOST_ELEMENTS = 1_000_000_000, 30_000_000  # of a call on the CPU, forward and backward
NOTHING = 1e-9  # of the influence that its layer has, in float64
PROBES = 2


def without_inert(tracings: Sequence[Traced]) -> tuple[list[Traced], tuple[str, ...]]:
    """The same without them, and their names: those that make no difference at the two largest sizes at hand.

    Sizes with all of the task's channels come first: a normalisation over one channel takes out what one over several
    does not. Very small ones will not do either: of one pixel it takes out everything.
    """
    own = tracings[0].weights
    if not any(map(_like_a_bias, own.values())):
        return [*tracings], ()
    cheap = sorted(
        (found for found in tracings if _cheap(found)),
        key=lambda found: (found.weights != own, -found.operations - found.elements),
    )
    judged = [frozenset(_inert(found)) for found in cheap[:PROBES]]
    names = frozenset.intersection(*judged) if judged else frozenset()
    return [_without(found, names) for found in tracings], tuple(name for name in tracings[0].weights if name in names)


def _cheap(found: Traced) -> bool:
    between = sum(elements for _, elements, _ in found.products)
    return found.operations < MOST_OPERATIONS and found.elements + between < MOST_ELEMENTS


def _without(found: Traced, names: frozenset[str]) -> Traced:
    kept = {name: fact for name, fact in found.weights.items() if name not in names}
    gone = {name: fact for name, fact in found.weights.items() if name in names}
    return replace(found, weights=kept, idle={**found.idle, **gone})


def _inert(found: Traced) -> list[str]:
    """By how much outputs change with each, beside the others of the same layer: a gradient tells for all at once."""
    try:
        sizes = _influences(found)
    except Exception:  # noqa: BLE001 - a task without gradients keeps all its weights
        return []
    inert = []
    for name, size in sizes.items():
        beside = [other for known, other in sizes.items() if _layer(known) == _layer(name) and known != name]
        greatest = max(beside or sizes.values())
        if _like_a_bias(found.weights[name]) and size <= NOTHING * greatest and greatest > 0:
            inert.append(name)
    return inert if len(inert) <= len(sizes) // 2 else []


def _like_a_bias(weight: Fact) -> bool:
    return weight.shape[1:] == ()


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _influences(found: Traced) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), Placed("cpu"), quiet_random("cpu"):
        given = dict(zip((name for name, _ in found.arguments), found.case.inputs(), strict=False))
        laws = laws_of(found, "cpu")
        given |= {name: torch.randn(found.inputs[name].shape, dtype=found.inputs[name].dtype)
                  for name in found.drawn_inside}  # fmt: skip
        tensors = [given[name].detach() for name in found.inputs]
        for name, fact in found.weights.items():
            tensors.append(torch.empty(fact.shape, dtype=fact.dtype))
            laws[name].fill(tensors[-1], generator)
    doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    weights = dict(zip(found.weights, doubled[len(found.inputs) :], strict=True))
    wanted = {name: weight.requires_grad_() for name, weight in weights.items() if weight.is_floating_point()}
    with torch.enable_grad():
        outputs = reference_of([found])(*doubled, **found.constants)
        ends = [output for output in outputs if output.requires_grad]
        along = [torch.empty_like(output).normal_(generator=generator) for output in ends]
        slopes = torch.autograd.grad(ends, list(wanted.values()), along, allow_unused=True)
    return {
        name: float(slope.norm() * weight.detach().norm())
        for (name, weight), slope in zip(wanted.items(), slopes, strict=True)
        if slope is not None
    }


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
