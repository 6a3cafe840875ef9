"""Op: what must be computed, as a PyTorch reference with named tensors, workloads and a cost model."""

import inspect
import itertools
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from reference_ops.values import COMMON, DRAWS, EXACT, LARGE, MIXED, NORMAL, RowGroup, fill

Number = int | float

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
        "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor with symbolic dims; without a dtype of its own it has the workload's."""

    name: str
    dims: tuple[str, ...]
    dtype: str = ""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(dim) if dim.isdigit() else sizes[dim] for dim in self.dims)


@dataclass(frozen=True)
class Workload:
    """One point at which an op is measured."""

    dtype: str
    dims: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, Number], ...] = ()

    @property
    def key(self) -> str:
        """The workload's name in tables and in the archive."""
        return " ".join([*(f"{name}={value}" for name, value in (*self.dims, *self.parameters)), self.dtype])


def tensors(**declared: str) -> tuple[TensorSpec, ...]:
    """Declare tensors by their dims, as in `tensors(values="rows k", indices="int64[rows k]")`."""
    specs = []
    for name, text in declared.items():
        match = re.fullmatch(r"(?:(\w+)\[(.*)\]|([^\[\]]*))", text.strip())
        dtype = (match.group(1) or "") if match else "?"
        if match is None or (dtype and dtype not in DTYPES):
            raise ValueError(f"tensor {name}: cannot read {text!r}; write 'rows cols' or 'int64[rows k]'")
        specs.append(TensorSpec(name, tuple((match.group(2) or match.group(3) or "").split()), dtype))
    return tuple(specs)


def workloads(dtypes: str, *points: Mapping[str, int], **parameters: Number) -> tuple[Workload, ...]:
    """Every point at every dtype, as in `workloads("float32 bfloat16", dict(rows=8, cols=32), eps=1e-6)`."""
    return tuple(_workload(dtype, point, parameters) for point, dtype in itertools.product(points, dtypes.split()))


def rotated(dtypes: str, *points: Mapping[str, int], **parameters: Number) -> tuple[Workload, ...]:
    """Each point at one dtype, the dtypes in turn: as many shapes for a third of the compilations."""
    names = itertools.cycle(dtypes.split())
    return tuple(_workload(dtype, point, parameters) for point, dtype in zip(points, names, strict=False))


def _workload(dtype: str, point: Mapping[str, int], parameters: Mapping[str, Number]) -> Workload:
    return Workload(dtype, tuple(point.items()), tuple(parameters.items()))


Tensors = dict[str, torch.Tensor]

SEEDS = 2**31
LARGE_WEIGHTS = 3  # of so many seeds, one draws weights and the like from large numbers
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
RESERVED = frozenset(
    ["size", "int", "int8", "int16", "int32", "int64", "uint8", "bool", "float", "double", "half", "sms", "min", "max"]
)


