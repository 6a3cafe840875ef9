"""Op: a computation as a PyTorch reference with named tensors, workloads and a cost model.

Importing this module does not import torch: listings and command lines read ops without it.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Number = int | float
Tensors = dict[str, "torch.Tensor"]
# a function that also accepts sizes and parameters
Arrange = Callable[[Tensors, "torch.Generator", Mapping[str, Any]], None]

# Names that no tensor can have: the plan or CUDA declares the name itself, or the type `NAME_t`.
RESERVED = frozenset({
    "size", "int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float", "double",
    "half", "sms", "min", "max", "char16", "char32", "wchar", "clock", "intptr", "uintptr", "ptrdiff",
})  # fmt: skip


@dataclass(frozen=True)
class DType:
    """The properties of a dtype that sizes and costs need; `precision.TORCH_DTYPES` has torch's own dtypes."""

    itemsize: int
    is_floating_point: bool


DTYPES = {
    "float64": DType(8, True), "float32": DType(4, True), "float16": DType(2, True), "bfloat16": DType(2, True),
    "float8_e4m3fn": DType(1, True), "float8_e5m2": DType(1, True),
    "int64": DType(8, False), "int32": DType(4, False), "int16": DType(2, False), "int8": DType(1, False),
    "uint8": DType(1, False), "bool": DType(1, False),
}  # fmt: skip

# Distributions of inputs by name; `reference_ops.distributions` defines them.
NORMAL, LARGE, HEAVY_TAIL = "normal", "large", "heavy_tail"
SHIFTED, SHIFTED_COLUMNS = "shifted", "shifted_columns"
MOVED, EXACT = "moved", "integers"
MIXED = "mixed"  # not a distribution: rows are drawn from all distributions in turn
COMMON = ("uniform", LARGE, HEAVY_TAIL, SHIFTED, "constant", "tiny")  # distributions for any op on real numbers
OF_PRODUCTS = (*COMMON, "faint")  # distributions for sums of products
OF_BATCHES = (*COMMON, SHIFTED_COLUMNS)  # distributions for statistics over the first dim
DISTRIBUTIONS = (NORMAL, *OF_BATCHES, "faint", MOVED, EXACT, "masked", "ties", "vast", "far_below")
# Extremes. Each is drawn for whole tensors, so that no other rows hide it, and every op is tested with each of them.
ZERO, MINUTE, SUBNORMAL, SATURATING = "zero", "minute", "subnormal", "saturating"
OVERFLOWING = "overflowing"  # finite numbers beyond float16's range, or whose sums and products leave it
NAN, INFINITE, MINUS_INF = "NaN", "infinite", "minus_inf_rows"
SAVED_NAN = "saved_NaN"  # NaN in inputs that a backward op gets from the forward; other extremes are in its gradients
# infinities in the same inputs, of elementwise ops; where PyTorch returns NaN, any result is right
SAVED_INFINITE = "saved_infinite"
CLASHING = "clashing"  # NaN beside an infinity in one row, or several infinities, each of which occurs alone elsewhere
NOT_FINITE = (NAN, SAVED_NAN, INFINITE, SAVED_INFINITE, MINUS_INF, CLASHING)
EXTREMES = (ZERO, MINUTE, SUBNORMAL, SATURATING, OVERFLOWING, *NOT_FINITE)
# Arrangements of every op with inputs that are not drawn by rows.
OF_WEIGHTS = ("NaN_in_weights", "infinite_weights", "minute_weights", "zero_weights")
NAN_IN_WEIGHTS, INFINITE_WEIGHTS, MINUTE_WEIGHTS, ZERO_WEIGHTS = OF_WEIGHTS
# Arrangements of every op with two inputs that share elements: infinities in both, or one of them beside NaN or zero.
EQUAL_INFINITIES, OPPOSITE_INFINITIES, SPECIAL_PAIRS = "equal_infinities", "opposite_infinities", "special_pairs"
MEETING = (EQUAL_INFINITIES, OPPOSITE_INFINITIES, SPECIAL_PAIRS)
# An arrangement for each input of an op that exempts NaN, unless it exempts this, too: NaN that a result depends on.
COUNTED_NAN = "NaN_that_counts"
RUNS_OF_MINUS_INF = "begins_or_ends_with_minus_inf"  # end of the name of an arrangement of an input
ENDS_WITH_NAN = "ends_with_NaN"  # the same for an arrangement in which the very last element is NaN
LAST_AHEAD = "last_ahead_in_"  # begins the name of an arrangement: all but the last number of a row are similar
EXTREME_ROWS = "extreme_rows"  # rows of every extreme in turn, as in "mixed"

