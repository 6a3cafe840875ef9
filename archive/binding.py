"""Binding of plans to ops: checks a plan against an op's names, and evaluates its expressions for one workload."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from archive import expressions
from archive.expressions import ExpressionError, Scope
from archive.kernel import (
    Bound,
    BoundLaunch,
    BoundMap,
    BoundWorkspace,
    Kernel,
    Pointer,
    Pointers,
    Value,
    parse,
)
from archive.plan import DTYPES, IDENTIFIER, Expression, Launch, Path, PlaceError, Plan, TensorMap, Workspace

MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_WORKSPACE_BYTES = 2**34
MAX_MAP_SIZE, MAX_MAP_STRIDE, MAX_BOX = 2**32, 2**40, 256  # units: elements, bytes, elements
SWIZZLES = (0, 32, 64, 128)  # bytes
PIECE_BYTES = 16  # size in bytes of which strides and the innermost line of a box must be multiples


class IllegalError(ValueError):
    """Raised when a knob setting breaks a `require` or a hardware limit at this point; another setting may not."""


@dataclass(frozen=True)
class Point:
    """The values with which a plan is evaluated: a workload and the limits of a device."""

    dtype: str
    dims: Mapping[str, int]
    parameters: Mapping[str, int | float]
    tensors: Mapping[str, str]  # dtypes by name
    sms: int
    shared_bytes: int


@dataclass(frozen=True)
class Signature:
    """The names of an op that the expressions and arguments of a plan may use."""

    op: str
    tensors: tuple[str, ...]
    dims: tuple[str, ...]
    integers: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


def parse_for(text: str, signature: Signature) -> Kernel:
    """Read a kernel's text and check its plan against its op."""
    kernel = parse(text)
    check(kernel, signature)
    return kernel


def check(kernel: Kernel, signature: Signature) -> None:
    """Raise a PlanError unless the plan is valid for the op."""
    try:
        check_plan(kernel.plan, signature)
    except PlaceError as error:
        raise kernel.fault(error) from error


def check_plan(plan: Plan, signature: Signature) -> None:
    """Raise a PlaceError unless every name and expression is valid for this op at any size."""
    if plan.op != signature.op:
        raise PlaceError(f"this kernel is for the op `{plan.op}`, not `{signature.op}`", ("op",))
    for dtype in plan.dtypes:
        if dtype not in signature.dtypes:
            raise PlaceError(f"`{dtype}` is not one of the op's dtypes ({', '.join(signature.dtypes)})", ("dtypes",))
    itemsizes = dict.fromkeys(signature.tensors, 4)
    scope = Scope(dict.fromkeys((*signature.dims, *signature.integers), 1), itemsizes)
    _checked(("when",), _check_conditions, (plan.when,) if plan.when else (), scope)

    scope = Scope({**scope.integers, **dict.fromkeys(plan.settings, 1), "sms": 1}, itemsizes)
    for name, expression in plan.let:
        _checked(("let", name), expressions.check_integer, expression, scope)
        scope = scope.with_integer(name, 1)
    _check_fresh(plan, {*signature.tensors, *signature.dims, *signature.integers, *signature.floats})
    _checked(("require",), _check_conditions, plan.require, scope)
    for name in plan.specialize:
        if name not in scope.integers or name in plan.settings:
            raise PlaceError(f"`{name}` cannot be specialised: it is not a dim, parameter or let", ("specialize",))
    for workspace in plan.workspace:
        _check_workspace(workspace, signature, scope)
    for tensor_map in plan.tensor_maps:
        _check_tensor_map(tensor_map, {*signature.tensors, *(w.name for w in plan.workspace)}, scope)
    for index, launch in enumerate(plan.launches):
        _check_launch(launch, index, plan, signature, scope)


# Keywords of C++, which cannot be names in the device code.
KEYWORDS = frozenset(
    """
    alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register return short signed sizeof static
    struct switch template this throw true try typedef typename union unsigned using virtual void volatile while xor
    """.split()  # noqa: SIM905 - a list of 70 strings reads worse
)


def _check_fresh(plan: Plan, taken: set[str]) -> None:
    made = [("knobs", name) for name in plan.settings] + [("let", name) for name, _ in plan.let]
    made += [("workspace", workspace.name) for workspace in plan.workspace]
    made += [("tensor_maps", tensor_map.name) for tensor_map in plan.tensor_maps]
    for section, name in made:
        if name in KEYWORDS:
            raise PlaceError(f"`{name}` is a keyword of C++: choose another name", (section, name))
        if name in taken:
            raise PlaceError(f"`{name}` is already a name of the op `{plan.op}`: choose another name", (section, name))


def _check_conditions(conditions: tuple[str, ...], scope: Scope) -> None:
    for condition in conditions:
        expressions.check_boolean(condition, scope)