@dataclass(frozen=True)
class Tolerance:
    """How much worse than PyTorch's own a kernel's error may be, both measured against float64.

    The root mean square error may be `factor` times PyTorch's, and no element may be off by more than
    `4 * factor` times its own rounding and what of PyTorch's error goes beyond that. `exact` allows no difference.
    `sums` is the dim over which each result sums: the longer a sum in float32, the more its order decides. `in_turn` is
    one that a single thread may sum over, with results that may all depend on that one sum. `given` are inputs that
    follow from the others, as their mean: no arithmetic is as inexact as if such a one alone were rounded once more.
    """

    factor: float = 2.0
    exact: bool = False
    sums: str = ""
    in_turn: str = ""
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class Op:
    """What must be computed. See CONTRIBUTING.md for how to write one."""

    name: str
    reference: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    gpu: tuple[Workload, ...]
    emulated: tuple[Workload, ...]
    flops: Callable[[Mapping[str, int]], int]  # ordinary arithmetic
    matrix_flops: Callable[[Mapping[str, int]], int] | None = None  # and what tensor cores can do: multiply and add
    tf32: bool = False  # PyTorch multiplies float32 matrices in TF32 here, by its default
    touched: Mapping[str, Callable[[Mapping[str, Any]], int]] = field(default_factory=dict)  # elements of an input
    awkward: tuple[Workload, ...] = ()  # checked, never timed
    derived: Mapping[str, Callable[[Mapping[str, int]], int]] = field(default_factory=dict)
    baseline: Callable[..., Any] | None = None  # what a user would call, where that is not the reference
    baseline_free: tuple[str, ...] = ()  # outputs that the baseline leaves partly open
    values: tuple[str, ...] = COMMON  # how the inputs are drawn besides normal, see values.py
    by_rows: bool = True  # each index of the first dim is computed on its own
    draw: Callable[..., None] | None = None  # overwrites the drawn inputs in place; may ask for sizes and parameters
    valid: Callable[[Mapping[str, Any]], bool] | None = None  # of dims and parameters, where not all go together
    tolerance: Tolerance = Tolerance()
    backward: tuple[str, ...] = ()  # the ops that compute its gradients
    note: str = ""

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise ValueError(f"`{self.name}` cannot name an op; use a C identifier such as my_op")
        names = [tensor.name for tensor in (*self.inputs, *self.outputs)]
        for name in names:
            if not NAME.match(name) or name in RESERVED or names.count(name) > 1:
                raise ValueError(f"op {self.name}: `{name}` cannot name a tensor; use a C identifier, once")
        for name in set(self.values) - (DRAWS.keys() - {NORMAL}):
            others = ", ".join(sorted(DRAWS.keys() - {NORMAL}))
            raise ValueError(f"op {self.name}: `{name}` names no distribution of inputs; there are {others}")
        for name in set(self.baseline_free) - {tensor.name for tensor in self.outputs}:
            raise ValueError(f"op {self.name}: `baseline_free` names `{name}`, which is no output")
        inputs = {tensor.name for tensor in self.inputs}
        for said, named in (("touched", self.touched), ("tolerance.given", self.tolerance.given)):
            for name in set(named) - inputs:
                raise ValueError(f"op {self.name}: `{said}` names `{name}`, which is no input")
        self._check_workloads()

    def _check_workloads(self) -> None:
        for workload in self.listed:
            if workload.dtype not in DTYPES:
                raise ValueError(f"op {self.name}: there is no dtype `{workload.dtype}`; there are {', '.join(DTYPES)}")
            sizes = self.sizes(workload)
            for tensor in (*self.inputs, *self.outputs):
                for dim in tensor.dims:
                    if not dim.isdigit() and dim not in sizes:
                        raise ValueError(f"op {self.name}: the workload {workload.key} gives no size for `{dim}`")
            if not self.is_valid(workload):
                raise ValueError(f"op {self.name}: the workload {workload.key} is not `valid`")

    @property
    def listed(self) -> tuple[Workload, ...]:
        """Every workload that its file names."""
        return (*self.gpu, *self.emulated, *self.awkward)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(workload.dtype for workload in (*self.gpu, *self.emulated)))

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.gpu[0].dims) + tuple(self.derived)

    @property
    def parameters(self) -> dict[str, Number]:
        """The op's parameters, with the values of its first workload."""
        return dict(self.gpu[0].parameters)

    def workloads(self, device_kind: str) -> tuple[Workload, ...]:
        return self.gpu if device_kind == "cuda" else self.emulated

    def sizes(self, workload: Workload) -> dict[str, int]:
        """Every dim at this workload, the derived ones included."""
        sizes: dict[str, int] = dict(workload.dims)
        known: dict[str, Any] = {**sizes, **dict(workload.parameters)}
        for name, rule in self.derived.items():
            sizes[name] = known[name] = rule(known)
        return sizes

    def shape(self, tensor: TensorSpec, workload: Workload) -> tuple[int, ...]:
        return tensor.shape(self.sizes(workload))

    def least_bytes(self, workload: Workload) -> int:
        """Each input read once, as far as it must be read at all, and each output written once."""
        return self.least_read(workload) + self.bytes_of(self.outputs, workload)

    def least_read(self, workload: Workload) -> int:
        """Of the inputs."""
        sizes: dict[str, Any] = {**self.sizes(workload), **dict(workload.parameters)}
        whole = tuple(tensor for tensor in self.inputs if tensor.name not in self.touched)
        partly = (tensor for tensor in self.inputs if tensor.name in self.touched)
        parts = (self.touched[one.name](sizes) * DTYPES[one.dtype or workload.dtype].itemsize for one in partly)
        return self.bytes_of(whole, workload) + int(sum(parts))

    def nbytes(self, workload: Workload) -> int:
        """What all of its tensors take."""
        return self.bytes_of((*self.inputs, *self.outputs), workload)

    def bytes_of(self, tensors: tuple[TensorSpec, ...], workload: Workload) -> int:
        sizes = self.sizes(workload)
        return sum(math.prod(one.shape(sizes)) * DTYPES[one.dtype or workload.dtype].itemsize for one in tensors)

    def terms(self, workload: Workload, dim: str) -> int:
        """How many terms a sum over this dim has; over none, one."""
        return self.sizes(workload).get(dim, 1)

    def is_valid(self, workload: Workload) -> bool:
        """Whether the op is defined there."""
        sizes = self.sizes(workload)
        positive = all(size > 0 for tensor in (*self.inputs, *self.outputs) for size in tensor.shape(sizes))
        return positive and (self.valid is None or bool(self.valid({**sizes, **dict(workload.parameters)})))

    def inputs_at(self, workload: Workload, seed: int, device: str, values: str = NORMAL) -> Tensors:
        """Fresh inputs; the same seed gives the same numbers on the same device.

        `values` names their distribution, or is "mixed": row i is drawn from the i-th of several, over and over.
        Inputs that do not share their first dim with an output, as weights, are drawn alike throughout.
        """
        generator = torch.Generator(device).manual_seed(seed)
        names = self._drawn_as(values, seed)
        others = EXACT if EXACT in names else LARGE if values == MIXED and seed % LARGE_WEIGHTS == 0 else NORMAL
        following = self._following()
        drawn = {}
        for spec in self.inputs:
            dtype, shape = DTYPES[spec.dtype or workload.dtype], self.shape(spec, workload)
            if not dtype.is_floating_point:
                drawn[spec.name] = torch.empty(shape, device=device).normal_(generator=generator).to(dtype)
                continue
            drawn[spec.name] = tensor = torch.empty(shape, device=device, dtype=dtype)
            if spec not in following:
                fill(tensor, others, generator)
            elif len(names) == 1:
                fill(tensor, names[0], generator)
            else:
                for row, name in enumerate(names[: len(tensor)]):
                    fill(tensor[row :: len(names)], name, generator)
        if self.draw:
            asks_for_sizes = len(inspect.signature(self.draw).parameters) > 2
            self.draw(drawn, generator, *([{**self.sizes(workload), **dict(workload.parameters)}] * asks_for_sizes))
        return drawn

    def mixture(self, first: int, weights: int, rng: random.Random) -> int:
        """A random seed of a mixture that begins with this one of the distributions, all of which are counted round.

        `weights` are counted round too: of `LARGE_WEIGHTS` mixtures, one draws weights and the like from large numbers.
        """
        rounds = 1 + len(self.values)
        turn = rng.randrange(SEEDS // self._mixtures) * rounds + first % rounds
        return turn * 2 * LARGE_WEIGHTS + rng.randrange(2) * LARGE_WEIGHTS + weights % LARGE_WEIGHTS

    def mixtures_to_meet_all(self, workload: Workload) -> int:
        """How many in turn, each of which begins one distribution later, until rows were drawn from every one."""
        following = self._sharing_rows() if self.by_rows else ()
        rows = self.shape(following[0], workload)[0] if following else 1
        return max(1, 2 + len(self.values) - rows)

    def others_alike(self, seed: int, count: int) -> range:
        """Seeds of other numbers, each from the distribution that it has with this seed."""
        return range(seed + self._mixtures, seed + (count + 1) * self._mixtures, self._mixtures)

    @property
    def _mixtures(self) -> int:
        """How many different ones there are; seeds count them round."""
        return 2 * LARGE_WEIGHTS * (1 + len(self.values))

    def parts(self, spec: TensorSpec, workload: Workload, values: str, seed: int) -> tuple[RowGroup, ...]:
        """How an output is judged whose inputs were drawn so: the rows of each distribution on their own."""
        names = self._drawn_as(values, seed)
        if len(names) == 1:
            return (RowGroup(names[0]),)
        if spec.dims[:1] != self._following()[0].dims[:1]:
            return (RowGroup(MIXED),)
        rows = self.shape(spec, workload)[0]
        return tuple(RowGroup(name, row, len(names)) for row, name in enumerate(names[:rows]))

    def _drawn_as(self, values: str, seed: int) -> tuple[str, ...]:
        """The distributions that rows are drawn from in turn. All come first in their time, for lack of rows."""
        if values != MIXED:
            return (values,)
        names = (NORMAL, *self.values)
        first = seed // (2 * LARGE_WEIGHTS) % len(names)
        names = names[first:] + names[:first]
        # Integers ask for integer weights, which are less telling for the other rows: only for every other seed.
        if seed % 2 and set(self._following()) < set(self._floating()):
            names = tuple(name for name in names if name != EXACT)
        return names if self.by_rows and self._sharing_rows() else names[:1]

    def _following(self) -> tuple[TensorSpec, ...]:
        """The inputs that are drawn from the distributions; the others are weights and the like."""
        return self._sharing_rows() or self._floating()

    def _sharing_rows(self) -> tuple[TensorSpec, ...]:
        """Of several dims that would do, as in a backward with gradients of weights, the first output's counts."""
        for output in self.outputs:
            if found := tuple(spec for spec in self._floating() if spec.dims and spec.dims[:1] == output.dims[:1]):
                return found
        return ()

    def _floating(self) -> tuple[TensorSpec, ...]:
        return tuple(tensor for tensor in self.inputs if not tensor.dtype or DTYPES[tensor.dtype].is_floating_point)

    def call(self, inputs: Tensors, workload: Workload) -> tuple[torch.Tensor, ...]:
        """The reference's outputs, in order."""
        return _as_tuple(self.reference(*inputs.values(), **dict(workload.parameters)))

    def call_in_float64(self, inputs: Tensors, workload: Workload) -> tuple[torch.Tensor, ...]:
        """The reference's outputs at double the digits: what everybody's are judged against."""
        doubled = {name: values.double() if values.is_floating_point() else values for name, values in inputs.items()}
        return self.call(doubled, workload)

    def call_baseline(self, inputs: Tensors, workload: Workload) -> tuple[torch.Tensor, ...]:
        """What a user would run instead of a kernel."""
        return _as_tuple((self.baseline or self.reference)(*inputs.values(), **dict(workload.parameters)))


def ops_of(module: object) -> tuple[Op, ...]:
    """The ops that a file defines: its `op`, or its `ops`."""
    found: Any = getattr(module, "ops", None) or (getattr(module, "op", None),)
    if not isinstance(found, tuple | list) or not all(isinstance(op, Op) for op in found):
        return ()
    return tuple(found)


def _as_tuple(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