GRADIENT = "grad_"  # prefix of the names of the gradients that a backward op gets
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor with symbolic dims. An empty dtype means the workload's."""

    name: str
    dims: tuple[str, ...]
    dtype: str = ""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([sizes[dim] if dim in sizes else int(dim) for dim in self.dims])


@dataclass(frozen=True)
class Workload:
    """A dtype, sizes and parameters with which an op is measured."""

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
    """Return workloads for all points and dtypes, as in `workloads("float32 float16", dict(rows=8), eps=1e-6)`."""
    return tuple(_workload(dtype, point, parameters) for point, dtype in itertools.product(points, dtypes.split()))


def rotated(dtypes: str, *points: Mapping[str, int], **parameters: Number) -> tuple[Workload, ...]:
    """Return a workload for each point, with the dtypes in turn, which needs fewer compilations than all pairs."""
    names = itertools.cycle(dtypes.split())
    return tuple(_workload(dtype, point, parameters) for point, dtype in zip(points, names, strict=False))


def _workload(dtype: str, point: Mapping[str, int], parameters: Mapping[str, Number]) -> Workload:
    return Workload(dtype, tuple(point.items()), tuple(parameters.items()))


@dataclass(frozen=True)
class Tolerance:
    """The largest error that a kernel may have, relative to PyTorch's; both are measured against float64.

    The root mean square error may be `factor` times PyTorch's. The error of an element may be `4 * factor` times the
    sum of its own rounding and of PyTorch's error beyond that rounding. `exact` allows no difference. `sums` is the dim
    over which each result sums: the longer a sum in float32, the more its order matters. `in_turn` is a dim over which
    a single thread may sum, so that all results may depend on that one sum. With `running`, each result continues the
    previous sum, so that a single thread may add up in that order. `given` names inputs that follow from other inputs,
    such as their mean. Such inputs count as exact when rounding errors of inputs are estimated. With `relative`,
    outputs are positive and users take their logarithms, so the relative error of each output is also limited. With
    `recurrent`, the first dim of an output counts the steps of a sequence, each of which passes its errors to the next.
    The product of the dims `independent` is the number of sums of a call, if a sum affects more than a row of results.
    `products` is a dim over which tensor cores may sum products of 16 bits.
    """

    factor: float = 2.0
    exact: bool = False
    sums: str = ""
    in_turn: str = ""
    running: bool = False
    given: tuple[str, ...] = ()
    relative: bool = False
    recurrent: bool = False
    independent: tuple[str, ...] = ()
    products: str = ""


