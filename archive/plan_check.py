"""Does a plan make sense for an op? Names and expressions, whatever the sizes will be."""

from collections.abc import Callable

from archive import expressions
from archive.expressions import ExpressionError, Scope
from archive.plan import DTYPES, Launch, Path, PlaceError, Plan, Signature, Workspace
from archive.plan_reader import IDENTIFIER


def check(plan: Plan, signature: Signature) -> None:
    """Raise a PlaceError unless every name and expression makes sense for this op, at whatever sizes."""
    if plan.op != signature.op:
        raise PlaceError(f"this kernel is for the op `{plan.op}`, not `{signature.op}`", ("op",))
    for dtype in plan.dtypes:
        if dtype not in signature.dtypes:
            raise PlaceError(f"`{dtype}` is none of the op's dtypes ({', '.join(signature.dtypes)})", ("dtypes",))
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
            raise PlaceError(f"`{name}` cannot be specialised: it is no dim, parameter or let", ("specialize",))
    for workspace in plan.workspace:
        _check_workspace(workspace, signature, scope)
    for index, launch in enumerate(plan.launches):
        _check_launch(launch, index, plan, signature, scope)


# In the device code these names stand where C++ would read them otherwise.
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
    for section, name in made:
        if name in KEYWORDS:
            raise PlaceError(f"`{name}` is a keyword of C++: choose another name", (section, name))
        if name in taken:
            raise PlaceError(f"`{name}` is already a name of the op `{plan.op}`", (section, name))


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


def _check_launch(launch: Launch, index: int, plan: Plan, signature: Signature, scope: Scope) -> None:
    sizes = [("grid", e) for e in launch.grid] + [("block", e) for e in launch.block] + [("shared", launch.shared)]
    for key, expression in sizes:
        _checked(("launch", index, key), expressions.check_integer, expression, scope)
    path: Path = ("launch", index, "args")
    pointers = {*signature.tensors, *(w.name for w in plan.workspace), *(m.name for m in plan.tensor_maps)}
    for argument in launch.args:
        if isinstance(argument, tuple):
            for name in argument:
                if name not in pointers:
                    raise PlaceError(f"`{name}` is no tensor or workspace (known: {', '.join(sorted(pointers))})", path)
        elif argument not in pointers and argument not in signature.floats:
            if isinstance(argument, str) and IDENTIFIER.match(argument) and argument not in scope.integers:
                known = ", ".join(sorted({*pointers, *scope.integers, *signature.floats}))
                raise PlaceError(f"unknown argument `{argument}` (known: {known})", path)
            _checked(path, expressions.check_integer, argument, scope)
