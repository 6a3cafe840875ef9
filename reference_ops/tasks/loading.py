"""Loader of tasks, which detects the format of a file and returns the op that it holds.

A task is traced with sizes that are plain numbers. Its PyTorch functions would import PyTorch's compiler, sympy and
symbolic sizes, which takes seconds. Small stand-ins therefore replace these modules while a task is loaded.
"""

import ast
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from reference_ops.op import Op
from reference_ops.tasks.excerpt import is_mark
from reference_ops.tasks.source import ROBUST_KBENCH_FILES, TaskError, config_of

COMPILER, SYMBOLIC_SIZES = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"


def load_task(path: Path, name: str = "") -> Op | None:
    """Return the op of a foreign task or of a function, or None for a file that defines ops itself.

    A task file is code. Loading it runs it with the rights of the user.
    """
    if path.is_dir():
        path /= ROBUST_KBENCH_FILES[0]
        if not path.is_file():
            raise TaskError(f"the folder contains no {path.name}: it is not a robust-kbench task")
    return _loaded(path, name, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=512)
def _loaded(path: Path, name: str, _changed: int) -> Op | None:
    """Load a file only once per process and modification time, because workers request it with every kernel."""
    load = _loader(path, name)
    if load is None:
        return None
    with light_imports():
        return load()


def _loader(path: Path, name: str) -> Callable[[], Op] | None:
    """Return the function that loads this file. Importing the function imports torch."""
    if path.suffix == ".json":
        from reference_ops.tasks import flashinfer_bench

        return functools.partial(flashinfer_bench.load, path)
    if path.name in ROBUST_KBENCH_FILES and config_of(path).is_file():
        from reference_ops.tasks import robust_kbench

        return functools.partial(robust_kbench.load, path)
    tree = _tree(path)
    if tree and _is_problem(tree):
        from reference_ops.tasks import kernelbench

        return functools.partial(kernelbench.load, path)
    if tree and not _defines_ops(tree) and (name or _is_decorated(tree)):
        from reference_ops.tasks import function

        return functools.partial(function.load, path, *name.partition("@")[::2])
    return None


def _tree(path: Path) -> ast.Module | None:
    """Return the syntax tree, or None if the file is not Python: importing it reports the error."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (SyntaxError, ValueError):
        return None


def _is_problem(tree: ast.Module) -> bool:
    defined = {part.name for part in tree.body if isinstance(part, ast.ClassDef | ast.FunctionDef)}
    return {"Model", "get_inputs"} <= defined


def _defines_ops(tree: ast.Module) -> bool:
    assigned = [part for part in tree.body if isinstance(part, ast.Assign | ast.AnnAssign)]
    return any(
        isinstance(target, ast.Name) and target.id in {"op", "ops"}
        for one in assigned
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
    )


def _is_decorated(tree: ast.Module) -> bool:
    """Return whether a function is decorated with `@evolve.op(...)` or `@op(...)`."""
    functions = (part for part in tree.body if isinstance(part, ast.FunctionDef))
    return any(is_mark(decorator) for function in functions for decorator in function.decorator_list)


class StandIn(ModuleType):
    """Stand-in for a module, which has the given attributes. Access to any other attribute imports the module."""

    def __init__(self, name: str, attributes: Mapping[str, object], *, is_package: bool) -> None:
        super().__init__(name)
        vars(self).update(attributes)
        self._is_package = is_package

    def __getattr__(self, name: str) -> Any:
        # tools read these attributes of every module
        if name.startswith("__") and not (name == "__path__" and self._is_package):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """Replace modules that have not been imported yet by the stand-ins."""
    stand_ins = [
        StandIn(COMPILER, {"disable": _not_disabled}, is_package=True),
        StandIn("sympy", {"Basic": _NoExpression}, is_package=True),
        StandIn(SYMBOLIC_SIZES, OF_NUMBERS, is_package=False),
    ]
    for stand_in in stand_ins:
        sys.modules.setdefault(stand_in.__name__, stand_in)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            if sys.modules.get(stand_in.__name__) is stand_in:
                del sys.modules[stand_in.__name__]


def _not_disabled(function: object, *_args: object, **_options: object) -> object:
    return function


class _NoExpression:
    """Stand-in for the class of symbolic expressions. No size is an instance of it."""


def _number(value: Any) -> Any:
    return value


def _every(*conditions: Any) -> bool:
    return all(conditions)


def _any(*conditions: Any) -> bool:
    return any(conditions)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _no(_value: Any) -> bool:
    return False


def _yes(_value: Any) -> bool:
    return True


# Results of PyTorch's functions on symbolic sizes for numbers and truth values. Versions of PyTorch use different
# functions.
OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "expect_true": bool, "guard_bool": bool, "guard_or_false": bool, "guard_or_true": bool,
    "guard_size_oblivious": bool, "statically_known_true": bool, "definitely_true": bool,
    "guard_int": int, "hint_int": int, "guarding_hint_or_throw": _number, "guard_scalar": _number,
    "sym_eq": _equal, "sym_and": _every, "sym_or": _any,
    "has_hint": _yes, "has_guarding_hint": _yes, "is_concrete_int": _yes, "is_concrete_bool": _yes,
    "is_nested_int": _no, "is_symbolic": _no,
}  # fmt: skip
