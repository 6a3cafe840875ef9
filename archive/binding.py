"""Binding of a kernel's plan: its expressions are evaluated for one workload on one device.

Devices and exported packages launch the result, a `Bound`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from archive import expressions
from archive.expressions import ExpressionError, Scope
from archive.kernel import Kernel
from archive.plan import DTYPES, Expression, Launch, Path, PlaceError, TensorMap

MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_WORKSPACE_BYTES = 2**34
MAX_MAP_SIZE, MAX_MAP_STRIDE, MAX_BOX = 2**32, 2**40, 256  # elements, bytes, elements
PIECE_BYTES = 16  # strides, and the innermost line of a box, consist of such pieces


class IllegalError(ValueError):
    """A knob setting breaks a `require` or a hardware limit at this point; another setting may not."""


@dataclass(frozen=True)
class Point:
    """The values that a plan is evaluated with: a workload and the limits of a device."""

    dtype: str
    dims: Mapping[str, int]
    parameters: Mapping[str, int | float]
    tensors: Mapping[str, str]  # dtype by name
    sms: int
    shared_bytes: int


@dataclass(frozen=True)
class Pointer:
    """An argument that is the address of a tensor or of a workspace."""

    name: str


@dataclass(frozen=True)
class Pointers:
    """An argument that is a `List<T, N>` of addresses, passed by value."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class BoundMap:
    """An argument that is a tensor map, of 128 bytes by value. Sizes are in elements, the innermost last."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, in all dims but the innermost."""
        return tuple(math.prod(self.shape[dim + 1 :]) * DTYPES[self.dtype] for dim in range(len(self.shape) - 1))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


Value = Pointer | Pointers | BoundMap | int | float


@dataclass(frozen=True)
class BoundWorkspace:
    name: str
    dtype: str
    elements: int
    zero: bool

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype]


@dataclass(frozen=True)
class BoundLaunch:
    index: int
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[Value, ...]
    cooperative: bool


@dataclass(frozen=True)
class Bound:
    """Everything a device needs to compile and launch a kernel at one point."""

    kernel: Kernel
    constants: tuple[tuple[str, int], ...]  # compiled in as constexpr
    types: tuple[tuple[str, str], ...]  # dtype by tensor or workspace, as `using x_t = ...`
    workspace: tuple[BoundWorkspace, ...]
    launches: tuple[BoundLaunch, ...]


def accepts(kernel: Kernel, point: Point) -> bool:
    """Return whether the plan's `dtypes` and `when` accept this workload."""
    if kernel.plan.dtypes and point.dtype not in kernel.plan.dtypes:
        return False
    if not kernel.plan.when:
        return True
    scope = Scope(_integers(point), {name: DTYPES[dtype] for name, dtype in point.tensors.items()})
    try:
        return expressions.boolean(kernel.plan.when, scope)
    except ExpressionError as error:
        raise kernel.fault(PlaceError(str(error), ("when",))) from error


def bind(kernel: Kernel, point: Point) -> Bound:
    """Evaluate a plan at a point.

    Raises PlanError if the plan is at fault, and IllegalError if only the knob setting is.
    """
    try:
        return _bind(kernel, point)
    except PlaceError as error:
        raise kernel.fault(error) from error


def _bind(kernel: Kernel, point: Point) -> Bound:
    plan = kernel.plan
    integers = {**_integers(point), **plan.settings, "sms": point.sms}
    scope = Scope(integers, {name: DTYPES[dtype] for name, dtype in point.tensors.items()})
    lets = {}
    for name, expression in plan.let:
        lets[name] = _value(expression, scope, ("let", name))
        scope = scope.with_integer(name, lets[name])
    for condition in plan.require:
        if not _holds(condition, scope):
            raise IllegalError(f"`{condition}` does not hold{_described(plan.settings)}")
    workspace = tuple(
        BoundWorkspace(w.name, point.tensors.get(w.dtype, w.dtype), _elements(w.shape, scope, w.name), w.zero)
        for w in plan.workspace
    )
    if sum(w.nbytes for w in workspace) > MAX_WORKSPACE_BYTES:
        raise IllegalError(f"the workspace takes more than {MAX_WORKSPACE_BYTES >> 30} GiB")
    types = {**point.tensors, **{w.name: w.dtype for w in workspace}}
    maps = {tensor_map.name: _map(tensor_map, types, scope) for tensor_map in plan.tensor_maps}
    launches = (_launch(launch, index, kernel, scope, point, maps) for index, launch in enumerate(plan.launches))
    return Bound(
        kernel=kernel,
        constants=tuple((name, scope.integers[name]) for name in plan.specialize),
        types=tuple(types.items()),
        workspace=workspace,
        launches=tuple(launch for launch in launches if 0 not in launch.grid),
    )