@dataclass(frozen=True)
class Op:
    """A computation for which kernels are searched. CONTRIBUTING.md explains how to write an op."""

    name: str
    reference: Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    gpu: tuple[Workload, ...]
    emulated: tuple[Workload, ...]
    flops: Callable[[Mapping[str, int]], int]  # operations of ordinary arithmetic
    matrix_flops: Callable[[Mapping[str, int]], int] | None = None  # operations that tensor cores can do
    tf32: bool = False  # whether PyTorch's default for this op is TF32 for float32 matrices
    # number of elements read, if not all
    touched: Mapping[str, Callable[[Mapping[str, Any]], int]] = field(default_factory=dict)
    awkward: tuple[Workload, ...] = ()  # workloads that are checked but never timed
    derived: Mapping[str, Callable[[Mapping[str, int]], int]] = field(default_factory=dict)
    baseline: Callable[..., Any] | None = None  # the function that a user would call, if that is not the reference
    baseline_free: tuple[str, ...] = ()  # outputs in which the baseline may differ from the reference
    values: tuple[str, ...] = COMMON  # distributions of the inputs besides the normal one; see distributions.py
    by_rows: bool = True  # whether each index of the first dim is computed independently
    draw: Callable[..., None] | None = None  # overwrites the drawn inputs in place; may accept sizes and parameters
    # Extreme arrangements of masks, indices and similar inputs, by name; each overwrites normal inputs after `draw`.
    arranged: Mapping[str, Arrange] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)  # extremes that the op leaves undefined, with the reasons
    nan_spreads: bool = False  # whether NaN reaches every result of its row, even x - x
    valid: Callable[[Mapping[str, Any]], bool] | None = None  # condition on dims and parameters, if some are invalid
    only_listed: bool = False  # whether only the shapes of the workloads are valid
    tolerance: Tolerance = Tolerance()
    backward: tuple[str, ...] = ()  # the ops that compute its gradients
    note: str = ""
    # Returns a module that defines the op without its file, for ops that are made from a task's file.
    standalone: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise ValueError(f"`{self.name}` cannot be the name of an op; use a C identifier such as my_op")
        names = [tensor.name for tensor in (*self.inputs, *self.outputs)]
        for name in names:
            if not NAME.match(name) or name in RESERVED or names.count(name) > 1:
                raise ValueError(f"op {self.name}: `{name}` cannot be the name of a tensor; use an unused C identifier")
        for name in set(self.values) - (others := {*DISTRIBUTIONS} - {NORMAL}):
            listed = ", ".join(sorted(others))
            raise ValueError(f"op {self.name}: `{name}` is not a distribution of inputs; there are {listed}")
        for name in set(self.baseline_free) - {tensor.name for tensor in self.outputs}:
            raise ValueError(f"op {self.name}: `baseline_free` names `{name}`, which is not an output")
        for name in set(self.exempt) - {*EXTREMES, *OF_WEIGHTS, COUNTED_NAN}:
            listed = ", ".join((*EXTREMES, *OF_WEIGHTS, COUNTED_NAN))
            raise ValueError(f"op {self.name}: `exempt` names `{name}`; there are {listed}")
        for name in set(self.arranged) & {*DISTRIBUTIONS, *EXTREMES, MIXED, EXTREME_ROWS, *OF_WEIGHTS, *MEETING}:
            raise ValueError(f"op {self.name}: `arranged` names `{name}`, which is a distribution of inputs")
        inputs = {tensor.name for tensor in self.inputs}
        for said, named in (("touched", self.touched), ("tolerance.given", self.tolerance.given)):
            for name in set(named) - inputs:
                raise ValueError(f"op {self.name}: `{said}` names `{name}`, which is not an input")
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
        """All workloads that the op's file lists."""
        return (*self.gpu, *self.emulated, *self.awkward)

    def has_unlisted_number(self, workload: Workload) -> bool:
        """Return whether a floating-point parameter of a workload has a value that the op's file does not list."""
        listed = {parameter for place in self.listed for parameter in place.parameters}
        return any(isinstance(pair[1], float) and pair not in listed for pair in workload.parameters)

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

    @property
    def extremes(self) -> tuple[str, ...]:
        """The extremes that every evaluation draws; "large" numbers saturate too."""
        alike = len({tensor.dims for tensor in (*self.floating, *self.outputs)}) == 1
        absent = {
            SATURATING: LARGE in self.values,
            SAVED_NAN: not self.saved,
            SAVED_INFINITE: not (self.saved and alike),
        }
        left_out = {*self.exempt, *(name for name, is_absent in absent.items() if is_absent)}
        if left_out & {NAN, INFINITE}:
            left_out.add(CLASHING)
        return tuple(name for name in EXTREMES if name not in left_out)

    @property
    def saved(self) -> tuple[str, ...]:
        """The floating-point inputs that a backward op gets from the forward; none for other ops."""
        is_backward = any(tensor.name.startswith(GRADIENT) for tensor in self.inputs)
        return tuple(one.name for one in self.floating if is_backward and not one.name.startswith(GRADIENT))

    @property
    def floating(self) -> tuple[TensorSpec, ...]:
        """The floating-point inputs."""
        return tuple(one for one in self.inputs if not one.dtype or DTYPES[one.dtype].is_floating_point)

    @property
    def sharing_rows(self) -> tuple[TensorSpec, ...]:
        """The floating-point inputs that share their first dim with the first output that has such inputs."""
        for output in self.outputs:
            if found := tuple(spec for spec in self.floating if spec.dims and spec.dims[:1] == output.dims[:1]):
                return found
        return ()

    @property
    def varied(self) -> tuple[TensorSpec, ...]:
        """The inputs that are drawn from the requested distributions; the others are weights and similar tensors."""
        return self.sharing_rows or self.floating

    @property
    def weights(self) -> tuple[TensorSpec, ...]:
        """The floating-point inputs that are not drawn by rows, such as weights and biases."""
        return tuple(spec for spec in self.floating if spec not in self.varied)

    @property
    def arrangements(self) -> tuple[str, ...]:
        """The names of all arrangements that every evaluation tests."""
        causes = dict(zip(OF_WEIGHTS, (NAN, INFINITE, MINUTE, ZERO), strict=True))
        met = [name for name, cause in causes.items() if not {name, cause} & {*self.exempt}] if self.weights else []
        return (*self.arranged, *met, *self.counted_nan, *(MEETING if self.meeting else ()))

    @property
    def meeting(self) -> tuple[tuple[TensorSpec, TensorSpec], ...]:
        """The pairs of inputs drawn by rows of which one has all dims of the other, so that their elements meet.

        Empty where NaN or infinities are left open.
        """
        if self.saved or {NAN, INFINITE} & {*self.exempt}:
            return ()
        able = [one for one in self.varied if one.dims and DTYPES[one.dtype or self.dtypes[0]].itemsize > 1]
        pairs = itertools.combinations(able, 2)
        return tuple((a, b) for a, b in pairs if {*a.dims} <= {*b.dims} or {*b.dims} <= {*a.dims})

    @property
    def counted_nan(self) -> dict[str, str]:
        """The arrangements with NaN in one input on which a result depends, each with the name of the input."""
        if NAN not in self.exempt or COUNTED_NAN in self.exempt:
            return {}
        return {f"{COUNTED_NAN}_in_{spec.name}": spec.name for spec in self.floating}

    def workloads(self, device_kind: str) -> tuple[Workload, ...]:
        """Return the small workloads for the emulated device, those of the GPU for every other device."""
        return self.emulated if device_kind == "emulated" else self.gpu

    def sizes(self, workload: Workload) -> dict[str, int]:
        """Return the size of every dim at this workload, including derived dims."""
        sizes: dict[str, int] = dict(workload.dims)
        known: dict[str, Any] = {**sizes, **dict(workload.parameters)}
        for name, rule in self.derived.items():
            sizes[name] = known[name] = rule(known)
        return sizes

    def shape(self, tensor: TensorSpec, workload: Workload) -> tuple[int, ...]:
        return tensor.shape(self.sizes(workload))

    def least_bytes(self, workload: Workload) -> int:
        """Return the bytes of reading the necessary part of each input once and writing each output once."""
        return self.least_read(workload) + self.bytes_of(self.outputs, workload)

    def least_read(self, workload: Workload) -> int:
        """Return the bytes of the inputs that must be read."""
        sizes: dict[str, Any] = {**self.sizes(workload), **dict(workload.parameters)}
        whole = tuple(tensor for tensor in self.inputs if tensor.name not in self.touched)
        partly = (tensor for tensor in self.inputs if tensor.name in self.touched)
        parts = (self.touched[one.name](sizes) * DTYPES[one.dtype or workload.dtype].itemsize for one in partly)
        return self.bytes_of(whole, workload) + int(sum(parts))

    def nbytes(self, workload: Workload) -> int:
        """Return the bytes of all tensors of the op."""
        return self.bytes_of((*self.inputs, *self.outputs), workload)

    def bytes_of(self, tensors: tuple[TensorSpec, ...], workload: Workload) -> int:
        sizes = self.sizes(workload)
        return sum([math.prod(one.shape(sizes)) * DTYPES[one.dtype or workload.dtype].itemsize for one in tensors])

    def elements(self, workload: Workload) -> dict[str, int]:
        """Return the number of elements of each tensor."""
        sizes = self.sizes(workload)
        return {one.name: math.prod(one.shape(sizes)) for one in (*self.inputs, *self.outputs)}

    def largest_tensor(self, workload: Workload) -> int:
        """Return the number of elements of the largest tensor."""
        return max(self.elements(workload).values())

    def terms(self, workload: Workload, dim: str) -> int:
        """Return the number of terms of a sum over this dim; 1 without a dim."""
        return self.sizes(workload).get(dim, 1)

    def is_valid(self, workload: Workload) -> bool:
        """Return whether the op is defined at this workload."""
        sizes = self.sizes(workload)
        positive = all(size > 0 for tensor in (*self.inputs, *self.outputs) for size in tensor.shape(sizes))
        return positive and (self.valid is None or bool(self.valid({**sizes, **dict(workload.parameters)})))

    def fits(self, workload: Workload, most_bytes: int) -> bool:
        """Return whether the op is defined at this workload and its tensors take at most this many bytes."""
        return self.is_valid(workload) and self.nbytes(workload) <= most_bytes

    def call(self, inputs: Tensors, workload: Workload) -> "tuple[torch.Tensor, ...]":
        """Return the reference's outputs, in order."""
        return _as_tuple(self.reference(*inputs.values(), **dict(workload.parameters)))

    def call_in_float64(self, inputs: Tensors, workload: Workload) -> "tuple[torch.Tensor, ...]":
        """Return the reference's outputs in float64, with which all outputs are compared."""
        doubled = {name: values.double() if values.is_floating_point() else values for name, values in inputs.items()}
        return self.call(doubled, workload)

    def call_baseline(self, inputs: Tensors, workload: Workload) -> "tuple[torch.Tensor, ...]":
        """Return the outputs of the function that a user would call instead of a kernel."""
        return _as_tuple((self.baseline or self.reference)(*inputs.values(), **dict(workload.parameters)))


def ops_of(module: object) -> tuple[Op, ...]:
    """Return the ops that a module defines as `op` or `ops`."""
    found: Any = getattr(module, "ops", None) or (getattr(module, "op", None),)
    return tuple(found) if isinstance(found, tuple | list) and all(isinstance(op, Op) for op in found) else ()


def _as_tuple(outputs: "torch.Tensor | tuple[torch.Tensor, ...]") -> "tuple[torch.Tensor, ...]":
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