def _checked(path: Path, check: Callable[..., None], *arguments: object) -> None:
    try:
        check(*arguments)
    except ExpressionError as error:
        raise PlaceError(str(error), path) from error


def _check_workspace(workspace: Workspace, signature: Signature, scope: Scope) -> None:
    path: Path = ("workspace", workspace.name)
    for expression in workspace.shape:
        _checked(path, expressions.check_integer, expression, scope)
    if workspace.dtype not in DTYPES and workspace.dtype not in signature.tensors:
        raise PlaceError(f"`{workspace.dtype}` is neither a dtype ({', '.join(DTYPES)}) nor a tensor of the op", path)


def _check_tensor_map(tensor_map: TensorMap, tensors: set[str], scope: Scope) -> None:
    path: Path = ("tensor_maps", tensor_map.name)
    if tensor_map.tensor not in tensors:
        known = ", ".join(sorted(tensors))
        raise PlaceError(f"`{tensor_map.tensor}` is not a tensor or workspace (known: {known})", path)
    for expression in (*tensor_map.shape, *tensor_map.box):
        _checked(path, expressions.check_integer, expression, scope)
    if len(tensor_map.shape) != len(tensor_map.box):
        message = f"`shape` has {len(tensor_map.shape)} sizes and `box` {len(tensor_map.box)}: give one for each dim"
        raise PlaceError(message, path)
    if tensor_map.swizzle not in SWIZZLES:
        known = ", ".join(map(str, SWIZZLES))
        raise PlaceError(f"a swizzle of {tensor_map.swizzle} bytes is not possible: choose one of {known}", path)


def _check_launch(launch: Launch, index: int, plan: Plan, signature: Signature, scope: Scope) -> None:
    sizes = [("grid", e) for e in launch.grid] + [("block", e) for e in launch.block] + [("shared", launch.shared)]
    for key, expression in sizes:
        _checked(("launch", index, key), expressions.check_integer, expression, scope)
    path: Path = ("launch", index, "args")
    pointers = {*signature.tensors, *(w.name for w in plan.workspace)}
    maps = {tensor_map.name for tensor_map in plan.tensor_maps}
    for argument in launch.args:
        if isinstance(argument, tuple):
            for name in argument:
                if name not in pointers:
                    known = ", ".join(sorted(pointers))
                    raise PlaceError(f"`{name}` is not a tensor or workspace (known: {known})", path)
        elif argument not in pointers and argument not in maps and argument not in signature.floats:
            if isinstance(argument, str) and IDENTIFIER.match(argument) and argument not in scope.integers:
                known = ", ".join(sorted({*pointers, *maps, *scope.integers, *signature.floats}))
                raise PlaceError(f"unknown argument `{argument}` (known: {known})", path)
            _checked(path, expressions.check_integer, argument, scope)


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
    """Return the hardware limit that a tensor map exceeds; empty if there is none."""
    line = bound.box[-1] * DTYPES[bound.dtype]
    if not all(1 <= size <= MAX_MAP_SIZE for size in bound.shape):
        return f"sizes of {list(bound.shape)} are not within 1 and 2^32"
    if not all(1 <= size <= MAX_BOX for size in bound.box):
        return f"sizes of a box are 1 to {MAX_BOX} elements, not {list(bound.box)}"
    if line % PIECE_BYTES:
        return f"a line of the box has {line} bytes; it must be a multiple of {PIECE_BYTES}"
    if bound.swizzle and line != bound.swizzle:
        return f"a line of the box has {line} bytes, but a swizzle of {bound.swizzle} requires {bound.swizzle}"
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
    if excess := _beyond_the_hardware(grid, block, shared, point):
        raise IllegalError(f"launch {index}: {excess}{_described(kernel.plan.settings)}")
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


def _beyond_the_hardware(grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, point: Point) -> str:
    """Return the hardware limit that a launch exceeds; empty if there is none."""
    if min(block) < 1 or math.prod(block) > MAX_THREADS or any(map(int.__gt__, block, MAX_BLOCK)):
        return f"a block of {block} threads exceeds the limit of {MAX_THREADS}"
    if min(grid) < 0 or any(map(int.__gt__, grid, MAX_GRID)):
        return f"a grid of {grid} blocks exceeds the limit of {MAX_GRID}"
    if not 0 <= shared <= point.shared_bytes:
        return f"{shared} bytes of shared memory exceed the limit of {point.shared_bytes}"
    return ""


def _sizes(sizes: tuple[Expression, ...], scope: Scope, path: Path) -> tuple[int, int, int]:
    x, y, z = (*(_value(size, scope, path) for size in sizes), 1, 1)[:3]
    return x, y, z


def _described(settings: dict[str, int]) -> str:
    return f" ({', '.join(f'{name}={value}' for name, value in settings.items())})" if settings else ""