def _integers(point: Point) -> dict[str, int]:
    return {**point.dims, **{name: value for name, value in point.parameters.items() if isinstance(value, int)}}


def _value(expression: Expression, scope: Scope, path: Path) -> int:
    try:
        return expressions.integer(expression, scope)
    except ExpressionError as error:
        raise PlaceError(str(error), path) from error


def _holds(condition: str, scope: Scope) -> bool:
    try:
        return expressions.boolean(condition, scope)
    except ExpressionError as error:
        raise PlaceError(str(error), ("require",)) from error


def _elements(shape: tuple[Expression, ...], scope: Scope, name: str) -> int:
    sizes = [_value(size, scope, ("workspace", name)) for size in shape]
    if min(sizes) < 0:
        raise PlaceError(f"workspace `{name}` has a negative size: {sizes}", ("workspace", name))
    return math.prod(sizes)


def _map(tensor_map: TensorMap, types: Mapping[str, str], scope: Scope) -> BoundMap:
    path: Path = ("tensor_maps", tensor_map.name)
    bound = BoundMap(
        name=tensor_map.name,
        tensor=tensor_map.tensor,
        dtype=types[tensor_map.tensor],
        shape=tuple(_value(size, scope, path) for size in tensor_map.shape),
        box=tuple(_value(size, scope, path) for size in tensor_map.box),
        swizzle=tensor_map.swizzle,
    )
    if reason := _beyond_the_copy_engine(bound):
        raise IllegalError(f"tensor map `{bound.name}`: {reason}")
    return bound


def _beyond_the_copy_engine(bound: BoundMap) -> str:
    """Return which limit of the hardware a tensor map breaks; empty if none."""
    line = bound.box[-1] * DTYPES[bound.dtype]
    if not all(1 <= size <= MAX_MAP_SIZE for size in bound.shape):
        return f"sizes of {list(bound.shape)} are not within 1 and 2^32"
    if not all(1 <= size <= MAX_BOX for size in bound.box):
        return f"sizes of a box are 1 to {MAX_BOX} elements, not {list(bound.box)}"
    if line % PIECE_BYTES:
        return f"a line of the box has {line} bytes; it must be a multiple of {PIECE_BYTES}"
    if bound.swizzle and line != bound.swizzle:
        return f"a line of the box has {line} bytes; with a swizzle of {bound.swizzle} it has as many"
    for stride in bound.strides:
        if stride % PIECE_BYTES or stride >= MAX_MAP_STRIDE:
            return f"the stride of {stride} bytes is not a multiple of {PIECE_BYTES} below 2^40"
    return ""


def _launch(
    launch: Launch, index: int, kernel: Kernel, scope: Scope, point: Point, maps: Mapping[str, BoundMap]
) -> BoundLaunch:
    grid = _sizes(launch.grid, scope, ("launch", index, "grid"))
    block = _sizes(launch.block, scope, ("launch", index, "block"))
    shared = _value(launch.shared, scope, ("launch", index, "shared"))
    setting = _described(kernel.plan.settings)
    if min(block) < 1 or math.prod(block) > MAX_THREADS or any(map(int.__gt__, block, MAX_BLOCK)):
        raise IllegalError(f"launch {index}: a block of {block} threads breaks the limit of {MAX_THREADS}{setting}")
    if min(grid) < 0 or any(map(int.__gt__, grid, MAX_GRID)):
        raise IllegalError(f"launch {index}: a grid of {grid} blocks breaks the limit of {MAX_GRID}{setting}")
    if not 0 <= shared <= point.shared_bytes:
        limit = point.shared_bytes
        raise IllegalError(f"launch {index}: {shared} bytes of shared memory break the limit of {limit}{setting}")
    pointers = {*point.tensors, *(workspace.name for workspace in kernel.plan.workspace)}
    args: list[Value] = []
    for argument in launch.args:
        if isinstance(argument, tuple):
            args.append(Pointers(argument))
        elif argument in pointers:
            args.append(Pointer(str(argument)))
        elif argument in maps:
            args.append(maps[str(argument)])
        elif isinstance(value := point.parameters.get(str(argument)), float):
            args.append(value)
        else:
            args.append(_value(argument, scope, ("launch", index, "args")))
    return BoundLaunch(index, launch.entry, grid, block, shared, tuple(args), launch.cooperative)


def _sizes(sizes: tuple[Expression, ...], scope: Scope, path: Path) -> tuple[int, int, int]:
    x, y, z = (*(_value(size, scope, path) for size in sizes), 1, 1)[:3]
    return x, y, z


def _described(settings: dict[str, int]) -> str:
    return f" ({', '.join(f'{name}={value}' for name, value in settings.items())})" if settings else ""
